"""Words of an audit's conclusion: three verdicts, what a leak was found by, and what a page tells apart."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from flfw.files.earlier_names import verdict_of_today

VerdictWord: TypeAlias = Literal["leaks", "no leak found", "undecided"]
Evidence: TypeAlias = Literal["reconstructed", "message", "identified", "member", "classes", "to a malicious server"]
LEAKS, NO_LEAK_FOUND, UNDECIDED = get_args(VerdictWord)
RECONSTRUCTED, MESSAGE, IDENTIFIED, MEMBER, CLASSES, MALICIOUS = get_args(Evidence)
"""Evidence of a leak; of the last kind in a network that a malicious server changed, which tells nothing of others."""
LeakCause: TypeAlias = Literal[
    "recovered", "peer", "identified", "candidates", "pairs", "tail", "client", "claim", "reversed", "inferred",
    "tampered",
]  # fmt: skip
NoLeakCause: TypeAlias = Literal["nothing", "constant"]
UndecidedCause: TypeAlias = Literal[
    "analytic", "description", "null", "stopped", "failures", "easy", "floor", "weak", "chance", "alike", "static",
    "undefended", "outdone", "consistency", "undefended_control", "weak_defence", "search", "noise", "unread", "faint",
    "few", "rounding", "alone", "group", "untried",
]  # fmt: skip
Cause: TypeAlias = LeakCause | NoLeakCause | UndecidedCause
"""What decides a verdict. Its group is the word, but that ``tampered`` without a leak decides nothing."""
LEAK_CAUSES: Mapping[str, str] = {
    "recovered": RECONSTRUCTED,
    "peer": MESSAGE,
    **dict.fromkeys(("identified", "candidates"), IDENTIFIED),
    **dict.fromkeys(("pairs", "tail", "client", "claim", "reversed"), MEMBER),
    "inferred": CLASSES,
    "tampered": MALICIOUS,
}
"""Evidence of a leak by the cause of the verdict."""
POSITIVE = (RECONSTRUCTED, MESSAGE, IDENTIFIED, MEMBER, CLASSES)
"""Evidence of a leak where the server follows the protocol, the gravest first."""
VOID, STATIC = "void", "static"
"""Outcomes of an undecided audit whose own check failed, and of an attack that did not know what hides the data."""
_VOID = ("analytic", "description")


def concluded(verdict: str, cause: Cause, reason: str) -> dict[str, str | None]:
    """Return a conclusion as a result holds it, with the evidence of a leak."""
    evidence = LEAK_CAUSES[cause] if verdict == LEAKS else None
    return {"verdict": verdict, "evidence": evidence, "cause": cause, "reason": reason}


def of_today(entry: Mapping[str, Any], found: str = RECONSTRUCTED) -> dict[str, Any]:
    """Return an entry with the verdict and the evidence of today; ``found`` is that of a leak without a known cause."""
    today = {"evidence": None, **verdict_of_today(entry)}
    if today.get("verdict") == LEAKS and not today["evidence"]:
        today["evidence"] = LEAK_CAUSES.get(str(today.get("cause")), found)
    return today


def outcome(entry: Mapping[str, Any]) -> str:
    """Return the evidence of a leak, else the verdict; of undecided ones `VOID` and `STATIC` apart.

    >>> outcome({"verdict": "leaks", "evidence": "identified"}), outcome({"verdict": "undecided", "cause": "static"})
    ('identified', 'static')
    """
    verdict, cause = entry.get("verdict"), entry.get("cause")
    if verdict == LEAKS:
        return str(entry.get("evidence") or RECONSTRUCTED)
    if verdict == NO_LEAK_FOUND:
        return NO_LEAK_FOUND
    return VOID if cause in _VOID else STATIC if cause == STATIC else UNDECIDED


def qualifier(entry: Mapping[str, Any]) -> str:
    """Return the outcome where the verdict alone does not say it; empty elsewhere."""
    kind = outcome(entry)
    silent = (RECONSTRUCTED, MESSAGE, MEMBER, CLASSES, entry.get("verdict"))
    return kind if entry.get("verdict") and kind not in silent else ""


def in_words(entry: Mapping[str, Any]) -> str:
    """Return the verdict with its `qualifier`.

    >>> in_words({"verdict": "leaks", "evidence": "identified"}), in_words({"verdict": "undecided"})
    ('leaks (identified)', 'undecided')
    """
    verdict, more = str(entry.get("verdict") or "not judged"), qualifier(entry)
    return f"{verdict} ({more})" if more else verdict
