"""Composition theorems: numbers by hand, the theorems' sums, another library, and the exact epsilon below them all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import comb, erfc, exp, expm1, inf, isinf, lgamma, log, log1p, nan, sqrt
from typing import Any

import pytest
from scipy.optimize import brentq, minimize_scalar

from flfw.errors import InputError
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.compositions import (
    advanced,
    amplified,
    basic,
    concentrated,
    optimal,
    randomised_responses,
    step_epsilon,
)
from flfw.privacy.mechanism import GaussianEvent
from research.papers import compositions
from tests.support.paths import ROOT

DELTA = 1e-5
BOUNDS: tuple[Callable[[GaussianEvent, float], float], ...] = (basic, advanced, optimal, concentrated)
PAPER = GaussianEvent(6.0, 0.01, 10_000)
bounds = pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.__name__)

# What dp_accounting 0.6.0 gives for Poisson-sampled Gaussian steps, one unit more or less: multiplier, rate, steps and
# delta, then the epsilon of from_gaussian_mechanism(...).self_compose(steps), at meshes of 1e-6 to 2e-5. It is no
# dependency; the numbers were taken from it by hand.
EXACT = {
    (6.0, 0.01, 10000, 1e-5): 0.60086, (6.0, 0.01, 300, 1e-5): 0.08985, (6.0, 0.1, 100, 1e-5): 0.61567,
    (1.0, 0.01, 1000, 1e-5): 1.82823, (1.0, 0.1, 20, 1e-6): 4.27764, (2.0, 0.05, 200, 1e-5): 1.56060,
    (6.0, 1.0, 100, 1e-5): 8.00369, (1.0, 1.0, 5, 1e-3): 8.78728, (0.5, 0.01, 100, 1e-5): 6.47621,
    (20.0, 0.5, 1000, 1e-7): 4.12488, (2.0, 0.3, 1, 1e-5): 0.95409, (1.0, 0.01, 1, 1e-5): 0.19945,
}  # fmt: skip

# Its epsilon of composed randomised responses, from_privacy_parameters(...).self_compose(steps): epsilon of a step,
# steps and delta.
RESPONSES = {
    (0.01, 10000, 5e-6): 4.5354013, (0.1, 100, 1e-5): 4.3067914, (0.5, 10, 1e-3): 4.8783720,
    (1.0, 30, 1e-6): 29.9878642, (0.02, 1000, 1e-5): 2.5906190, (2.0, 3, 1e-2): 5.9852575,
}  # fmt: skip

# And its get_epsilon_gaussian: multiplier and delta.
GAUSSIAN = {(6.0, 1e-7): 0.7677494423, (1.0, 1e-5): 4.3771780957, (0.5, 1e-3): 7.5812799246}


# --- one step ---


def gaussian(multiplier: float, delta: float) -> float:
    """The epsilon of one Gaussian step, with nothing but erfc and a root."""

    def excess(eps: float) -> float:
        cdf = [erfc((eps * multiplier - sign / (2 * multiplier)) / sqrt(2)) / 2 for sign in (1, -1)]
        return cdf[0] - exp(eps) * cdf[1] - delta

    root: Any = brentq(excess, 0, 100, xtol=1e-13)
    return float(root)


@pytest.mark.parametrize(("multiplier", "delta"), GAUSSIAN)
def test_a_step_without_sampling_has_the_epsilon_of_dp_accounting(multiplier: float, delta: float) -> None:
    assert step_epsilon(GaussianEvent(multiplier, 1.0, 1), delta) == pytest.approx(
        GAUSSIAN[multiplier, delta], rel=1e-9
    )
    assert gaussian(multiplier, delta) == pytest.approx(GAUSSIAN[multiplier, delta], rel=1e-9)


def test_sampling_amplifies_epsilon_and_delta() -> None:
    assert amplified(log(3), 0.5) == pytest.approx(log(2), rel=1e-15)  # 1 + (3 - 1) / 2
    assert step_epsilon(GaussianEvent(6.0, 0.01, 1), 1e-9) == pytest.approx(log1p(0.01 * expm1(0.7677494423)), rel=1e-9)
    assert amplified(0.0, 0.3) == 0 and amplified(inf, 0.3) == inf
    assert amplified(1e-12, 1e-6) == pytest.approx(1e-18, rel=1e-9)  # nothing is lost to rounding
    assert amplified(5000.0, 0.5) == pytest.approx(5000 - log(2), rel=1e-15)  # nor to overflow
    assert amplified(699.999999, 0.5) == pytest.approx(amplified(700.0, 0.5), abs=1e-5)


def test_a_step_that_is_drawn_less_often_than_delta_costs_nothing() -> None:
    assert step_epsilon(GaussianEvent(0.01, 1e-6, 1), 1e-6) == 0
    assert [bound(GaussianEvent(0.01, 1e-9, 10), DELTA) for bound in (basic, advanced, optimal)] == [0, 0, 0]


@pytest.mark.parametrize("part", [GaussianEvent(2.0, 0.3, 1), GaussianEvent(1.0, 0.01, 1), GaussianEvent(0.7, 1.0, 1)])
def test_one_step_composed_is_the_step_alone(part: GaussianEvent) -> None:
    alone = step_epsilon(part, DELTA)
    assert basic(part, DELTA) == alone
    assert optimal(part, DELTA) == pytest.approx(alone, rel=1e-12)
    assert alone < advanced(part, DELTA) and alone < concentrated(part, DELTA)  # these theorems know no first step
    if part.sampling_rate < 1:
        assert alone == pytest.approx(EXACT[part.noise_multiplier, part.sampling_rate, 1, DELTA], abs=1.1e-5)


# --- each theorem by hand ---


def test_basic_by_hand() -> None:
    """0.01 of ten steps is 0.001 for each; with a rate of 0.5, 0.002 for the Gaussian."""
    eps = log(1 + 0.5 * (exp(gaussian(2.0, 0.002)) - 1))
    assert basic(GaussianEvent(2.0, 0.5, 10), 0.01) == pytest.approx(10 * eps, rel=1e-9)


def test_advanced_by_hand() -> None:
    """Theorem III.3, the split found by another search."""
    z, q, steps = 6.0, 0.1, 200

    def bound(share: float) -> float:
        eps = log(1 + q * (exp(gaussian(z, (1 - share) * DELTA / (steps * q))) - 1))
        return eps * sqrt(2 * steps * log(1 / (share * DELTA))) + steps * eps * (exp(eps) - 1)

    best: Any = minimize_scalar(bound, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-9})
    assert advanced(GaussianEvent(z, q, steps), DELTA) == pytest.approx(best.fun, rel=1e-6)
    assert min(bound(share) for share in (0.001, 0.5, 0.9)) > advanced(GaussianEvent(z, q, steps), DELTA)


def test_concentrated_by_hand() -> None:
    """72 steps of multiplier 6 have rho = 1; delta = exp(-4) makes it 1 + 2 * 2."""
    assert concentrated(GaussianEvent(6.0, 1.0, 72), exp(-4)) == pytest.approx(5, rel=1e-12)
    assert concentrated(GaussianEvent(6.0, 0.01, 72), exp(-4)) == concentrated(GaussianEvent(6.0, 1.0, 72), exp(-4))


def test_a_sampled_step_has_no_smaller_rho_for_orders_are_not_limited() -> None:
    """The Renyi divergence of order a, as a sum over the binomial, against zCDP's rho a."""
    multiplier, q = 1.0, 0.01

    def rho_of(order: int) -> float:
        logs = [
            lgamma(order + 1) - lgamma(i + 1) - lgamma(order - i + 1) + (order - i) * log(1 - q) + i * log(q)
            + (i * i - i) / (2 * multiplier**2)
            for i in range(order + 1)
        ]  # fmt: skip
        maximum = max(logs)
        return (maximum + log(sum(exp(one - maximum) for one in logs))) / (order - 1) / order

    assert rho_of(2) < 1e-3 * rho_of(300) < 0.5e-3
    assert rho_of(300) == pytest.approx(1 / (2 * multiplier**2), rel=0.04)
    assert rho_of(300) >= 1 / (2 * multiplier**2) - log(1 / q) / 299


