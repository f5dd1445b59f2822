"""The frontier as text, for the terminal, as Markdown and as CSV, and as a figure.

The figure has accuracy against epsilon, a row of plots for each unit and a column for each data set.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from math import isfinite, isinf
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter
from rich.box import SIMPLE_HEAD
from rich.table import Table

from flfw.errors import abridged
from flfw.files.tables import grid, plain
from flfw.papers.frontier.points import FrontierPoint, Mark
from flfw.papers.frontier.trials import CLIENTS, EPSILONS, LINES, SEEDS, TUNING_SEED, WITHOUT
from flfw.papers.preset import Scale
from flfw.report.chart_style import BESIDE, INK, INKS, MARKS, STYLE, blank

_HEAD = ("data", "method", "unit", "against", "epsilon", "accuracy", "with tuning", "tries", "settings chosen")
_MARKS = ("data", "method", "unit", "against", "epsilon: printed, true", "accuracy: printed, measured here", "table")
_CARD = "papers/frontier/__init__.py"

Lines = list[tuple[str, ...]]


def terminal(scale: Scale, points: Sequence[FrontierPoint], marks: Sequence[Mark], width: int) -> str:
    """Format points and marks for a terminal of ``width`` characters, with the notes below."""
    parts: list[str | Table] = [*heading(scale)]
    for head, rows in ((_HEAD, _rows(points)), (_MARKS, _of_papers(marks, points))):
        if rows:
            drawn = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
            for name in head:
                drawn.add_column(name, vertical="top", overflow="fold")
            for row in rows:
                drawn.add_row(*row)
            parts += ["", drawn]
    return plain(width, *parts, "", *notes(points))


def markdown(scale: Scale, points: Sequence[FrontierPoint], marks: Sequence[Mark], figure: str = "") -> str:
    """Format points and marks in GitHub's Markdown, a table for each unit, with the figure if there is one."""
    command = f"python sim.py --table dp.frontier --scale {scale} --engine inproc"
    title = f"<!-- Written by {command} -->\n# The frontier of differential privacy, point by point"
    parts = [title, f"```\n{command}\n```", *heading(scale)[1:]]
    if figure:
        parts.append(f"![accuracy against true epsilon, a line for each method]({figure})")
    for unit in dict.fromkeys(point.unit for point in points):
        rows = _rows([point for point in points if point.unit == unit])
        parts += [f"## Privacy of one {unit}", grid(_HEAD, rows)]
    if marks:
        parts += ["## The papers' own points", grid(_MARKS, _of_papers(marks, points))]
    tried = _tried(points)
    if tried:
        parts += ["## What was tried", grid(("data", "method", "unit", "epsilon", "settings: on validation"), tried)]
    return "\n\n".join([*parts, "## How to read it", "\n".join(f"- {one}" for one in notes(points))]) + "\n"


def csv(points: Sequence[FrontierPoint], marks: Sequence[Mark]) -> str:
    """Format a CSV table with a row for each point, measured or not, and each paper's own point."""
    import pandas as pd

    columns = ["kind", "data", "method", "unit", "against", "target", "epsilon", "with_tuning", "accuracy", "deviation"]
    columns += ["seeds", "tries", "chosen", "printed_epsilon", "measured_here", "status", "reason", "cell", "folders"]
    rows = [
        {
            **{name: getattr(one, name) for name in columns if hasattr(one, name)},
            "kind": "point",
            "seeds": " ".join(map(str, one.seeds)),
            "tries": len(one.tried),
            "folders": " ".join(one.folders),
        }
        for one in points
    ]
    rows += [
        {
            **{name: getattr(one, name) for name in columns if hasattr(one, name)},
            "kind": "paper",
            "printed_epsilon": one.printed,
            "measured_here": one.measured,
            "status": "printed",
            "cell": one.table,
        }
        for one in marks
    ]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False)


