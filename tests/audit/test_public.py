"""What public data give by themselves: by hand, against naive loops, and in time."""

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from flfw.audit.measures.metrics import psnr, rmsd
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import column_matches, exact_match, recovered
from flfw.data.files.columns import Column, NumberTarget, TableSchema
from flfw.errors import InputError
from flfw.recorded_apps.case import nobodys
from flfw.recording.observation import Truth
from flfw.rng import numpy_generator


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return numpy_generator(0, "noise", seed).random(shape, dtype=np.float32)


ROWS = PublicData.from_arrays(
    np.array([[0.0, 0.0], [0.2, 0.4], [1.0, 1.0], [0.8, 0.6]], dtype=np.float32), np.array([0, 0, 1, 1])
)
IMAGES = PublicData.from_arrays(noise(6, 3, 64, 64), np.zeros(6, dtype=np.int64))


# --- floors ---


def naive_floors(public: PublicData, truth: np.ndarray, label: int, rng: np.random.Generator) -> dict[str, float]:
    samples = [sample.astype(np.float64) for sample in public.samples]
    same = [sample for sample, given in zip(samples, public.labels, strict=True) if given == label]
    return {
        "noise": psnr(truth, rng.random(truth.shape)),
        "grey": psnr(truth, np.full(truth.shape, 0.5)),
        "mean": psnr(truth, np.mean(samples, axis=0)),
        "class_mean": psnr(truth, np.mean(same, axis=0)),
        "random_public": psnr(truth, samples[rng.integers(len(samples))]),
        "nearest_public": max(psnr(truth, sample) for sample in samples),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 5), (11,)])
def test_floors_are_those_of_a_naive_loop(shape: tuple[int, ...], dtype: type) -> None:
    public = PublicData.from_arrays(noise(300, *shape).astype(dtype), np.arange(300) % 3)
    for i, truth in enumerate(noise(20, *shape, seed=1).astype(dtype)):
        result = public.floors(truth, i % 3, numpy_generator(0, "floors", i))
        expected = naive_floors(public, truth, i % 3, numpy_generator(0, "floors", i))
        assert list(result) == list(expected)
        assert result == pytest.approx(expected, abs=1e-9)
        for exactly in ("noise", "grey", "random_public", "nearest_public"):
            assert result[exactly] == expected[exactly]


def test_the_nearest_is_found_where_float32_cannot_tell() -> None:
    truth = np.full(400, 0.9, dtype=np.float32)
    samples = np.tile(truth, (200, 1))
    rng = numpy_generator(0, "order")
    samples[np.arange(200), rng.integers(400, size=200)] += np.float32(1e-4) * (2 + rng.permutation(200))
    samples = np.clip(samples, 0, 1)
    public = PublicData.from_arrays(samples, np.zeros(200, np.int64))
    distances = ((samples.astype(np.float64) - truth) ** 2).sum(1)
    rough = (samples * samples).sum(1) - 2 * samples @ truth + truth @ truth
    assert rough.argmin() != distances.argmin()  # else this test says nothing
    db = public.floors(truth, 0, numpy_generator(0, "floors"))["nearest_public"]
    assert db == psnr(truth, samples[distances.argmin()])


def test_floors_by_hand() -> None:
    floors = ROWS.floors(np.array([0.2, 0.2]), 0, numpy_generator(0, "floors"))
    assert set(floors) == {"noise", "grey", "mean", "class_mean", "random_public", "nearest_public"}
    assert floors["grey"] == pytest.approx(-20 * np.log10(0.3), abs=1e-4)
    assert floors["mean"] == pytest.approx(-20 * np.log10(0.3), abs=1e-4)  # the mean of all is (.5, .5)
    assert floors["class_mean"] == pytest.approx(-10 * np.log10(0.01 / 2), abs=1e-4)  # (.1, .2) is off by (.1, 0)
    assert floors["nearest_public"] == pytest.approx(-10 * np.log10(0.04 / 2), abs=1e-4)  # (.2, .4) is off by (0, .2)


def test_a_class_without_public_examples_falls_back_to_the_mean_of_all() -> None:
    floors = ROWS.floors(np.array([0.2, 0.2]), 7, numpy_generator(0, "floors"))
    assert floors["class_mean"] == floors["mean"]


