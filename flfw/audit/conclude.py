"""Conclusion of an audit on one attack at one round: the verdict of `flfw.audit.verdict`, and three cases beyond it.

Sums over clients, a server that changed the network, and statistics that no attack reads have rules here. A sum hides
single clients' data behind the other clients'. That an attack fails on it counts only if the same attack works on
groups of one client in the same audit, and only for groups of `MIN_SUM_CLIENTS` clients or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, final

from flfw.audit.measures.statistics import most_missed
from flfw.audit.verdict import EASY_SHARE, MESSAGES, ControlResults, Evidence, Verdict, verdict_on_messages
from flfw.experiment.curves import SUM_SIZE
from flfw.files.verdicts import LEAKS, NO_LEAK_FOUND, STATIC, UNDECIDED, VOID, concluded, outcome

MIN_SUM_CLIENTS = 10
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
        hidden_alone: whether the same attack, told of what hides a message, found no leak where one client is left.
    """

    group: int
    colluding: int = 0
    alone: float | None = None
    untried: tuple[str, ...] = ()
    peer: bool = False
    lost: bool = False
    hidden_alone: bool = False

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
            LEAKS,
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

    >>> verdict_on_sums(SumEvidence(SumFacts(5, alone=1.0), True, False, 8), 0.5)[:2]
    ('undecided', 'group')
    """
    facts = evidence.facts
    size, alone = facts.group, facts.alone
    first = f"sum_size={1 + facts.colluding * facts.peer}"
    if facts.exposed:
        return facts.exposure()
    if facts.lost:
        why = "The rounding of the model may be as large as all that is left of the sums, or no sum was seen"
        beyond = "nothing was reconstructed, and larger steps may leave more"
        return Verdict(UNDECIDED, "rounding", f"{why}: {beyond}.")
    if size == 1:
        why = "A sum over one client is its own message, which nothing hides"
        return Verdict(UNDECIDED, "undefended", f"{why}.")
    if alone is None:
        why = f"Sums with one client left were not attacked (`--curve {first}`)"
        return Verdict(UNDECIDED, "alone", f"{why}: it was not shown that the attack works without the sum.")
    if alone < enough:
        why = f"The attack reconstructs {alone:.0%} of the examples at {first}, where one client is left"
        return Verdict(UNDECIDED, "alone", f"{why}: too few for its failure on sums to mean anything.")
    if not evidence.described:
        why = "It was not shown that the attacker's model of the clients explains the sums"
        return Verdict(UNDECIDED, "consistency", f"{why}: its failure means nothing.")
    if evidence.short:
        why = "The search ended short in most sums: the true data explain them better than its results do"
        return Verdict(UNDECIDED, "search", f"{why}. A longer or better search is needed.")
    if facts.left < MIN_SUM_CLIENTS:
        beside = (
            f", of which {facts.colluding} may work with the attacker (--expert colluding_clients): "
            f"{facts.left} are left"
        )
        why = f"Nothing was reconstructed from sums over {size} clients{beside if facts.colluding else ''}"
        return Verdict(
            UNDECIDED, "group", f"{why}. At least {MIN_SUM_CLIENTS} are needed: a stronger attack may separate so few."
        )
    if evidence.sums < MESSAGES:
        why = f"Nothing was reconstructed from {evidence.sums} sums, but at least {MESSAGES} are needed"
        missed = most_missed(max(1, evidence.sums))
        return Verdict(UNDECIDED, "few", f"{why}: up to {missed:.0%} of them could leak unseen.")
    if facts.untried:
        why = f"Nothing was reconstructed from sums over {size} clients, but this audit ran {_no(facts.untried)}"
        return Verdict(UNDECIDED, "untried", f"{why}, which may find more in them.")
    return Verdict(
        NO_LEAK_FOUND,
        "nothing",
        f"The attack reconstructs {alone:.0%} of the examples where one client is left ({first}), and nothing from "
        f"sums over {size}. Up to {most_missed(evidence.sums):.0%} of such sums could leak to this attack and none "
        "have been seen to. It says nothing about a server that changes the network, or that sends clients different "
        "ones.",
    )


def _no(kinds: Sequence[str]) -> str:
    return " and ".join(f"no {kind}" for kind in kinds)


def verdict_on_attack(
    controls: ControlResults, evidence: Evidence, sums: SumFacts | None = None, tampered_by: str = "", unread: str = ""
) -> Verdict:
    """Return the conclusion on an attack.

    Args:
        controls: the controls below it.
        evidence: its results.
        sums: facts of the sums that were attacked; None: single messages were.
        tampered_by: the attack whose malicious server changed the network; empty: the server followed the protocol.
        unread: in words, statistics of their data that clients send and that no attack reads; empty: there are none.
    """
    conclusion = of_gradients_alone(_on_messages_or_sums(sums, controls, evidence), unread)
    return of_malicious_server(conclusion, tampered_by) if tampered_by else conclusion


def _on_messages_or_sums(facts: SumFacts | None, controls: ControlResults, evidence: Evidence) -> Verdict:
    """Conclude as on single messages; where the sum alone hides them, by `verdict_on_sums`."""
    conclusion, searched = verdict_on_messages(controls, evidence), evidence.searched
    if facts is None or conclusion.verdict == LEAKS or outcome(concluded(*conclusion)) == VOID:
        return conclusion
    if facts.exposed and not evidence.defended:
        return facts.exposure()
    if facts.group > 1 and facts.hidden_alone:
        return Verdict(
            NO_LEAK_FOUND,
            "nothing",
            "Where one client is left, the same attack, told of all that hides its message, found no leak. A sum "
            f"of {facts.group} shows no more than its messages, each hidden by itself, if clients draw their noise "
            "independently.",
        )
    if conclusion.cause == "undefended":
        short = searched is not None and 2 * searched.unconverged > searched.total
        held = SumEvidence(facts, bool(controls.consistency.passed), short, evidence.messages)
        return verdict_on_sums(held, EASY_SHARE)
    return conclusion


def of_gradients_alone(conclusion: Verdict, unread: str) -> Verdict:
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


def of_malicious_server(conclusion: Verdict, by: str) -> Verdict:
    """Return a conclusion on a network that a malicious server changed: it is none on the honest protocol.

    A leak is evidence ``to a malicious server`` alone; without a leak nothing is decided.

    Args:
        conclusion: by the rules for honest servers.
        by: the attack that changed the network.

    >>> of_malicious_server(Verdict("no leak found", "nothing", "Nothing came out."), "x").verdict
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


