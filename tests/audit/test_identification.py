"""Identification against chance: with guesses that know nothing, of every kind we could think of, and by hand."""

from collections.abc import Callable, Iterator
from itertools import permutations
from math import factorial

import numpy as np
import pytest

from flfw import data
from flfw.audit.measures.identification import convolved, identified_p, identify
from flfw.audit.measures.permutations import GuessedBatch, exchanged
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import assign, identification
from flfw.errors import InputError
from flfw.rng import numpy_generator

Kind = Callable[[PublicData, np.ndarray, np.random.Generator], np.ndarray]


def rng(*numbers: int) -> np.random.Generator:
    return numpy_generator(0, "test of identification", *numbers)


def classless(samples: np.ndarray) -> PublicData:
    return PublicData.from_arrays(samples, np.zeros(len(samples), np.int64))


def alone(truth: np.ndarray, guesses: np.ndarray, count: int, start: int = 0) -> GuessedBatch:
    """A message of one class whose examples all have the same ``count`` look-alikes from ``start`` on."""
    indices = np.arange(start, start + count)
    return GuessedBatch(truth, guesses, np.zeros(len(truth), np.int64), [indices] * len(truth))


# --- by hand ---


def test_three_of_three_among_thirty_candidates_each() -> None:
    public = classless(rng(1).random((87, 6)))
    truths = rng(2).random((3, 1, 6))
    attempts = [alone(true, true + 0.001, 29, 29 * i) for i, true in enumerate(truths)]
    result = identify(attempts, public, rng())
    assert (result.count, result.compared) == (3, 3)
    assert result.p == pytest.approx((1 / 30) ** 3)
    assert result.chance == pytest.approx(1 / 30)
    assert result.null[1] == pytest.approx(3 * 29**2 / 30**3)


def test_one_of_one_is_exact_without_draws() -> None:
    public, true = classless(rng(3).random((9, 4))), rng(4).random((1, 4))
    assert identify([alone(true, true, 9)], public, rng(), draws=1).p == pytest.approx(0.1)
    assert identify([alone(true, public.samples[:1], 9)], public, rng(), draws=1).p == 1.0


def test_one_guess_for_all_messages_that_share_their_lookalikes() -> None:
    """Of four truths and four public points, the three nearest to the one guess must be truths: 4 3 2 1 of 8 7 6 5."""
    public = classless(np.array([[0.5], [0.6], [0.7], [0.8]]))
    attempts = [alone(np.array([[0.1 * i]]), np.array([[0.0]]), 4) for i in range(4)]
    result = identify(attempts, public, rng(), draws=20_000)
    expected = factorial(4) * factorial(4) / factorial(8)  # 1/70, where independent messages would make it 1/625
    assert result.count == 4
    assert result.p == pytest.approx(expected, rel=0.2)
    assert result.chance == pytest.approx(1 / 5, abs=0.01)


def test_a_batch_is_compared_with_every_arrangement() -> None:
    """Two truths and two look-alikes; all 24 arrangements go through assignment and ranking in a plain loop."""
    truth, others = np.array([[0.1], [0.9]]), np.array([[0.4], [0.75]])
    guesses = np.array([[0.8], [0.3]])
    counts = []
    for order in permutations([*truth, *others]):
        placed, rivals = np.stack(order[:2]), np.stack(order[2:])
        matched = guesses[assign(placed, guesses)]
        counts.append(sum(identification(t, g, rivals)[0] == 1 for t, g in zip(placed, matched, strict=True)))
    result = identify([alone(truth, guesses, 2)], classless(others), rng(), draws=20_000)
    assert result.count == counts[0]
    assert result.null == pytest.approx(np.bincount(counts, minlength=3) / 24, abs=0.015)
    assert result.p == pytest.approx(np.mean(np.array(counts) >= counts[0]), abs=0.015)


