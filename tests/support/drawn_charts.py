"""Charts of a page, read back as a browser draws them."""

import re
from xml.etree import ElementTree

DOT, RING = 7.0, 8.5  # widths in pixels, see `flfw.report.figures`

Path = list[tuple[float, float]]


def charts_in(page: str, alt: str = "") -> list[ElementTree.Element]:
    """Return the charts, or those of one description: the wide one first; each must be XML."""
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]
    return [svg for svg in drawn if alt in ("", svg.get("aria-label"))]


def texts_of(svg: ElementTree.Element) -> list[str]:
    """Return the texts in the order of drawing; a name of several lines has one for each."""
    return [text.text or "" for text in svg.iter("text")]


def texts_at(svg: ElementTree.Element) -> list[tuple[str, float, float]]:
    """Return each text with its place."""
    places = [text.get("transform") or f"{text.attrib['x']} {text.attrib['y']}" for text in svg.iter("text")]
    numbers = [[float(number) for number in re.findall(r"-?[\d.]+", index)] for index in places]
    return [(text, x, y) for text, (x, y) in zip(texts_of(svg), numbers, strict=True)]


def lines_of(svg: ElementTree.Element, tone: str, width: float) -> list[Path]:
    """Return the lines of a colour and a width in pixels, each as its points; a dot is a line without length."""
    found: list[Path] = []
    for path in svg.iter("path"):
        style = dict(part.split(": ") for part in path.attrib["style"].split("; "))
        if style.get("stroke", "").startswith(f"var(--{tone},") and float(style.get("stroke-width", 1)) == width:
            for line in re.findall(r"M [^M]+", path.attrib["d"]):
                numbers = [float(number) for number in re.findall(r"-?[\d.]+", line)]
                found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found
