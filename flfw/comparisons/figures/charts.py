"""Figures of norms, privacy and compression: drawn from their rows alone, in the style of `flfw.report.chart_style`."""

from collections.abc import Sequence
from itertools import cycle
from math import isfinite
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.utility import RECEIVED
from flfw.errors import require
from flfw.report.chart_style import BESIDE, DASHED, INK, INKS, MARKS, STYLE, End, blank, name_ends, write_numbers

_WIDE = 100.0  # smallest ratio of largest to smallest value with a logarithmic axis
_BAND = 0.18
_PUBLISHED: Any = {"markerfacecolor": "white", "linestyle": "none"}
_HOLLOW = "as its paper counts"


@rc_context(STYLE)
def norms(rows: Rows, title: str) -> Figure:
    """Draw the mean norm over the clients by local iteration: a line for each state, a band for most clients.

    Args:
        rows: ``state``, ``iteration``, ``mean``, ``low`` and ``high``.
        title: title above the plot.
    """
    figure = blank(6.4, 3.8, title)
    axes = figure.add_subplot(title="L2 norm of an example's gradient", xlabel="local iteration")
    ends = []
    for state, ink in zip(dict.fromkeys(row["state"] for row in rows), cycle(INKS)):
        matching = [row for row in rows if row["state"] == state and isfinite(row["mean"])]  # others have diverged
        if not matching:
            continue
        steps, means, low, high = ([row[key] for row in matching] for key in ("iteration", "mean", "low", "high"))
        axes.fill_between(steps, low, high, color=ink, alpha=_BAND, linewidth=0)
        axes.plot(steps, means, color=ink, zorder=3)
        ends.append(End(steps[-1], means[-1], state, ink))
    _quiet(axes)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    values = [row[key] for row in rows if isfinite(row["mean"]) for key in ("low", "high")]
    require(bool(values), "norms that are numbers", rows=len(rows))
    if min(values) > 0 and max(values) / min(values) >= _WIDE:
        axes.set_yscale("log")
        _plain_ends(axes, ends)
        return figure
    axes.set_ylim(0, 1.06 * max(values) or 1)
    figure.draw_without_rendering()
    name_ends(axes, ends)
    return figure


@rc_context(STYLE)
def privacy(rows: Rows, title: str) -> Figure:
    """Draw utility against epsilon, one plot for each unit; full marks are true epsilons, hollow marks published ones.

    A dashed line is the utility of a run without any epsilon.

    Args:
        rows: rows of `flfw.comparisons.figures.comparisons.privacy`.
        title: title above the plots.
    """
    utility = next(one for one in RECEIVED if one.column in rows[0])
    units = [unit for unit in dict.fromkeys(row["unit"] for row in rows) if _known(rows, unit)]
    figure = blank(3.4 * len(units) + 1.8, 3.6, title)
    plots: Sequence[Axes] = figure.subplots(1, len(units), sharey=True, squeeze=False)[0]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    looks = dict(zip(kinds, zip(cycle(INKS), cycle(MARKS)), strict=False))
    drawn: dict[str, Line2D] = {}
    claiming = {row["run"] for row in rows if _claims(row)}
    for axes, unit in zip(plots, units, strict=True):
        axes.set(title=f"Privacy of one {unit}", xlabel="epsilon against the server (less is better)", xscale="log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for name in kinds:
            ink, mark = looks[name]
            matching = sorted(
                (r for r in rows if r["kind"] == name and r["unit"] == unit), key=lambda r: r["epsilon"] or 0
            )
            finite = [row for row in matching if row["epsilon"] is not None and isfinite(row["epsilon"])]
            for row in finite:
                if row["as_published"] is not None:
                    both, level = (row["as_published"], row["epsilon"]), (row[utility.column],) * 2
                    axes.plot(both, level, color=ink, linewidth=0.7, linestyle=(0, (2, 2)), zorder=2)
                    axes.plot(both[:1], level[:1], mark, color=ink, **_PUBLISHED)
                    drawn[_HOLLOW] = Line2D([], [], marker=MARKS[0], color=INK, **_PUBLISHED)
            if finite:
                across = [row["epsilon"] for row in finite], [row[utility.column] for row in finite]
                (drawn[name],) = axes.plot(*across, color=ink, marker=mark, linewidth=1, zorder=3)
            for row in (row for row in rows if row["kind"] == name and row["run"] not in claiming):
                drawn[f"{name}, no epsilon"] = axes.axhline(row[utility.column], color=ink, linestyle=DASHED)
        _quiet(axes)
    plots[0].set_ylabel(f"{utility.name}{utility.direction}")
    write_numbers(plots[0].yaxis, utility.tick)
    plots[0].set_ylim(bottom=0)
    words = sorted(drawn, key=lambda word: word == _HOLLOW)
    plots[-1].legend([drawn[word] for word in words], words, **BESIDE)
    return figure


@rc_context(STYLE)
def compression(rows: Rows, title: str) -> Figure:
    """Draw utility by compression, and below it the leakage at the client: a mark for each run, a line for the means.

    Args:
        rows: rows of `flfw.comparisons.figures.comparisons.compression`.
        title: title above the plots.
    """
    figure = blank(6.4, 5.6, title)
    above, below = figure.subplots(2, sharex=True)
    utility = next(one for one in RECEIVED if one.column in rows[0])
    above.set_title(f"{utility.name.capitalize()}{utility.direction}")
    write_numbers(above.yaxis, utility.tick)
    below.set(title="Distance of reconstructed single examples (type 2): near 0 is a leak")
    below.set_xlabel("share of a gradient's entries that are zeroed")
    below.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    ways = [way for way in ("before", "after") if any(row["compress"] == way for row in rows)]
    for axes, column in ((above, utility.column), (below, "distance")):
        ends = []
        for way, ink, mark in zip(ways, cycle(INKS), cycle(MARKS)):
            matching = [row for row in rows if row["compress"] in (way, "none") and row[column] is not None]
            if not matching:
                continue
            ratios = sorted({row["ratio"] for row in matching})
            means = [fmean(row[column] for row in matching if row["ratio"] == ratio) for ratio in ratios]
            axes.plot(ratios, means, color=ink, zorder=3)
            each = [row["ratio"] for row in matching], [row[column] for row in matching]
            axes.plot(*each, mark, color=ink, clip_on=False, zorder=4)
            ends.append(End(ratios[-1], means[-1], f"{way} the noise", ink))
        _quiet(axes)
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        figure.draw_without_rendering()
        name_ends(axes, ends)
    if all(row["distance"] is None for row in rows):
        inside: Any = {"transform": below.transAxes, "ha": "center", "va": "center", "color": INK}
        below.set_yticks([])
        below.text(0.5, 0.5, "no audit of single examples gave anything", **inside)
    return figure


def _claims(row: Any) -> bool:
    return row["epsilon"] is not None and isfinite(row["epsilon"])


def _known(rows: Rows, unit: str) -> bool:
    return any(row["unit"] == unit and _claims(row) for row in rows)


def _quiet(axes: Axes) -> None:
    axes.grid(axis="y")
    axes.tick_params(length=0, which="both")


def _plain_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write the names right of the lines' ends, on a logarithmic axis."""
    for end in ends:
        axes.annotate(end.name, (end.x, end.y), (8, 0), textcoords="offset points", va="center", color=end.ink)
