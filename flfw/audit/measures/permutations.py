"""Rearrangements of true examples and public ones: the null hypothesis for guesses that are matched with the truths.

The guesses of a batch are matched one to one with its truths by `flfw.audit.measures.recovery.assign`, which looks at
the truths. Guesses that saw nothing are therefore nearer to "their" truths than to other examples. Here the guesses are
kept as they are, and the truths change places with their look-alikes. A guess that does not depend on the client's
message cannot tell the client's example from a public one of the same class, so that any arrangement of a class's
examples is as likely as the true one. A random arrangement goes through the same assignment and the same score. The
true arrangement counts as one of those drawn, which makes the p-value valid for any number of draws (Phipson and
Smyth 2010).

This holds for any guesses whatever: all equal, class means, extremely bright, spread so that every truth has one
nearby. No kind of guess has to be imagined beforehand.

**Limits.** The client's examples must be like the public ones of their class, apart from what identifies them. Where
all images of a client are darker than the public ones, a guess that is always dark fits them better, and counts as
knowledge; `exchanged` is the control for that. A guess that was made from public examples is nearer to them than to the
truths, so that it scores less than by chance; that makes a test conservative.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.audit.measures.metrics import squared_distances
from flfw.audit.measures.public import PublicData
from flfw.errors import require

_AT_ONCE = 128  # arrangements in memory


@final
@dataclass(frozen=True, eq=False)
class GuessedBatch:
    """Guesses of one message's batch of B examples, and the examples they are ranked among.

    Attributes:
        truth: (B, ...) inputs in [0, 1].
        guesses: (B, ...) finite, in any order; clamped to [0, 1] before they are compared.
        labels: (B,) the true classes.
        lookalikes: for each example the places of its look-alikes in the public samples, of the example's class, each
            at most once, from `flfw.audit.measures.public.PublicData.lookalike_indices`. An example without any is
            matched with a guess, but not ranked.
    """

    truth: np.ndarray
    guesses: np.ndarray
    labels: np.ndarray
    lookalikes: Sequence[np.ndarray]


@final
@dataclass(frozen=True, eq=False)
class Numbered:
    """Message whose examples have numbers: public ones their places, truths the numbers after them.

    Attributes:
        attempt: the message.
        truth: (B,) numbers of its truths.
    """

    attempt: GuessedBatch
    truth: np.ndarray

    @property
    def lists(self) -> list[np.ndarray]:
        """Candidates of each example: its truth first."""
        return [np.append(true, indices) for true, indices in zip(self.truth, self.attempt.lookalikes, strict=True)]


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Distances of one message's guesses to all elements, the truths and look-alikes that may change places.

    An arrangement is a row of all elements: in place i stands the element that takes the part of element i.

    Attributes:
        truth: (B,) elements.
        lookalikes: (B, N) elements, filled up with the last one, which is infinitely far away.
        ranked: (B,) whether an example has look-alikes.
        distances: (elements, B) squared distance of every element to every guess; infinite for other classes.
    """

    truth: np.ndarray
    lookalikes: np.ndarray
    ranked: np.ndarray
    distances: np.ndarray

    def matched(self, arrangements: np.ndarray) -> np.ndarray:
        """Match the guesses with the truths (K, B) of K arrangements (K, elements), by least squares as `assign`."""
        from scipy.optimize import linear_sum_assignment

        if len(self.truth) == 1:
            return np.zeros((len(arrangements), 1), np.intp)
        return np.stack([linear_sum_assignment(costs)[1] for costs in self.distances[arrangements[:, self.truth]]])

    def identified(self, arrangements: np.ndarray) -> np.ndarray:
        """Count, for K arrangements (K, elements), the ranked truths that are nearest to their guesses (K,)."""
        matched = self.matched(arrangements)
        true = self.distances[arrangements[:, self.truth], matched]
        places = arrangements[:, self.lookalikes] * len(self.truth) + matched[..., None]  # (K, B, N), in the flat table
        nearest = self.distances.ravel().take(places).min(2, initial=np.inf)
        return ((true < nearest) & self.ranked).sum(1)


