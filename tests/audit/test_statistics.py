"""Intervals and paired differences: against SciPy's bootstrap and exact intervals, and against numbers by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import product

import numpy as np
import pytest
from scipy.stats import beta, bootstrap

from flfw.audit.measures.statistics import Interval, interval, paired, share_above, share_interval, worst
from flfw.errors import BadInput
from flfw.rng import numpy_generator


def rng(*numbers: int) -> np.random.Generator:
    return numpy_generator(0, "test of statistics", *numbers)


def ends(result: Interval) -> tuple[float, float]:
    assert result.low is not None and result.high is not None
    return result.low, result.high


# --- intervals of a mean ---


def test_of_one_seed_it_is_scipys_percentile_bootstrap() -> None:
    values = rng().gamma(2.0, 5.0, 30)
    theirs = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=rng(1)).confidence_interval
    ours = interval(values, np.zeros(30), rng(2), draws=20_000)
    assert ours.mean == pytest.approx(values.mean())
    assert ends(ours) == pytest.approx((theirs.low, theirs.high), abs=0.03 * (theirs.high - theirs.low))
    assert interval(values, np.zeros(30), rng(2)) == interval(values, None, rng(2))


def test_over_seeds_and_images_it_is_the_two_stage_bootstrap_written_as_a_loop() -> None:
    seeds = {7: [10.0, 12.0, 11.0], 3: [20.0], 5: [14.0, 18.0]}  # unequal sizes, in no order
    draw = rng(3)
    means = []
    for _ in range(20_000):
        taken: list[float] = []
        for seed in draw.choice(list(seeds), 3):
            taken += list(draw.choice(seeds[int(seed)], len(seeds[int(seed)])))
        means.append(np.mean(taken))
    values, groups = np.array([14, 10, 20, 12, 18, 11.0]), np.array([5, 7, 3, 7, 5, 7])
    ours = interval(values, groups, rng(4), draws=20_000)
    assert ours.mean == pytest.approx(85 / 6)
    assert ends(ours) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), abs=0.15)


def test_ignoring_seeds_that_differ_gives_intervals_that_are_too_narrow() -> None:
    covered = {"seeds": 0, "ignored": 0}
    for trial in range(150):
        draw = rng(5, trial)
        values = (draw.normal(0, 2, 5)[:, None] + draw.normal(0, 1, (5, 8))).ravel()  # the true mean is 0
        groups = np.repeat(np.arange(5), 8)
        for name, given in (("seeds", groups), ("ignored", None)):
            low, high = ends(interval(values, given, draw, draws=400))
            covered[name] += low <= 0 <= high
    assert covered["ignored"] < 0.5 * 150
    assert 0.75 * 150 < covered["seeds"] <= 150


def test_one_value_has_no_interval_and_equal_values_have_one_of_no_width() -> None:
    assert interval(np.array([5.0]), None, rng()) == Interval(5.0, None, None)
    assert interval(np.full(6, 5.0), np.array([0, 0, 0, 1, 1, 2]), rng()) == Interval(5.0, 5.0, 5.0)
    assert Interval(5.0, None, None).as_dict() == {"mean": 5.0, "low": None, "high": None}


def test_seeds_of_one_image_each_are_resampled_as_seeds() -> None:
    # Two seeds: a mean is 0, 1 or 2 with probabilities 1/4, 1/2, 1/4, so both ends are reached.
    assert ends(interval(np.array([0.0, 2.0]), np.array(["a", "b"]), rng())) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("values", "groups", "complaint"),
    [
        ([1.0, float("nan")], None, "not_finite=1"),
        ([1.0, float("inf"), float("nan")], None, "not_finite=2"),
        ([], None, "at least one number"),
        ([[1.0]], None, r"got shape=\(1, 1\)"),
        ([1.0, 2.0], [0], "Expected 2 groups, one a value, got groups=1"),
    ],
)
def test_what_has_no_mean_is_refused(values: list[float], groups: list[int] | None, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        interval(np.array(values), None if groups is None else np.array(groups), rng())


def test_an_interval_takes_milliseconds() -> None:
    values, groups, draw = rng().random(50), np.repeat(np.arange(5), 10), rng()
    times = []
    for _ in range(10):
        started = time.perf_counter()
        interval(values, groups, draw)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.005


# --- shares ---


def test_shares_have_exact_intervals() -> None:
    assert share_interval(0, 8) == (0.0, pytest.approx(1 - 0.025 ** (1 / 8)))  # (1 - p)^8 = 0.025
    assert share_interval(8, 8) == (pytest.approx(0.025 ** (1 / 8)), 1.0)
    low, high = share_interval(3, 10)
    assert (low, high) == pytest.approx((beta.ppf(0.025, 3, 8), beta.ppf(0.975, 4, 7)))


@pytest.mark.parametrize(("successes", "total"), [(0, 0), (-1, 4), (5, 4)])
def test_shares_of_nothing_are_refused(successes: int, total: int) -> None:
    with pytest.raises(BadInput, match=r"Expected (0 <= successes <= total=4|total >= 1), got"):
        share_interval(successes, total)


def test_shares_above_and_the_worst_by_hand() -> None:
    assert share_above(np.array([1.0, 2.0, 3.0, 4.0]), 2.0) == 0.5
    assert worst(np.array([3.0, 9.0, 9.0, 1.0])) == 1
    with pytest.raises(BadInput):
        worst(np.array([]))


# --- the same images in two settings ---


def test_paired_numbers_by_hand() -> None:
    result = paired(np.array([30.0, 12.0, 10.0, 9.0]), np.array([20.0, 10.0, 11.0, 9.0]), None, rng())
    assert result.difference.mean == pytest.approx((10 + 2 - 1 + 0) / 4)
    assert (result.better, result.worse, result.ties) == (2, 1, 1)
    # Flips of the tie change nothing. Of |+-10 +-2 +-1| those of at least 11: 10+2+1, 10+2-1 and their opposites.
    assert result.p == 4 / 8


def test_the_p_value_is_that_of_all_sign_flips() -> None:
    a, b = rng(6).normal(1, 1, 9), rng(7).normal(0, 1, 9)
    sums = [abs(np.dot(signs, a - b)) for signs in product((-1, 1), repeat=9)]
    assert paired(a, b, None, rng()).p == np.mean([s >= abs((a - b).sum()) - 1e-12 for s in sums])


def test_a_clear_difference_of_many_images_is_significant_and_none_is_not() -> None:
    b = rng(8).normal(10, 5, 40)
    apart, same = paired(b + 1 + rng(9).random(40), b, None, rng()), paired(b, b, None, rng())
    assert apart.p < 0.001 and ends(apart.difference)[0] > 1 and apart.better == 40
    assert same.p == 1.0 and same.ties == 40 and ends(same.difference) == (0.0, 0.0)


def test_pairing_sees_what_the_spread_of_images_hides() -> None:
    b = rng(10).normal(20, 10, 12)
    low, high = ends(paired(b - 1, b, None, rng()).difference)
    assert low == pytest.approx(-1) and high == pytest.approx(-1)


def test_one_image_proves_nothing() -> None:
    result = paired(np.array([30.0]), np.array([10.0]), np.array([0]), rng())
    assert result.difference == Interval(20.0, None, None) and result.p == 1.0


def test_the_interval_of_a_difference_knows_the_seeds() -> None:
    groups = np.repeat(np.arange(3), 4)
    a, b = np.repeat([0.0, 5.0, 10.0], 4), np.zeros(12)
    low, high = ends(paired(a, b, groups, rng()).difference)
    assert (low, high) == (0.0, 10.0)  # all three of one seed: 1 in 27 each
    assert ends(paired(a, b, None, rng()).difference)[0] > 1


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(BadInput, match="Expected 2 values of b, as many as of a, got b=1"):
        paired(np.zeros(2), np.zeros(1), None, rng())
    with pytest.raises(BadInput, match="a failed image counts as its floor"):
        paired(np.zeros(2), np.array([0.0, np.nan]), None, rng())


def test_statistics_are_light_to_import() -> None:
    code = "import sys, flfw.audit.measures.statistics; print('scipy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
