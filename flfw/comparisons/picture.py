"""Scatter plot of a matrix as SVG of its page: leakage against utility, with the name of each mark beside the plot."""

from dataclasses import dataclass
from textwrap import fill
from typing import Any, final

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flfw.comparisons.utility import Utility
from flfw.report import chart_style

_WIDE = 516
# In pixels: room for tick labels, the title, and what is below the plot; a mark; a character of a name.
_LEFT, _HEAD, _FOOT, _MARK, _CHARACTER = 44.0, 31.0, 46.0, 9.0, 6.4
_PLOT = 250.0  # the least height of the plot


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
    return chart_style.at_both_widths(lambda width: _drawn(panel, width), _WIDE) if panel.marks else Markup("")


@rc_context(chart_style.PAGE_STYLE)
def _drawn(panel: Scatter, width: int) -> Markup:
    names = [chart_style.shown(mark.name) for mark in panel.marks]
    right = min(max(map(len, names)) * _CHARACTER + 24, width * 0.4)
    names = [fill(name, int((right - 20) / _CHARACTER)) for name in names]
    lines = sum(name.count("\n") + 1 for name in names)
    below = fill(f"{panel.utility.words}{panel.utility.direction}", int((width - right) / _CHARACTER))
    foot = _FOOT + chart_style.LINE_HEIGHT * 12 * below.count("\n")
    plot, across = max(_PLOT, chart_style.LINE_HEIGHT * 12 * (lines + 1)), width - _LEFT - right
    height = _HEAD + plot + foot
    figure = chart_style.page_figure(width, height)
    axes = figure.add_axes((_LEFT / width, foot / height, across / width, plot / height))
    axes.set_title(panel.title, x=-_LEFT / across, y=1.0)
    (low, high), top = panel.sides(), panel.top()
    air = (high - low) * _MARK / (across - 2 * _MARK)
    axes.set(xlim=(low - air, high + air), ylim=(0, top))
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.tick_params(axis="x", bottom=True, color=chart_style.SOFT)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5 if width == _WIDE else 3, steps=[1, 2, 5, 10]))
    chart_style.write_numbers(axes.xaxis, panel.utility.tick)
    axes.set_xlabel(below, loc="right")
    for mark in panel.marks:
        look: Any = {"color": _tone(mark), "alpha": 0.6, "linewidth": 1.5}
        if mark.along:
            axes.plot([mark.x, mark.x], [min(max(end, 0.0), top) for end in mark.along], **look)
        if mark.across[0] < mark.across[1]:
            axes.plot(mark.across, [mark.y, mark.y], **look)
    for mark in panel.marks:
        axes.plot(chart_style.dots([mark.x]), chart_style.dots([mark.y]), color=_tone(mark), linewidth=_MARK, zorder=3)
    named = zip(panel.marks, names, strict=True)
    ends = [chart_style.End(mark.x, mark.y, name, chart_style.SOFT, _tone(mark)) for mark, name in named]
    chart_style.name_ends(axes, ends, 12 / across)
    alt = f"{panel.title}, by {panel.utility.words}. " + "; ".join(mark.name for mark in panel.marks)
    return chart_style.inline_svg(figure, alt)


def _tone(mark: PlotMark) -> str:
    return chart_style.ACCENT if mark.leaks else chart_style.INK
