"""Style of the project's charts: those on its pages, which are SVG inside of them, and papers' figures, in files.

It leaves matplotlib's global state unchanged: whatever draws does so within `rc_context` of a style.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import wrap
from typing import Any, Literal, NamedTuple, TypeVar
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

Format = Literal["svg", "png", "pdf"]
Columns = Literal["one", "two"]

LIGHT = {
    "paper": "#fcfcfa",
    "raised": "#f3f3ef",
    "ink": "#1b1e22",
    "soft": "#5a616a",
    "line": "#dcdcd5",
    "accent": "#b23a12",
    "tint": "#f9e9e2",
}
"""Colours of the page in light mode, by the names of its variables: those of ``template/style.css.md``."""

INK, SOFT, ACCENT = LIGHT["ink"], LIGHT["soft"], LIGHT["accent"]
PAPER, RAISED, LINE = LIGHT["paper"], LIGHT["raised"], LIGHT["line"]
INKS = ("#12304f", "#a63f12", "#4a9c97", "#8ab4d0", "#e6c46a")
"""Colours of a paper's runs or groups, from dark to light, so that they differ in grey too."""
MARKS = "os^Dv<>PX*"
"""Marker of each run or group."""
LINE_HEIGHT = 1.3
"""Distance of lines of text, in font sizes."""
DASHED = (0, (4, 2))
"""Line style of what is no measured curve: a level, a mean, a reference."""
BESIDE: Any = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5), "frameon": False, "alignment": "left"}
"""Where a legend right of the axes stands."""
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same layout on each machine
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "xtick.color": "#999999",
    "ytick.color": "#999999",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # a name may have a dollar sign
    "grid.color": LINE,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "flfw",  # the same figure, the same bytes
    "pdf.fonttype": 42,  # publishers refuse Type 3
}
"""Style of a paper's figure, in inches and points."""
PAGE_STYLE: Any = {
    **STYLE,
    "figure.dpi": 72,  # a point is a pixel
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titlepad": 12,
    "axes.labelcolor": SOFT,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
    "xtick.bottom": False,
    "ytick.left": False,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "path.simplify": False,  # it would leave out lines without a length
}
"""Style of a chart on a page."""

_WIDTHS: Mapping[Columns, float] = {"one": 3.35, "two": 6.9}  # of a page with two columns, in inches
_WIDTH: ContextVar[float | None] = ContextVar("width", default=None)
_LETTER = 0.6  # width of one in a title, in font sizes
_NARROW = 342  # pixels of a phone's page
_DATED = {"svg": "Date", "pdf": "CreationDate"}
_NO_METADATA: Any = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_LEADER = {"arrowstyle": "-", "linewidth": 0.7, "relpos": (0.0, 0.5), "shrinkA": 1, "shrinkB": 4, "alpha": 0.7}
_NAMESPACES = re.compile(r' xmlns(:\w+)?="[^"]*"|(?<=[ <])xlink:')
# Around a page's chart a notebook may have none of the page's variables.
_VARIABLES = {colour: f"var(--{name}, {'currentColor' if name == 'ink' else colour})" for name, colour in LIGHT.items()}
_COLOUR = re.compile("|".join(_VARIABLES))
_FAMILY = re.compile(r"font-family: [^;]*(; |$)")
_NUMBER = re.compile(r"-?\d+\.\d+")

T = TypeVar("T")


class End(NamedTuple):
    """End of a line, or a mark: its place, its name, the colours of the line that leads to the name and of the name."""

    x: float
    y: float
    name: str
    ink: str
    words: str = INK


# --- figures of papers ---


@contextmanager
def wide_as(columns: Columns | None) -> Iterator[None]:
    """Make figures as wide as one or two columns of a page; None: each as wide as it is best seen alone."""
    token = _WIDTH.set(None if columns is None else _WIDTHS[columns])
    try:
        yield
    finally:
        _WIDTH.reset(token)


def blank(width: float, height: float, title: str) -> Figure:
    """Return an empty figure of so many inches with a title; as wide as `wide_as` says, its caption has the title."""
    wanted = _WIDTH.get()
    if wanted is not None:
        width, height = wanted, height * max(0.75, min(1.0, wanted / width))
        rcParams["axes.titleweight"] = "normal"
        if wanted <= _WIDTHS["one"]:
            rcParams.update({"font.size": 7, "axes.titlesize": 7, "lines.markersize": 3.5})  # until the style ends
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    drawn: Any = {"visible": wanted is None, "in_layout": wanted is None}
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold", wrap=True, **drawn)
    return figure


@rc_context(STYLE)
def rendered(figure: Figure, form: Format) -> bytes:
    """Return the bytes of the file; the same figure gives the same bytes. Titles end before those beside them."""
    figure.draw_without_rendering()
    starts = [axes.get_position().x0 for axes in figure.axes]
    for axes, start in zip(figure.axes, starts, strict=True):
        room = min((one for one in starts if one > start + 0.05), default=1.0) - start
        letters = 1 + int(72 * figure.get_figwidth() * room / (_LETTER * float(axes.title.get_fontsize())))
        look: Any = {"loc": "left", "fontproperties": axes.title.get_fontproperties()}
        axes.set_title("\n".join(wrap(axes.get_title("left"), letters, break_long_words=False)), **look)
    file = io.BytesIO()
    dated = {_DATED[form]: None} if form in _DATED else {}
    figure.savefig(file, format=form, dpi=200, metadata=dated)
    return file.getvalue()


