"""Evidence in the scores of pairs: exact intervals that hold together, however many statistics and clients are tried.

One guess a pair, with a fair coin that the training did not see: if a run is epsilon-private, the number of right
guesses is at most a binomial variable, whatever the pairs have in common (see `flfw.privacy.lower_bound`). So a lower
end above 0.55 rejects an epsilon of log(0.55 / 0.45) = 0.2 for the replacement of one example by another, without any
assumption on how examples of one run depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple, final

import numpy as np

from flfw.audit.membership_entries.scored import ScoredClient, on_one_scale
from flfw.errors import require
from flfw.membership.operating_points import CONFIDENCE, OperatingPoint, at_rate, corrected, smallest_fpr
from flfw.membership.pairs import correct_pairs
from flfw.privacy.lower_bound import p_value

_PARTS = 4  # guesses, operating point, clients and epsilon share the level
_BOLD = (1.0, 0.5, 0.1, 0.01)  # shares of the pairs, those furthest apart, on whose guesses an epsilon is tried


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
    0.525
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
    scaled = [on_one_scale(one) for one in scored]
    count = sum(len(one.members) for one in scaled)
    if not count or (rate := smallest_fpr(count)) >= 1:
        return None
    members = np.concatenate([one.members for one in scaled])
    held_out = np.concatenate([one.held_out for one in scaled])
    return at_rate(members, held_out, rate, confidence)


def _epsilon(scored: Sequence[ScoredClient], confidence: float, delta: float) -> float:
    """Return the largest epsilon that the guesses on all pairs, or on those furthest apart, reject."""
    scaled = [on_one_scale(one) for one in scored]
    members = np.concatenate([one.members for one in scaled] or [np.zeros(0)])
    held_out = np.concatenate([one.held_out for one in scaled] or [np.zeros(0)])
    bounds = [0.0]
    for guesses in {int(share * len(members)) for share in _BOLD}:
        right = correct_pairs(members / 2, held_out / 2, guesses)  # halved, as their difference must be finite
        bounds.append(rejected_epsilon(len(members), guesses, right, delta, confidence))
    return max(bounds)
