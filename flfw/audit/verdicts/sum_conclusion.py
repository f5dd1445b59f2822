"""Conclusion from an attack that reconstructs nothing from sums over clients, without any other defence.

A sum hides single clients' data behind the other clients'. That the attack fails on it counts only if the same attack
works on groups of one client in the same audit, and for groups of `LEAST` clients or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from flfw.audit.measures.statistics import most_missed
from flfw.audit.verdicts.evidence import MESSAGES, Verdict

LEAST = 10
"""Least number of clients in a sum for ``no leak found``, those that work together with the attacker not counted."""


@final
@dataclass(frozen=True)
class SumFacts:
    """Facts of a sum that an attacker sees.

    Attributes:
        group: number of clients in the sum.
        colluding: clients among them whose own messages the attacker knows.
        alone: share recovered by the same attack where one client is left; None: this was not attacked.
        untried: in words, the kinds of attacks that were not run in the same audit.
        peer: whether another client sees it, so that the own parts of those that collude are taken off already.
        lost: whether the rounding of the model may be as large as all that a peer has left.
    """

    group: int
    colluding: int = 0
    alone: float | None = None
    untried: tuple[str, ...] = ()
    peer: bool = False
    lost: bool = False

    @property
    def left(self) -> int:
        """Number of clients that hide one another."""
        return self.group - self.colluding

    @property
    def exposed(self) -> bool:
        """True if another client reads a single client's message off the sum."""
        return self.peer and self.left == 1 and not self.lost

    def exposure(self) -> Verdict:
        """Return the conclusion where `exposed` and nothing but the sum hides the message."""
        members = (
            f"{self.group} clients, of which {self.colluding} {'works' if self.colluding == 1 else 'work'} with it"
        )
        return Verdict(
            "leaks",
            "peer",
            f"In a round of {members}, a client takes the own part off and has the other client's update, but for the "
            "rounding of the model. That this attack reconstructs nothing from it protects nobody.",
        )


@final
@dataclass(frozen=True)
class SumEvidence:
    """Results that a failure on sums is held against.

    Attributes:
        facts: facts of the sum.
        described: whether the attacker's model, at the true data, gives the sums.
        short: whether the search ended short in most of the sums.
        sums: number of independent sums.
    """

    facts: SumFacts
    described: bool
    short: bool
    sums: int


def verdict_on_sums(evidence: SumEvidence, enough: float) -> Verdict:
    """Return the conclusion where nothing came out of undefended sums.

    Args:
        evidence: the results.
        enough: share recovered where one client is left from which on the attack counts as working.

    >>> conclude_on_sums(SumEvidence(SumFacts(5, alone=1.0), True, False, 8), 0.5)[:2]
    ('inconclusive', 'group')
    """
    facts = evidence.facts
    size, alone = facts.group, facts.alone
    first = f"sum_size={1 + facts.colluding * facts.peer}"
    if facts.exposed:
        return facts.exposure()
    if facts.lost:
        why = "The rounding of the model may be as large as all that is left of the sums, or no sum was seen"
        beyond = "nothing was reconstructed, and larger steps may leave more"
        return Verdict("inconclusive", "rounding", f"{why}: {beyond}.")
    if size == 1:
        why = "A sum over one client is its own message, which nothing hides"
        return Verdict("inconclusive", "undefended", f"{why}.")
    if alone is None:
        why = f"Sums with one client left were not attacked (`--curve {first}`)"
        return Verdict("inconclusive", "alone", f"{why}: it was not shown that the attack works without the sum.")
    if alone < enough:
        why = f"The attack reconstructs {alone:.0%} of the examples at {first}, where one client is left"
        return Verdict("inconclusive", "alone", f"{why}: too few for its failure on sums to mean anything.")
    if not evidence.described:
        why = "It was not shown that the attacker's model of the clients explains the sums"
        return Verdict("inconclusive", "consistency", f"{why}: its failure means nothing.")
    if evidence.short:
        why = "The search ended short in most sums: the true data explain them better than its results do"
        return Verdict("inconclusive", "search", f"{why}. A longer or better search is needed.")
    if facts.left < LEAST:
        beside = (
            f", of which {facts.colluding} may work with the attacker (--expert colluding_attackers): "
            f"{facts.left} are left"
        )
        why = f"Nothing was reconstructed from sums over {size} clients{beside if facts.colluding else ''}"
        return Verdict(
            "inconclusive", "group", f"{why}. At least {LEAST} are needed: a stronger attack may separate so few."
        )
    if evidence.sums < MESSAGES:
        why = f"Nothing was reconstructed from {evidence.sums} sums, but at least {MESSAGES} are needed"
        missed = most_missed(max(1, evidence.sums))
        return Verdict("inconclusive", "few", f"{why}: up to {missed:.0%} of them could leak unseen.")
    if facts.untried:
        why = f"Nothing was reconstructed from sums over {size} clients, but this audit ran {_no(facts.untried)}"
        return Verdict("inconclusive", "untried", f"{why}, which may find more in them.")
    return Verdict(
        "no leak found",
        "nothing",
        f"The attack reconstructs {alone:.0%} of the examples where one client is left ({first}), and nothing from "
        f"sums over {size}. Up to {most_missed(evidence.sums):.0%} of such sums could leak to this attack and none "
        "have been seen to. It says nothing about a server that changes the network, or that sends clients different "
        "ones.",
    )


def _no(kinds: Sequence[str]) -> str:
    return " and ".join(f"no {kind}" for kind in kinds)
