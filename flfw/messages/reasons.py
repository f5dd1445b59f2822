"""Reasons of failures: the words by which a client's failure reaches the server and a terminal.

This module does not import torch: a site's guard reads reasons in a process without torch.

Attributes:
    QUIET: key of a node config; with it a client does not write into its introduction why its data cannot be used.
    WITHHELD: reason of such a client.
"""

import re
import traceback
from pathlib import Path

from flfw.errors import DIED, OneLine, printable

QUIET = "quiet"
WITHHELD = "cannot use its data; this site's log has the reason"

_WRAPPED = re.compile(r"<class '[^']*'>:<'(.*)'>", re.DOTALL)
_TEXT, _SHOWN, _LONGEST = 200, 300, 20_000  # characters of an exception and of a reason, shown; and read


class UnusableReplyError(OneLine, RuntimeError):
    """Error of a client's reply that cannot be used; the message says why.

    It may quote what the client sent, such as a name: at most 300 characters are left, and none that moves a terminal's
    cursor.
    """

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))


class RequestDeclinedError(OneLine, RuntimeError):
    """Error of a client that does not answer a message, for a reason that lies in the message and not in its data."""


def words_of(error: BaseException) -> str:
    """Return an exception's text; after that of somebody's own code stand its type, its file and its line."""
    try:
        text = str(error)
    except Exception:  # it cannot even be asked
        text = ""
    if isinstance(error, OneLine):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    *_, last = [one for one in frames if "site-packages" not in one.filename] or frames or [None]
    place = f" in {Path(last.filename).name}, line {last.lineno}" if last else ""
    return f"{' '.join(text.split())[:_TEXT]} ({type(error).__name__}{place})".lstrip()


def in_one_line(reason: str | None) -> str:
    """Shorten an error reason to the client's message, without the text that Flower's engine or SuperNode adds.

    A client may write anything into it: at most 300 characters are left, and none that moves a terminal's cursor.
    """
    words = (reason or "no reason given")[-_LONGEST:]  # the message comes last
    if "ActorDied" in words or "ActorUnavailable" in words or "RayActorError" in words:
        return DIED
    if wrapped := _WRAPPED.fullmatch(words):
        words = wrapped[1]
    words = words.rpartition("occurred. Message: ")[2]
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return shown(lines[-1]) if lines else "no reason given"


def shown(text: str) -> str:
    """Shorten words to a line that a spreadsheet does not take for a formula.

    >>> shown("=cmd|' /C calc'!A0")
    "'=cmd|' /C calc'!A0"
    """
    line = printable(text[:_SHOWN])
    return f"'{line}"[:_SHOWN] if line.startswith(("=", "+", "-", "@")) else line