def test_the_nearest_public_example_is_the_best_that_a_random_one_can_be() -> None:
    truth, all_db, nearest = noise(2, seed=3), set(), set()
    for given in range(40):
        floors = ROWS.floors(truth, 0, numpy_generator(0, "floors", given))
        all_db.add(floors["random_public"])
        nearest.add(floors["nearest_public"])
    assert all_db == {psnr(truth, sample) for sample in ROWS.samples}
    assert nearest == {max(all_db)}


def test_noise_floor_is_that_of_uniform_noise() -> None:
    floors = IMAGES.floors(np.full((3, 64, 64), 0.5), 0, numpy_generator(0, "floors"))
    assert floors["noise"] == pytest.approx(-10 * np.log10(1 / 12), abs=0.1)
    assert floors["grey"] == 200.0


def test_an_example_that_is_public_cannot_count_as_recovered() -> None:
    truth = IMAGES.samples[2]
    floors = IMAGES.floors(truth, 0, numpy_generator(0, "floors"))
    assert floors["nearest_public"] == 200.0 and not recovered(truth, truth, floors)


def test_a_black_truth_and_equal_public_images_have_a_floor() -> None:
    public = PublicData.from_arrays(np.zeros((5, 1, 4, 4), np.float32), np.zeros(5, np.int64))
    assert public.floors(np.zeros((1, 4, 4)), 0, numpy_generator(0, "floors"))["nearest_public"] == 200.0


def test_fifty_victims_against_ten_thousand_images_take_under_five_seconds() -> None:
    rng, public = numpy_generator(0, "floors"), PublicData.from_arrays(noise(10_000, 1, 28, 28), np.arange(10_000) % 10)
    truths = noise(50, 1, 28, 28, seed=1)
    started = time.process_time()
    for i, truth in enumerate(truths):
        public.floors(truth, i % 10, rng)
    assert time.process_time() - started < 5.0  # a loop over the images takes minutes


# --- look-alikes ---


def test_lookalikes_are_of_the_class_and_each_at_most_once() -> None:
    samples = np.arange(60, dtype=np.float32).reshape(60, 1) / 100
    public = PublicData.from_arrays(samples, np.arange(60) % 3)
    chosen = public.lookalike_indices(1, numpy_generator(0, "lookalikes"), 19).tolist()
    assert len(chosen) == len(set(chosen)) == 19 and {place % 3 for place in chosen} == {1}


def test_lookalikes_are_all_of_the_class_where_it_has_fewer() -> None:
    chosen = ROWS.lookalike_indices(1, numpy_generator(0, "lookalikes"))
    assert sorted(chosen.tolist()) == list(range(2, len(ROWS.samples)))
    assert ROWS.lookalike_indices(7, numpy_generator(0, "lookalikes")).tolist() == []


def test_every_example_is_a_lookalike_equally_often() -> None:
    public = PublicData.from_arrays(np.arange(10, dtype=np.float32).reshape(10, 1) / 10, np.zeros(10, np.int64))
    rng = numpy_generator(0, "lookalikes")
    seen = Counter(int(place) for _ in range(2000) for place in public.lookalike_indices(0, rng, 3))
    assert len(seen) == 10
    for count in seen.values():
        assert abs(count - 600) < 4 * np.sqrt(2000 * 0.3 * 0.7)


def test_a_negative_number_of_lookalikes_is_refused() -> None:
    with pytest.raises(InputError, match="Expected 0 <= most, got most=-1"):
        ROWS.lookalike_indices(0, numpy_generator(0, "lookalikes"), -1)


# --- features ---

TABLE = PublicData.from_arrays(
    np.array([[0, 1, 0.0, 0.1], [1, 1, 0.5, 0.2], [1, 1, 1.0, 0.9], [0, 1, 1.0, 0.3], [0, 1, 1.0, 0.4]]),
    np.array([0, 0, 1, 1, 1]),
)


def test_a_feature_is_binary_when_it_is_never_anything_but_zero_or_one() -> None:
    assert TABLE.binary.tolist() == [True, True, False, False]


