"""Standardised mean difference of scores: against independent computations, and its level where it may fail."""

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import torch

from flfw.dp.canary_audit import _detected
from flfw.errors import InputError
from flfw.privacy.lower_bound import FEWEST, largest_difference, shift_of, standardised_mean_difference
from flfw.rng import numpy_generator
from research.measurements.canary_bounds import SHAPES


def drawn(seed: int, m: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    rng = numpy_generator(seed, "test of the mean difference", m)
    included = rng.random(m) < 0.5
    return rng.normal(mu * included), included


def raises_alarm(scores: np.ndarray, included: np.ndarray, mu: float) -> bool:
    """Whether the lower bound on mu is above it; a difference up to mu shows no more, for mu allows mu at least."""
    result = standardised_mean_difference(scores, included)
    return result is not None and result.low > mu and shift_of(result.low, len(scores)) > mu


# --- the estimate and its interval ---


def test_the_estimate_is_cohens_d_by_hand() -> None:
    """Scores 1 ... 10 and 3 ... 12: the means are 2 apart, and each has a sum of squares of 82.5 about its mean."""
    scores, included = np.array([*range(1, 11), *range(3, 13)]), np.arange(20) >= 10
    result = standardised_mean_difference(scores, included)
    assert result is not None and result.estimate == pytest.approx(2 / sqrt(165 / 18))
    moved = standardised_mean_difference(7 - 0.5 * scores, ~included)
    assert moved is not None and moved == pytest.approx(result)


@pytest.mark.parametrize(("m", "mu"), [(30, 0.0), (100, 0.7), (1000, 2.0)])
def test_the_interval_inverts_the_noncentral_t(m: int, mu: float) -> None:
    """Scores at a normal's quantiles, whose tails are light: the exact bound is the lower one, or nearly so."""
    from scipy.stats import nct, norm

    grid = norm.ppf((np.arange(m) + 0.5) / m)
    scores, included = np.concatenate([grid, grid + mu]), np.arange(2 * m) >= m
    result = standardised_mean_difference(scores, included)
    assert result is not None
    scale, freedom = sqrt(m / 2), 2 * m - 2
    # P(T >= t) at the bound is 5 % if it is the exact one, and less if the other is lower.
    assert 0.04 < nct.sf(result.estimate * scale, freedom, result.low * scale) < 0.0501


def test_the_interval_covers_as_often_as_stated() -> None:
    """Of 600 runs 5 % are 30, with a deviation of 5.3; the lower of two bounds is a little below."""
    below = [standardised_mean_difference(*drawn(seed, 60, 1.2)) for seed in range(600)]
    missed = sum(result is not None and result.low > 1.2 for result in below)
    assert 12 < missed < 42


def test_too_little_to_go_by_shows_nothing() -> None:
    assert standardised_mean_difference(np.arange(40.0), np.arange(40) < FEWEST - 1) is None
    assert standardised_mean_difference(np.arange(40.0), np.full(40, True)) is None
    assert standardised_mean_difference(np.zeros(0), np.zeros(0, bool)) is None
    assert standardised_mean_difference(np.arange(40) % 2 + 0.1, np.arange(40) % 2 > 0) is None  # two values alone
    assert standardised_mean_difference(np.full(40, 1 / 3), np.arange(40) % 2 > 0) is None


# --- what mu allows ---


@pytest.mark.parametrize("mu", [0.05, 1.0, 3.0])
def test_the_largest_difference_is_that_of_the_best_score_by_integration(mu: float) -> None:
    """No score has a larger one than (p - q) / (p + q), and that one's moments are integrals over the line."""
    from scipy.integrate import quad
    from scipy.stats import norm

    def moment(power: int, centre: float) -> float:
        return quad(lambda x: np.tanh(mu * (x - mu / 2) / 2) ** power * norm.pdf(x - centre), -12, 12 + mu)[0]

    means, squares = [moment(1, centre) for centre in (mu, 0)], [moment(2, centre) for centre in (mu, 0)]
    variance = sum(square - mean**2 for square, mean in zip(squares, means, strict=True)) / 2
    assert largest_difference(mu) == pytest.approx((means[0] - means[1]) / sqrt(variance), rel=1e-6)
    assert largest_difference(mu) >= mu


def test_mu_is_found_again_and_is_no_more_than_the_canaries_can_show() -> None:
    assert shift_of(largest_difference(2.5), 10**6) == pytest.approx(2.5)
    assert shift_of(-1.0, 100) == shift_of(0.0, 100) == shift_of(9.0, 1) == 0
    # 100 right guesses of 100: p^100 = 0.05 for p = 0.9705 = Phi(mu / 2), mu = 2 * 1.8876.
    assert shift_of(1e300, 100) == pytest.approx(2 * 1.8876, abs=1e-3)


# --- the level, where it may fail ---


def level(scores: Callable[[int], tuple[np.ndarray, np.ndarray]], mu: float, runs: int) -> float:
    return float(np.mean([raises_alarm(*scores(seed), mu) for seed in range(runs)]))


@pytest.mark.parametrize("m", [40, 200])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_of_any_shape_that_follow_from_honest_ones_raise_no_alarm(shape: str, m: int) -> None:
    """5 % of 300 runs are 15, with a deviation of 3.8."""

    def scores(seed: int) -> tuple[np.ndarray, np.ndarray]:
        values, included = drawn(seed, m, 1.0)
        return SHAPES[shape](values), included

    assert level(scores, 1.0, 300) <= 0.08


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_canaries_of_unequal_weight_raise_no_alarm(spread: float) -> None:
    """Each is told as well as mu allows, but on a scale of its own."""

    def scores(seed: int) -> tuple[np.ndarray, np.ndarray]:
        values, included = drawn(seed, 200, 1.0)
        return values * np.exp(spread * numpy_generator(seed, "scales").normal(size=200)), included

    assert level(scores, 1.0, 300) <= 0.08


@pytest.mark.slow
@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize(("dimensions", "common"), [(1, 0.0), (2, 3.0), (5, 0.0), (20, 3.0), (100, 0.0)])
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_canaries_that_disturb_each_other_raise_no_alarm(
    dimensions: int, common: float, separated: bool, mu: float
) -> None:
    """Of 200 canaries in few dimensions each score moves with all coins and the same noise, as gradients of a net do.

    ``common`` is the part that all gradients share. Scores are inner products, or separated as in a run.
    """

    def scores(seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = numpy_generator(seed, "correlated canaries", dimensions)
        rows = rng.normal(size=(200, dimensions))
        rows[:, 0] += common
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        included = rng.random(200) < 0.5
        seen = rows.T @ (included - 0.5) + rng.normal(size=dimensions) / mu
        if not separated:
            return rows @ seen, included
        return _detected(torch.tensor(rows), torch.tensor(seen), 1.0, 1 / mu).numpy(), included

    assert level(scores, mu, 200) <= 0.09


def test_two_thirds_of_the_noise_show_with_200_canaries() -> None:
    """Scores 1.5 deviations apart where 1 is claimed: result in nearly all of 100 runs, and 1.0 in hardly any."""
    assert level(lambda seed: drawn(seed, 200, 1.5), 1.0, 100) >= 0.85
    assert level(lambda seed: drawn(seed, 1000, 1.5), 1.0, 40) == 1
    assert level(lambda seed: drawn(seed, 1000, 1.0), 1.0, 200) <= 0.09


# --- bad input ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: standardised_mean_difference(np.zeros((2, 2)), np.zeros(4, bool)), "Expected a row of scores, got"),
        (lambda: standardised_mean_difference(np.zeros(3), np.zeros(2, bool)), "Expected 3 values of included, got"),
        (lambda: standardised_mean_difference(np.array([np.inf]), np.ones(1, bool)), "Expected finite scores, got"),
        (lambda: standardised_mean_difference(np.zeros(1), np.ones(1, bool), 1.0), "Expected 0 < confidence < 1, got"),
        (lambda: largest_difference(-1.0), "Expected 0 <= mu <= 16, got mu=-1.0."),
        (lambda: shift_of(1.0, 0), "Expected canaries >= 1, got canaries=0."),
        (lambda: shift_of(1.0, 5, 0.0), "Expected 0 < confidence < 1, got confidence=0.0."),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).startswith(message)
