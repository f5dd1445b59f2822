"""Intervals and paired differences: against SciPy's bootstrap and exact intervals, and against numbers by hand."""

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest, bootstrap

from flfw.audit.measures.statistics import Interval, interval, most_missed, paired, share_interval, significant, worst
from flfw.errors import InputError
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


@pytest.mark.slow
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
    assert vars(Interval(5.0, None, None)) == {"mean": 5.0, "low": None, "high": None}


def test_seeds_of_one_image_each_are_resampled_as_seeds() -> None:
    # Two seeds: a mean is 0, 1 or 2 with probabilities 1/4, 1/2, 1/4, so both ends are reached.
    assert ends(interval(np.array([0.0, 2.0]), np.array(["a", "b"]), rng())) == (0.0, 2.0)


@pytest.mark.parametrize(
    ("values", "groups", "complaint"),
    [
        ([1.0, float("nan")], None, "not_finite=1"),
        ([1.0, 1e308], None, "not_finite=1"),
        ([1.0, float("inf"), float("nan")], None, "not_finite=2"),
        ([], None, "at least one number"),
        ([[1.0]], None, r"got shape=\(1, 1\)"),
        ([1.0, 2.0], [0], "Expected 2 groups, one a value, got groups=1"),
    ],
)
def test_what_has_no_mean_is_refused(values: list[float], groups: list[int] | None, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        interval(np.array(values), None if groups is None else np.array(groups), rng())


def test_an_interval_takes_milliseconds() -> None:
    values, groups, draw = rng().random(50), np.repeat(np.arange(5), 10), rng()
    times = []
    for _ in range(10):
        started = time.process_time()
        interval(values, groups, draw)
        times.append(time.process_time() - started)
    assert min(times) < 0.005  # of the processor


# --- messages ---


@pytest.mark.slow
def test_messages_are_drawn_whole_within_seeds_as_in_a_loop() -> None:
    seeds = {3: [[10.0, 14.0], [20.0]], 5: [[1.0], [2.0, 3.0], [7.0, 8.0, 9.0]]}
    draw = rng(11)
    means = []
    for _ in range(20_000):
        taken: list[float] = []
        for seed in draw.choice([3, 5], 2):
            batches = seeds[int(seed)]
            for number in draw.integers(len(batches), size=len(batches)):
                taken += batches[number]
        means.append(np.mean(taken))
    values = np.array([20, 7, 10, 2, 14, 8, 1, 3, 9.0])
    groups = np.array([3, 5, 3, 5, 3, 5, 5, 5, 5])
    messages = np.array(["b", "c", "a", "b", "a", "c", "a", "b", "c"])  # "a" of seed 3 is not "a" of seed 5
    ours = interval(values, groups, rng(12), draws=20_000, messages=messages)
    assert ours.mean == pytest.approx(74 / 9)
    assert ends(ours) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), abs=0.15)


def test_without_messages_the_numbers_are_those_of_earlier_versions() -> None:
    values, groups = np.array([3.5, 1.25, 8.0, 2.0, 6.75, 9.5]), np.array([0, 0, 1, 1, 1, 2])
    one_each = np.array([5, 1, 4, 0, 2, 3])
    for messages in (None, one_each):
        assert ends(interval(values, groups, rng(20), messages=messages)) == (2.4285714285714284, 9.5)
        assert ends(interval(values, None, rng(20), messages=messages)) == (2.875, 7.625)
    a, b = np.arange(20) % 7 * 1.0, np.full(20, 2.5)
    for messages in (None, np.arange(20)):
        result = paired(a, b, None, rng(20), messages)
        assert (*ends(result.difference), result.p) == (-0.5, 1.15, 0.458)


