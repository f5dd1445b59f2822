"""Evidence in the scores of pairs, and the findings in it: exact intervals that hold together, however many are tried.

There is one guess a pair, with a fair coin that the training did not see. If a run is epsilon-private, the number of
right guesses is at most a binomial variable, whatever the pairs have in common (see `flfw.privacy.lower_bound`). So a
lower end above 0.55 rejects an epsilon of log(0.55 / 0.45) = 0.2 for the replacement of one example by another, without
any assumption on how examples of one run depend on each other.

A leak is concluded from these bounds alone. That none was found is worth something only if the same statistic finds the
members of an overfitted client, finds none where there is none, knows what hides the data, and saw enough pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp
from typing import NamedTuple, final

import numpy as np

from flfw.adversary.membership.operating_points import CONFIDENCE, OperatingPoint, at_rate, corrected, smallest_fpr
from flfw.audit.verdict import Findings
from flfw.data.membership_pairs import correct_pairs
from flfw.errors import require
from flfw.files.outcomes import LEAK_CAUSES
from flfw.privacy.lower_bound import largest_rejected, p_value
from flfw.privacy.rounding import at_least

RIGHT = 0.55  # share of right guesses on pairs above which a statistic tells members
RATIO = 3.0  # true over false positive rate above which it does
PAIRS = 1000  # guesses that "no leak found" needs
FAILED_SHARE, FEW_FAILED = 0.5, 0.05
EASY_AUC, EASY_PAIRS = 0.9, 8
NULL_PAIRS = 100
NULL_LEVEL = 0.001  # share of sound runs that the null control may call faulty: what is faulty tells far more than that
CLIENTS = 10  # clients in a sum that "no leak found" needs
_PARTS = 4  # guesses, operating point, clients and epsilon share the level
_BOLD = (1.0, 0.5, 0.1, 0.01)  # shares of the pairs, those furthest apart, on whose guesses an epsilon is tried
_SPREAD = 1.4826  # of a normal variable: its deviation over its median absolute deviation


@final
@dataclass(frozen=True)
class ScoredClient:
    """Scores that an attack gave to the pairs of one client; a higher one says member.

    Attributes:
        client: number of the client.
        members: (P,) scores of the examples that were trained on.
        held_out: (P,) scores of their counterparts, in the same order.
    """

    client: int
    members: np.ndarray
    held_out: np.ndarray

    def __post_init__(self) -> None:
        fits = self.members.ndim == 1 and self.members.shape == self.held_out.shape
        shapes = f"{self.members.shape} and {self.held_out.shape}"
        require(fits, f"scores (P,) and (P,) of the pairs of client {self.client}", shapes=shapes)


class Comparable(NamedTuple):
    """Pairs that may be compared.

    Attributes:
        clients: scores of these pairs; clients without any are left out.
        failed: number of pairs left out because a score is not finite.
        unlike: number of pairs left out because labels alone tell the two apart.
    """

    clients: list[ScoredClient]
    failed: int
    unlike: int


def comparable(scored: Sequence[ScoredClient], labels: Sequence[ScoredClient] | None) -> Comparable:
    """Return the pairs with two finite scores and, by the score that knows labels only, nothing to tell them apart.

    Both conditions treat the two of a pair alike, so that which of them is the member stays a fair coin.

    Args:
        scored: scores of the attack.
        labels: scores of the label-only floor for the same pairs; None: it is not known.

    Raises:
        InputError: no client, a client twice, or a floor of other clients or pairs.
    """
    numbers = [one.client for one in scored]
    require(bool(numbers) and len(set(numbers)) == len(numbers), "one client or more, each once", clients=numbers)
    floors = {one.client: one for one in labels or scored}
    kept, failed, unlike = [], 0, 0
    for one in scored:
        floor = floors.get(one.client)
        count = None if floor is None else len(floor.members)
        require(count == len(one.members), f"{len(one.members)} pairs of client {one.client} in the floor", pairs=count)
        finite = np.isfinite(one.members) & np.isfinite(one.held_out)
        alike = floor.members == floor.held_out if labels and floor else np.ones(len(finite), bool)
        failed, unlike = failed + int((~finite).sum()), unlike + int((finite & ~alike).sum())
        if (finite & alike).any():
            kept.append(ScoredClient(one.client, one.members[finite & alike], one.held_out[finite & alike]))
    return Comparable(kept, failed, unlike)


def _on_one_scale(one: ScoredClient) -> ScoredClient:
    """Scale a client's scores to the median 0 and the spread 1 of all of them, members or not.

    Scores of different clients can have different scales. What is far from the rest stays far from it.
    """
    together = np.concatenate([one.members, one.held_out]).astype(np.float64)
    middle = np.median(together)
    with np.errstate(over="ignore"):
        spread = _SPREAD * np.median(np.abs(together - middle))
        spread = spread if 0 < spread < np.inf else 1.0
        # Divided first: the difference of two large scores may be no finite number.
        members, held_out = (
            np.nan_to_num(part.astype(np.float64) / spread - middle / spread) for part in (one.members, one.held_out)
        )
    return ScoredClient(one.client, members, held_out)


class PairGuesses(NamedTuple):
    """Guesses that the higher score of a pair is the member's; a pair of equal scores gets none.

    Attributes:
        guesses: number of pairs with a guess.
        correct: number of right guesses.
        low: lower end of the exact interval of the share of right ones.
        high: upper end.
        p: probability of so many right guesses, or more, of fair coins.
    """

    guesses: int
    correct: int
    low: float
    high: float
    p: float


class ClientGuesses(NamedTuple):
    """Guesses on the pairs of one client, with an interval that holds for all clients together."""

    client: int
    pairs: int
    guessed: PairGuesses


@final
@dataclass(frozen=True)
class PairEvidence:
    """Evidence of one statistic; all of its intervals hold together, for all statistics that were tried.

    Attributes:
        pairs: number of compared pairs.
        guessed: guesses on all of them.
        tail: true and false positive rate at the smallest honest false positive rate; None: too few pairs for one.
        worst: the client with the highest lower end.
        clients: number of clients.
        epsilon_low: epsilon that is rejected, for one example more or less, with the claim's delta.
    """

    pairs: int
    guessed: PairGuesses
    tail: OperatingPoint | None
    worst: ClientGuesses | None
    clients: int
    epsilon_low: float


def weigh(scored: Sequence[ScoredClient], tests: int, delta: float = 0.0) -> PairEvidence:
    """Compute the evidence in the scores of comparable pairs.

    Args:
        scored: finite scores, of at least one pair at each client; may be empty.
        tests: number of statistics, vantages and sets of rounds that the run tries.
        delta: delta of the claim for one example more or less; 0 without a claim.

    Raises:
        InputError: no test.
    """
    require(tests >= 1, "tests >= 1", tests=tests)
    part = corrected(tests * _PARTS)
    guessed = pair_guesses(scored, part)
    clients = [
        ClientGuesses(one.client, len(one.members), pair_guesses([one], corrected(tests * _PARTS * len(scored))))
        for one in scored
    ]
    return PairEvidence(
        pairs=sum(len(one.members) for one in scored),
        guessed=guessed,
        tail=_tail(scored, part),
        worst=max(clients, key=lambda one: (one.guessed.low, one.guessed.correct), default=None),
        clients=len(scored),
        epsilon_low=_epsilon(scored, corrected(tests * _PARTS * len(_BOLD)), delta),
    )


def pair_guesses(scored: Sequence[ScoredClient], confidence: float = CONFIDENCE) -> PairGuesses:
    """Count the right guesses over all pairs, with their exact interval.

    Args:
        scored: finite scores.
        confidence: of the two-sided interval.
    """
    from scipy.special import betaincinv
    from scipy.stats import binom

    right = sum(int((one.members > one.held_out).sum()) for one in scored)
    guesses = sum(int((one.members != one.held_out).sum()) for one in scored)
    if not guesses:
        return PairGuesses(0, 0, 0.0, 1.0, 1.0)
    wrong, outside = guesses - right, (1 - confidence) / 2  # Clopper and Pearson's interval
    low = betaincinv(right, wrong + 1, outside) if right else 0.0
    high = betaincinv(right + 1, wrong, 1 - outside) if wrong else 1.0
    return PairGuesses(guesses, right, float(low), float(high), float(binom.sf(right - 1, guesses, 0.5)))


def rejected_epsilon(pairs: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon, for one example more or less, that so many right guesses on pairs reject.

    A pair's coin replaces one example by another: one less and one more. An (epsilon, delta) private run keeps
    (2 epsilon, (1 + exp(epsilon)) delta) for that.

    Args:
        pairs: number of pairs, each with its own fair coin.
        guesses: number of guesses.
        right: number of right ones.
        delta: of one example more or less, in [0, 1].
        confidence: in (0, 1).

    Returns:
        The bound, rounded down to 1e-4; 0: not even 0 is rejected.

    >>> round(rejected_epsilon(10, 10, 10, 0.0, 0.95), 3)  # half of 1.052, which is for a replacement
    0.526
    """

    def rejected(epsilon: float) -> bool:
        return p_value(pairs, guesses, right, 2 * epsilon, min(1.0, (1 + exp(epsilon)) * delta)) < 1 - confidence

    return largest_rejected(rejected, 1e-4) if guesses else 0.0


