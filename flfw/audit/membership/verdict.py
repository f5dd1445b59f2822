"""Conclusion from the evidence on membership: leaks, no leak found or undecided, with its cause and its reason.

A leak is concluded from exact bounds alone. That none was found is worth something only if the same statistic finds
the members of an overfitted client, finds none where there is none, knows what hides the data, and saw enough pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from flfw.audit.membership.evidence import MembershipEvidence, PairGuesses
from flfw.audit.verdict import Verdict
from flfw.files.verdicts import LEAKS, NO_LEAK_FOUND, UNDECIDED
from flfw.privacy.rounding import at_least

RIGHT = 0.55  # share of right guesses on pairs above which a statistic tells members
RATIO = 3.0  # true over false positive rate above which it does
PAIRS = 1000  # guesses that "no leak found" needs
FAILED_SHARE, FEW_FAILED = 0.5, 0.05
EASY_AUC, EASY_PAIRS = 0.9, 8
NULL_PAIRS = 100
NULL_LEVEL = 0.001  # share of sound runs that the null control may call faulty: what is faulty tells far more than that
CLIENTS = 10  # clients in a sum that "no leak found" needs


@final
@dataclass(frozen=True)
class MembershipFacts:
    """Facts beside the evidence of a statistic.

    Attributes:
        easy_auc: area under the curve at the overfitted client; None: it was not tried, or on too few pairs.
        null: guesses where both of each pair are held out; None: not tried, or on too few pairs.
        failed: number of pairs without two finite scores.
        label_separable: number of pairs that labels alone tell apart; None: the label-only floor is not known.
        adaptive: whether the statistic takes account of all that stands between the data and what is seen.
        protected_by: what hides the data, in words; empty: nothing does.
        missed: what a statistic that is told of it leaves out, in words; empty: nothing, or it is not told.
        unread: running statistics that are sent and that it does not read, in words; empty: none.
        claimed: claimed epsilon for one example, or patient, more or less; None: there is no claim.
        unit: whose membership it is: ``example`` or ``patient``.
        step_auc: area under the curve where a client takes a single step on one member; None: it was not tried.
        summed: number of clients in a sum that the adversary cannot take apart; 0: it sees no sum.
    """

    easy_auc: float | None
    null: PairGuesses | None
    failed: int = 0
    label_separable: int | None = 0
    adaptive: bool = False
    protected_by: str = ""
    missed: str = ""
    unread: str = ""
    claimed: float | None = None
    unit: str = "example"
    step_auc: float | None = None
    summed: int = 0


def verdict_on_membership(evidence: MembershipEvidence, facts: MembershipFacts) -> Verdict:
    """Return the verdict, its cause and its reason."""
    concluded = (
        _void(facts)
        or _leak(evidence, facts)
        or _incapable(facts)
        or _unearned(evidence, facts)
        or _nothing_found(evidence, facts)
    )
    unlike = facts.label_separable or 0
    if concluded.verdict != UNDECIDED or concluded.cause == "few" or unlike <= evidence.pairs:
        return concluded
    most = f"{_count(_pairs_in_all(evidence, facts))}, labels alone tell the two of {unlike:,} apart"
    return concluded._replace(reason=f"{concluded.reason} Of {most}, and these are not counted.")


def _pairs_in_all(evidence: MembershipEvidence, facts: MembershipFacts) -> int:
    """Return the number of pairs with those that are not counted."""
    return evidence.pairs + facts.failed + (facts.label_separable or 0)


def finds_members(auc: float | None) -> bool | None:
    """Return whether a statistic finds the members where all able ones must; None: it was not tried."""
    return None if auc is None else auc > EASY_AUC


def finds_none(null: PairGuesses | None) -> bool | None:
    """Return whether it passes the null control, in which a coin decides who is called a member."""
    return None if null is None else null.low <= 0.5 <= null.high


def _void(facts: MembershipFacts) -> Verdict | None:
    """Conclude that the measurement cannot be trusted, in either direction."""
    if finds_none(facts.null) is False and (null := facts.null):
        return Verdict(
            UNDECIDED,
            "null",
            f"Where both examples of each pair were held out, {null.correct} of {null.guesses} guesses were right, "
            "which a coin does not explain: the measurement is faulty, and this says nothing about the data.",
        )
    return None


def _leak(evidence: MembershipEvidence, facts: MembershipFacts) -> Verdict | None:
    leak = _found(evidence, facts)
    if leak and facts.label_separable is None:
        return Verdict(
            UNDECIDED,
            "floor",
            f"{leak.reason} But it was not measured what labels alone tell, and they may explain it.",
        )
    if leak and facts.label_separable:
        set_aside = f" {_count(facts.label_separable)} that labels alone tell apart are not counted."
        return leak._replace(reason=leak.reason + set_aside)
    return leak


def _found(evidence: MembershipEvidence, facts: MembershipFacts) -> Verdict | None:
    """Conclude from bounds that hold together, also where examples of one run depend on each other."""
    guessed, tail, worst = evidence.guessed, evidence.tail, evidence.worst
    if guessed.low > RIGHT:
        opening = f"Of {_count(guessed.guesses)}, the member has the higher score in {_share(guessed)}."
        return Verdict(LEAKS, "pairs", f"{opening} A coin gives 50 %.")
    if tail and tail.tpr_low > RATIO * tail.fpr_high:
        return Verdict(
            LEAKS,
            "tail",
            f"{tail.tpr:.1%} of the members score above all but {tail.fpr:.2%} of the held-out examples: at least "
            f"{tail.tpr_low:.1%} against at most {tail.fpr_high:.2%}, more than {RATIO:g} times as many.",
        )
    if worst and worst.guessed.low > RIGHT:
        return Verdict(
            LEAKS,
            "client",
            f"At client {worst.client}, the worst of {evidence.clients}, the member has the higher score in "
            f"{_share(worst.guessed)} of {_count(worst.guessed.guesses)}. The interval allows for the choice of the "
            "worst one.",
        )
    if facts.claimed is not None and evidence.epsilon_low > facts.claimed:
        return Verdict(
            LEAKS,
            "claim",
            f"The guesses show an epsilon of {at_least(evidence.epsilon_low)} or more for one {facts.unit}, above "
            f"the claimed {facts.claimed:.3g}: the claim does not hold.",
        )
    if guessed.high < 1 - RIGHT:
        return Verdict(
            LEAKS,
            "reversed",
            f"Of {_count(guessed.guesses)}, the member has the higher score in only {_share(guessed)}: who reads the "
            "statistic the other way round tells members.",
        )
    return None


def _incapable(facts: MembershipFacts) -> Verdict | None:
    """Conclude that the statistic is not shown to see a leak that is there."""
    if facts.protected_by and facts.missed:
        return Verdict(
            UNDECIDED,
            "static",
            f"The statistic takes account of {facts.protected_by}, which hides the data, but for {facts.missed}: that "
            "it finds no members is no evidence of protection.",
        )
    if facts.protected_by and not facts.adaptive:
        return Verdict(
            UNDECIDED,
            "static",
            f"The statistic takes no account of {facts.protected_by}, which hides the data: that it finds no members "
            "is no evidence of protection.",
        )
    if facts.unread:
        return Verdict(
            UNDECIDED,
            "static",
            f"The statistic does not read {facts.unread}, which clients send as well. They are means of the clients' "
            "data, and what hides the gradients may not hide these: that it finds no members is no evidence of "
            "protection.",
        )
    easy = finds_members(facts.easy_auc)
    if easy is None:
        return Verdict(
            UNDECIDED,
            "easy",
            "It was not tried whether the statistic finds the members of an overfitted client: that it finds none here "
            "means nothing.",
        )
    if not easy:
        return Verdict(
            UNDECIDED,
            "easy",
            f"The statistic does not even find the members of an overfitted client (AUC {facts.easy_auc:.2f}, where "
            f"more than {EASY_AUC:g} is needed): that it finds none here means nothing.",
        )
    if finds_members(facts.step_auc) is False:
        return Verdict(
            UNDECIDED,
            "easy",
            f"The statistic does not even find the one example behind a single step (AUC {facts.step_auc:.2f}, where "
            f"more than {EASY_AUC:g} is needed): that it finds none here means nothing.",
        )
    if facts.null is None:
        return Verdict(
            UNDECIDED,
            "null",
            "It was not tried whether the measurement finds nothing where there is nothing, on at least "
            f"{NULL_PAIRS} pairs of held-out examples with different scores: it may be faulty.",
        )
    return None


def _unearned(evidence: MembershipEvidence, facts: MembershipFacts) -> Verdict | None:
    """Conclude that the pairs are too few, or show something that is too little for a leak."""
    guessed = evidence.guessed
    total = _pairs_in_all(evidence, facts)
    if facts.failed >= FAILED_SHARE * total or (facts.failed > FEW_FAILED * total and guessed.guesses >= PAIRS):
        return Verdict(
            UNDECIDED,
            "failures",
            f"The attack gave no score for {facts.failed} of {_count(total)}: they may be members.",
        )
    if signs := _signs(evidence):
        return Verdict(
            UNDECIDED,
            "faint",
            f"Something is there: {signs}. That is more than a coin explains, and less than what is called a leak here "
            f"({RIGHT:.0%} of the guesses right, or {RATIO:g} members for each false alarm).",
        )
    if guessed.guesses < PAIRS:
        apart = f" Labels alone tell {facts.label_separable} more apart." if facts.label_separable else ""
        return Verdict(
            UNDECIDED,
            "few",
            f"Nothing was found, but on {_count(guessed.guesses)} with different scores; at least {PAIRS:,} are "
            f"needed. Up to {guessed.high:.0%} of such guesses could be right.{apart}",
        )
    if 1 < facts.summed < CLIENTS:
        return Verdict(
            UNDECIDED,
            "group",
            f"Nothing was found in sums over {facts.summed} clients, but at least {CLIENTS} are needed: a stronger "
            "statistic may separate so few.",
        )
    return None


def _signs(evidence: MembershipEvidence) -> str:
    """Return in words the signs that a coin does not explain; empty: there are none."""
    guessed, tail, worst = evidence.guessed, evidence.tail, evidence.worst
    signs = []
    if not guessed.low <= 0.5 <= guessed.high:
        signs.append(f"the member has the higher score in {_share(guessed)} of {_count(guessed.guesses)}")
    if tail and tail.tpr_low > tail.fpr_high:
        signs.append(f"{tail.tpr:.1%} of the members score above all but {tail.fpr:.2%} of the held-out examples")
    if worst and worst.guessed.low > 0.5:
        signs.append(
            f"at client {worst.client} the member has the higher score in {_share(worst.guessed)} of its pairs"
        )
    if evidence.epsilon_low > 0 and not signs:
        signs.append(f"the guesses show an epsilon of {at_least(evidence.epsilon_low)} or more")
    return ", and ".join(signs)


def _nothing_found(evidence: MembershipEvidence, facts: MembershipFacts) -> Verdict:
    guessed, tail = evidence.guessed, evidence.tail
    rare = f", and {tail.tpr_high:.1%} of the members stand out" if tail else ""
    hidden = (
        f" The statistic takes account of {facts.protected_by}."
        if facts.protected_by
        else f" This holds for sums over {facts.summed} clients, if nobody tells its own part."
        if facts.summed > 1
        else " Nothing hides the data: they leave little trace in these models, which is no protection."
    )
    return Verdict(
        NO_LEAK_FOUND,
        "nothing",
        f"The same statistic finds the members of an overfitted client. Here the member has the higher score in "
        f"{_share(guessed)} of {_count(guessed.guesses)}, as a coin does. Up to {guessed.high:.0%} could be right"
        f"{rare}, and none of it have been seen.{hidden}",
    )


def _share(guessed: PairGuesses) -> str:
    if not guessed.guesses:
        return "none"
    return f"{guessed.correct / guessed.guesses:.1%} (interval {guessed.low:.1%} to {guessed.high:.1%})"


def _count(pairs: int) -> str:
    return f"{pairs:,} pair{'' if pairs == 1 else 's'}"
