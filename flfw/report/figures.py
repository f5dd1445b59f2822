"""Figures of the report: samples as PNG data URIs, curves as inline SVG with the colours of the page.

An SVG curve follows the reader's light or dark scheme, prints sharply and has a second layout for a narrow screen.
So every chart is a function of its width in CSS pixels.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from PIL import Image

# Space left of the plot for tick labels, and least distance between two direct labels.
_LEFT, _LABEL_GAP = 40.0, 15.0
_WIDE, _NARROW = 620, 342
# Distance between the first and the last of several points at one round; more would run into the labels.
_ASIDE = 18.0
# Larger samples would make the page heavy without showing more at the size a reader sees.
_LARGEST_SIDE = 192

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Labelled curve; `tone` is `ink`, `soft` or `accent`; intervals and peaks have one entry per point."""

    label: str
    points: tuple[Point, ...]
    tone: str = "ink"
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
        return max([value for value in values if value > 0], default=1.0) * 1.05


def png_uri(sample: np.ndarray) -> str:
    """Return a (C, H, W) sample in [0, 1] with one or three channels as the data URI of a PNG."""
    finite = np.nan_to_num(np.asarray(sample, dtype=np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    pixels = np.rint(np.clip(finite, 0.0, 1.0) * 255).astype(np.uint8)
    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels, 0, -1))
    image.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE), Image.Resampling.BOX)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return at most `most` round numbers of step 1, 2 or 5 times a power of ten that lie within [low, high].

    >>> ticks(0.0, 33.0, 5)
    [0.0, 10.0, 20.0, 30.0]
    >>> ticks(0.0, 2.0, 8, whole=True)
    [0.0, 1.0, 2.0]
    """
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / most))
    steps = (power * factor for factor in (1, 2, 5, 10, 20, 50, 100))
    fits = (step for step in steps if span / step <= most - 1 + 1e-9 and (not whole or step >= 1))
    step = next(fits, max(span, 1.0))
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move label positions apart to at least `gap`, by one pass down and one pass up.

    >>> spread([10, 12, 50], 10, 0, 60)
    [10, 20, 50]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    placed = list(positions)
    floor = low
    for index in order:
        placed[index] = floor = max(placed[index], floor)
        floor += gap
    ceiling = high
    for index in reversed(order):
        placed[index] = ceiling = min(placed[index], ceiling)
        ceiling -= gap
    return placed


def stacked_panels(
    panels: Sequence[Chart], alt: str, axis: str = "round", marks: Sequence[tuple[float, str]] | None = None
) -> Markup:
    """Draw panels above one another on one axis, twice: for a desktop and for a phone; CSS shows one.

    Args:
        panels: the charts; those without a point are left out.
        alt: text for a reader who cannot see the figure.
        axis: the name of the axis.
        marks: positions and texts of the axis labels; None labels it with whole numbers.
    """
    shown = [panel for panel in panels if panel.drawable]
    if not shown:
        return Markup("")
    drawn = [
        f'<div class="chart {name}">{_draw(shown, width, alt, axis, marks)}</div>'
        for name, width in (("wide", _WIDE), ("narrow", _NARROW))
    ]
    return Markup("".join(drawn))


def _draw(panels: Sequence[Chart], width: int, alt: str, axis: str, marks: Sequence[tuple[float, str]] | None) -> str:
    rounds = [x for panel in panels for line in panel.lines for x, _ in line.points]
    first, last = min(rounds), max(rounds)
    labels = [text for panel in panels for text in _label_texts(panel)]
    # Direct labels get the room that their longest text needs (about 6.4 px a character), within reason.
    right = min(max(len(text) for text in labels) * 6.4 + 20, width * 0.42)
    x0, x1 = _LEFT, width - right
    # A single round is centred; otherwise an inset keeps markers off the frame.
    inset = 8.0

    def x_of(value: float) -> float:
        return (x0 + x1) / 2 if first == last else x0 + inset + (value - first) / (last - first) * (x1 - x0 - 2 * inset)

    # Tall enough for the direct labels of the busiest panel.
    plot = max([150.0, *(_LABEL_GAP * (len(_label_texts(panel)) + 1) for panel in panels)])
    head, between = 26.0, 18.0
    parts: list[str] = []
    y = 0.0
    for panel in panels:
        parts += _panel(panel, x_of, (x0, x1), y + head, plot, marks is None)
        y += head + plot + between
    base = y - between
    if marks is None:
        marks = [(tick, f"{tick:g}") for tick in ticks(first, last, 9 if width > 400 else 5, whole=True)]
    for at, text in marks:
        parts.append(f'<text x="{x_of(at):.1f}" y="{base + 18:.1f}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<text x="{x1:.1f}" y="{base + 36:.1f}" text-anchor="end">{escape(axis)}</text>')
    height = base + 42
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(alt)}">{"".join(parts)}</svg>'
    )


def _label_texts(panel: Chart) -> list[str]:
    texts = [f"{line.label} {_value(line.points[-1][1], panel.percent)}" for line in panel.lines if line.points]
    return texts + [f"{name} {_value(level, panel.percent)}" for name, level in panel.levels]


def _value(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else (f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}")


def _panel(panel: Chart, x_of, edges: tuple[float, float], top: float, plot: float, by_round: bool) -> list[str]:
    x0, x1 = edges
    scale = plot / panel.top()

    def y_of(value: float) -> float:
        return top + plot - min(max(value, 0.0), panel.top()) * scale

    parts = [f'<text class="panel-title" x="0" y="{top - 12:.1f}">{escape(panel.title)}</text>']
    for tick in ticks(0.0, panel.top(), 5):
        y = y_of(tick)
        text = f"{100 * tick:g} %" if panel.percent else f"{tick:g}"
        parts.append(f'<path class="grid" d="M{x0} {y:.1f}H{x1:.1f}"/>')
        parts.append(f'<text x="{x0 - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    parts += [f'<path class="level" d="M{x0} {y_of(level):.1f}H{x1:.1f}"/>' for _, level in panel.levels]
    drawn = [line for line in panel.lines if line.points]
    apart = min(6.0, _ASIDE / max(len(drawn) - 1, 1))
    for index, line in enumerate(drawn):
        # Intervals of several attacks at one round would hide one another: each attack is shifted a little.
        aside = (index - (len(drawn) - 1) / 2) * apart if any(other.intervals for other in drawn) else 0.0
        parts += _curve(line, lambda value, aside=aside: x_of(value) + aside, y_of, by_round)
    ends = [(x_of(line.points[-1][0]), y_of(line.points[-1][1]), line.tone) for line in drawn]
    ends += [(x1, y_of(level), "level-name") for _, level in panel.levels]
    placed = spread([y for _, y, _ in ends], _LABEL_GAP, top + 2, top + plot)
    for (x, y, tone), text, at in zip(ends, _label_texts(panel), placed, strict=True):
        parts.append(
            f'<path class="leader" d="M{x + 6:.1f} {y:.1f}L{max(x1, x + 6):.1f} {y:.1f}L{x1 + 10:.1f} {at:.1f}"/>'
        )
        parts.append(f'<text class="name {tone}" x="{x1 + 13:.1f}" y="{at + 4:.1f}">{escape(text)}</text>')
    return parts


def _curve(line: Curve, x_of, y_of, by_round: bool) -> list[str]:
    spots = [(x_of(x), y_of(y)) for x, y in line.points]
    parts, alone = [], set()
    for first, last in _joined(line.points, by_round):
        if first == last:
            alone.add(first)
            continue
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots[first : last + 1])
        parts.append(f'<path class="curve {line.tone}{"" if by_round else " between"}" d="M{path}"/>')
    for (x, _), span in zip(spots, line.intervals, strict=False):
        if span:
            parts.append(f'<path class="curve {line.tone}" d="M{x:.1f} {y_of(span[0]):.1f}V{y_of(span[1]):.1f}"/>')
    for (x, _), peak in zip(spots, line.peaks, strict=False):
        if peak is not None:
            parts.append(f'<circle class="ring {line.tone}" cx="{x:.1f}" cy="{y_of(peak):.1f}" r="3.5"/>')
    # Beyond a dozen rounds markers would merge into a thick line; a round without a neighbour has nothing else.
    shown = range(len(spots)) if len(spots) <= 12 else sorted(alone)
    parts += [f'<circle class="dot {line.tone}" cx="{spots[i][0]:.1f}" cy="{spots[i][1]:.1f}" r="3.5"/>' for i in shown]
    return parts


def _joined(points: Sequence[Point], by_round: bool) -> list[tuple[int, int]]:
    """Return the first and the last point of each stroke: no stroke leads through a round that was not measured.

    Strokes between sizes only lead the eye, and are dashed: they join all points.

    >>> _joined([(0, 0.1), (1, 0.2), (5, 0.3)], by_round=True)
    [(0, 1), (2, 2)]
    >>> _joined([(0, 0.1), (1, 0.2), (5, 0.3)], by_round=False)
    [(0, 2)]
    """
    ends = [i for i in range(1, len(points)) if by_round and points[i][0] - points[i - 1][0] > 1]
    return list(zip([0, *ends], [*(end - 1 for end in ends), len(points) - 1], strict=True))


def feature_strip(truth: np.ndarray, reconstruction: np.ndarray | None, alt: str, most: int = 48) -> Markup:
    """Draw a tabular record and its reconstruction: true features as rings, the attacker's as dots, gaps as lines."""
    values = np.nan_to_num(np.ravel(truth).astype(np.float64))[:most]
    guess = None if reconstruction is None else np.nan_to_num(np.ravel(reconstruction).astype(np.float64))[:most]
    both = values if guess is None else np.concatenate([values, guess])
    low, span = float(both.min()), max(float(np.ptp(both)), 1e-9)
    width, height = 300.0, 74.0
    step = (width - 12) / max(len(values), 1)
    parts: list[str] = []
    for index, value in enumerate(values):
        x, y = 6 + step * (index + 0.5), height - 7 - (value - low) / span * (height - 14)
        if guess is not None:
            other = height - 7 - (guess[index] - low) / span * (height - 14)
            parts.append(f'<path class="gap" d="M{x:.1f} {y:.1f}V{other:.1f}"/>')
            parts.append(f'<circle class="dot accent" cx="{x:.1f}" cy="{other:.1f}" r="2"/>')
        parts.append(f'<circle class="ring ink" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    body = "".join(parts)
    return Markup(
        f'<svg class="strip" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}">{body}</svg>'
    )


def utility_panel(rounds: Sequence[Mapping[str, Any]], regression: bool) -> Chart:
    """Build the chart of clients' test accuracy, or of a regression's mean absolute error, by round.

    Args:
        rounds: those of result.json, which have both for the models as received and for those after local training.
        regression: whether it is of errors.
    """
    rows = [{"round": row.get("round"), **(row.get("extra") or {})} for row in rounds] if regression else rounds
    kind, title = ("mae", "Mean absolute error") if regression else ("acc", "Accuracy")
    received, after = _curve_of(rows, f"{kind}_global"), _curve_of(rows, f"{kind}_local")
    lines = (Curve("after", after, "ink"), Curve("as received", received, "soft"))
    return Chart(f"{title} as received, and after local training", lines, percent=not regression)


def loss_panel(rounds: Sequence[Mapping[str, Any]]) -> Chart:
    """Build the chart of training loss by round."""
    return Chart("Training loss", (Curve("loss", _curve_of(rounds, "loss"), "ink"),))


def _curve_of(rounds: Sequence[Mapping[str, Any]], key: str) -> tuple[Point, ...]:
    pairs = ((row.get("round"), row.get(key)) for row in rounds)
    return tuple((float(x), float(y)) for x, y in pairs if x is not None and y is not None and math.isfinite(y))