def test_the_typical_row_has_majorities_and_medians() -> None:
    assert TABLE.typical().tolist() == [0, 1, 1.0, 0.3]
    assert TABLE.typical(1).tolist() == [0, 1, 1.0, 0.4]  # (1, 0, 0), always 1, median of (.9, .3, .4)
    assert TABLE.typical(0).tolist() == pytest.approx([1, 1, 0.25, 0.15])  # a tie is a one
    assert TABLE.typical(7).tolist() == TABLE.typical().tolist()


def test_a_row_is_guessable_where_a_public_one_or_the_constant_matches_every_feature() -> None:
    assert TABLE.guessable(np.array([1, 1, 1.0, 0.9]), 0)  # a public row
    assert TABLE.guessable(np.array([1, 1, 0.95, 0.86]), 0)  # within .05 of it in both numbers
    assert not TABLE.guessable(np.array([1, 1, 0.94, 0.86]), 0)
    assert not TABLE.guessable(np.array([1, 0, 1.0, 0.9]), 0)  # another category
    typical = TABLE.typical(0)  # (1, 1, .25, .15): no public row matches it
    assert TABLE.guessable(typical, 0) and not TABLE.guessable(typical, 1)


def test_guessable_rows_are_those_of_a_naive_loop() -> None:
    draw = numpy_generator(0, "rows")

    def rows(count: int) -> np.ndarray:
        return np.concatenate([draw.integers(2, size=(count, 4)), draw.integers(4, size=(count, 30)) == 0], 1) * 1.0

    for width in (3, 5, 34):  # within one block of columns, and over blocks
        table, rest = rows(200)[:, :width], rows(60)[:, :width]
        table[:, 0], rest[:, 0] = draw.random(200), draw.random(60)
        rest[::3, 1:] = table[:20, 1:]
        public = PublicData.from_arrays(table, np.zeros(200, np.int64))
        for true in rest:
            naive = any(exact_match(true, row, public.binary) for row in [*table, public.typical(0)])
            assert public.guessable(true, 0) == naive


def test_a_public_row_that_was_slightly_changed_is_not_recovered() -> None:
    """Random public rows with noise, the best of 500 for each truth, among people who have doubles."""
    draw = numpy_generator(0, "doubles")
    people = np.concatenate([draw.integers(2, size=(700, 6)) * 1.0, draw.random((700, 1))], 1)
    public, naive = PublicData.from_arrays(people[:500], np.zeros(500, np.int64)), 0
    for true in people[500:]:
        floors = public.floors(true, 0, draw)
        guess = people[np.abs(people[:500] - true).sum(1).argmin()] + 1e-4
        naive += recovered(true, guess, floors, public.binary)
        assert not recovered(true, guess, floors, public.binary, public.guessable(true, 0))
    assert naive > 50


def test_images_have_no_features() -> None:
    for ask in (lambda: IMAGES.binary, IMAGES.typical, lambda: IMAGES.guessable(IMAGES.samples[0], 0)):
        with pytest.raises(InputError, match=r"Expected rows of features \(N, d\), got shape=\(6, 3, 64, 64\)"):
            ask()


# --- what is refused ---


@pytest.mark.parametrize(
    ("samples", "labels", "complaint"),
    [
        (np.zeros((0, 2)), np.zeros(0), "at least one public example, got examples=0"),
        (np.zeros((3, 2)), np.zeros(2), "one label for each public example"),
        (np.zeros((3, 2)), np.zeros((3, 1)), "one label for each public example"),
        (np.array([[0.0, 1.5]]), np.zeros(1), r"within \[0, 1\], got lowest=0.0, highest=1.5"),
        (np.array([[-0.5, 1.0]]), np.zeros(1), r"within \[0, 1\], got lowest=-0.5, highest=1.0"),
        (np.array([[np.nan, 1.0]]), np.zeros(1), r"within \[0, 1\], got lowest=nan"),
        (np.array([[0.0, np.inf]]), np.zeros(1), r"within \[0, 1\], got lowest=0.0, highest=inf"),
    ],
)
def test_public_data_that_cannot_be_used_are_refused(samples: np.ndarray, labels: np.ndarray, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        PublicData.from_arrays(samples, labels)


# --- tables with a plan ---


def planned(samples: Sequence[Sequence[float]], *columns: Column) -> PublicData:
    schema = TableSchema(columns, "y", "regression", number=NumberTarget("y", 0, 1))
    return PublicData.from_arrays(np.array(samples), np.zeros(len(samples), np.int64), schema=schema)


WARD = Column("ward", "categorical", categories=("A", "B", "C"))


def test_the_most_usual_category_is_the_guess_of_a_cell_also_where_it_is_no_majority() -> None:
    """Two of five rows are of ward A: a guess of A matches 40 %, and the majority of each feature, no ward, none."""
    rows = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]
    public = planned(rows, WARD)
    assert public.typical(0).tolist() == [0, 0, 0] and public.usual(0).tolist() == [0, 1, 0]  # the first of equals
    matched = public.cells(column_matches(np.array(rows), public.usual(0), public.binary))
    assert matched.mean() == 0.4
    assert public.guessable(np.array([0.0, 1.0, 0.0]), 0)