@pytest.mark.slow
def test_an_interval_covers_only_if_messages_are_drawn_whole() -> None:
    """A hundred messages of four images that share most of their variation; the true mean is 0."""
    messages, trials = np.repeat(np.arange(100), 4), 600
    covered = {"messages": 0, "ignored": 0}
    for trial in range(trials):
        draw = rng(13, trial)
        values = np.repeat(draw.normal(0, 2, 100), 4) + draw.normal(0, 0.5, 400)
        for name, given in (("messages", messages), ("ignored", None)):
            low, high = ends(interval(values, None, draw, draws=300, messages=given))
            covered[name] += low <= 0 <= high
    assert covered["messages"] >= 0.93 * trials > 0.75 * trials > covered["ignored"]


def test_one_message_has_no_interval_whatever_its_images() -> None:
    assert interval(np.arange(5.0), None, rng(), messages=np.zeros(5)) == Interval(2.0, None, None)
    two_seeds = interval(np.arange(4.0), np.array([0, 0, 1, 1]), rng(), messages=np.zeros(4))
    assert ends(two_seeds) == (0.5, 2.5)  # a message in each


def test_messages_of_another_number_are_refused() -> None:
    for call in (
        lambda: interval(np.zeros(3), None, rng(), messages=np.zeros(2)),
        lambda: paired(np.zeros(3), np.zeros(3), None, rng(), np.zeros(2)),
    ):
        with pytest.raises(InputError, match="Expected 3 messages, one a value, got messages=2"):
            call()


# --- shares ---


def test_shares_have_exact_intervals() -> None:
    assert share_interval(0, 8) == (0.0, pytest.approx(1 - 0.025 ** (1 / 8)))  # (1 - p)^8 = 0.025
    assert share_interval(8, 8) == (pytest.approx(0.025 ** (1 / 8)), 1.0)
    low, high = share_interval(3, 10)
    assert (low, high) == pytest.approx((beta.ppf(0.025, 3, 8), beta.ppf(0.975, 4, 7)))


def test_members_of_one_message_count_as_copies() -> None:
    assert share_interval(0, 128, messages=4) == (0.0, pytest.approx(1 - 0.025 ** (1 / 4)))  # 60 %, not 2.8 %
    assert share_interval(128, 128, messages=4) == (pytest.approx(0.025 ** (1 / 4)), 1.0)
    assert share_interval(7, 7, messages=1) == (pytest.approx(0.025), 1.0)
    assert share_interval(3, 10, messages=10) == share_interval(3, 10)


