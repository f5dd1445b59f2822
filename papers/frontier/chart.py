"""Figure of the frontier: accuracy against epsilon, a row of plots for each unit and a column for each data set."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from math import isfinite
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from flfw.papers.frontier.points import FrontierPoint, Mark
from flfw.papers.preset import Scale
from flfw.report.chart_style import BESIDE, INK, INKS, MARKS, STYLE, blank

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
