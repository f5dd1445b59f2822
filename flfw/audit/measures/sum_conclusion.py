"""Conclusion from an attack that reconstructs nothing from sums over clients, without any other defence.

A sum hides single clients' data behind the other clients'. That the attack fails on it counts only if the same attack
works on groups of one client in the same audit, and for groups of `LEAST` clients or more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from flfw.audit.measures.statistics import most_missed
from flfw.curves import GROUP

LEAST = 10
"""Least number of clients in a sum for ``no leak found``."""
MESSAGES = 8
"""Least number of independent sums for ``no leak found``."""


@dataclass(frozen=True)
class SumEvidence:
    """Results that a failure on sums is held against.

    Attributes:
        group: number of clients in a sum.
        alone: share recovered by the same attack on groups of one client; None: these were not attacked.
        described: whether the attacker's model, at the true data, gives the sums.
        short: whether the search ended short in most of the sums.
        sums: number of independent sums.
    """

    group: int
    alone: float | None
    described: bool
    short: bool
    sums: int


def conclude_on_sums(evidence: SumEvidence, enough: float) -> tuple[str, str, str]:
    """Return verdict, cause and reason where nothing came out of undefended sums.

    Args:
        evidence: the results.
        enough: share recovered from groups of one client from which on the attack counts as working.

    >>> conclude_on_sums(SumEvidence(5, 1.0, True, False, 8), 0.5)[:2]
    ('inconclusive', 'group')
    """
    size, alone = evidence.group, evidence.alone
    if size == 1:
        return "inconclusive", "undefended", "A sum over one client is its own message, which nothing hides."
    if alone is None:
        why = "Groups of one client were not attacked (`--curve group=1`)"
        return "inconclusive", "alone", f"{why}: it was not shown that the attack works without the sum."
    if alone < enough:
        why = f"The attack reconstructs {alone:.0%} of the examples of groups of one client"
        return "inconclusive", "alone", f"{why}, too few for its failure on sums to mean anything."
    if not evidence.described:
        why = "It was not shown that the attacker's model of the clients explains the sums"
        return "inconclusive", "consistency", f"{why}: its failure means nothing."
    if evidence.short:
        why = "The search ended short in most sums: the true data explain them better than its results do"
        return "inconclusive", "search", f"{why}. A longer or better search is needed."
    if size < LEAST:
        why = f"Nothing was reconstructed from sums over {size} clients, but at least {LEAST} are needed"
        return "inconclusive", "group", f"{why}: a stronger attack may separate so few."
    if evidence.sums < MESSAGES:
        why = f"Nothing was reconstructed from {evidence.sums} sums, but at least {MESSAGES} are needed"
        return (
            "inconclusive",
            "few",
            f"{why}: up to {most_missed(max(1, evidence.sums)):.0%} of them could leak unseen.",
        )
    return (
        "no leak found",
        "nothing",
        f"The attack reconstructs {alone:.0%} of the examples of groups of one client, and nothing from sums over "
        f"{size}. Up to {most_missed(evidence.sums):.0%} of such sums could leak to this attack and none have been "
        "seen to. This holds for one round's sums, if the protocol is right and no client tells its own part.",
    )


def group_needed(reached: dict[int, bool]) -> int | None:
    """Return the smallest measured group from which on an attack reaches nothing; None: there is none, or no effect.

    Args:
        reached: whether the attack recovered or identified anything, by the size of the group.

    >>> group_needed({1: True, 2: True, 5: False, 10: False}), group_needed({1: False, 2: False})
    (5, None)
    """
    last = max((size for size, leaked in reached.items() if leaked), default=None)
    return None if last is None else min((size for size in reached if size > last), default=None)


def with_groups_needed(entries: Sequence[dict[str, Any]], positive: Collection[str]) -> list[dict[str, Any]]:
    """Return an audit's entries, those of sums with the smallest group from which on their attack reaches nothing.

    Args:
        entries: the entries.
        positive: the verdicts of an attack that reached something.
    """
    kinds = ("attack", "adaptive", "defence", "round", "steps")
    on_curve = lambda one: one["group"] and one["curve"] in (None, GROUP)  # noqa: E731
    at = lambda one: tuple(one[name] for name in kinds)  # noqa: E731
    reached: dict[tuple[Any, ...], dict[int, bool]] = {}
    for one in entries:
        if on_curve(one):
            reached.setdefault(at(one), {})[one["group"]] = one["verdict"] in positive
    needed = {kind: group_needed(sizes) for kind, sizes in reached.items()}
    return [one | {"group_needed": needed[at(one)] if on_curve(one) else None} for one in entries]
