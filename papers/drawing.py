"""Figures from their numbers: readable in grey, with the names beside the lines.

Each function draws only the rows it is given. It leaves matplotlib's global state unchanged and returns a `Figure`.
`rendered` turns the figure into bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from flfw.errors import InputError
from flfw.matrix.utility import ACCURACIES, ERRORS, Utility
from flfw.report.figures import spread

Format = Literal["svg", "png", "pdf"]
Columns = Literal["one", "two"]
_WIDTHS: Mapping[Columns, float] = {"one": 3.35, "two": 6.9}  # of a page with two columns, in inches
_WIDTH: ContextVar[float | None] = ContextVar("width", default=None)
Rows = Sequence[Mapping[str, Any]]
"""A table: rows with the same columns; None where there is no number."""

MARKS = "os^Dv<>PX*"
"""Marker of each run or group."""

OTHERS = "others"
"""Group of the clients without a group of their own."""

TEXT, _FRAME, _GRID = "#222222", "#999999", "#e6e6e6"
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _FRAME,
    "axes.labelcolor": TEXT,
    "axes.axisbelow": True,
    "xtick.color": _FRAME,
    "ytick.color": _FRAME,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "text.color": TEXT,
    "grid.color": _GRID,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "flfw",  # the same figure, the same bytes
    "pdf.fonttype": 42,  # publishers refuse Type 3
}
_DATED = {"svg": "Date", "pdf": "CreationDate"}
INKS = ("#12304f", "#a63f12", "#4a9c97", "#8ab4d0", "#e6c46a")  # from dark to light, so they differ in grey too
_SHADES = LinearSegmentedColormap.from_list("ink", ["#12304f", "#2f7f8c", "#c77f3a", "#efd78b"])
_MOST_MARKED = 12  # longest line with a mark on each point; longer lines have about as many marks
_MOST_NUMBERED = 40  # most clients that are drawn with their numbers
_HALO = [withStroke(linewidth=1.5, foreground="white")]  # around a number that lies over another client's mark
_COLUMNS = 3
_BAND = 0.18
_AFTER: Mapping[str, Any] = {}
_BEFORE: Mapping[str, Any] = {"linestyle": (0, (4, 2)), "markerfacecolor": "white"}
_LEADER = {"arrowstyle": "-", "linewidth": 0.7, "relpos": (0.0, 0.5), "shrinkA": 1, "shrinkB": 4}
_LINE = 12.0  # distance between two labels, in points


class End(NamedTuple):
    """End of a line: its place, name and colour."""

    x: float
    y: float
    name: str
    ink: str


@rc_context(STYLE)
def training(rows: Rows, title: str) -> Figure:
    """Draw the mean training loss by round, and below it utility: dashed before local training, solid after it.

    Args:
        rows: ``run``, ``round``, ``loss``, and ``acc_global`` and ``acc_local``, or ``mae_`` of regressions; one row
            per run and round.
        title: title above both plots.
    """
    local, received, *_ = ERRORS if ERRORS[0].key in rows[0] else ACCURACIES
    names = list(dict.fromkeys(row["run"] for row in rows))
    figure = blank(6.4, max(5.6, 0.65 * len(names)), title)  # tall enough for the names of many runs
    above, below = figure.subplots(2, sharex=True, height_ratios=(2, 3))
    above.set_title("Mean training loss")
    below.set(title=f"{local.name.capitalize()} before and after local training", xlabel="round")
    write_numbers(below.yaxis, local)
    losses, utilities = [], []
    for name, ink, mark in zip(names, cycle(INKS), cycle(MARKS)):
        run_rows, prefix = [row for row in rows if row["run"] == name], "" if len(names) == 1 else f"{name}, "
        losses += _curve(above, run_rows, "loss", name, ink, mark)
        utilities += _curve(below, run_rows, local.key, f"{prefix}after", ink, mark)
        utilities += _curve(below, run_rows, received.key, f"{prefix}before", ink, mark, _BEFORE)
    _by_round(above)
    _by_round(below)
    figure.draw_without_rendering()  # the layout sets the height of the axes, which the spacing of the names needs
    name_ends(above, losses)
    name_ends(below, utilities)
    return figure


@rc_context(STYLE)
def measures(rows: Rows, title: str) -> Figure:
    """Draw a small plot of each measure by round; the axis of a measure without negative values starts at 0.

    Args:
        rows: ``round`` and any measures, one row per round.
        title: title above all plots.
    """
    names = [name for name in rows[0] if name != "round"]
    wide = min(_COLUMNS, len(names))
    tall = -(-len(names) // wide)
    figure = blank(max(2.5 * wide, 4.0), 2.1 * tall + 0.5, title)
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(tall, wide, place, title=name.replace("_", " "))
        _curve(axes, rows, name, name, INKS[0], MARKS[0])
        _by_round(axes)
        if place > len(names) - wide:
            axes.set_xlabel("round")
        axes.ticklabel_format(axis="y", useOffset=False)
        known = [row[name] for row in rows if row[name] is not None]
        if min(known) >= 0:
            axes.set_ylim(0, 1.06 * max(known) or 1)
    return figure


@rc_context(STYLE)
def embeddings(rows: Rows, title: str) -> Figure:
    """Draw the clients in the plane, each with the marker and shade of its group; few clients also have their numbers.

    Args:
        rows: ``client``, ``group``, ``x`` and ``y``, one row per client.
        title: title above the plot.
    """
    figure = blank(6.0, 4.4, title)
    axes = figure.add_subplot(xticks=[], yticks=[])
    axes.set_xlabel("only who is near whom has a meaning: the axes have no unit")
    many, names = len(rows) > _MOST_NUMBERED, sorted({row["group"] for row in rows}, key=_in_order)
    for place, (name, mark) in enumerate(zip(names, cycle(MARKS))):
        x, y = ([row[key] for row in rows if row["group"] == name] for key in ("x", "y"))
        shade = "white" if name == OTHERS else _SHADES(place / max(len(names) - 1, 1))
        look: Any = {"s": 20 if many else 55, "marker": mark, "edgecolor": TEXT, "linewidth": 0.3 if many else 0.6}
        axes.scatter(x, y, color=shade, label=name, **look)
    for row in () if many else rows:
        at = row["x"], row["y"]
        axes.annotate(str(row["client"]), at, (5, 4), textcoords="offset points", fontsize=7, path_effects=_HALO)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_box_aspect(1)
    axes.margins(0.08)
    axes.spines[:].set_visible(True)
    beside: Any = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5), "frameon": False, "alignment": "left"}
    axes.legend(title="dominant classes", **beside)
    return figure


@rc_context(STYLE)
def rendered(figure: Figure, form: Format) -> bytes:
    """Return the bytes of the file; the same figure gives the same bytes."""
    file = io.BytesIO()
    dated = {_DATED[form]: None} if form in _DATED else {}
    figure.savefig(file, format=form, dpi=200, metadata=dated)
    return file.getvalue()


@contextmanager
def wide_as(columns: Columns | None) -> Iterator[None]:
    """Make figures as wide as one or two columns of a page; None: each as wide as it is best seen alone."""
    token = _WIDTH.set(None if columns is None else _WIDTHS[columns])
    try:
        yield
    finally:
        _WIDTH.reset(token)


def blank(width: float, height: float, title: str) -> Figure:
    """Return an empty figure with a title; the size is in inches, unless `wide_as` says another width."""
    wanted = _WIDTH.get()
    if wanted is not None:
        width, height = wanted, height * max(0.75, min(1.0, wanted / width))
        if wanted <= _WIDTHS["one"]:
            rcParams.update({"font.size": 7, "axes.titlesize": 7, "lines.markersize": 3.5})  # until the style ends
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold", wrap=True)
    return figure


def write_numbers(axis: Axis, utility: Utility) -> None:
    """Write the numbers of a utility's axis in its unit."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: utility.tick(value)))