def theorem(epsilon: float, steps: int, i: int) -> float:
    """The delta of (steps - 2 i) epsilon, as printed in theorem 3.3 of Kairouz, Oh and Viswanath."""
    terms = [
        comb(steps, j) * (exp((steps - j) * epsilon) - exp((steps - 2 * i + j) * epsilon)) / (1 + exp(epsilon)) ** steps
        for j in range(i)
    ]
    return sum(terms)


@pytest.mark.parametrize(("epsilon", "steps"), [(0.3, 5), (1.0, 8), (0.05, 40)])
def test_randomised_responses_by_the_printed_sum(epsilon: float, steps: int) -> None:
    for i in range(1, (steps + 1) // 2):
        delta = theorem(epsilon, steps, i)
        assert randomised_responses(epsilon, steps, delta) == pytest.approx((steps - 2 * i) * epsilon, rel=1e-6)


def test_two_randomised_responses_by_hand() -> None:
    """With odds of 3 to 1 both are true with probability 9/16, and both are lies with 1/16: at exp(e) = 5, 4/16."""
    assert randomised_responses(log(3), 2, 4 / 16) == pytest.approx(log(5), rel=1e-8)
    assert randomised_responses(log(3), 2, 0.0) == pytest.approx(log(9), rel=1e-15)
    assert randomised_responses(log(3), 2, 0.5 + 1e-6) == 0  # 8/16 is the total variation


@pytest.mark.parametrize(("epsilon", "steps", "delta"), RESPONSES)
def test_randomised_responses_are_those_of_dp_accounting(epsilon: float, steps: int, delta: float) -> None:
    epsilon_there = RESPONSES[epsilon, steps, delta]
    assert randomised_responses(epsilon, steps, delta) == pytest.approx(epsilon_there, rel=1e-8, abs=1e-7)


def test_a_window_of_the_binomial_is_enough_for_many_steps() -> None:
    """A million small steps are almost a Gaussian of mu = epsilon sqrt(k) (Dong, Roth and Su, 2022)."""
    assert randomised_responses(1e-3, 10**6, 1e-6) == pytest.approx(gaussian(1.0, 1e-6), rel=2e-3)


def test_steps_whose_epsilons_add_up_to_one_are_composed_too() -> None:
    assert randomised_responses(1e-3, 1000, 1e-6) < 0.2  # 1 by plain addition


def test_optimal_by_hand() -> None:
    """Theorem 3.3 with the split found by another search."""
    z, q, steps = 6.0, 0.1, 100

    def bound(share: float) -> float:
        each = 1 - ((1 - DELTA) / (1 - share * DELTA)) ** (1 / steps)
        return randomised_responses(log(1 + q * (exp(gaussian(z, each / q)) - 1)), steps, share * DELTA)

    best: Any = minimize_scalar(bound, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-9})
    assert optimal(GaussianEvent(z, q, steps), DELTA) == pytest.approx(best.fun, rel=1e-5)


