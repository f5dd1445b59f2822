"""Figures of the report, as SVG: charts in a stack on one axis, and strips of a record's features.

Every chart is a function of its width in CSS pixels: it has a second layout for a narrow screen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from matplotlib.transforms import IdentityTransform, ScaledTranslation

from flfw.report import chart_style

_WIDE = 620
# In pixels: room for tick labels, for a line of a title, between two charts, below the last, and of a character.
_LEFT, _TITLE, _BETWEEN, _FOOT, _CHARACTER = 42.0, 17.0, 26.0, 44.0, 6.4
_PLOT = 150.0  # the least height of a chart
_INSET = 8.0  # keeps markers off the edge
# Distance between the first and the last of several points at one round; more would run into the labels.
_ASIDE = 18.0
_DOT = 7.0
_MOST_MARKED = 12  # beyond a dozen points markers would merge into a thick line
_HIGHEST = 1e300  # of a damaged run; matplotlib adds to the ends of an axis

Point = tuple[float, float]
AxisMarks = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Curve:
    """Labelled curve; `tone` is a colour; intervals and peaks have one entry per point."""

    label: str
    points: tuple[Point, ...]
    tone: str = chart_style.INK
    intervals: tuple[Point | None, ...] = ()
    peaks: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Chart:
    """Chart in a stack: curves over rounds and dashed reference levels, on a scale that starts at zero."""

    title: str
    lines: tuple[Curve, ...]
    levels: tuple[tuple[str, float], ...] = ()
    percent: bool = False

    @property
    def drawable(self) -> bool:
        """Flag of a chart with at least one point to draw."""
        return any(line.points for line in self.lines)

    def top(self) -> float:
        """Return the upper end of the scale."""
        if self.percent:
            return 1.0
        values = [y for line in self.lines for _, y in line.points] + [level for _, level in self.levels]
        values += [high for line in self.lines for span in line.intervals if span for high in span]
        values += [peak for line in self.lines for peak in line.peaks if peak is not None]
        return min(max([value for value in values if value > 0], default=1.0), _HIGHEST) * 1.05

    def names(self) -> list[str]:
        """Return the text beside each line, and then beside each level, with its last value."""
        texts = [(line.label, line.points[-1][1]) for line in self.lines if line.points]
        return [chart_style.shown(f"{label} {_value(value, self.percent)}") for label, value in [*texts, *self.levels]]


def _value(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else (f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}")


def stacked_panels(panels: Sequence[Chart], alt: str, axis: str = "round", marks: AxisMarks | None = None) -> Markup:
    """Draw panels above one another on one axis, twice: for a desktop and for a phone; CSS shows one.

    Args:
        panels: the charts; those without a point are left out.
        alt: text for a reader who cannot see the figure.
        axis: the name of the axis.
        marks: positions and texts of the axis labels; None labels it with whole numbers.
    """
    drawable = [panel for panel in panels if panel.drawable]
    if not drawable:
        return Markup("")
    return chart_style.at_both_widths(lambda width: _draw(drawable, width, alt, axis, marks), _WIDE)


@rc_context(chart_style.PAGE_STYLE)
def _draw(panels: Sequence[Chart], width: int, alt: str, axis: str, marks: AxisMarks | None) -> Markup:
    rounds = [x for panel in panels for line in panel.lines for x, _ in line.points]
    first, last = min(rounds), max(rounds)
    # Names get the room that the longest needs, within reason, and have several lines if that is too little.
    longest = max(len(name) for panel in panels for name in panel.names())
    right = min(longest * _CHARACTER + 24, width * 0.42)
    names = [[fill(name, int((right - 20) / _CHARACTER)) for name in panel.names()] for panel in panels]
    titles = [fill(panel.title, int(width / 7.5)) for panel in panels]
    heads = [_TITLE * (title.count("\n") + 1) + 14 for title in titles]
    lines = [len(each) + sum(name.count("\n") for name in each) for each in names]
    tall = [max(_PLOT, chart_style.LINE_HEIGHT * 12 * (many + 1)) for many in lines]
    height = sum(heads) + sum(tall) + _BETWEEN * (len(panels) - 1) + _FOOT
    figure, across, top = chart_style.page_figure(width, height), width - _LEFT - right, 0.0
    # A single round is in the middle.
    air = 1.0 if first == last else (last - first) * _INSET / (across - 2 * _INSET)
    plots: list[Axes] = []
    for panel, title, words, head, plot in zip(panels, titles, names, heads, tall, strict=True):
        top += head + plot
        axes = figure.add_axes((_LEFT / width, 1 - top / height, across / width, plot / height))
        axes.set_title(title, x=-_LEFT / across, y=1.0)
        axes.set(xlim=(first - air, last + air), ylim=(0, panel.top()), xticks=[])
        _panel(axes, panel, words, marks is None)
        plots.append(axes)
        top += _BETWEEN
    if marks is None:
        bins = 8 if width == _WIDE else 4
        plots[-1].xaxis.set_major_locator(MaxNLocator(nbins=bins, integer=True, steps=[1, 2, 5, 10]))
    else:
        plots[-1].set_xticks([at for at, _ in marks], [text for _, text in marks])
    plots[-1].set_xlabel(axis, loc="right")
    return chart_style.inline_svg(figure, alt)


def _panel(axes: Axes, panel: Chart, names: Sequence[str], by_round: bool) -> None:
    top, edge = panel.top(), axes.get_xlim()[1]
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    for _, level in panel.levels:
        axes.axhline(_within(level, top), color=chart_style.SOFT, linewidth=1, linestyle=chart_style.DASHED)
    drawn = [line for line in panel.lines if line.points]
    apart = min(6.0, _ASIDE / max(len(drawn) - 1, 1))
    for index, line in enumerate(drawn):
        # Intervals of several attacks at one round would hide one another: each attack is shifted a little.
        aside = (index - (len(drawn) - 1) / 2) * apart if any(other.intervals for other in drawn) else 0.0
        _curve(axes, line, top, aside, by_round)
    ends = [(*line.points[-1], line.tone) for line in drawn] + [
        (edge, level, chart_style.SOFT) for _, level in panel.levels
    ]
    named = [
        chart_style.End(x, _within(y, top), name, chart_style.SOFT, tone)
        for (x, y, tone), name in zip(ends, names, strict=True)
    ]
    chart_style.name_ends(axes, named, 12 / axes.bbox.width)


def _within(value: float, top: float) -> float:
    return min(max(value, 0.0), top)


def _curve(axes: Axes, line: Curve, top: float, aside: float, by_round: bool) -> None:
    look: Any = {
        "color": line.tone,
        "transform": axes.transData + ScaledTranslation(aside / 72, 0, axes.figure.dpi_scale_trans),
    }
    points = [(x, _within(y, top)) for x, y in line.points]
    alone: list[Point] = []
    for part in chart_style.unbroken(points, [x for x, _ in points]) if by_round else [points]:
        if len(part) == 1:
            alone += part
            continue
        # Between sizes a line only leads the eye.
        stroke = {} if by_round else {"linestyle": (0, (2, 3)), "linewidth": 1.25}
        axes.plot(*zip(*part, strict=True), zorder=3, **stroke, **look)
    marked = points if len(points) <= _MOST_MARKED else alone
    _dots(axes, marked, _DOT, look)
    for (x, _), span in zip(points, line.intervals, strict=False):
        if span:
            axes.plot([x, x], [_within(end, top) for end in span], zorder=3, **look)
    peaks = [(x, _within(y, top)) for (x, _), y in zip(points, line.peaks, strict=False) if y is not None]
    _dots(axes, peaks, _DOT + 1.5, look)
    _dots(axes, peaks, _DOT - 1.5, look | {"color": chart_style.PAPER})


def _dots(axes: Axes, points: Sequence[Point], size: float, look: Mapping[str, Any]) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(chart_style.dots(x), chart_style.dots(y), linewidth=size, zorder=4, **look)


@rc_context(chart_style.PAGE_STYLE)
def feature_strip(truth: np.ndarray, reconstruction: np.ndarray | None, alt: str, maximum: int = 48) -> Markup:
    """Draw a tabular record and its reconstruction: true features as rings, the attacker's as dots, gaps as lines."""
    values = np.nan_to_num(np.ravel(truth).astype(np.float64))[:maximum]
    guess = values if reconstruction is None else np.nan_to_num(np.ravel(reconstruction).astype(np.float64))[:maximum]
    low, high = float(min(values.min(), guess.min())), float(max(values.max(), guess.max()))
    width, height, edge = 300.0, 74.0, 7.0
    figure = chart_style.page_figure(width, height)
    x = 6 + (width - 12) / len(values) * (np.arange(len(values)) + 0.5)
    ring, dot = (edge + (y - low) / max(high - low, 1e-9) * (height - 2 * edge) for y in (values, guess))

    def add(x: np.ndarray, y: np.ndarray, **look: Any) -> None:
        figure.add_artist(Line2D(x, y, transform=IdentityTransform(), **look))

    add(chart_style.dots(x), chart_style.dots(ring), color=chart_style.INK, linewidth=_DOT)
    add(chart_style.dots(x), chart_style.dots(ring), color=chart_style.RAISED, linewidth=_DOT - 3)
    if reconstruction is not None:
        gaps = np.stack([ring, dot, np.full(len(x), math.nan)], axis=1)
        add(np.repeat(x, 3), gaps.ravel(), color=chart_style.ACCENT, alpha=0.5, linewidth=1)
        add(chart_style.dots(x), chart_style.dots(dot), color=chart_style.ACCENT, linewidth=_DOT - 3)
    return chart_style.inline_svg(figure, alt, "strip")