def _by_round(axes: Axes) -> None:
    axes.grid(axis="y")
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def _curve(
    axes: Axes, rows: Rows, column: str, name: str, ink: str, mark: str, style: Mapping[str, Any] = _AFTER
) -> list[End]:
    """Draw a line with gaps at rounds without a number, and a band where there are ends; return its end, if any."""
    known = [row for row in rows if row[column] is not None]
    points = [(row["round"], row[column]) for row in known]
    every = -(-len(points) // _MOST_MARKED)
    for part in _unbroken(known):
        line = [(row["round"], row[column]) for row in part]
        shown: Any = every if len(part) > 1 else 1
        axes.plot(*zip(*line, strict=True), color=ink, marker=mark, markevery=shown, clip_on=False, zorder=3, **style)
        ends = [[row.get(f"{column}{end}") for row in part] for end in ("_low", "_high")]
        if all(value is not None for end in ends for value in end):
            axes.fill_between([x for x, _ in line], *ends, color=ink, alpha=_BAND, linewidth=0)
    return [End(x, y, name, ink) for x, y in points if isfinite(y)][-1:]


def _unbroken(rows: Rows) -> Iterator[Rows]:
    """Yield the parts of a line between which a round was not measured."""
    part: list[Mapping[str, Any]] = []
    for row in rows:
        if part and row["round"] != part[-1]["round"] + 1:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write each name at the right, as near to the height of its line's end as the other names allow."""
    low, high = axes.get_ylim()
    box = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    tall = 72 * box.height  # in points
    levels = [(end.y - low) / (high - low) * tall for end in ends]
    for end, level in zip(ends, spread(levels, _LINE, 0.0, tall), strict=True):
        at, leader = (1.04, level / tall), {**_LEADER, "color": end.ink}
        axes.annotate(end.name, (end.x, end.y), at, textcoords="axes fraction", va="center", arrowprops=leader)


def _in_order(group: str) -> tuple[bool, list[int]]:
    """Return a sort key: groups of classes by their numbers, groups without a class last."""
    numbers = [int(word) for word in group.replace("–", " ").replace(",", " ").split() if word.isdigit()]
    return not numbers, numbers


def make_folder(out: Path) -> None:
    """Make the folder of figures, if there is none.

    Raises:
        InputError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Expected a folder that can be made for --out, got {out} ({error.strerror}).") from error
