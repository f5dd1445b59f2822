"""Numbers, settings and sentences as the page's reader would write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Undefined
from markupsafe import Markup, escape

from flfw.privacy.rounding import at_least, at_most
from flfw.report.findings import number


def decimals(value: Any, places: int = 1) -> str:
    """Format a number for reading: a dash where there is none, the sign of infinity for a perfect score."""
    read = number(value)
    if read is None:
        return "–"
    return ("∞" if read > 0 else "−∞") if math.isinf(read) else f"{read:.{places}f}".replace("-", "−")


def digits(value: Any) -> str:
    """Format a number of any size with three significant digits."""
    read = number(value)
    return decimals(read) if read is None or math.isinf(read) else f"{read:.3g}".replace("-", "−")


def above(value: Any) -> str:
    """Format an upper bound, rounded up."""
    read = number(value)
    return decimals(read) if read is None or math.isinf(read) else at_most(read)


def below(value: Any) -> str:
    """Format a lower bound, rounded down."""
    read = number(value)
    return decimals(read) if read is None or math.isinf(read) else at_least(read)


def percent_above(value: Any) -> str:
    """Format a share that is an upper bound as a percentage, rounded up."""
    read = number(value)
    return percent(read if read is None else math.ceil(1000 * read - 1e-9) / 1000)


def percent(value: Any, places: int = 1) -> str:
    """Format a share as a percentage."""
    read = number(value)
    return "–" if read is None else f"{100 * read:.{places}f}\N{NO-BREAK SPACE}%"


def plain(value: Any) -> str:
    """Format a value of the configuration as a reader would write it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(plain(part) for part in value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, Undefined) or value != value:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def sentence(text: str) -> str:
    """Return a text as a sentence: with a capital letter and a full stop."""
    text = capital(text)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def flags(text: str) -> Markup:
    """Return a text with each flag of sim.py kept on one line."""
    return Markup(re.sub(r"--[a-z-]+", r'<span class="flag">\g<0></span>', str(escape(text))))


def capital(text: str) -> str:
    """Return a text with a capital letter at its start; the rest stays as it is."""
    return text[:1].upper() + text[1:]
