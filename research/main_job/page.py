"""docs/tables/main_job.md: the main job's result by machine and seed, printed from the records."""

from collections.abc import Sequence
from pathlib import Path

from flfw.files.sealed import write_atomic
from research.main_job.records import DOCS, MainJob, MainJobEntry

PAGE = DOCS / "tables" / "main_job.md"

_OPENING = """<!-- Written by python -m research.main_job -->
# The main job, by machine and seed

[The main job over seeds and machines](../main_job.md) explains the cells. Other code or another machine has a table of
its own. If a table has several seeds, its last column has the least and the most over these.
"""


def write(jobs: Sequence[MainJob], page: Path = PAGE) -> None:
    """Write the page."""
    write_atomic(page, text(jobs).encode())


def text(jobs: Sequence[MainJob]) -> str:
    """Return the page: a table for each machine and version of the code."""
    machines: dict[tuple[str, ...], list[MainJob]] = {}
    for job in jobs:
        machines.setdefault(job.key[:-1], []).append(job)
    count = len({key[:3] for key in machines})
    seeds = f"{len(jobs)} run{'s' if len(jobs) != 1 else ''} on {count} machine{'s' if count != 1 else ''}."
    return "\n".join([_OPENING, seeds, *map(_table, machines.values())])


def _table(jobs: Sequence[MainJob]) -> str:
    first = jobs[0]
    days = sorted({job.date for job in jobs})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    engines = ", ".join(f"`--engine {engine}`" for engine in sorted({job.engine for job in jobs}))
    chip = f" ({first.instructions})" if first.instructions else ""
    lines = [f"\n## {first.hardware}{chip}", ""]
    lines += [f"torch {first.torch}, code {first.code}, {engines}, {when}.", ""]
    ranged = len(jobs) > 1
    lines += [_row("attack", "after round", *(f"seed {job.seed}" for job in jobs), *["over the seeds"] * ranged)]
    lines += ["|---" * (2 + len(jobs) + ranged) + "|"]
    for place in dict.fromkeys(_place(entry) for job in jobs for entry in job.entries):
        results = [next((entry for entry in job.entries if _place(entry) == place), None) for job in jobs]
        cells = ["–" if entry is None else _cell(entry) for entry in results]
        counts = [entry.recovered for entry in results if entry is not None]
        lines.append(_row(f"{place[0]}, {place[1]}", str(place[2]), *cells, *[_span(counts, "d")] * ranged))
    accuracies = [job.accuracy for job in jobs]
    shown = [f"{accuracy:.3f}" for accuracy in accuracies]
    lines.append(_row("accuracy after training", "10", *shown, *[_span(accuracies, ".3f")] * ranged))
    return "\n".join([*lines, ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _place(entry: MainJobEntry) -> tuple[str, str, int]:
    return entry.attack, "told of the method" if entry.adaptive else "static", entry.round


def _cell(entry: MainJobEntry) -> str:
    low, high = (f"{100 * end:.0f}" for end in entry.interval)
    decibels = "" if entry.psnr is None else f", {entry.psnr:.1f} dB"
    return f"{entry.recovered} of {entry.images} ({low} to {high} %){decibels}, {entry.verdict}"


def _span(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"
