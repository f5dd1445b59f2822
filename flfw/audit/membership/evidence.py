"""Evidence in the scores of pairs: exact intervals that hold together, however many statistics and clients are tried.

There is one guess a pair, with a fair coin that the training did not see. If a run is epsilon-private, the number of
right guesses is at most a binomial variable, whatever the pairs have in common (see `flfw.privacy.lower_bound`). So a
lower end above 0.55 rejects an epsilon of log(0.55 / 0.45) = 0.2 for the replacement of one example by another, without
any assumption on how examples of one run depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple, final

import numpy as np

from flfw.adversary.membership.operating_points import CONFIDENCE, OperatingPoint, at_rate, corrected, smallest_fpr
from flfw.data.membership_pairs import correct_pairs
from flfw.errors import require
from flfw.privacy.lower_bound import p_value

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
class MembershipEvidence:
    """Evidence of one statistic; all of its intervals hold together, for all statistics that were tried.

    Attributes:
        pairs: number of compared pairs.
        guessed: guesses on all of them.
        tail: true and false positive rate at the smallest honest false positive rate; None: too few pairs for one.
        worst: the client with the highest lower end.
        clients: number of clients.
        epsilon_low: epsilon that is rejected, for one example more or less, with the claim's delta.
        level: probability that is left to each of the four kinds of interval.
    """

    pairs: int
    guessed: PairGuesses
    tail: OperatingPoint | None
    worst: ClientGuesses | None
    clients: int
    epsilon_low: float
    level: float


def weigh(scored: Sequence[ScoredClient], tests: int, delta: float = 0.0) -> MembershipEvidence:
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
    worst = max(clients, key=lambda one: (one.guessed.low, one.guessed.correct), default=None)
    pairs = sum(len(one.members) for one in scored)
    return MembershipEvidence(
        pairs=pairs,
        guessed=guessed,
        tail=_tail(scored, part),
        worst=worst,
        clients=len(scored),
        epsilon_low=_epsilon(scored, corrected(tests * _PARTS * len(_BOLD)), delta),
        level=1 - part,
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
        replaced = min(1.0, (1 + exp(epsilon)) * delta)
        return p_value(pairs, guesses, right, 2 * epsilon, replaced) < 1 - confidence

    if not guesses or not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _tail(scored: Sequence[ScoredClient], confidence: float) -> OperatingPoint | None:
    """Return the operating point of all clients' scores on one scale at the smallest rate that they can show."""
    scaled = [_on_one_scale(one) for one in scored]
    count = sum(len(one.members) for one in scaled)
    if not count or (rate := smallest_fpr(count)) >= 1:
        return None
    members = np.concatenate([one.members for one in scaled])
    held_out = np.concatenate([one.held_out for one in scaled])
    return at_rate(members, held_out, rate, confidence)


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
