"""Words of an audit's conclusion: three verdicts, what a leak was found by, and what a page tells apart."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

LEAKS, NO_LEAK_FOUND, UNDECIDED = "leaks", "no leak found", "undecided"
"""Verdicts."""
RECONSTRUCTED, MESSAGE, IDENTIFIED, MEMBER, CLASSES = "reconstructed", "message", "identified", "member", "classes"
MALICIOUS = "to a malicious server"
"""Evidence of a leak in a network that a malicious server changed; it says nothing of the honest protocol."""
EVIDENCE: Mapping[str, str] = MappingProxyType(
    {
        "recovered": RECONSTRUCTED,
        "peer": MESSAGE,
        **dict.fromkeys(("identified", "candidates"), IDENTIFIED),
        **dict.fromkeys(("pairs", "tail", "client", "claim", "reversed"), MEMBER),
        "inferred": CLASSES,
        "tampered": MALICIOUS,
    }
)
"""Evidence of a leak by the cause of the verdict."""
POSITIVE = (RECONSTRUCTED, MESSAGE, IDENTIFIED, MEMBER, CLASSES)
"""Evidence of a leak where the server follows the protocol, the gravest first."""
VOID, STATIC = "void", "static"
"""Outcomes of an undecided audit whose own check failed, and of an attack that did not know what hides the data."""
_VOID = ("analytic", "description")


def concluded(verdict: str, cause: str, reason: str) -> dict[str, str | None]:
    """Return a conclusion as a result holds it, with the evidence of a leak."""
    evidence = EVIDENCE[cause] if verdict == LEAKS else None
    return {"verdict": verdict, "evidence": evidence, "cause": cause, "reason": reason}


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
    return "" if kind in (RECONSTRUCTED, MEMBER, CLASSES, entry.get("verdict")) else kind


def in_words(entry: Mapping[str, Any]) -> str:
    """Return the verdict with its `qualifier`.

    >>> in_words({"verdict": "leaks", "evidence": "identified"}), in_words({"verdict": "undecided"})
    ('leaks (identified)', 'undecided')
    """
    verdict, more = str(entry.get("verdict") or "not judged"), qualifier(entry)
    return f"{verdict} ({more})" if more else verdict
