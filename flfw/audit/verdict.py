"""Verdict of an audit: one function from what was found, in any kind of game, to one of three words.

Each kind of evidence lists its findings, the one that decides first: `flfw.audit.reconstruction.evidence` for messages
and sums, `flfw.audit.membership.evidence` for members, `flfw.audit.measures.class_inference` for classes, and
`flfw.audit.sums` for peers. The word follows from the cause of the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

from flfw.experiment.curves import SUM_SIZE
from flfw.files.verdicts import LEAK_CAUSES, LEAKS, NO_LEAK_FOUND, STATIC, UNDECIDED, VOID, outcome

Findings: TypeAlias = Iterator[tuple[str, str]]
"""Causes of a verdict, each with the reason in sentences; the first one decides."""

MESSAGES = 8  # least number of independent messages for "no leak found": they exclude, at 95 %, that 32 % leak
_FOUND_NOTHING = ("nothing", "constant")


class Verdict(NamedTuple):
    """Verdict of an attack on a target.

    Attributes:
        verdict: ``leaks``, ``no leak found`` or ``undecided``; what was found follows from the cause.
        cause: what decided it, in one word.
        reason: what decided it, in sentences.
    """

    verdict: str
    cause: str
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
    word = LEAKS if cause in LEAK_CAUSES else NO_LEAK_FOUND if cause in _FOUND_NOTHING else UNDECIDED
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


def min_safe_sum_size(reached: Mapping[int, bool | None]) -> int | None:
    """Return the smallest measured group from which on an attack reaches nothing; None: it did not fall to that.

    An attack that reaches nothing in the smallest group either was not stopped by sums: then no number is needed.

    Args:
        reached: whether the attack recovered or identified anything, by the size of the group; None: it gave no answer.

    >>> min_safe_sum_size({1: True, 2: True, 5: False, 10: False}), min_safe_sum_size({1: False, 2: False})
    (5, None)
    >>> min_safe_sum_size({1: True, 2: None, 5: None}), min_safe_sum_size({1: True, 2: None, 5: False})
    (None, 5)
    """
    last = max((size for size, leaked in reached.items() if leaked), default=inf)
    return min((size for size in reached if size > last and reached[size] is False), default=None)


def with_min_safe_sum_size(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a kind of game, those on sums with the group from which on their attack reaches nothing.

    An attack that could look through the clients' operations in a sum over one client, and not in a larger one, is the
    same attack on one curve: ``adaptive`` may differ between them.

    Args:
        entries: the entries.
    """
    sizes: dict[str, dict[int, bool | None]] = {}
    for one in entries:
        if _on_curve(one):
            sizes.setdefault(_same_attack(one), {})[one["sum_size"]] = _reached(one)
    needed = {attack: min_safe_sum_size(reached) for attack, reached in sizes.items()}
    return [one | {"min_safe_sum_size": needed[_same_attack(one)] if _on_curve(one) else None} for one in entries]


def _on_curve(one: Mapping[str, Any]) -> bool:
    return bool(one["sum_size"]) and one.get("curve") in (None, SUM_SIZE)


def _same_attack(one: Mapping[str, Any]) -> str:
    kinds = ("attack", "statistic", "vantage", "adaptation", "defence", "round", "rounds", "steps")
    return repr([one.get(kind) for kind in kinds])


def _reached(one: Mapping[str, Any]) -> bool | None:
    """Return whether an entry's attack reached something; None: it broke, saw too few sums, or luck may explain it.

    A statistic of members counts only if its controls passed and its pairs were enough to find something: then nothing
    was found, or it is only the size of the group that rules out to call it protection.
    """
    if one["cause"] == "peer":
        return False
    if one["verdict"] == LEAKS:
        return True
    if "statistic" in one:
        return {"nothing": False, "group": False, "faint": True}.get(one["cause"])
    broke = one["failure_reason"] and not one["failure_reason"].startswith("not applicable")
    unknown = broke or outcome(one) == VOID or one["cause"] == "chance" or one["messages"] < MESSAGES
    return None if unknown else False