def test_the_most_usual_number_is_the_one_that_most_rows_are_close_to() -> None:
    """Three of seven rows are near 0.02, and the median, 0.5, is close to one row alone."""
    values = [0.0, 0.01, 0.04, 0.5, 0.7, 0.8, 0.95]
    public = planned([[value] for value in values], Column("stay", "numeric", 0, 100))
    for guess in (public.usual(0), public.typical(0)):
        assert column_matches(np.array([[v] for v in values]), guess, public.binary).sum() == 3
    assert public.usual(3).tolist() == public.usual(0).tolist()  # a class that no public row has
    maximum = max(
        int(column_matches(np.array([[v] for v in values]), np.array([g]), public.binary).sum())
        for g in np.linspace(0, 1, 1001)
    )
    assert maximum == 3


def test_a_number_that_is_mostly_missing_is_guessed_as_missing() -> None:
    """Feature 2 says that the number is missing, as in three of five rows; 0.4 is put in its place."""
    column = Column("lab", "numeric", 0, 10, missing=True, fill=0.4)
    rows = [[0.4, 1.0]] * 3 + [[0.9, 0.0], [0.88, 0.0]]
    assert planned(rows, column).usual(0).tolist() == [0.4, 1.0]
    assert planned([*rows[1:], [0.9, 0.0]], column).usual(0).tolist() == pytest.approx([0.93, 0.0])


def test_a_number_is_no_boolean_because_the_public_rows_are_at_its_ends() -> None:
    """Of a number from 0 to 100 the public rows have the ends alone: 20 is no match of a client's 45."""
    public = planned(
        [[0.0, 0.0], [1.0, 1.0]], Column("a", "numeric", 0, 100), Column("b", "boolean", categories=("N", "Y"))
    )
    assert public.binary.tolist() == [False, True]
    assert not exact_match(np.array([0.45, 1.0]), np.array([0.2, 1.0]), public.binary)


def test_among_many_categories_a_row_without_a_right_one_is_not_recovered() -> None:
    """Of five columns of 200 categories two are right, and all other features are 0.

    The deviation of the 1,000 features is the root of 3 / 1000, 0.055, that of the cells the root of 3 / 5.
    """
    names = tuple(map(str, range(200)))
    columns = [Column(f"c{n}", "categorical", categories=names) for n in range(5)]
    truth, guess, other = np.zeros(1000), np.zeros(1000), np.zeros(1000)
    truth[0::200], guess[0:400:200], other[1::200] = 1, 1, 1
    public = planned([other.tolist()], *columns)
    floors = public.floors(truth, 0, numpy_generator(0, "floors"))
    assert public.plan is not None
    assert rmsd(truth, guess) < 0.1 and public.plan.deviation(truth, guess) == pytest.approx(np.sqrt(3 / 5))
    assert not recovered(truth, guess, floors, public.binary, schema=public.plan)
    assert recovered(truth, truth, floors, public.binary, schema=public.plan)


def test_rows_that_are_no_clients_keep_the_plan() -> None:
    public = planned([[1, 0, 0], [0, 1, 0]], WARD)
    truth = Truth(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]), torch.tensor([0]))
    assert nobodys(public, [truth]).plan is public.plan