def heading(scale: Scale) -> list[str]:
    """Return the lines above the table."""
    epsilons = ", ".join(f"{epsilon:g}" for epsilon in EPSILONS[scale])
    seeds = ", ".join(map(str, SEEDS))
    few = (
        "few rounds, small networks, few settings to choose from: directions, not results"
        if scale == "quick"
        else "the whole grid"
    )
    return [
        "dp.frontier  Accuracy against true epsilon, for every method that claims one",
        "A table of our own, no paper's. Epsilon is what the ledger claims at delta 1e-5 for the named unit, against "
        "the named adversary, with noise that nobody can repeat. Compare figures of one unit only.",
        f"{scale.upper()}: epsilons {epsilons}; {CLIENTS[scale]} clients; {few}. Settings are chosen on validation "
        f"data with seed {TUNING_SEED} and tested with seeds {seeds}; {_CARD} has the rest.",
    ]


def notes(points: Sequence[FrontierPoint]) -> list[str]:
    """Return the lines below the table: the price of tuning, methods without a point, reasons, and notes of runs."""
    counts = sorted({len(point.tried) for point in points if point.tried})
    tries = " or ".join(map(str, counts)) or "no"
    lines = [
        f"The choice among {tries} settings is not counted in epsilon. 'With tuning' counts it: the epsilon of all "
        "runs of the choice and the reported run together, by plain composition, for the clients' training examples. "
        "With a random number of tries less would do (Liu and Talwar, STOC 2019; Papernot and Steinke, ICLR 2022).",
        "Not counted anywhere: what the choice tells of the validation examples, which come from the official test "
        "part; the other points of this table; and the trials that led to these settings.",
        "Epsilon and 'with tuning' are the largest over the seeds; ± is the sample standard deviation over the seeds.",
        *(
            f"{line.method}: clients take turns in {line.turns} groups; the rounds that are shown are those of a group."
            for line in LINES
            if line.turns > 1
        ),
        *(f"No point: {name}, as nothing is claimed: {why}." for name, why in WITHOUT.items()),
    ]
    if any(point.code for point in points):
        codes, machines = (dict.fromkeys(x for p in points for x in getattr(p, name)) for name in ("code", "hardware"))
        days = " and ".join(sorted({point.date for point in points if point.date}))
        lines.append(f"Measured by the code {', '.join(codes)} on {'; '.join(machines)}, {days}.")
    reasons = dict.fromkeys(point.reason for point in points if point.status == "missing")
    lines += [f"missing: {reason}" for reason in reasons]
    for note in dict.fromkeys(note for point in points for note in point.notes):
        paths = [point.cell for point in points if note in point.notes]
        lines.append(f"{note} ({abridged(paths, 2)})")
    return lines


def accuracy(point: FrontierPoint) -> str:
    """Return the accuracy of a point with its deviation, or that it is missing."""
    if point.accuracy is None:
        return "missing"
    spread = f"±{point.deviation:.3f}" if point.deviation is not None else ""
    return f"{point.accuracy:.3f}{spread}"


def _rows(points: Sequence[FrontierPoint]) -> Lines:
    return [
        (
            *(point.data, point.method, point.unit, point.against),
            f"{point.target:g}" if point.epsilon is None else _epsilon(point.epsilon),
            accuracy(point),
            "–" if point.with_tuning is None else _epsilon(point.with_tuning),
            str(len(point.tried)) if point.tried else "–",
            point.chosen or point.reason,
        )
        for point in points
    ]


def _of_papers(marks: Sequence[Mark], points: Sequence[FrontierPoint]) -> Lines:
    """Return a row for each paper's own point on data that are shown."""
    data = {point.data for point in points}
    return [
        (
            *(mark.data, mark.method, mark.unit, mark.against),
            f"{mark.printed:.4g}, {_epsilon(mark.epsilon)}",
            f"{mark.accuracy:.3f}, {'–' if mark.measured is None else f'{mark.measured:.3f}'}",
            mark.table.rpartition("/")[0],
        )
        for mark in marks
        if mark.data in data
    ]