# --- all together ---


@bounds
@pytest.mark.parametrize(("z", "q", "steps", "delta"), EXACT)
def test_no_bound_is_below_the_exact_epsilon(bound, z: float, q: float, steps: int, delta: float) -> None:
    assert bound(GaussianEvent(z, q, steps), delta) > EXACT[z, q, steps, delta] - (1e-5 if steps == 1 else 0)


@pytest.mark.parametrize(("z", "q", "steps", "delta"), EXACT)
def test_optimal_composition_is_below_basic_and_advanced(z: float, q: float, steps: int, delta: float) -> None:
    part = GaussianEvent(z, q, steps)
    best = optimal(part, delta)
    assert best <= basic(part, delta) and best < advanced(part, delta)


@bounds
def test_more_steps_less_noise_and_a_smaller_delta_cost_more(bound) -> None:
    usual = bound(PAPER, DELTA)
    assert bound(GaussianEvent(6.0, 0.01, 9_000), DELTA) < usual < bound(GaussianEvent(6.0, 0.01, 11_000), DELTA)
    assert bound(GaussianEvent(7.0, 0.01, 10_000), DELTA) < usual < bound(GaussianEvent(5.0, 0.01, 10_000), DELTA)
    assert bound(PAPER, 1e-4) < usual < bound(PAPER, 1e-6)
    if bound is not concentrated:
        assert bound(GaussianEvent(6.0, 0.005, 10_000), DELTA) < usual < bound(GaussianEvent(6.0, 0.02, 10_000), DELTA)