def test_the_count_is_that_of_the_scores() -> None:
    for given in range(5):
        draw = rng(5, given)
        public = PublicData.from_arrays(draw.random((40, 3, 2, 2), dtype=np.float32), np.arange(40) % 2)
        truth, labels = draw.random((6, 3, 2, 2), dtype=np.float32), np.arange(6) % 2
        guesses = (truth + draw.normal(0, 0.6, truth.shape))[draw.permutation(6)]
        indices = [public.lookalike_indices(int(label), draw, 12) for label in labels]
        matched = guesses[assign(truth, guesses)]
        ranks = [identification(*each)[0] for each in zip(truth, matched, public.samples[indices], strict=True)]
        result = identify([GuessedBatch(truth, guesses, labels, indices)], public, draw, draws=50)
        assert result.count == ranks.count(1)
        assert result.null.sum() == pytest.approx(1) and result.null[result.count] > 0


def test_lookalikes_as_far_away_as_the_truth_count_against_it() -> None:
    signs = rng(6).choice([0.0, 1.0], (20, 12))
    flat = alone(signs[:4], np.full((4, 12), 0.5), 16)  # all candidates are as far from grey
    result = identify([flat], classless(signs[4:]), rng())
    assert result.count == 0 and result.p == 1.0 and result.chance == 0.0
    double = np.concatenate([signs[:1], signs[4:]])
    assert identify([alone(signs[:1], signs[:1], 17)], classless(double), rng()).count == 0


def test_guesses_outside_the_box_are_clamped() -> None:
    public = classless(np.array([[1.0, 0.5]]))
    assert identify([alone(np.array([[0.9, 0.0]]), np.array([[9.85, 0.0]]), 1)], public, rng()).count == 1


def test_an_example_without_lookalikes_is_not_counted() -> None:
    public = PublicData.from_arrays(rng(7).random((8, 3)), np.zeros(8, np.int64))
    truth = rng(8).random((2, 3))
    mixed = GuessedBatch(truth, truth, np.array([0, 5]), [np.arange(8), np.arange(0)])
    result = identify([mixed], public, rng(), draws=200)
    assert (result.count, result.compared, len(result.null)) == (1, 1, 2)
    none = identify([GuessedBatch(truth, truth, np.array([5, 5]), [np.arange(0)] * 2)], public, rng())
    assert (none.count, none.compared, none.p, none.chance) == (0, 0, 1.0, None)
    assert identify([], public, rng()).p == 1.0


def test_a_truth_in_two_messages_is_one_example() -> None:
    """Were they two, both messages would be identified by chance more rarely than one is."""
    public, true = classless(rng(9).random((9, 4))), rng(10).random((1, 4))
    twice = identify([alone(true, true, 9), alone(true, true, 9)], public, rng(), draws=5000)
    assert twice.count == 2 and twice.p == pytest.approx(0.1, abs=0.02)


# --- sums of messages ---


def test_independent_counts_are_convolved() -> None:
    fair = np.array([0.5, 0.5])
    assert convolved([fair, fair, fair]).tolist() == [1 / 8, 3 / 8, 3 / 8, 1 / 8]
    assert identified_p([1, 1, 0], [fair, fair, fair]) == pytest.approx(4 / 8)
    assert identified_p([0, 0], [fair, fair]) == 1.0
    assert identified_p([2, 1], [np.array([0.9, 0.09, 0.01]), np.array([0.8, 0.2])]) == pytest.approx(0.01 * 0.2)
    assert identified_p([], []) == 1.0


def test_a_null_is_needed_for_every_count() -> None:
    with pytest.raises(InputError, match="Expected 2 nulls, one a count, got nulls=1"):
        identified_p([1, 1], [np.array([0.5, 0.5])])


# --- guesses that know nothing ---


def smooth(images: np.ndarray) -> np.ndarray:
    return sum(np.roll(images, shift, axis) for shift in (-1, 0, 1) for axis in (-1, -2)) / 6


KINDS: dict[str, Kind] = {
    "uniform noise": lambda public, truth, draw: draw.random(truth.shape),
    "smooth noise": lambda public, truth, draw: 0.5 + 3 * (smooth(draw.random(truth.shape)) - 0.5),
    "the same noise in every message": lambda public, truth, draw: np.repeat(draw.random((1, *truth.shape[1:])), 2, 0),
    "one guess for all": lambda public, truth, draw: np.broadcast_to(draw.random(truth.shape[2:]), truth.shape),
    "white": lambda public, truth, draw: np.full(truth.shape, 9.0),
    "corners of the box": lambda public, truth, draw: draw.normal(0.5, 5, truth.shape),
    "public examples": lambda public, truth, draw: public.samples[draw.integers(len(public.samples), size=(2, 4))],
    "blends": lambda public, truth, draw: public.samples[draw.integers(len(public.samples), size=(2, 4, 3))].mean(2),
    "from dark to bright": lambda public, truth, draw: (
        public.samples.mean(0) + np.linspace(-0.5, 0.5, truth.shape[1])[None, :, None, None]
    ),
}


