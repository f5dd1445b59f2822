"""A filter for messages that are chosen one after the other: its sums, and what it never undercounts."""

from math import exp, inf, log, sqrt

import pytest
from scipy.stats import norm

from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.filter import order, spent
from flfw.privacy.mechanism import Mechanism

DELTA = 1e-5


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang's delta of N(0, 1) against N(mu, 1)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("times", [1, 4, 9])
def test_gaussians_add_up_in_squares(times: int) -> None:
    """Of z = 1 each: together mu = sqrt(times), at half of delta."""
    one = Mechanism(1.0, 1)
    for units in ([(one, 1)] * times, [(Mechanism(1.0, times), 1)], [(Mechanism(1.0, 1), 1)] * times):
        epsilon = spent(units, 100.0, DELTA)
        assert gaussian_delta(epsilon, sqrt(times)) == pytest.approx(DELTA / 2, rel=1e-6)


def test_kinds_are_added_up() -> None:
    """Twice z = 2, z = 1 and z = 1/2 of two copies: 1/4 + 1/4 + 1 + 4 = 5.5."""
    update = Mechanism(1.0, 1, clipped="client", groups=1)
    units = [(Mechanism(2.0, 2), 1), (update, 1), (update, 2)]
    assert gaussian_delta(spent(units, 100.0, DELTA), sqrt(5.5)) == pytest.approx(DELTA / 2, rel=1e-6)


def test_nothing_is_spent_by_nothing_and_everything_without_noise() -> None:
    assert spent([], 1.0, DELTA) == 0
    assert spent([(Mechanism(0.0, 1), 1)], 1.0, DELTA) == inf
    faint = Mechanism(1e-9, 1, sampling_rate=0.1, poisson=True)
    assert spent([(Mechanism(1.0, 1), 1), (faint, 1)], 1.0, DELTA) == inf


def poisson(sigma: float, steps: int, rate: float) -> Mechanism:
    return Mechanism(sigma, steps, sampling_rate=rate, poisson=True)


@pytest.mark.parametrize("one", [poisson(1.0, 1000, 0.01), poisson(2.0, 1000, 0.1), poisson(1.0, 300, 0.05)])
def test_sampling_is_credited_and_never_more_than_by_the_accountant(one: Mechanism) -> None:
    known = compute_epsilon([one.phase()], DELTA, "rdp").epsilon
    bare = compute_epsilon([one.phase(amplified=False)], DELTA / 2, "prv").epsilon
    for share in (0.5, 0.9, 1.0, 1.2, 2.0, 5.0):
        assert known <= spent([(one, 1)], share * known, DELTA) <= bare
    assert spent([(one, 1)], 1.25 * known, DELTA) <= 1.25 * known  # the price of choices that react to answers


def test_the_orders_follow_from_the_limit_alone() -> None:
    """For Gaussian noise of divergence a rho the epsilon at the order is the least that the limit allows."""
    for limit in (0.5, 2.0, 8.0):
        best = order(limit, DELTA)

        def rho(alpha: float, limit: float = limit) -> float:
            return (limit - log((alpha - 1) / alpha) + (log(DELTA) + log(alpha)) / (alpha - 1)) / alpha

        assert all(rho(best) >= rho(other) for other in (best * 0.9, best * 1.1))