_REACHED = {"nothing": False, "group": False, "faint": True}
"""Causes of verdicts on membership that say whether a statistic found anything; all others but a leak leave it open."""


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
    """Return an audit's entries, those of sums with the smallest group from which on their attack reaches nothing.

    An attack that could look through the clients' operations in a sum over one client, and not in a larger one, is the
    same attack on one curve: ``adaptive`` may differ between them.

    Args:
        entries: the entries.
    """
    kinds = ("attack", "vantage", "adaptation", "defence", "round", "steps")
    on_curve = lambda one: one["sum_size"] and one["curve"] in (None, SUM_SIZE)  # noqa: E731
    at = lambda one: tuple(one[name] for name in kinds)  # noqa: E731
    reached: dict[tuple[Any, ...], dict[int, bool | None]] = {}
    for one in entries:
        if on_curve(one):
            reached.setdefault(at(one), {})[one["sum_size"]] = _reached(one)
    needed = {kind: min_safe_sum_size(sizes) for kind, sizes in reached.items()}
    return [one | {"min_safe_sum_size": needed[at(one)] if on_curve(one) else None} for one in entries]


def _reached(one: Mapping[str, Any]) -> bool | None:
    """Return whether an entry's attack reached something; None: it broke, saw too few sums, or luck may explain it."""
    if one["cause"] == "peer":
        return False
    if one["verdict"] == LEAKS:
        return True
    broke = one["failure_reason"] and not one["failure_reason"].startswith("not applicable")
    unknown = broke or outcome(one) == VOID or one["cause"] == "chance" or one["messages"] < MESSAGES
    return None if unknown else False


def memberships_with_min_safe_sum_size(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of membership, those of sums with the smallest group from which on nothing is found.

    A size counts only if its controls passed and its pairs were enough to find something: then nothing was found, or it
    is only the size of the group that rules out to call it protection.

    Args:
        items: ``membership`` of result.json.
    """
    at = lambda one: (one["attack"], one["statistic"], one["defence"], one["adaptive"], tuple(one["rounds"]))  # noqa: E731
    reached: dict[tuple[Any, ...], dict[int, bool | None]] = {}
    for one in items:
        if one["sum_size"]:
            reached.setdefault(at(one), {})[one["sum_size"]] = _REACHED.get(
                one["cause"], one["verdict"] == LEAKS or None
            )
    needed = {kind: min_safe_sum_size(sizes) for kind, sizes in reached.items()}
    return [one | {"min_safe_sum_size": needed[at(one)] if one["sum_size"] else None} for one in items]