# --- charts on a page ---


def at_both_widths(draw: Callable[[int], Markup], wide: int) -> Markup:
    """Draw a chart twice, for a desktop of so many pixels and for a phone; the page's style shows one."""
    return Markup("").join(
        Markup('<div class="chart {}">{}</div>').format(name, draw(width))
        for name, width in (("wide", wide), ("narrow", _NARROW))
    )


def page_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many CSS pixels, through which the page is seen."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, frameon=False)


def inline_svg(figure: Figure, alt: str, kind: str = "") -> Markup:
    """Return a chart as an element of a page: in the page's font, and in its colours of light, of dark and of print.

    Nothing is clipped, so whoever draws keeps within the axes. There are no ids, which a page may have but once, so a
    chart has `dots` in place of markers.

    Args:
        figure: the chart, drawn in the colours of `LIGHT`.
        alt: text for a reader who cannot see it.
        kind: class of the element.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=_NO_METADATA)
    root = ElementTree.fromstring(_NAMESPACES.sub("", file.getvalue()))
    for element in list(root.iter()):
        _simplify(element)
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib = {
        "viewBox": f"0 0 {width} {height}",
        "width": width,
        "height": height,
        "role": "img",
        "aria-label": alt,
    }
    if kind:
        root.set("class", kind)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _simplify(element: ElementTree.Element) -> None:
    """Leave out what a page does not need, and let it choose colours and font."""
    for child in list(element):
        if child.tag == "defs" or (child.tag == "path" and child.get("style") == "fill: none"):
            element.remove(child)
    if element.tag != "text":
        element.text = None
    elif element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    element.tail = None
    for name in ("clip-path", "id"):
        element.attrib.pop(name, None)
    if "style" in element.attrib:
        style = _COLOUR.sub(lambda found: _VARIABLES[found[0]], element.attrib["style"])
        element.set("style", _FAMILY.sub("", style))
    for name in ("d", "transform", "x", "y"):
        if name in element.attrib:
            short = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), element.attrib[name])
            element.set(name, " ".join(short.split()))


def dots(values: Iterable[float]) -> np.ndarray:
    """Return coordinates of dots: lines without a length, which have round ends and are as wide as a dot shall be.

    >>> dots([1.0, 2.0])
    array([ 1.,  1., nan,  2.,  2., nan])
    """
    coordinates = np.repeat(np.asarray(list(values), dtype=float), 3)
    coordinates[2::3] = np.nan
    return coordinates


def shown(text: str) -> str:
    """Return a text with a sign for each character that no SVG may hold."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


# --- what both have ---


def unbroken(points: Iterable[T], rounds: Sequence[float]) -> Iterator[list[T]]:
    """Yield the parts of a line between which a round was not measured.

    >>> list(unbroken("abc", [0, 1, 5]))
    [['a', 'b'], ['c']]
    """
    part: list[T] = []
    for point, before, at in zip(points, [None, *rounds], rounds, strict=False):
        if before is not None and at - before > 1:
            yield part
            part = []
        part.append(point)
    if part:
        yield part


def write_numbers(axis: Axis, text_of: Callable[[float], str]) -> None:
    """Write the numbers of an axis in a unit of their own."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: text_of(value)))


def name_ends(axes: Axes, ends: Sequence[End], aside: float = 0.04) -> None:
    """Write each name at the right, as near to the height of its line's end as the other names allow.

    Args:
        axes: axes whose size is known.
        ends: the ends.
        aside: distance of the names from the axes, in widths of the axes.
    """
    low, high = axes.get_ylim()
    box = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    # Of ends at one height the rightmost has the nearest name: no leader goes through another end.
    ends = sorted(ends, key=lambda end: end.x if end.y > (low + high) / 2 else -end.x)
    tall, line = 72 * box.height, LINE_HEIGHT * rcParams["font.size"]  # in points
    levels = [(end.y - low) / (high - low) * tall for end in ends]
    heights = [line * (end.name.count("\n") + 1) for end in ends]
    for end, level in zip(ends, spread(levels, heights, 0.0, tall), strict=True):
        axes.annotate(
            end.name,
            (end.x, end.y),
            (1 + aside, level / tall),
            textcoords="axes fraction",
            va="center",
            color=end.words,
            arrowprops={**_LEADER, "color": end.ink},
        )


def spread(positions: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Move the middles of labels apart until none overlaps another, by one pass up and one pass down.

    The middle of the flattest label may reach the ends, where others keep as far within.

    >>> spread([10, 12, 50], [10, 10, 20], 0, 60)
    [10, 20.0, 50]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    placed, over = list(positions), [(height - min(heights)) / 2 for height in heights]
    for one, other in zip([None, *order], order, strict=False):
        free = low + over[other] if one is None else placed[one] + (heights[one] + heights[other]) / 2
        placed[other] = max(placed[other], free)
    for one, other in zip([None, *reversed(order)], reversed(order), strict=False):
        free = high - over[other] if one is None else placed[one] - (heights[one] + heights[other]) / 2
        placed[other] = min(placed[other], free)
    return placed