def test_between_whole_messages_the_interval_is_that_of_beta_quantiles() -> None:
    for successes, total, messages in ((64, 128, 4), (30, 40, 8), (8, 16, 2)):  # 2, 6 and 1 messages
        exact = binomtest(successes * messages // total, messages).proportion_ci(0.95, "exact")
        assert share_interval(successes, total, messages) == pytest.approx((exact.low, exact.high))
    half = share_interval(1, 8, messages=4)  # half a message of four
    assert half == pytest.approx((beta.ppf(0.025, 0.5, 4.5), beta.ppf(0.975, 1.5, 3.5)))
    steps = np.array([share_interval(k, 32, messages=4) for k in range(33)])
    assert (np.diff(steps, axis=0) > 0).sum() == 64  # both ends rise all along, through whole numbers and others
    assert steps[:, 0] + steps[::-1, 1] == pytest.approx(np.ones(33))


@pytest.mark.parametrize("together", [0.3, 0.8, 1.0])
def test_a_share_interval_covers_only_if_it_knows_of_messages(together: float) -> None:
    """Twelve messages of eight: a batch is given away together with a beta-binomial's correlation."""
    share, trials, draw = 0.3, 2000, rng(14)
    rest = (1 - together) / max(together, 1e-9)
    gave = draw.beta(share * rest, (1 - share) * rest, (trials, 12)) if rest else draw.random((trials, 12)) < share
    counts = draw.binomial(8, gave).sum(1).tolist()
    covered = dict.fromkeys(("messages", "ignored"), 0)
    for name, given in (("messages", 12), ("ignored", None)):
        spans = {count: share_interval(count, 96, given) for count in set(counts)}
        covered[name] = sum(spans[count][0] <= share <= spans[count][1] for count in counts)
    assert covered["messages"] >= 0.95 * trials > 0.9 * trials > covered["ignored"]


def test_what_could_still_leak_when_nothing_did() -> None:
    for messages in (1, 4, 8, 59):
        assert binom.pmf(0, messages, most_missed(messages)) == pytest.approx(0.05)
    assert most_missed(4) == pytest.approx(1 - 0.05**0.25)
    assert most_missed(59) < 0.05 < most_missed(58)  # the rule of three


def test_of_many_settings_one_must_stand_out_more() -> None:
    assert significant(0.01, 1) and not significant(0.0101, 1)
    assert significant(0.001, 10) and not significant(0.001, 11)
    assert significant(0.004, 10, alpha=0.05)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: share_interval(0, 4, messages=5), "Expected 1 <= messages <= total=4, got messages=5"),
        (lambda: share_interval(0, 4, messages=0), "Expected 1 <= messages <= total=4, got messages=0"),
        (lambda: most_missed(0), "Expected messages >= 1, got messages=0"),
        (lambda: significant(1.5, 1), "Expected 0 <= p <= 1, got p=1.5"),
        (lambda: significant(float("nan"), 1), "Expected 0 <= p <= 1, got p=nan"),
        (lambda: significant(0.5, 0), "Expected num_tests >= 1, got num_tests=0"),
        (lambda: significant(0.5, 1, alpha=1.0), "Expected 0 < alpha < 1, got alpha=1.0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(call: Callable[[], object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        call()


@pytest.mark.parametrize(("successes", "total"), [(0, 0), (-1, 4), (5, 4)])
def test_shares_of_nothing_are_refused(successes: int, total: int) -> None:
    with pytest.raises(InputError, match=r"Expected (0 <= successes <= total=4|total >= 1), got"):
        share_interval(successes, total)


def test_the_worst_by_hand() -> None:
    assert worst(np.array([3.0, 9.0, 9.0, 1.0])) == 1
    with pytest.raises(InputError):
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


def test_the_signs_of_a_message_are_flipped_together() -> None:
    a, messages = np.array([1.0, 2.0, 4.0, -1.0, 5.0, 0.0]), np.array([7, 7, 8, 8, 8, 9])
    result = paired(a, np.zeros(6), None, rng(), messages)
    assert result.p == 4 / 8  # sums 3, 8 and 0: +-11 with either sign of 0, of eight flips
    assert (result.better, result.worse, result.ties) == (4, 1, 1)
    alone = paired(a, np.zeros(6), None, rng(), np.zeros(6))
    assert alone.p == 1.0 and alone.difference == Interval(pytest.approx(11 / 6), None, None)


@pytest.mark.slow
def test_images_of_few_messages_are_no_proof_of_a_difference() -> None:
    """Eight messages of four images that change together, by chance: one test in twenty may see a difference."""
    messages = np.repeat(np.arange(8), 4)
    seen = {"messages": 0, "ignored": 0}
    for trial in range(60):
        draw = rng(15, trial)
        a = np.repeat(draw.normal(0, 2, 8), 4) + draw.normal(0, 0.5, 32)
        for name, given in (("messages", messages), ("ignored", None)):
            seen[name] += paired(a, np.zeros(32), None, draw, given).p <= 0.05
    assert seen["messages"] <= 0.05 * 60 + 3 * (60 * 0.05 * 0.95) ** 0.5 < 15 < seen["ignored"]


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
    with pytest.raises(InputError, match="Expected 2 values of b, as many as of a, got b=1"):
        paired(np.zeros(2), np.zeros(1), None, rng())
    with pytest.raises(InputError, match="a failed image counts as its floor"):
        paired(np.zeros(2), np.array([0.0, np.nan]), None, rng())


def test_statistics_are_light_to_import() -> None:
    code = "import sys, flfw.audit.measures.statistics; print('scipy' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
