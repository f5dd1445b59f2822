"""Scatter plot of a matrix as inline SVG: leakage against utility, each mark with its name beside it.

As in the report, a plot is drawn for a given width and takes its colours from the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from markupsafe import Markup, escape

from flfw.matrix.utility import Utility
from flfw.report.figures import ticks

_LEFT, _HEAD, _PLOT, _FOOT = 44.0, 28.0, 250.0, 44.0
_WIDE, _NARROW = 516, 342
_CHARACTER, _LINE = 6.2, 14.0  # character width and line height of a label, in pixels
_MARK = 5.0

Box = tuple[float, float, float, float]  # left, top, right, bottom


@final
@dataclass(frozen=True)
class PlotMark:
    """Mark of a combination in a scatter plot.

    Attributes:
        name: label of the mark.
        x: utility, mean over seeds.
        across: least and largest utility of the seeds.
        y: leakage.
        along: interval of the leakage; None: there is none.
        leaks: whether it is drawn in the accent colour.
    """

    name: str
    x: float
    across: tuple[float, float]
    y: float
    along: tuple[float, float] | None
    leaks: bool


@final
@dataclass(frozen=True)
class Scatter:
    """Scatter plot of leakage against utility.

    Attributes:
        title: title of the vertical axis.
        utility: what the horizontal axis shows.
        marks: one mark for each combination.
        percent: whether the leakage is a share in [0, 1]; else the axis goes from zero to the largest value.
    """

    title: str
    utility: Utility
    marks: tuple[PlotMark, ...]
    percent: bool

    @property
    def below(self) -> str:
        """Title of the horizontal axis."""
        return f"{self.utility.words}{self.utility.direction}"

    def top(self) -> float:
        """Return the upper end of the vertical axis."""
        if self.percent:
            return 1.0
        ends = [end for mark in self.marks for end in (mark.y, *(mark.along or ()))]
        return max([end for end in ends if end > 0], default=1.0) * 1.08

    def sides(self) -> tuple[float, float]:
        """Return both ends of the horizontal axis."""
        ends = [end for mark in self.marks for end in mark.across]
        return self.utility.span(min(ends), max(ends))


def draw(panel: Scatter) -> Markup:
    """Draw a scatter plot twice, for a desktop and for a phone; CSS shows one. Without marks it is empty."""
    if not panel.marks:
        return Markup("")
    drawn = (f'<div class="chart {name}">{_svg(panel, w)}</div>' for name, w in (("wide", _WIDE), ("narrow", _NARROW)))
    return Markup("".join(drawn))


def _svg(panel: Scatter, width: int) -> str:
    x0, x1, y0, y1 = _LEFT, width - 8.0, _HEAD, _HEAD + _PLOT
    low, high = panel.sides()
    top = panel.top()

    def x_of(value: float) -> float:
        return x0 + 10 + (value - low) / (high - low) * (x1 - x0 - 20)

    def y_of(value: float) -> float:
        return y1 - min(max(value, 0.0), top) / top * (y1 - y0)

    parts = [f'<text class="panel-title" x="0" y="12">{escape(panel.title)}</text>']
    for tick in ticks(0.0, top, 6):
        text = f"{100 * tick:g} %" if panel.percent else f"{tick:g}"
        parts.append(f'<path class="grid" d="M{x0} {y_of(tick):.1f}H{x1}"/>')
        parts.append(f'<text x="{x0 - 6}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in ticks(low, high, 6 if width > 400 else 5):
        parts.append(f'<path class="grid" d="M{x_of(tick):.1f} {y1}v4"/>')
        parts.append(f'<text x="{x_of(tick):.1f}" y="{y1 + 18}" text-anchor="middle">{panel.utility.tick(tick)}</text>')
    parts.append(f'<text x="{x1}" y="{y1 + 36}" text-anchor="end">{escape(panel.below)}</text>')
    spots = [(x_of(mark.x), y_of(mark.y)) for mark in panel.marks]
    bars = [bar for mark, spot in zip(panel.marks, spots, strict=True) for bar in _bars(mark, spot, x_of, y_of)]
    parts += [_bar(bar, mark) for bar, mark in bars]
    for mark, (x, y) in zip(panel.marks, spots, strict=True):
        parts.append(f'<circle class="dot {_tone(mark)}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    parts += _labels(panel.marks, spots, [bar for bar, _ in bars], (x0, y0 - 10, x1 + 6, y1 - 2))
    height = y1 + _FOOT
    alt = f"{panel.title}, by {panel.utility.words}. " + "; ".join(mark.name for mark in panel.marks)
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(alt)}">{"".join(parts)}</svg>'
    )


def _tone(mark: PlotMark) -> str:
    return "accent" if mark.leaks else "ink"


def _bars(mark: PlotMark, spot: tuple[float, float], x_of, y_of) -> Iterator[tuple[Box, PlotMark]]:
    """Yield the vertical bar of the leakage's interval and the horizontal bar of the utility's range over seeds."""
    x, y = spot
    if mark.along:
        yield (x, y_of(mark.along[1]), x, y_of(mark.along[0])), mark
    if mark.across[0] < mark.across[1]:
        yield (x_of(mark.across[0]), y, x_of(mark.across[1]), y), mark


def _bar(bar: Box, mark: PlotMark) -> str:
    return f'<path class="bar {_tone(mark)}" d="M{bar[0]:.1f} {bar[1]:.1f}L{bar[2]:.1f} {bar[3]:.1f}"/>'


def _labels(
    marks: Sequence[PlotMark], spots: Sequence[tuple[float, float]], bars: Sequence[Box], frame: Box
) -> list[str]:
    """Place each name near its mark without overlaps; a thin line connects a distant name with its mark."""
    taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in spots]
    taken += [(left - 1, top - 1, right + 1, bottom + 1) for left, top, right, bottom in bars]
    leaders, names = [], []
    for mark, spot in zip(marks, spots, strict=True):
        box = place(spot, len(mark.name) * _CHARACTER, taken, frame)
        taken.append(box)
        near = (min(max(spot[0], box[0]), box[2]), min(max(spot[1], box[1]), box[3]))
        if abs(near[0] - spot[0]) + abs(near[1] - spot[1]) > 2.5 * _MARK:
            leaders.append(f'<path class="leader" d="M{spot[0]:.1f} {spot[1]:.1f}L{near[0]:.1f} {near[1]:.1f}"/>')
        text = escape(mark.name)
        names.append(f'<text class="name {_tone(mark)}" x="{box[0]:.1f}" y="{box[3] - 3:.1f}">{text}</text>')
    return leaders + names  # names last: a rim in the page's colour keeps lines out of the text


def place(spot: tuple[float, float], width: float, taken: Sequence[Box], frame: Box) -> Box:
    """Return the box of a label: the nearest place in the frame without overlap, or else the one with the least."""
    best, least = None, float("inf")
    for box in _candidates(spot, width):
        if not (frame[0] <= box[0] and box[2] <= frame[2] and frame[1] <= box[1] and box[3] <= frame[3]):
            continue
        hidden = sum(map(lambda other, box=box: _overlap(box, other), taken))
        if hidden == 0:
            return box
        if hidden < least:
            best, least = box, hidden
    # A name wider than the frame starts at its left edge.
    return best or (frame[0], spot[1] - _LINE / 2, frame[0] + width, spot[1] + _LINE / 2)


def _candidates(spot: tuple[float, float], width: float) -> Iterator[Box]:
    x, y = spot
    for step in range(22):
        up, out = step * _LINE / 2, _MARK + 4
        for shift in (-up, up) if step else (0.0,):
            middle = y + shift
            lefts = [x + out, x - out - width]
            if up >= _LINE:  # directly above or below, or slightly to the side
                lefts += [x - width / 2, x - width / 4, x - 3 * width / 4]
            for left in lefts:
                yield left, middle - _LINE / 2, left + width, middle + _LINE / 2


def _overlap(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
