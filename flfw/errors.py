"""Errors that end a run, and their exit codes on the command line.

Attributes:
    DIED: reason for the failure of a client whose process ended without an answer.
"""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

DIED = "its process died"
_LONGEST = 4000  # characters of a message
_LIKE = 0.6  # least similarity of a word to the one that it may be a slip of
_EQUALS = 3  # words of equal similarity that are named


class OneLine(Exception):
    """Base of errors whose message is one printable line, also where it names values from outside."""

    def __str__(self) -> str:
        """Return the message, with a question mark for each character that would move a terminal's cursor."""
        words = super().__str__()
        return printable(words if len(words) <= _LONGEST else f"{words[:_LONGEST]}...")


class InputError(OneLine, ValueError):
    """Error in the input: the request cannot be done; the message names the value and the way out (exit code 2)."""


class RunError(OneLine, RuntimeError):
    """Failure of a run that had started; the message names the client or part that failed, and why (exit code 1)."""


def require(holds: bool, expected: str, **got: object) -> None:
    """Raise `InputError`, worded like all input errors, unless the condition holds.

    >>> require(1.5 < 1, "0 < ratio < 1", ratio=1.5)
    Traceback (most recent call last):
    flfw.errors.InputError: Expected 0 < ratio < 1, got ratio=1.5.
    """
    if not holds:
        raise InputError(f"Expected {expected}, got {', '.join(f'{k}={v}' for k, v in got.items())}.")


def suggestion(word: str, known: Iterable[str], minimum: float = _LIKE) -> str:
    """Return a question that names the known words most like a given one, three of equal likeness; empty if none is.

    Args:
        word: a word that is not known.
        known: the words that are.
        minimum: similarity of a word to the one that it may be a slip of, in [0, 1].

    >>> suggestion("hyperlf", ["fedavg", "hyperfl"]), suggestion("FedAvg", ["fedavg"]), suggestion("x", ["fedavg"])
    ('; did you mean hyperfl?', '; did you mean fedavg?', '')
    >>> suggestion("fedcg.9", ["fedcg.1", "fedcg.2"]), suggestion("TOTAL COST", ["TOTAL_COST"])
    ('; did you mean fedcg.1 or fedcg.2?', '; did you mean TOTAL_COST?')
    """
    likeness = {other: difflib.SequenceMatcher(None, other.lower(), word.lower()).ratio() for other in known}
    maximum = max(likeness.values(), default=0.0)
    if maximum < minimum:
        return ""
    *first, last = [other for other, ratio in likeness.items() if ratio == maximum][:_EQUALS]
    return f"; did you mean {', '.join(first)}{' or ' * bool(first)}{last}?"


def alike(words: Iterable[str]) -> str:
    """Return a remark on the first words that differ in capitals, blanks, forms of letters or a last dot alone.

    It is empty where none do.

    >>> alike(["f", "Male", "male"]), alike(["m", "male", "<5", ">5"])
    ("'Male' and 'male' differ in capitals, blanks or dots alone", '')
    >>> alike([">50K", ">50K."])
    "'>50K' and '>50K.' differ in capitals, blanks or dots alone"
    """
    known: dict[str, str] = {}
    for word in words:
        letters = unicodedata.normalize("NFKC", word).casefold().replace(" ", "").rstrip(".")
        other = known.setdefault("".join(filter(str.isprintable, letters)), word)
        if other != word:
            return f"{other!a} and {word!a} differ in capitals, blanks or dots alone"
    return ""


def abridged(names: Sequence[str], most: int, kind: str = "") -> str:
    """Return the first names, and how many more there are.

    >>> abridged("abcd", 2), abridged("ab", 2), abridged("abcd", 1, " columns")
    ('a, b and 2 more', 'a, b', 'a and 3 more columns')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more{kind}" if len(names) > most else "")


def unknown(expected: str, got: str, word: str, known: Iterable[str]) -> InputError:
    """Return the error for an unknown name; it begins with a question for the known one that it resembles.

    >>> str(unknown("a method among fedavg", "method=fedavgg", "fedavgg", ["fedavg"]))
    'Got method=fedavgg; did you mean fedavg? Expected a method among fedavg.'
    >>> str(unknown("a method among fedavg", "method=x", "x", ["fedavg"]))
    'Expected a method among fedavg; got method=x.'
    """
    like = suggestion(word, known)
    return InputError(f"Got {got}{like} Expected {expected}." if like else f"Expected {expected}; got {got}.")


def printable(text: str) -> str:
    """Replace every unprintable character, such as a terminal's escape sequences, by a question mark.

    >>> printable("one\\x1b[2J")
    'one?[2J'
    """
    return "".join(char if char.isprintable() else "?" for char in text)
