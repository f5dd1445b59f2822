"""Figures from their numbers: readable in grey, with the names beside the lines.

Each function draws only the rows it is given.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from flfw.comparisons.utility import ACCURACIES, ERRORS
from flfw.errors import InputError
from flfw.report import chart_style

Rows = Sequence[Mapping[str, Any]]
"""A table: rows with the same columns; None where there is no number."""

OTHERS = "others"
"""Group of the clients without a group of their own."""

_SHADES = LinearSegmentedColormap.from_list("ink", ["#12304f", "#2f7f8c", "#c77f3a", "#efd78b"])
_MOST_MARKED = 12  # longest line with a mark on each point; longer lines have about as many marks
_MOST_NUMBERED = 40  # most clients that are drawn with their numbers
_HALO = [withStroke(linewidth=1.5, foreground="white")]  # around a number that lies over another client's mark
_COLUMNS = 3
_BAND = 0.18
_AFTER: Mapping[str, Any] = {}
_BEFORE: Mapping[str, Any] = {"linestyle": chart_style.DASHED, "markerfacecolor": "white"}


@rc_context(chart_style.STYLE)
def training(rows: Rows, title: str) -> Figure:
    """Draw the mean training loss by round, and below it utility: dashed before local training, solid after it.

    Args:
        rows: ``run``, ``round``, ``loss``, and ``acc_global`` and ``acc_local``, or ``mae_`` of regressions; one row
            per run and round.
        title: title above both plots.
    """
    local, received, *_ = ERRORS if ERRORS[0].key in rows[0] else ACCURACIES
    names = list(dict.fromkeys(row["run"] for row in rows))
    figure = chart_style.blank(6.4, max(5.6, 0.65 * len(names)), title)  # tall enough for the names of many runs
    above, below = figure.subplots(2, sharex=True, height_ratios=(2, 3))
    above.set_title("Mean training loss")
    below.set(title=f"{local.name.capitalize()} before and after local training", xlabel="round")
    chart_style.write_numbers(below.yaxis, local.tick)
    losses, utilities = [], []
    for name, ink, mark in zip(names, cycle(chart_style.INKS), cycle(chart_style.MARKS)):
        run_rows, prefix = [row for row in rows if row["run"] == name], "" if len(names) == 1 else f"{name}, "
        losses += _curve(above, run_rows, "loss", name, ink, mark)
        utilities += _curve(below, run_rows, local.key, f"{prefix}after", ink, mark)
        utilities += _curve(below, run_rows, received.key, f"{prefix}before", ink, mark, _BEFORE)
    _by_round(above)
    _by_round(below)
    figure.draw_without_rendering()  # the layout sets the height of the axes, which the spacing of the names needs
    chart_style.name_ends(above, losses)
    chart_style.name_ends(below, utilities)
    return figure


@rc_context(chart_style.STYLE)
def measures(rows: Rows, title: str) -> Figure:
    """Draw a small plot of each measure by round; the axis of a measure without negative values starts at 0.

    Args:
        rows: ``round`` and any measures, one row per round.
        title: title above all plots.
    """
    names = [name for name in rows[0] if name != "round"]
    wide = min(_COLUMNS, len(names))
    tall = -(-len(names) // wide)
    figure = chart_style.blank(max(2.5 * wide, 4.0), 2.1 * tall + 0.5, title)
    for index, name in enumerate(names, 1):
        axes = figure.add_subplot(tall, wide, index, title=name.replace("_", " "))
        _curve(axes, rows, name, name, chart_style.INKS[0], chart_style.MARKS[0])
        _by_round(axes)
        if index > len(names) - wide:
            axes.set_xlabel("round")
        axes.ticklabel_format(axis="y", useOffset=False)
        known = [row[name] for row in rows if row[name] is not None]
        if min(known) >= 0:
            axes.set_ylim(0, 1.06 * max(known) or 1)
    return figure


@rc_context(chart_style.STYLE)
def embeddings(rows: Rows, title: str) -> Figure:
    """Draw the clients in the plane, each with the marker and shade of its group; few clients also have their numbers.

    Args:
        rows: ``client``, ``group``, ``x`` and ``y``, one row per client.
        title: title above the plot.
    """
    figure = chart_style.blank(6.0, 4.4, title)
    axes = figure.add_subplot(xticks=[], yticks=[])
    axes.set_xlabel("only who is near whom has a meaning: the axes have no unit")
    many, names = len(rows) > _MOST_NUMBERED, sorted({row["group"] for row in rows}, key=_in_order)
    for index, (name, mark) in enumerate(zip(names, cycle(chart_style.MARKS))):
        x, y = ([row[key] for row in rows if row["group"] == name] for key in ("x", "y"))
        shade = "white" if name == OTHERS else _SHADES(index / max(len(names) - 1, 1))
        look: Any = {
            "s": 20 if many else 55,
            "marker": mark,
            "edgecolor": chart_style.INK,
            "linewidth": 0.3 if many else 0.6,
        }
        axes.scatter(x, y, color=shade, label=name, **look)
    for row in () if many else rows:
        at = row["x"], row["y"]
        axes.annotate(str(row["client"]), at, (5, 4), textcoords="offset points", fontsize=7, path_effects=_HALO)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_box_aspect(1)
    axes.margins(0.08)
    axes.spines[:].set_visible(True)
    axes.legend(title="dominant classes", **chart_style.BESIDE)
    return figure


def _by_round(axes: Axes) -> None:
    axes.grid(axis="y")
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def _curve(
    axes: Axes, rows: Rows, column: str, name: str, ink: str, mark: str, style: Mapping[str, Any] = _AFTER
) -> list[chart_style.End]:
    """Draw a line with gaps at rounds without a number, and a band where there are ends; return its end, if any."""
    known = [row for row in rows if row[column] is not None]
    points = [(row["round"], row[column]) for row in known]
    every = -(-len(points) // _MOST_MARKED)
    for part in chart_style.unbroken(known, [row["round"] for row in known]):
        line = [(row["round"], row[column]) for row in part]
        shown: Any = every if len(part) > 1 else 1
        axes.plot(*zip(*line, strict=True), color=ink, marker=mark, markevery=shown, clip_on=False, zorder=3, **style)
        ends: Any = [[row.get(f"{column}{end}") for row in part] for end in ("_low", "_high")]
        if all(value is not None for end in ends for value in end):
            axes.fill_between([x for x, _ in line], *ends, color=ink, alpha=_BAND, linewidth=0)
    return [chart_style.End(x, y, name, ink) for x, y in points if isfinite(y)][-1:]


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