@bounds
def test_no_steps_cost_nothing_and_no_noise_has_no_bound(bound) -> None:
    assert bound(GaussianEvent(6.0, 0.01, 0), DELTA) == bound(GaussianEvent(0.0, 0.01, 0), DELTA) == 0
    assert isinf(bound(GaussianEvent(0.0, 0.01, 3), DELTA))


@bounds
def test_extremes_end_without_warnings(bound) -> None:
    for z, q, steps, delta in product((1e-200, 0.01, 1e300), (1e-9, 0.999, 1.0), (1, 10**5), (1e-305, 1e-9, 0.9)):
        assert bound(GaussianEvent(z, q, steps), delta) >= 0


@bounds
@pytest.mark.parametrize(
    ("part", "delta", "message"),
    [
        (PAPER, 1.5, "Expected 0 < delta < 1, got delta=1.5."),
        (PAPER, 0.0, "Expected 0 < delta < 1, got delta=0.0."),
        (PAPER, nan, "Expected 0 < delta < 1, got delta=nan."),
        (GaussianEvent(-1.0, 0.1, 3), DELTA, "Expected 0 <= multiplier < inf, got multiplier=-1.0."),
        (GaussianEvent(inf, 0.1, 3), DELTA, "Expected 0 <= multiplier < inf, got multiplier=inf."),
        (GaussianEvent(1.0, 0.0, 3), DELTA, "Expected 0 < rate <= 1, got rate=0.0."),
        (GaussianEvent(1.0, 1.1, 0), DELTA, "Expected 0 < rate <= 1, got rate=1.1."),
        (GaussianEvent(1.0, 0.1, -1), DELTA, "Expected a whole number steps >= 0, got steps=-1."),
        (GaussianEvent(1.0, 0.1, 2.5), DELTA, "Expected a whole number steps >= 0, got steps=2.5."),  # pyright: ignore
    ],
)
def test_values_out_of_range_are_refused(bound, part: GaussianEvent, delta: float, message: str) -> None:
    with pytest.raises(InputError) as refused:
        bound(part, delta)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: amplified(-0.1, 0.5), "Expected epsilon >= 0, got epsilon=-0.1."),
        (lambda: amplified(0.1, 2.0), "Expected 0 < rate <= 1, got rate=2.0."),
        (lambda: step_epsilon(PAPER, -1e-9), "Expected delta >= 0, got delta=-1e-09."),
        (lambda: randomised_responses(nan, 3, 0.1), "Expected epsilon >= 0, got epsilon=nan."),
        (lambda: randomised_responses(1.0, 0, 0.1), "Expected steps >= 1, got steps=0."),
        (lambda: randomised_responses(1.0, 3, 1.0), "Expected 0 <= delta < 1, got delta=1.0."),
    ],
)
def test_so_are_those_of_a_single_step(call: Callable[[], float], message: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value) == message


# --- the command ---


@pytest.mark.slow
def test_the_command_prints_every_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns of epsilons; the moments accountant's are Fed-CDP's Table VI, but for its one step more."""
    assert compositions.main(["--steps", "10000", "300"]) == 0
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["bound", "10,000 steps", "300 steps"]
    shown = {name: [float(value) for value in values] for name, *values in rows[2:]}
    assert list(shown) == list(compositions.BOUNDS)
    assert shown["moments accountant"] == [0.8227, 0.1467]
    assert shown["optimal composition"][0] == pytest.approx(optimal(PAPER, DELTA), rel=1e-3)
    assert shown["PRV accountant"][0] == pytest.approx(compute_epsilon([PAPER], DELTA).epsilon, rel=1e-3)


def test_the_page_shows_what_the_command_prints() -> None:
    page = (ROOT / "research" / "privacy_measurements.md").read_text()
    for line in compositions.table([PAPER], DELTA).splitlines()[2:]:
        assert line in page
    without = [f"{bound(GaussianEvent(6.0, 1.0, 100), DELTA):.4g}" for bound in (concentrated, optimal)]
    assert f"zCDP has {without[0]}, PRV 8.004, optimal composition {without[1]}." in page


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert compositions.main(["--rate", "0"]) == 2
    assert capsys.readouterr().err == "compositions: Expected 0 < rate <= 1, got rate=0.0.\n"