def audits(count: int, batch: int, number: int) -> Iterator[tuple[PublicData, np.ndarray, np.random.Generator]]:
    """Two messages each of smooth images of one kind, among few public ones that all messages share."""
    for trial in range(count):
        draw = rng(number, batch, trial)
        images = np.clip(0.5 + 2 * (smooth(draw.random((20 + 2 * batch, 5, 5))) - 0.5), 0, 1)
        yield classless(images[: -2 * batch]), images[-2 * batch :].reshape(2, batch, 5, 5), draw


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_guesses_that_know_nothing_are_significant_as_rarely_as_they_may(kind: str) -> None:
    significant, identified, expected = 0, 0.0, 0.0
    for public, truth, draw in audits(200, 4, 20):
        guesses = np.broadcast_to(KINDS[kind](public, truth, draw), truth.shape)
        result = identify([alone(*pair, 20) for pair in zip(truth, guesses, strict=True)], public, draw, draws=99)
        significant += result.p <= 0.05
        identified += result.count / 8 / 200
        expected += (result.chance or 0) / 200
    assert significant <= 0.05 * 200 + 2 * (200 * 0.05 * 0.95) ** 0.5
    assert identified <= expected + 0.02
    if kind in ("uniform noise", "corners of the box"):
        assert identified == pytest.approx(expected, abs=0.02) and identified > 1.5 / 21  # the assignment helps


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4, 8])
def test_the_test_keeps_its_level_for_batches_of_all_sizes(batch: int) -> None:
    results = []
    for public, truth, draw in audits(300, batch, 30):
        guesses = draw.normal(0.5, 5, truth.shape)
        results.append(
            identify([alone(*pair, 20) for pair in zip(truth, guesses, strict=True)], public, draw, draws=99)
        )
    assert np.mean([result.p <= 0.05 for result in results]) <= 0.05
    naive = convolved([np.array([20 / 21, 1 / 21])] * 2 * batch)  # 1 in 21 for each image
    assert batch < 8 or np.mean([identified_p([result.count], [naive]) <= 0.05 for result in results]) > 0.15


@pytest.mark.slow
def test_messages_that_share_lookalikes_are_not_independent() -> None:
    """One guess for thirty-two messages: as independent ones they are significant at .01 three times too often."""
    together, apart = [], []
    for trial in range(400):
        draw = rng(40, trial)
        points, guess = draw.random((41, 4)), draw.random((1, 4))
        attempts = [alone(points[9 + i : 10 + i], guess, 9) for i in range(32)]
        result = identify(attempts, classless(points[:9]), draw, draws=99)
        together.append(result.p)
        apart.append(identified_p([result.count], [convolved([np.array([0.9, 0.1])] * 32)]))
    assert np.mean(np.array(together) <= 0.05) <= 0.05 + 0.02
    assert np.mean(np.array(apart) <= 0.01) > 0.03


def test_digits_of_others_are_identified_more_often_than_one_in_thirty() -> None:
    """Digits that are neither the truth nor public: 3 % in batches of 1, 10 % of 8, 16 % of 32."""
    digits = data.load("digits", None, 28)
    images, labels = digits.train_x[:, :, ::3, ::3].astype(np.float32) / 255, digits.train_y
    for batch, audited, rate in ((1, 150, 0.033), (8, 40, 0.10), (32, 12, 0.16)):
        identified, chance = 0.0, 0.0
        for trial in range(audited):
            draw = rng(50, batch, trial)
            order = draw.permutation(len(images))
            public = PublicData.from_arrays(images[order[:300]], labels[order[:300]])
            truth, others = order[300 : 300 + batch], order[300 + batch : 300 + 2 * batch]
            places = [public.lookalike_indices(int(labels[i]), draw) for i in truth]
            attempt = GuessedBatch(images[truth], images[others], labels[truth], places)
            result = identify([attempt], public, draw, draws=99)
            identified += result.count / batch / audited
            chance += (result.chance or 0) / audited
        assert chance == pytest.approx(rate, abs=0.02)
        assert identified == pytest.approx(chance, abs=0.025)


