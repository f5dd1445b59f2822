"""Attribute inference by column: by hand, against SciPy's exact tests, and with guesses that know nothing."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest

from flfw.audit.measures.columns import ColumnChance, column_chance, column_rates
from flfw.audit.measures.permutations import GuessedBatch
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import assign, column_matches
from flfw.audit.measures.statistics import share_interval
from flfw.errors import InputError
from flfw.rng import numpy_generator


def rng(*numbers: int) -> np.random.Generator:
    return numpy_generator(0, "test of columns", *numbers)


# --- the table ---


def test_shares_floors_and_intervals_by_hand() -> None:
    matches = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]], dtype=bool)
    floors = np.array([[0, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)
    first, second, third = column_rates(matches, floors)
    assert (first.share, first.floor, first.chance) == (1.0, 0.25, None)
    assert (first.low, first.high) == share_interval(4, 4)
    assert first.p == pytest.approx(1 / 8)  # three discordant rows, all the attack's
    assert (second.share, second.floor, second.p) == (0.5, 0.5, pytest.approx(3 / 4))  # one each way
    assert (third.share, third.low, third.floor, third.p) == (0.0, 0.0, 0.25, 1.0)
    assert set(vars(first)) == {"share", "low", "high", "floor", "chance", "p"}


def test_with_one_row_a_message_it_is_mcnemars_exact_test() -> None:
    draw = rng(1)
    matches, floors = draw.random((60, 5)) < 0.6, draw.random((60, 5)) < 0.4
    for column, rate in enumerate(column_rates(matches, floors)):
        only, other = (matches & ~floors)[:, column].sum(), (floors & ~matches)[:, column].sum()
        assert rate.p == pytest.approx(binomtest(int(only), int(only + other), 0.5, "greater").pvalue)
    assert [rate.p for rate in column_rates(matches, matches)] == [1.0] * 5


def test_rows_of_one_message_are_flipped_together() -> None:
    messages = np.array(["a", "a", "a", "b", "c", "c", "d"])
    matches = np.array([[1, 1, 1, 1, 0, 0, 1]], dtype=bool).T
    floors = np.array([[0, 0, 0, 0, 1, 1, 1]], dtype=bool).T  # surpluses 3, 1, -2 and 0
    sums = [np.dot(signs, [3, 1, 2, 0]) for signs in product((-1, 1), repeat=4)]
    rate = column_rates(matches, floors, messages)[0]
    assert rate.p == pytest.approx(np.mean([total >= 2 for total in sums]))
    assert (rate.low, rate.high) == share_interval(5, 7, messages=4)


def test_the_p_value_of_many_messages_is_that_of_drawn_signs() -> None:
    draw = rng(2)
    matches, floors = draw.random((90, 1)) < 0.55, draw.random((90, 1)) < 0.45
    messages = np.repeat(np.arange(30), 3)
    surplus = (matches * 1 - floors * 1).reshape(30, 3).sum(1)
    signs = draw.choice([-1, 1], (40_000, 30))
    expected = np.mean(signs @ np.abs(surplus) >= surplus.sum())
    assert column_rates(matches, floors, messages)[0].p == pytest.approx(expected, abs=0.01)


def test_a_column_must_pass_the_constant_and_chance() -> None:
    matches, floors = np.ones((10, 2), bool), np.zeros((10, 2), bool)
    chance = ColumnChance(np.array([0.3, 0.9]), np.array([0.0001, 0.4]))
    first, second = column_rates(matches, floors, chance=chance)
    assert (first.chance, first.p) == (0.3, pytest.approx(1 / 1024))
    assert (second.chance, second.p) == (0.9, 0.4)


@pytest.mark.parametrize(
    ("matches", "floors", "messages", "complaint"),
    [
        (np.zeros((0, 3), bool), np.zeros((0, 3), bool), None, "at least one row"),
        (np.zeros(3, bool), np.zeros(3, bool), None, r"got shape=\(3,\)"),
        (
            np.zeros((2, 3), bool),
            np.zeros((2, 1), bool),
            None,
            r"Expected floors of shape \(2, 3\), got shape=\(2, 1\)",
        ),
        (np.zeros((2, 3), bool), np.zeros((2, 3), bool), np.zeros(3), "Expected 2 messages, one a row, got messages=3"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    matches: np.ndarray, floors: np.ndarray, messages: np.ndarray | None, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        column_rates(matches, floors, messages)


# --- chance ---


def people(count: int, draw: np.random.Generator) -> np.ndarray:
    """Rows of one class: six binary columns, half of them balanced, and one number."""
    binary = draw.random((count, 6)) < np.array([0.5, 0.5, 0.5, 0.8, 0.9, 0.2])
    return np.concatenate([binary, draw.random((count, 1))], 1) * 1.0


def audit(draw: np.random.Generator, batch: int, messages: int = 4) -> tuple[PublicData, np.ndarray, np.ndarray]:
    """Public rows, and the truths (M, B, d) and as many rows of other people."""
    public = PublicData.from_arrays(people(300, draw), np.zeros(300, np.int64))
    truth, others = (people(messages * batch, draw).reshape(messages, batch, 7) for _ in range(2))
    return public, truth, others


def attempts(
    public: PublicData, truth: np.ndarray, guesses: np.ndarray, draw: np.random.Generator
) -> list[GuessedBatch]:
    labels = np.zeros(truth.shape[1], np.int64)
    places = [[public.lookalike_indices(0, draw) for _ in labels] for _ in truth]
    return [GuessedBatch(t, g, labels, p) for t, g, p in zip(truth, guesses, places, strict=True)]


def test_the_chance_of_a_single_row_is_that_of_other_rows() -> None:
    public, truth, guesses = audit(rng(3), 1)
    chance = column_chance(attempts(public, truth, guesses, rng(4)), public, rng(5), draws=2000)
    others = [column_matches(public.samples, guess[0], public.binary).mean(0) for guess in guesses]
    assert chance.share == pytest.approx(np.mean(others, axis=0), abs=0.08)
    assert ((chance.p > 0) & (chance.p <= 1)).all()


@pytest.mark.slow
def test_rows_of_other_people_beat_the_constant_in_batches_but_not_chance() -> None:
    """McNemar's test by itself takes the assignment of guesses to truths for knowledge."""
    mcnemar, both, excess, gaps = [], [], [], []
    for trial in range(40):
        draw = rng(6, trial)
        public, truth, guesses = audit(draw, 16)
        chance = column_chance(attempts(public, truth, guesses, draw), public, draw, draws=199)
        placed = np.concatenate([g[assign(t, g)] for t, g in zip(truth, guesses, strict=True)])
        flat = truth.reshape(-1, 7)
        matches = column_matches(flat, placed, public.binary)
        floors = column_matches(flat, public.typical(0), public.binary)
        alone = column_rates(matches, floors)
        mcnemar += [rate.p <= 0.05 for rate in alone[:3]]
        both += [rate.p <= 0.05 for rate in column_rates(matches, floors, chance=chance)]
        excess.append(np.mean([rate.share - rate.floor for rate in alone[:3]]))
        gaps.append(np.mean(matches.mean(0) - chance.share))
    assert np.mean(excess) > 0.15 and np.mean(mcnemar) > 0.3
    assert np.mean(both) <= 0.05 and abs(np.mean(gaps)) < 0.01