def arrangements(pools: Sequence[np.ndarray], draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield 1 + ``draws`` arrangements, some (K, elements) at a time; the first of all is the true one.

    Args:
        pools: for each class the elements that may change places with one another; together all but the last element.
        draws: number of random arrangements.
        rng: their generator.
    """
    truly = np.arange(1 + sum(len(pool) for pool in pools))
    for start in range(0, 1 + draws, _AT_ONCE):
        drawn = np.tile(truly, (min(_AT_ONCE, 1 + draws - start), 1))
        for pool in pools:
            drawn[:, pool] = rng.permuted(drawn[:, pool], axis=1)
        if start == 0:
            drawn[0] = truly
        yield drawn


def numbered(attempts: Sequence[GuessedBatch], public: PublicData) -> list[Numbered]:
    """Give the truths of all messages numbers; equal truths of a class have one number.

    Raises:
        InputError: shapes that do not fit, guesses that are not finite, or look-alikes of another class.
    """
    numbers: dict[tuple[int, bytes], int] = {}
    messages = []
    for attempt in attempts:
        _check(attempt, public)
        keys = [(int(label), true.tobytes()) for label, true in zip(attempt.labels, attempt.truth, strict=True)]
        truth = [numbers.setdefault(key, len(public.samples) + len(numbers)) for key in keys]
        messages.append(Numbered(attempt, np.array(truth)))
    return messages


def sharing(messages: Sequence[Numbered]) -> Iterator[list[Numbered]]:
    """Yield groups of messages that share examples, directly or through others; the groups are independent."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    if not messages:
        return
    members = [np.concatenate(message.lists) for message in messages]
    owners = np.repeat(np.arange(len(messages)), [len(numbers) for numbers in members])
    examples = np.unique(np.concatenate(members), return_inverse=True)[1].ravel() + len(messages)
    size = int(examples.max()) + 1
    links = coo_matrix((np.ones(len(examples)), (owners, examples)), shape=(size, size))
    groups = connected_components(links, directed=False)[1][: len(messages)].tolist()
    for group in dict.fromkeys(groups):
        yield [message for message, index in zip(messages, groups, strict=True) if index == group]


def rankings(messages: Sequence[Numbered], public: PublicData) -> tuple[list[Ranking], list[np.ndarray], np.ndarray]:
    """Compute the distances of all messages' guesses to all of their examples.

    Returns:
        A ranking of each message; the elements of each class, as `arrangements` takes them; and the elements in order
        as flat inputs (elements - 1, d): the last element is none.
    """
    labels = np.concatenate([message.attempt.labels.repeat([len(x) for x in message.lists]) for message in messages])
    numbers = np.concatenate([number for message in messages for number in message.lists])
    every, first = np.unique(numbers, return_index=True)
    public_ones = every[every < len(public.samples)]
    truths = {
        number: true
        for message in messages
        for number, true in zip(message.truth.tolist(), message.attempt.truth, strict=True)
    }
    known = np.stack([truths[number] for number in every[len(public_ones) :].tolist()])
    inputs = np.concatenate([public.samples[public_ones], known]).reshape(len(every), -1)
    pools = [np.flatnonzero(labels[first] == label) for label in np.unique(labels)]
    result = []
    for message in messages:
        guesses = message.attempt.guesses
        distances = np.full((len(every) + 1, len(guesses)), np.inf)
        for pool in pools:
            if np.isin(message.truth, every[pool]).any():
                distances[pool] = squared_distances(inputs[pool], guesses)
        result.append(_ranking(message, every, distances))
    return result, pools, inputs


def exchanged(attempts: Sequence[GuessedBatch], turn: int = 1) -> list[GuessedBatch]:
    """Give each message the guesses of another one: the control for truths unlike their look-alikes.

    These guesses cannot know the examples they are compared with. If they score significantly more than by chance, the
    clients' examples differ from public ones as a group, and the score of the true guesses says nothing.

    Args:
        attempts: messages with batches of one size; of fewer than two there is no control, and the list is empty.
        turn: distance of the other message, 1 for the next one.

    Raises:
        InputError: batches of different shapes.
    """
    shapes = {attempt.guesses.shape for attempt in attempts}
    require(len(shapes) <= 1, "batches of one shape", shapes=sorted(shapes))
    if len(attempts) < 2:
        return []
    return [
        GuessedBatch(attempt.truth, other.guesses, attempt.labels, attempt.lookalikes)
        for attempt, other in zip(attempts, [*attempts[turn:], *attempts[:turn]], strict=True)
    ]


def _ranking(message: Numbered, every: np.ndarray, distances: np.ndarray) -> Ranking:
    indices = message.attempt.lookalikes
    rivals = np.full((len(indices), max(len(numbers) for numbers in indices)), len(every))
    for row, numbers in zip(rivals, indices, strict=True):
        row[: len(numbers)] = np.searchsorted(every, numbers)
    ranked = np.array([len(numbers) > 0 for numbers in indices])
    return Ranking(np.searchsorted(every, message.truth), rivals, ranked, distances)


def _check(attempt: GuessedBatch, public: PublicData) -> None:
    shape = attempt.truth.shape
    require(shape[1:] == public.samples.shape[1:], f"inputs of shape {public.samples.shape[1:]}", truth=shape)
    require(shape[0] >= 1, "at least one example in a message", examples=shape[0])
    require(attempt.guesses.shape == shape, f"guesses of shape {shape}", guesses=attempt.guesses.shape)
    infinite = int((~np.isfinite(attempt.guesses)).sum())
    require(infinite == 0, "finite guesses (a message without is left out)", not_finite=infinite)
    sizes = {"labels": len(attempt.labels), "lookalikes": len(attempt.lookalikes)}
    require(set(sizes.values()) == {shape[0]}, f"{shape[0]} labels and lists of look-alikes", **sizes)
    for label, indices in zip(attempt.labels.tolist(), attempt.lookalikes, strict=True):
        others = sorted(set(public.labels[indices].tolist()) - {label})
        require(not others, f"look-alikes of class {label}", classes=others)
        twice = len(indices) - len(np.unique(indices))
        require(twice == 0, "each look-alike at most once", repeated=twice)