def _tail(scored: Sequence[ScoredClient], confidence: float) -> OperatingPoint | None:
    """Return the operating point of all clients' scores on one scale at the smallest rate that they can show."""
    scaled = [_on_one_scale(one) for one in scored]
    count = sum(len(one.members) for one in scaled)
    if not count or (rate := smallest_fpr(count)) >= 1:
        return None
    members = np.concatenate([one.members for one in scaled])
    return at_rate(members, np.concatenate([one.held_out for one in scaled]), rate, confidence)


def _epsilon(scored: Sequence[ScoredClient], confidence: float, delta: float) -> float:
    """Return the largest epsilon that the guesses on all pairs, or on those furthest apart, reject."""
    scaled = [_on_one_scale(one) for one in scored]
    members = np.concatenate([one.members for one in scaled] or [np.zeros(0)])
    held_out = np.concatenate([one.held_out for one in scaled] or [np.zeros(0)])
    bounds = [0.0]
    for guesses in {int(share * len(members)) for share in _BOLD}:
        right = correct_pairs(members / 2, held_out / 2, guesses)  # halved, as their difference must be finite
        bounds.append(rejected_epsilon(len(members), guesses, right, delta, confidence))
    return max(bounds)


def finds_members(auc: float | None) -> bool | None:
    """Return whether a statistic finds the members where all able ones must; None: it was not tried."""
    return None if auc is None else auc > EASY_AUC


