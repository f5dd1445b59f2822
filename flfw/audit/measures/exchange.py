"""Exchange of results between messages: whether recoveries have anything to do with the messages.

A result counts as a reconstruction where it is closer to the truth than every guess made without the message. Where
all data are alike, or have few pixels, a result that saw nothing may pass this by luck. The results for the other
messages are such guesses as well: if some of them reconstruct the example too, luck has to be excluded.

Null hypothesis: the results have nothing to do with which message they came from. Any assignment of results to messages
is then as likely as the true one.

That none of a few other results recovers anything excludes no rare luck. Then the results are also held against public
examples of the same classes (`among_public`): these are in no message.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, TypeAlias, final

import numpy as np

from flfw.audit.measures import recovery
from flfw.audit.measures.identification import CONTROLLED
from flfw.audit.measures.metrics import psnr, squared_distances
from flfw.audit.measures.permutations import GuessedBatch
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import IMAGE_RECOVERED_DB

MOST_DB = 100.0
"""Closeness from which on differences are rounding."""

_TURNS, _MOST, _DRAWS = 7, 32, 999
_FEWEST, _OF_PUBLIC, _EXAMPLES = 99, 499, 40_000  # draws of public examples, and how many examples in all of them
_LEAST = 8  # draws of public examples, where luck is plain
_FAR_DB = 20.0  # a tenth of the distance: farther than luck goes where no result for another message comes near

Fits: TypeAlias = Callable[[int, int], "Fitting"]
"""Scores the result for one message against the truth of another; takes the places of the truth and of the result."""


class Fitting(NamedTuple):
    """Closeness of the result for a message to a truth.

    Attributes:
        recovered: number of examples that count as recovered.
        mean: mean closeness of the examples in dB.
        best: closeness of the closest one in dB.
    """

    recovered: int
    mean: float
    best: float


class Exchanged(NamedTuple):
    """Outcome of an exchange.

    Attributes:
        p: probability that the results fit their own messages so well by chance, in [0, 1].
        beyond: closeness in dB above which a result is no luck in any case.
    """

    p: float
    beyond: float


def exchange(messages: int, fit: Fits, rng: np.random.Generator) -> Exchanged:
    """Hold the results for other messages against each truth.

    If no result of up to seven other messages recovers anything, luck is rare, and p is 0. Otherwise p is the share of
    1,000 random assignments (the true one among them) that recover as much, or the share of those that are as close on
    average, whichever is smaller, twice. At most 32 messages are assigned. A result that is 20 dB closer to its truth
    than all results for other messages are to any truth counts whatever p is: one example may leak alone.

    Args:
        messages: their number, with different truths.
        fit: the score.
        rng: generator of the assignments.

    >>> exchange(8, lambda truth, result: Fitting(int(truth == result), 30.0, 30.0), np.random.default_rng(0)).p
    0.0
    >>> exchange(8, lambda truth, result: Fitting(1, 30.0, 30.0), np.random.default_rng(0))
    Exchanged(p=1.0, beyond=50.0)
    """
    turns = range(1, min(_TURNS, messages - 1) + 1)
    if not any(fit(i, (i + turn) % messages).recovered for turn in turns for i in range(messages)):
        return Exchanged(0.0, inf)
    count = min(messages, _MOST)
    scores = np.array([[fit(i, j) for j in range(count)] for i in range(count)], np.float64)  # (truths, results, 3)
    others = ~np.eye(count, dtype=bool)
    truly = np.arange(count)
    drawn = np.concatenate([truly[None], rng.permuted(np.tile(truly, (_DRAWS, 1)), axis=1)])
    totals = scores[truly, drawn, :2].sum(1)  # (1 + draws, 2)
    # A mean in another order of summation may differ by rounding.
    shares = (totals >= totals[0] - 1e-9 * np.abs(totals[0])).mean(0)
    return Exchanged(float(min(1.0, 2 * shares.min())), float(scores[others, 2].max()) + _FAR_DB)


def luck(batches: Sequence[GuessedBatch], fit: Fits, public: PublicData, rng: np.random.Generator) -> Exchanged:
    """Test whether chance explains the recoveries of an attack: by results for other messages, else by public examples.

    Results of batches of different sizes cannot be exchanged: they are held against public examples alone.

    Args:
        batches: the messages, with different truths.
        fit: the score, by places in ``batches``.
        public: examples that no message depends on.
        rng: generator of the draws.
    """
    alike = len({batch.truth.shape for batch in batches}) == 1
    outcome = exchange(len(batches) if alike else 1, fit, rng)
    if outcome.beyond < inf:
        return outcome
    return among_public(batches, public, sum(fit(index, index).recovered for index in range(len(batches))), rng)


@final
class PublicTruths:
    """Public examples in the part of true ones: nothing tells a result of them.

    Args:
        public: the examples, at least two.
        rng: generator of the draws.
    """

    def __init__(self, public: PublicData, rng: np.random.Generator) -> None:
        self._public, self._rng = public, rng
        self._others: dict[int, tuple[dict[str, float], bool]] = {}

    def drawn(self, labels: np.ndarray) -> np.ndarray:
        """Draw the place (B,) of an example of each class, none twice if there are enough; of any, if it has few."""
        indices = np.empty(len(labels), np.intp)
        for label in np.unique(labels):
            of_class, there = labels == label, np.flatnonzero(self._public.labels == label)
            pool, count = there if len(there) >= _FEWEST else np.arange(len(self._public.samples)), int(of_class.sum())
            indices[of_class] = self._rng.choice(pool, count, replace=count > len(pool))
        return indices

    def count(self, indices: np.ndarray, guesses: np.ndarray) -> int:
        """Return how many public examples (B,) would count as reconstructed by guesses (B, ...), matched one to one."""
        matched = guesses[recovery.assign(self._public.samples[indices], guesses)]
        return sum(self.recovered(index, guess) for index, guess in zip(indices.tolist(), matched, strict=True))

    def recovered(self, index: int, guess: np.ndarray) -> bool:
        """Return whether a guess would count as a reconstruction of an example, if the others alone were public."""
        true, public = self._public.samples[index], self._public
        binary = public.binary if true.ndim == 1 else None
        if not recovery.recovered(true, guess, {"none": -inf}, binary, schema=public.plan):
            return False
        if index not in self._others:
            label = int(public.labels[index])
            others = PublicData(np.delete(public.samples, index, 0), np.delete(public.labels, index), public.plan)
            floors = others.floors(true, label, self._rng)
            self._others[index] = floors, true.ndim == 1 and others.guessable(true, label)
        floors, guessable = self._others[index]
        return recovery.recovered(true, guess, floors, binary, guessable, public.plan)


def among_public(
    batches: Sequence[GuessedBatch], public: PublicData, recovered: int, rng: np.random.Generator
) -> Exchanged:
    """Hold the results for all messages against random public examples of the same classes.

    p is the share of 100 to 500 draws, the true examples among them, in which as many are recovered as of these; of
    large uploads fewer, once they tell that p is above 1 %. A result that is 20 dB closer to its truth than any is to
    a public example counts whatever p is. A class of fewer than 99 public examples stands for all classes. Luck that
    is rarer than the public examples are many is not seen. With one public example p is 1.

    Args:
        batches: the messages, with batches of any size.
        public: examples that no message depends on.
        recovered: number of true examples that count as recovered.
        rng: generator of the draws.
    """
    if len(public.samples) < 2:
        return Exchanged(1.0, -inf)
    truths, reached, best, drawn = PublicTruths(public, rng), 0, -inf, 0
    examples = sum(len(batch.truth) for batch in batches)
    draws = int(np.clip(_EXAMPLES // examples, _FEWEST, _OF_PUBLIC))
    minimum = int(np.clip(_EXAMPLES // examples, _LEAST, draws))  # of large uploads a draw may take seconds
    while drawn < draws and (drawn < minimum or 1 + reached <= CONTROLLED * (1 + draws)):
        held = [(batch.guesses, truths.drawn(batch.labels)) for batch in batches]
        near = [nearest(public.samples[indices], guesses) for guesses, indices in held]
        best = max(best, *(float(one.max()) for one in near))
        possible = public.samples.ndim < 4 or sum((one >= IMAGE_RECOVERED_DB).sum() for one in near) >= recovered
        reached += possible and sum(truths.count(indices, guesses) for guesses, indices in held) >= recovered
        drawn += 1
    return Exchanged(float((1 + reached) / (1 + drawn)), best + _FAR_DB)


def nearest(samples: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Return the highest PSNR (n,) in dB that any of the guesses has to each sample; at most `MOST_DB`.

    Of images the nearest guess is found in float32, in a hundredth of the time; its PSNR is computed as elsewhere.
    """
    if samples.ndim < 4:
        closest = squared_distances(samples, guesses).argmin(1)
        return np.array([min(MOST_DB, psnr(x, guesses[at])) for x, at in zip(samples, closest, strict=True)])
    one, other = (x.reshape(len(x), -1) for x in (samples, np.clip(guesses, 0, 1)))
    single = one.astype(np.float32), other.astype(np.float32)
    closest = ((single[1] ** 2).sum(1) - 2 * single[0] @ single[1].T).argmin(1)
    squares = ((one.astype(np.float64) - other[closest]) ** 2).mean(1)
    return -10 * np.log10(np.maximum(squares, 10 ** (-MOST_DB / 10)))
