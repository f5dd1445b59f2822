"""Verdict of an audit: one function from what was found, in any kind of game, to one of three words.

Each kind of evidence lists its findings, the one that decides first:
`flfw.audit.reconstruction.reconstruction_evidence` for messages and sums,
`flfw.audit.membership.membership_evidence` for members, `flfw.audit.measures.class_inference` for classes, and
`flfw.audit.sums` for peers. The word follows from the cause of the first one.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, get_args

from flfw.files.outcomes import LEAK_CAUSES, LEAKS, NO_LEAK_FOUND, STATIC, UNDECIDED, Cause, NoLeakCause

Findings: TypeAlias = Iterator[tuple[Cause, str]]
"""Causes of a verdict, each with the reason in sentences; the first one decides."""

MESSAGES = 8  # least number of independent messages for "no leak found": they exclude, at 95 %, that 32 % leak


class Verdict(NamedTuple):
    """Verdict of an attack on a target.

    Attributes:
        verdict: ``leaks``, ``no leak found`` or ``undecided``; what was found follows from the cause.
        cause: what decided it, in one word.
        reason: what decided it, in sentences.
    """

    verdict: str
    cause: Cause
    reason: str


def verdict_on(findings: Findings, *, unread: str = "", tampered_by: str = "") -> Verdict:
    """Return the verdict on an attack, whatever the kind of game.

    Args:
        findings: what was found, the one that decides first.
        unread: in words, statistics of their data that clients send and that no attack reads; empty: there are none.
        tampered_by: the attack whose malicious server changed the network; empty: the server followed the protocol.

    >>> verdict_on(iter([("few", "There were two messages.")])).verdict
    'undecided'
    """
    cause, reason = next(findings)
    word = LEAKS if cause in LEAK_CAUSES else NO_LEAK_FOUND if cause in get_args(NoLeakCause) else UNDECIDED
    conclusion = revised_if_unread(Verdict(word, cause, reason), unread)
    return revised_if_tampered(conclusion, tampered_by) if tampered_by else conclusion


def revised_if_unread(conclusion: Verdict, unread: str) -> Verdict:
    """Return a conclusion that does not say that nothing leaks where clients send statistics that were not attacked.

    Args:
        conclusion: on the gradients that were attacked.
        unread: the statistics in words; empty: none are sent.
    """
    if conclusion.verdict != NO_LEAK_FOUND or not unread:
        return conclusion
    reason = (
        f"Nothing was reconstructed from gradients. But in training clients send {unread} as well, which are means of "
        "their data, and no attack was made on these: what hides the gradients may not hide them."
    )
    return Verdict(UNDECIDED, "unread", reason)


def revised_if_tampered(conclusion: Verdict, by: str) -> Verdict:
    """Return a conclusion on a network that a malicious server changed: it is none on the honest protocol.

    A leak is evidence ``to a malicious server`` alone; without a leak nothing is decided.

    Args:
        conclusion: by the rules for honest servers.
        by: the attack that changed the network.

    >>> revised_if_tampered(Verdict("no leak found", "nothing", "Nothing came out."), "x").verdict
    'undecided'
    """
    word, cause, reason = conclusion
    beyond = "It says nothing about a server that follows the protocol: audit that in a run of such a server."
    if word == LEAKS:
        return Verdict(LEAKS, "tampered", f"In the network that a malicious server changed ({by}): {reason} {beyond}")
    if word == UNDECIDED and cause != STATIC:
        return Verdict(word, cause, f"{reason} {beyond}")
    nothing = f"Nothing was reconstructed in the network that a malicious server changed ({by})."
    return Verdict(UNDECIDED, "tampered", f"{nothing} {beyond}")
