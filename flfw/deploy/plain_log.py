"""Log of a site without characters that move a terminal's cursor: a server chose some of Flower's lines in it."""

from __future__ import annotations

import logging
import traceback
from typing import final

from flfw.errors import printable

_FLOWERS = "flwr"


@final
class Plain(logging.Filter):
    """Filter that lets every record pass, with unprintable characters replaced."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace unprintable characters in a record; a line break in its arguments is a line break no more."""
        if isinstance(record.args, tuple):
            record.args = tuple(printable(arg) if isinstance(arg, str) else arg for arg in record.args)
        record.msg, record.args = _lines(record.getMessage()), ()
        if record.exc_info and record.exc_info[1]:
            record.exc_text = _lines("".join(traceback.format_exception(record.exc_info[1])))
        return True


def keep_plain() -> None:
    """Make all lines plain that Flower logs in this process, and in its forks, from now on."""
    logger = logging.getLogger(_FLOWERS)
    if not any(isinstance(known, Plain) for known in logger.filters):
        logger.addFilter(Plain())


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))
