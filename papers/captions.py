"""LaTeX to include a figure: its caption says what was attacked, how often, by whom, and with which budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flfw.formats.latex import escaped, floating
from flfw.matrix.utility import family
from flfw.papers.run_groups import RunGroup

_INCLUDED = ("pdf", "png")  # LaTeX includes no SVG


def snippet(name: str, groups: Sequence[RunGroup], title: str, forms: Sequence[str], columns: str) -> str:
    """Return the lines that include a figure in a paper.

    Args:
        name: name of the figure's file, without its ending.
        groups: the runs that it shows.
        title: first sentence of the caption.
        forms: formats that were written.
        columns: ``one`` or ``two`` columns of the page.
    """
    usable = [form for form in _INCLUDED if form in forms]
    head = [r"% Needs \usepackage{graphicx}. Written by flfw."]
    head += [] if usable else [f"% LaTeX includes no SVG: draw {name} with --format pdf."]
    width, kind = (r"\columnwidth", "figure") if columns == "one" else (r"\textwidth", "figure*")
    body = f"\\includegraphics[width={width}]{{{name}.{usable[0] if usable else 'pdf'}}}"
    return "\n".join(head) + "\n" + floating(kind, body, caption(groups, title), name)


def caption(groups: Sequence[RunGroup], title: str) -> str:
    """Return the caption: the title, then the seeds, and of audits examples, attacks and budgets."""
    seeds = sorted({seed for group in groups for seed in group.seeds})
    words = [f"{title}. Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."]
    leaks = [leak for group in groups for leak in group.combination.leaks]
    if leaks:
        counts = sorted({leak.images for leak in leaks})
        budgets = dict.fromkeys(_budget(entry) for group in groups for run in group.runs for _, entry in run.entries)
        words.append(f"n = {' or '.join(map(str, counts))} attacked examples of each; {'; '.join(budgets)}.")
        words.append("Bars: 95 % intervals, of shares exact, of means over seeds and messages.")
    pairs = sorted({one["pairs"] for g in groups for run in g.runs for one in run.result.get("membership") or []})
    if pairs:
        words.append(f"Membership: {' or '.join(map(str, pairs))} pairs of a member and another example.")
    if len(seeds) > 1:
        utility, *_ = family(run.utilities for group in groups for run in group.runs)
        words.append(f"{utility.names.capitalize()}: means over the seeds, {utility.ends}.")
    return escaped(" ".join(words))


def _budget(entry: Mapping[str, Any]) -> str:
    iterations, restarts = entry.get("iterations"), entry.get("restarts")
    parts = [f"{iterations} iterations"] if iterations else []
    parts += [f"{restarts} start{'s' * (restarts > 1)}"] if restarts else []
    return f"{entry['attack']} ({', '.join(parts)})" if parts else str(entry["attack"])