# --- guesses that know something ---


@pytest.mark.parametrize(("batch", "noise"), [(1, 0.05), (4, 0.1), (8, 0.3)])
def test_reconstructions_are_significant(batch: int, noise: float) -> None:
    for public, truth, draw in audits(5, batch, 60):
        guesses = (truth + draw.normal(0, noise, truth.shape))[:, draw.permutation(batch)]
        result = identify([alone(*pair, 20) for pair in zip(truth, guesses, strict=True)], public, draw, draws=999)
        assert result.p < (0.01 if batch == 1 else 0.002)
        assert result.count > 2 * (result.chance or 0) * result.compared


def test_the_control_tells_a_client_that_is_darker_than_the_public() -> None:
    """Dark guesses identify dark truths, though they know none; with those of another message it is the same."""
    draw = rng(70)
    public = classless(0.5 + 0.5 * draw.random((30, 8)))
    dark = 0.4 * draw.random((4, 2, 8))
    attempts = [alone(true, np.zeros((2, 8)), 30) for true in dark]
    assert identify(attempts, public, rng(), draws=999).p < 0.01
    assert identify(exchanged(attempts), public, rng(), draws=999).p < 0.01
    like = 0.5 + 0.5 * draw.random((4, 2, 8))
    known = [alone(true, true, 30) for true in like]
    assert identify(known, public, rng(), draws=999).p < 0.01 < identify(exchanged(known), public, rng(), draws=999).p


def test_the_control_needs_two_messages_of_one_shape() -> None:
    one, other = (alone(np.zeros((size, 3)), np.full((size, 3), size / 4), 2) for size in (1, 2))
    assert exchanged([one]) == exchanged([]) == []
    with pytest.raises(InputError, match="Expected batches of one shape"):
        exchanged([one, other])
    first, second = exchanged([one, alone(np.ones((1, 3)), np.zeros((1, 3)), 2)])
    assert first.guesses.sum() == 0 and first.truth.sum() == 0
    assert second.guesses.sum() == 0.75 and second.truth.sum() == 3


# --- what is refused ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"truth": np.zeros((2, 4))}, r"Expected inputs of shape \(3,\), got truth=\(2, 4\)"),
        ({"truth": np.zeros((0, 3))}, "at least one example in a message, got examples=0"),
        ({"guesses": np.zeros((1, 3))}, r"Expected guesses of shape \(2, 3\), got guesses=\(1, 3\)"),
        ({"guesses": np.full((2, 3), np.nan)}, "finite guesses .*, got not_finite=6"),
        ({"labels": np.zeros(3, np.int64)}, "2 labels and lists of look-alikes, got labels=3, lookalikes=2"),
        ({"lookalikes": [np.arange(2)]}, "2 labels and lists of look-alikes, got labels=2, lookalikes=1"),
        ({"lookalikes": [np.arange(2), np.array([0, 3])]}, r"Expected look-alikes of class 0, got classes=\[1\]"),
        ({"lookalikes": [np.arange(2), np.array([1, 1])]}, "each look-alike at most once, got repeated=1"),
    ],
)
def test_attempts_that_do_not_fit_are_refused(changes: dict[str, object], complaint: str) -> None:
    public = PublicData.from_arrays(np.zeros((4, 3)), np.array([0, 0, 0, 1]))
    fields = {"truth": np.zeros((2, 3)), "guesses": np.zeros((2, 3)), "labels": np.zeros(2, np.int64)}
    attempt = GuessedBatch(**(fields | {"lookalikes": [np.arange(2)] * 2} | changes))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=complaint):
        identify([attempt], public, rng())


def test_no_draws_are_refused() -> None:
    with pytest.raises(InputError, match="Expected draws >= 1, got draws=0"):
        identify([], classless(np.zeros((1, 3))), rng(), draws=0)