@pytest.mark.parametrize(("batch", "messages"), [(1, 30), (2, 30)])
def test_a_column_that_is_known_is_significant_and_the_others_are_not(batch: int, messages: int) -> None:
    draw = rng(7, batch)
    public, truth, guesses = audit(draw, batch, messages)
    guesses[..., 6] = truth[..., 6]  # known in its row
    chance = column_chance(attempts(public, truth, guesses, draw), public, draw, draws=999)
    assert chance.p[6] == 0.001 and (chance.p[:6] > 0.01).all()
    assert chance.share[6] < 0.3


def test_the_first_arrangement_is_the_true_one() -> None:
    draw = rng(8)
    public, truth, _ = audit(draw, 2)
    known = attempts(public, truth, truth[:, ::-1], draw)
    assert column_chance(known, public, draw, draws=1).p == pytest.approx(np.full(7, 0.5), abs=0.5)
    assert column_chance(known, public, draw, draws=499).p[6] == pytest.approx(1 / 500)  # no other number is as near


def test_images_and_nothing_have_no_columns() -> None:
    with pytest.raises(InputError, match="at least one message, got messages=0"):
        column_chance([], PublicData.from_arrays(np.zeros((2, 3)), np.zeros(2)), rng())
    images = PublicData.from_arrays(np.zeros((2, 1, 3, 3)), np.zeros(2, np.int64))
    attempt = GuessedBatch(np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 3, 3)), np.zeros(1, np.int64), [np.arange(2)])
    with pytest.raises(InputError, match="rows of features"):
        column_chance([attempt], images, rng())