def finds_none(null: PairGuesses | None) -> bool | None:
    """Return whether it passes the null control, in which a coin decides who is called a member."""
    return None if null is None else null.low <= 0.5 <= null.high


@final
@dataclass(frozen=True)
class MembershipEvidence:
    """Evidence of a statistic on members.

    Attributes:
        pairs: evidence in its scores of the compared pairs.
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

    pairs: PairEvidence
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

    def findings(self) -> Findings:
        """Yield what decides the verdict, the first first."""
        unlike, total = self.label_separable or 0, self.pairs.pairs + self.failed + (self.label_separable or 0)
        beside = f" Of {_count(total)}, labels alone tell the two of {unlike:,} apart, and these are not counted."
        rules = (self._void(), self._leak(), self._too_weak(), self._controls_failed(total), self._nothing_found())
        for cause, reason in chain.from_iterable(rules):
            undecided = cause not in (*LEAK_CAUSES, "few", "nothing")
            yield cause, reason + beside * (undecided and unlike > self.pairs.pairs)

    def _void(self) -> Findings:
        """Conclude that the measurement cannot be trusted, in either direction."""
        if self.null and finds_none(self.null) is False:
            yield (
                "null",
                f"Where both examples of each pair were held out, {self.null.correct} of {self.null.guesses} guesses "
                "were right, which a coin does not explain: the measurement is faulty, and this says nothing about the "
                "data.",
            )

    def _leak(self) -> Findings:
        for cause, reason in self._found():
            if self.label_separable is None:
                yield "floor", f"{reason} But it was not measured what labels alone tell, and they may explain it."
            apart = f" {_count(self.label_separable or 0)} that labels alone tell apart are not counted."
            yield cause, reason + apart * bool(self.label_separable)

    def _found(self) -> Findings:
        """Conclude from bounds that hold together, also where examples of one run depend on each other."""
        guessed, tail, worst, epsilon = self.pairs.guessed, self.pairs.tail, self.pairs.worst, self.pairs.epsilon_low
        if guessed.low > RIGHT:
            opening = f"Of {_count(guessed.guesses)}, the member has the higher score in {_share(guessed)}."
            yield "pairs", f"{opening} A coin gives 50 %."
        if tail and tail.tpr_low > RATIO * tail.fpr_high:
            yield (
                "tail",
                f"{tail.tpr:.1%} of the members score above all but {tail.fpr:.2%} of the held-out examples: at least "
                f"{tail.tpr_low:.1%} against at most {tail.fpr_high:.2%}, more than {RATIO:g} times as many.",
            )
        if worst and worst.guessed.low > RIGHT:
            yield (
                "client",
                f"At client {worst.client}, the worst of {self.pairs.clients}, the member has the higher score in "
                f"{_share(worst.guessed)} of {_count(worst.guessed.guesses)}. The interval allows for the choice of "
                "the worst one.",
            )
        if self.claimed is not None and epsilon > self.claimed:
            yield (
                "claim",
                f"The guesses show an epsilon of {at_least(epsilon)} or more for one {self.unit}, above the claimed "
                f"{self.claimed:.3g}: the claim does not hold.",
            )
        if guessed.high < 1 - RIGHT:
            yield (
                "reversed",
                f"Of {_count(guessed.guesses)}, the member has the higher score in only {_share(guessed)}: who reads "
                "the statistic the other way round tells members.",
            )

    def _too_weak(self) -> Findings:
        """Conclude that the statistic is not shown to see a leak that is there."""
        protection = "that it finds no members is no evidence of protection."
        if self.protected_by and self.missed:
            takes = f"The statistic takes account of {self.protected_by}, which hides the data, but for {self.missed}"
            yield "static", f"{takes}: {protection}"
        if self.protected_by and not self.adaptive:
            takes = f"The statistic takes no account of {self.protected_by}, which hides the data"
            yield "static", f"{takes}: {protection}"
        if self.unread:
            yield (
                "static",
                f"The statistic does not read {self.unread}, which clients send as well. They are means of the "
                f"clients' data, and what hides the gradients may not hide these: {protection}",
            )
        needed, nothing = f"where more than {EASY_AUC:g} is needed", "that it finds none here means nothing."
        if self.easy_auc is None:
            tried = "It was not tried whether the statistic finds the members of an overfitted client"
            yield "easy", f"{tried}: {nothing}"
        elif not finds_members(self.easy_auc):
            found = f"The statistic does not even find the members of an overfitted client (AUC {self.easy_auc:.2f}"
            yield "easy", f"{found}, {needed}): {nothing}"
        if self.step_auc is not None and not finds_members(self.step_auc):
            found = f"The statistic does not even find the one example behind a single step (AUC {self.step_auc:.2f}"
            yield "easy", f"{found}, {needed}): {nothing}"
        if self.null is None:
            yield (
                "null",
                "It was not tried whether the measurement finds nothing where there is nothing, on at least "
                f"{NULL_PAIRS} pairs of held-out examples with different scores: it may be faulty.",
            )

    def _controls_failed(self, total: int) -> Findings:
        """Conclude that the pairs are too few, or show something that is too little for a leak."""
        guessed = self.pairs.guessed
        if self.failed >= FAILED_SHARE * total or (self.failed > FEW_FAILED * total and guessed.guesses >= PAIRS):
            yield "failures", f"The attack gave no score for {self.failed} of {_count(total)}: they may be members."
        if signs := _signs(self.pairs):
            yield (
                "faint",
                f"Something is there: {signs}. That is more than a coin explains, and less than what is called a leak "
                f"here ({RIGHT:.0%} of the guesses right, or {RATIO:g} members for each false alarm).",
            )
        if guessed.guesses < PAIRS:
            apart = f" Labels alone tell {self.label_separable} more apart." if self.label_separable else ""
            yield (
                "few",
                f"Nothing was found, but on {_count(guessed.guesses)} with different scores; at least {PAIRS:,} are "
                f"needed. Up to {guessed.high:.0%} of such guesses could be right.{apart}",
            )
        if 1 < self.summed < CLIENTS:
            yield (
                "group",
                f"Nothing was found in sums over {self.summed} clients, but at least {CLIENTS} are needed: a stronger "
                "statistic may separate so few.",
            )

    def _nothing_found(self) -> Findings:
        guessed, tail = self.pairs.guessed, self.pairs.tail
        rare = f", and {tail.tpr_high:.1%} of the members stand out" if tail else ""
        hidden = (
            f" The statistic takes account of {self.protected_by}."
            if self.protected_by
            else f" This holds for sums over {self.summed} clients, if nobody tells its own part."
            if self.summed > 1
            else " Nothing hides the data: they leave little trace in these models, which is no protection."
        )
        yield (
            "nothing",
            f"The same statistic finds the members of an overfitted client. Here the member has the higher score in "
            f"{_share(guessed)} of {_count(guessed.guesses)}, as a coin does. Up to {guessed.high:.0%} could be right"
            f"{rare}, and none of it have been seen.{hidden}",
        )


def _signs(evidence: PairEvidence) -> str:
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


def _share(guessed: PairGuesses) -> str:
    if not guessed.guesses:
        return "none"
    return f"{guessed.correct / guessed.guesses:.1%} (interval {guessed.low:.1%} to {guessed.high:.1%})"


def _count(pairs: int) -> str:
    return f"{pairs:,} pair{'' if pairs == 1 else 's'}"