def _tried(points: Sequence[FrontierPoint]) -> Lines:
    def each(point: FrontierPoint) -> Iterator[str]:
        for words, value in point.tried:
            yield f"**{words}: {value:.3f}**" if words == point.chosen else f"{words}: {value:.3f}"

    return [
        (point.data, point.method, point.unit, f"{point.target:g}", "; ".join(each(point)))
        for point in points
        if point.tried
    ]


def _epsilon(value: float) -> str:
    return "inf" if isinf(value) else f"{value:.2f}"


_HOLLOW: Any = {"markerfacecolor": "white", "linestyle": "none", "color": INK}
_PAPER, _TICKS = "s", (0.25, 1, 4, 16)
_SMALL: Any = {"textcoords": "offset points", "fontsize": 7}


@rc_context(STYLE)
def drawn(points: Sequence[FrontierPoint], marks: Sequence[Mark], scale: Scale) -> Figure:
    """Draw the measured points, a line for each method, and the papers' own points.

    A paper's point is a hollow square at the printed epsilon; a dotted line leads to a full one at the true epsilon, if
    that is finite.

    Args:
        points: points, of which at least one was measured.
        marks: the papers' points.
        scale: the scale, for the title.
    """
    known = [point for point in points if point.epsilon is not None and isfinite(point.epsilon)]
    units, data = (list(dict.fromkeys(getattr(one, name) for one in known)) for name in ("unit", "data"))
    figure = blank(2.4 * len(data) + 2.2, 2.6 * len(units) + 0.5, f"Accuracy against true epsilon, {scale} scale")
    plots = figure.subplots(len(units), len(data), sharex=True, sharey="col", squeeze=False)
    for row, unit in zip(plots, units, strict=True):
        shown = [point for point in known if point.unit == unit]
        names = list(dict.fromkeys((point.method, point.against) for point in shown))
        looks = dict(zip(names, zip(cycle(INKS), cycle(MARKS)), strict=False))
        for axes, name in zip(row, data, strict=True):
            axes.set(title=f"{name}: one {unit}", xscale="log")
            _lines(axes, [point for point in shown if point.data == name], looks)
            _papers(axes, [mark for mark in marks if (mark.data, mark.unit) == (name, unit)])
            axes.grid(axis="y")
            axes.tick_params(length=0, which="both")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xticks(_TICKS)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        drawn_names = [Line2D([], [], color=ink, marker=mark) for ink, mark in looks.values()]
        words = [f"{method}, against {against}" for method, against in looks]
        of_paper = Line2D([], [], marker=_PAPER, **_HOLLOW)
        row[-1].legend([*drawn_names, of_paper], [*words, "a paper's: hollow as printed, full if true"], **BESIDE)
    for axes in plots[-1]:
        axes.set_xlabel("true epsilon")
    return figure


def _lines(axes: Axes, points: Sequence[FrontierPoint], looks: dict[tuple[str, str], tuple[str, str]]) -> None:
    for name, (ink, mark) in looks.items():
        mine = sorted((one for one in points if (one.method, one.against) == name), key=lambda one: one.epsilon or 0)
        if mine:
            across = [one.epsilon or 0.0 for one in mine], [one.accuracy or 0.0 for one in mine]
            bars = [one.deviation or 0.0 for one in mine]
            axes.errorbar(*across, yerr=bars, color=ink, marker=mark, linewidth=1, capsize=2, zorder=3)


def _papers(axes: Axes, marks: Sequence[Mark]) -> None:
    for mark, below in zip(sorted(marks, key=lambda one: one.accuracy), cycle((True, False)), strict=False):
        if isfinite(mark.epsilon):
            across = (mark.printed, mark.epsilon), (mark.accuracy, mark.accuracy)
            axes.plot(*across, color=INK, linewidth=0.7, linestyle=(0, (2, 2)), zorder=2)
            axes.plot(mark.epsilon, mark.accuracy, _PAPER, color=INK, zorder=4)
        axes.plot(mark.printed, mark.accuracy, _PAPER, zorder=4, **_HOLLOW)
        axes.annotate(mark.method, (mark.printed, mark.accuracy), (0, -11 if below else 5), **_SMALL)
