"""Accounting: published and measured epsilons, small loops, divergences by integration, simulated canaries."""

import json
import sys
import warnings
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from math import comb, e, erfc, exp, inf, isinf, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, norm

from flfw.errors import InputError
from flfw.papers import published
from flfw.privacy import accountants
from flfw.privacy.accountants import Accountant, compute_epsilon, epsilon
from flfw.privacy.calibration import calibrate_noise_multiplier
from flfw.privacy.claims import ADVERSARIES, Claim, claim
from flfw.privacy.lower_bound import correct_guesses, gaussian_rejects, lower_bound, p_value
from flfw.privacy.mechanism import GaussianEvent, Mechanism, Others, SeenMechanism, gaussian_events
from flfw.rng import numpy_generator

DELTA = 1e-5
ACCOUNTANTS: tuple[Accountant, ...] = ("prv", "rdp", "moments")


def sampled(sigma: float, q: float, steps: int, **more: Any) -> Mechanism:
    """Drawn by coins that nobody sees."""
    return Mechanism(sigma, steps, sampling_rate=q, poisson=True, **more)


@cache
def found(sigma: float, q: float, steps: int, accountant: Accountant, groups: int = 1) -> float:
    return epsilon(sampled(sigma, q, steps, groups=groups), DELTA, accountant)


# --- published figures ---

# Fed-CDP's Table VI as the conversion of 2017 gives it: by method and T L (of Fed-SDP: T) the steps that were counted,
# mostly one more than there are.
COUNTED = {
    ("Fed-CDP", 10000): 10000, ("Fed-CDP", 6000): 6001, ("Fed-CDP", 1000): 1001, ("Fed-CDP", 300): 301,
    ("Fed-CDP", 100): 101, ("Fed-CDP", 60): 61, ("Fed-CDP", 10): 11, ("Fed-CDP", 3): 4,
    ("Fed-SDP", 100): 101, ("Fed-SDP", 60): 61, ("Fed-SDP", 10): 11, ("Fed-SDP", 3): 4,
}  # fmt: skip

# With the steps there are, RDP and PRV: measured with Opacus 1.6 at orders of its choice (the project's notes, 4.4).
MODERN = {
    ("Fed-CDP", 10000): (0.6592, 0.6109), ("Fed-CDP", 6000): (0.5006, 0.4652), ("Fed-CDP", 1000): (0.1914, 0.1824),
    ("Fed-CDP", 300): (0.1006, 0.0999), ("Fed-SDP", 100): (0.6783, 0.6257), ("Fed-SDP", 60): (0.5193, 0.4796),
    ("Fed-SDP", 10): (0.2090, 0.1955), ("Fed-SDP", 3): (0.1178, 0.1122),
}  # fmt: skip
RATE = {"Fed-CDP": 0.01, "Fed-SDP": 0.1}


# What dp_accounting 0.6.0 gives at delta 1e-5 for Poisson-sampled Gaussian steps: multiplier, rate and steps, then its
# RdpAccountant and its PLDAccountant. It is no dependency; the numbers were taken from it by hand.
DP_ACCOUNTING = {
    (6.0, 0.01, 10000): (0.6592, 0.6010), (6.0, 0.01, 300): (0.1007, 0.0899), (6.0, 0.1, 100): (0.6783, 0.6157),
    (1.1, 0.01, 1000): (1.7118, 1.5154), (0.5, 0.01, 10000): (49.4343, 43.3665),
    (6 / 3**0.5, 0.01, 10000): (1.2193, 1.1164), (6.0, 1.0, 100): (8.6033, 8.0037), (1.0, 1.0, 1): (4.7285, 4.3772),
    (10.63, 1 / 12, 12000): (3.9894, 3.6873), (2.0, 0.05, 200): (1.7213, 1.5606),
}  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
def test_a_claim_says_in_how_many_groups_is_clipped(groups: int) -> None:
    said = " ".join(claim(Mechanism(3.0, 20, groups=groups), "example", "server", DELTA, 20).assumptions)
    assert (f"in each of {groups} groups" in said) == (groups > 1)


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_a_claim_says_over_how_many_rounds_noise_is_spread(bands: int) -> None:
    mechanism = Mechanism(3.0, 20, clipped="client", noised_by="server", max_participations=4, bands=bands)
    said = " ".join(claim(mechanism, "client", "outsider", DELTA, 20).assumptions)
    assert (f"weighted sum of the last {bands} steps" in said) == (bands > 1)


@pytest.mark.parametrize(("z", "q", "steps"), DP_ACCOUNTING)
def test_epsilons_are_those_of_dp_accounting(z: float, q: float, steps: int) -> None:
    rdp, exact = DP_ACCOUNTING[z, q, steps]
    one = sampled(z, q, steps) if q < 1 else Mechanism(z, steps)
    assert epsilon(one, DELTA, "rdp") == pytest.approx(rdp, rel=0.05)  # at other orders than ours
    assert epsilon(one, DELTA, "rdp") >= exact
    # PRV reports the upper end of its error, 0.01 or, of a large epsilon, half a per cent.
    assert exact - 1e-4 <= epsilon(one, DELTA, "prv") <= exact + max(0.011, 0.006 * exact)


@pytest.mark.parametrize("cell", published.table("fed_cdp.6").cells, ids=lambda cell: cell.path)
def test_the_old_conversion_gives_every_printed_epsilon(cell) -> None:
    if cell.value is None:
        assert (cell.keys["method"], cell.keys["level"]) == ("Fed-SDP", "instance")
        return
    method, rounds, local = (cell.keys[key] for key in ("method", "T", "L"))
    steps = COUNTED[method, rounds * (local if method == "Fed-CDP" else 1)]
    assert found(cell.keys["sigma"], RATE[method], steps, "moments") == pytest.approx(cell.value, abs=1e-4)


@pytest.mark.parametrize(("method", "steps"), MODERN)
def test_beside_it_what_modern_accountants_give(method, steps) -> None:
    rdp, prv = (found(6, RATE[method], steps, accountant) for accountant in ("rdp", "prv"))
    assert (rdp, prv) == (
        pytest.approx(MODERN[method, steps][0], abs=5.1e-5),
        pytest.approx(MODERN[method, steps][1], abs=5.1e-5),
    )
    assert prv < rdp < found(6, RATE[method], steps, "moments")


@pytest.mark.parametrize(
    ("q", "steps", "groups", "rdp", "prv"),
    [
        (0.01, 10000, 3, 1.219, 1.126), (0.01, 6000, 3, 0.925, 0.855), (0.01, 1000, 3, 0.355, 0.331),
        (0.01, 300, 3, 0.188, 0.179), (0.01, 10000, 6, 1.831, 1.691), (0.01, 6000, 6, 1.388, 1.280),
        (0.01, 1000, 6, 0.533, 0.493), (0.01, 300, 6, 0.285, 0.266), (0.1, 100, 3, 1.283, 1.176),
    ],
)  # fmt: skip
def test_clipping_layer_by_layer_costs_the_root_of_the_layers(q, steps, groups, rdp, prv) -> None:
    """Section 7.4 a of the notes, to its last digit."""
    assert found(6, q, steps, "rdp", groups) == pytest.approx(rdp, abs=5.1e-4)
    assert found(6, q, steps, "prv", groups) == pytest.approx(prv, abs=5.1e-4)


def test_the_old_conversion_with_three_layers() -> None:
    assert found(6, 0.01, 10000, "moments", 3) == pytest.approx(1.468, abs=5e-4)


@pytest.mark.parametrize(("sigma", "rdp"), [(0.5, 47.4), (1, 6.71), (2, 2.35), (4, 1.04), (6, 0.659), (8, 0.481)])
def test_the_noise_of_table_five(sigma, rdp) -> None:
    """Section 7.4 f, to three digits."""
    assert found(sigma, 0.01, 10000, "rdp") == pytest.approx(rdp, rel=6e-3)


def test_a_large_epsilon_by_prv_says_that_its_mesh_is_coarser() -> None:
    spent = compute_epsilon(gaussian_events(sampled(0.5, 0.01, 10000)), DELTA, "prv")
    assert spent.epsilon == pytest.approx(43.4, abs=0.05)  # section 7.4 f
    assert spent.accountant == "prv" and "not 0.01" in spent.notes[0]


@pytest.mark.parametrize(
    ("q", "rdp", "prv"), [(0.001, 0.055, 0.055), (0.005, 0.312, 0.292), (0.02, 1.40, 1.29), (0.05, 3.88, 3.60)]
)
def test_other_numbers_of_clients_by_the_papers_own_formula(q, rdp, prv) -> None:
    """Section 7.4 b; where epsilon is small the error of PRV is most of it, and RDP takes its place."""
    assert found(6, q, 10000, "rdp") == pytest.approx(rdp, abs=6e-4 if rdp < 1 else 6e-3)
    assert found(6, q, 10000, "prv") == pytest.approx(prv, abs=6e-4 if rdp < 1 else 6e-3)


def test_without_credit_for_sampling() -> None:
    """Section 7.4 c: passes in shuffled order, once an example and round."""
    one = Mechanism(6, 100, batch=5, max_participations=1, sampling_rate=0.01)
    for groups, epsilons in ((1, (0.65, 2.30, 8.60)), (3, (1.19, 4.26, 16.9))):
        for rounds, expected in zip((1, 10, 100), epsilons, strict=True):
            made = replace(one, groups=groups, steps=100 * rounds, max_participations=rounds)
            assert epsilon(made, DELTA, "rdp") == pytest.approx(expected, rel=5e-3)


def test_sampling_counts_only_if_it_is_independent_and_hidden() -> None:
    one = sampled(6, 0.01, 100)
    assert epsilon(replace(one, poisson=False), DELTA) == epsilon(Mechanism(6, 100), DELTA) > 50 * epsilon(one, DELTA)


# --- accountants against small loops and integrals ---


def hockey_stick(mu: float, eps: float) -> float:
    """The delta of telling N(0, 1) from N(mu, 1), with nothing but erfc."""
    cdf = [erfc((eps / mu - sign * mu / 2) / sqrt(2)) / 2 for sign in (1, -1)]
    return cdf[0] - exp(eps) * cdf[1]


@pytest.mark.parametrize(("sigma", "steps"), [(6, 1), (6, 100), (1, 1), (0.5, 9), (40, 3)])
def test_without_sampling_epsilon_is_a_gaussians_own(sigma, steps) -> None:
    spent = compute_epsilon(gaussian_events(Mechanism(sigma, steps)), DELTA, "prv")
    assert spent.accountant == "exact" and spent.notes == ()
    assert hockey_stick(sqrt(steps) / sigma, spent.epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert spent.epsilon < epsilon(Mechanism(sigma, steps), DELTA, "rdp")


def test_the_old_conversion_by_hand() -> None:
    """Without sampling RDP(a) = a steps / (2 sigma^2)."""
    by_hand = min(a * 4 / (2 * 3.0**2) + log(1 / DELTA) / (a - 1) for a in range(5, 64))
    assert epsilon(Mechanism(3, 4), DELTA, "moments") == pytest.approx(by_hand, rel=1e-12)


def test_renyi_divergence_of_a_sampled_step_is_its_integral() -> None:
    """E over N(0, 1) of (mixture / N(0, 1))^a for a = 2: 1 + q^2 (exp(1 / sigma^2) - 1)."""
    q, sigma = 0.2, 1.5
    assert log(1 + q**2 * (exp(1 / sigma**2) - 1)) == pytest.approx(divergence(q, sigma, 2), rel=1e-6)
    orders = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 20)]
    by_hand = min(divergence(q, sigma, a) * 30 + log(1 / DELTA) / (a - 1) for a in orders)
    assert epsilon(sampled(sigma, q, 30), DELTA, "moments") == pytest.approx(by_hand, rel=1e-6)


def divergence(q: float, sigma: float, order: float) -> float:
    x = np.linspace(-40, 60, 400001)
    plain = norm.pdf(x, 0, sigma)
    ratio = 1 - q + q * np.exp((2 * x - 1) / (2 * sigma**2))
    return log(float((plain * ratio**order).sum() * (x[1] - x[0]))) / (order - 1)


def composed_delta(q: float, sigma: float, steps: int, eps: float, removed: bool) -> float:
    """The delta of the composition, by convolving the losses of one step on a grid, rounded up."""
    mesh, x = 2e-4, np.linspace(-12 * sigma, 12 * sigma + 1, 2_000_001)
    plain, mixed = norm.pdf(x, 0, sigma), (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma)
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2))) * (1 if removed else -1)
    mass = (mixed if removed else plain) * (x[1] - x[0])
    indices = np.ceil(loss / mesh).astype(int)
    first, size = indices.min(), 2**18
    step = np.bincount(indices - first, weights=mass, minlength=size)
    assert steps * (indices.max() - first) < size
    total = np.fft.irfft(np.fft.rfft(step) ** steps, size)
    losses = (np.arange(size) + steps * first) * mesh
    return float((total * -np.expm1(np.minimum(eps - losses, 0.0))).sum())


@pytest.mark.slow
def test_prv_bounds_the_convolved_losses_in_both_directions() -> None:
    q, sigma, steps = 0.1, 2.0, 10
    eps = found(sigma, q, steps, "prv")
    assert composed_delta(q, sigma, steps, eps, removed=True) <= DELTA
    assert composed_delta(q, sigma, steps, eps, removed=False) <= DELTA
    assert composed_delta(q, sigma, steps, eps - 0.025, removed=True) > DELTA  # and is no looser than it says


@pytest.mark.slow
def test_phases_add_up_whatever_their_order_and_cut() -> None:
    a, b = sampled(6, 0.01, 500), sampled(3, 0.02, 100)
    for accountant in ACCOUNTANTS:
        both = epsilon([a, b], DELTA, accountant)
        assert both == pytest.approx(epsilon([b, a], DELTA, accountant), rel=1e-9)
        cut = [replace(a, steps=200), b, replace(a, steps=300)]
        assert both == pytest.approx(epsilon(cut, DELTA, accountant), rel=1e-9)
        alone = max(epsilon(one, DELTA, accountant) for one in (a, b))
        assert alone < both < sum(epsilon(one, DELTA / 2, accountant) for one in (a, b)) + 0.02
    late = epsilon([a, Mechanism(6, 2)], DELTA)  # a phase that is not sampled beside one that is
    assert epsilon(Mechanism(6, 2), DELTA) < late < epsilon([a, Mechanism(6, 2)], DELTA, "rdp")


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_no_noise_is_no_privacy_and_no_steps_cost_nothing(accountant) -> None:
    for q in (0.01, 1.0):
        spent = compute_epsilon(gaussian_events(sampled(0.0, q, 3)), DELTA, accountant)
        assert isinf(spent.epsilon) and "no noise" in spent.notes[0]
        assert isinf(epsilon([sampled(6, q, 3), sampled(0.0, q, 1)], DELTA, accountant))
        assert epsilon(sampled(0.0, q, 0), DELTA, accountant) == 0
        assert isinf(epsilon(sampled(6, q, 3, clipping_norm=inf), DELTA, accountant))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_extremes_end_soon_and_without_warnings(accountant) -> None:
    for sigma, q, steps, delta in product((1e-9, 0.01, 1e300), (1e-9, 0.999), (1, 10**5), (1e-200, 1e-9, 0.9)):
        spent = compute_epsilon(gaussian_events(sampled(sigma, q, steps)), delta, accountant)
        assert spent.epsilon >= 0
        if spent.accountant != accountant:
            assert isinf(spent.epsilon) or "took the place of PRV" in spent.notes[0]


def test_the_smaller_of_two_bounds_is_taken_and_bears_its_name() -> None:
    """A bound by PRV includes an error of 0.01, which is more than all that some mechanisms spend."""
    small, usual = sampled(100, 1e-3, 10), sampled(6, 0.01, 1000)
    spent = compute_epsilon(gaussian_events(small), DELTA, "prv")
    assert spent.epsilon == found(100, 1e-3, 10, "rdp") == pytest.approx(0.0036, abs=1e-4)
    assert spent.accountant == "rdp"
    assert "includes an error of 0.01" in spent.notes[0]
    spent = compute_epsilon(gaussian_events(usual), DELTA, "prv")
    assert spent.epsilon < found(6, 0.01, 1000, "rdp")
    assert (spent.accountant, spent.notes) == ("prv", ())


@pytest.mark.slow
@pytest.mark.parametrize(("q", "sigma"), list(product((1e-6, 1e-3, 0.01, 0.1, 0.5), (0.5, 20))))
def test_the_smaller_bound_is_never_below_the_truth(q, sigma) -> None:
    """Opacus' own lower bound of the composed losses, within an error of 0.001."""
    from opacus.accountants import PRVAccountant

    for steps in (1, 30):
        opacus = PRVAccountant()
        opacus.history = [(sigma, q, steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            losses = opacus._get_dprv(eps_error=1e-3, delta_error=DELTA / 1000)
            lower = losses.compute_epsilon(DELTA, DELTA / 1000, 1e-3)[0]
        for accountant in ("prv", "rdp"):
            assert found(sigma, q, steps, accountant) >= lower


def test_what_prv_cannot_do_rdp_does_aloud() -> None:
    many = [sampled(6 - k / 25, 0.01, 3000) for k in range(20)]
    spent = compute_epsilon(gaussian_events(many), DELTA, "prv")
    assert spent.accountant == "rdp" and "it would take" in spent.notes[0]
    assert spent.epsilon == epsilon(many, DELTA, "rdp")
    made = claim(many, "example", "server", DELTA, 20)
    assert made.accountant == "rdp" and spent.notes[0] in made.assumptions


@pytest.mark.parametrize("delta", [1e-9, DELTA, 0.1])
@pytest.mark.parametrize(
    "composed",
    [
        ((6.0, 0.01, 1000),),  # the best order is a broken one
        ((1.1, 0.02, 30), (0.7, 0.3, 2)),
        ((1e4, 0.01, 1),),  # the best order is the largest
        ((0.1, 0.5, 50),),  # the series fails at many orders
        ((40.0, 1.0, 7),),
    ],
)
def test_orders_that_are_left_out_have_no_smaller_epsilon(composed, delta) -> None:
    orders = accountants._orders()
    every = np.array([sum(n * accountants.renyi_divergence(z, q, a) for z, q, n in composed) for a in orders])
    some = accountants._that_matter(composed, orders, delta)
    known = some < inf
    assert np.array_equal(some[known], every[known]) and known.sum() < len(orders) / 2
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)
        spent = [accountants._opacus()[0].get_privacy_spent(orders=orders, rdp=d, delta=delta) for d in (every, some)]
    assert spent[0] == spent[1]


def test_without_opacus_the_way_out_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    accountants._opacus.cache_clear()
    with pytest.raises(InputError, match=r"^Expected the package opacus, got none: pip install"):
        epsilon(sampled(5.99, 0.01, 7), DELTA, "moments")
    assert epsilon(Mechanism(5.99, 7), DELTA) > 0  # a Gaussian's own epsilon needs none


def test_a_best_order_at_the_end_is_said_and_not_warned_of() -> None:
    assert "largest" in compute_epsilon(gaussian_events(sampled(1e4, 0.01, 1)), DELTA, "rdp").notes[0]
    assert "smallest" in compute_epsilon(gaussian_events(sampled(0.01, 0.01, 10)), DELTA, "moments").notes[0]


# --- one mechanism ---


def test_what_makes_the_multiplier() -> None:
    assert Mechanism(6, 1, clipping_norm=4.0).multiplier() == 6
    assert Mechanism(6, 1, groups=9).multiplier() == 2
    assert Mechanism(6, 1, noise_per="example", batch=4).multiplier() == 12
    assert Mechanism(6, 1, noise_per="example", batch=4, groups=9).multiplier() == 4
    assert Mechanism(6, 1, clipping_norm=inf).multiplier() == 0


def test_the_multiplier_is_what_clipped_groups_and_drawn_noise_measure() -> None:
    rng = numpy_generator(0, "test of privacy")
    clip, sigma, batch, groups = 0.5, 3.0, 4, 5
    example = rng.normal(size=(groups, 7)) * 100
    clipped = example * np.minimum(1, clip / np.linalg.norm(example, axis=1, keepdims=True))
    noise = (sigma * clip * rng.normal(size=(20000, batch, 3))).sum(1)
    measured = noise.std() / np.linalg.norm(clipped)
    made = Mechanism(sigma, 1, clip, groups=groups, noise_per="example", batch=batch)
    assert measured == pytest.approx(made.multiplier(), rel=0.01)
    assert not 2 / 3 < replace(made, noise_per="batch").multiplier() / measured < 3 / 2


def test_copies_with_the_clients_own_noise_are_runs_and_with_the_servers_one_larger_step() -> None:
    one, four = Mechanism(6, 10), Others(max_copies=4)
    assert one.phase(others=four) == GaussianEvent(6, 1.0, 40)
    assert replace(one, noised_by="server").phase(others=four) == GaussianEvent(1.5, 1.0, 10)
    assert epsilon([SeenMechanism(one, four)], DELTA) == pytest.approx(epsilon(Mechanism(3, 10), DELTA))  # z / sqrt(r)
    assert sampled(6, 0.1, 10).phase(others=four) == GaussianEvent(6, 0.1, 40)
    met = sampled(6, 0.1, 10, noised_by="server").phase(others=four)
    assert (met.noise_multiplier, met.sampling_rate, met.steps) == (1.5, pytest.approx(1 - 0.9**4), 10)


@pytest.mark.parametrize(
    ("copies", "taken", "batch", "steps"), [(3, 2, 2, 5), (4, 1, 3, 3), (2, 3, 4, 4), (5, 1, 2, 4)]
)
def test_without_sampling_a_groups_places_stand_together(copies, taken, batch, steps) -> None:
    """Against all ways to place copies times taken among the steps, no more than a batch in one."""
    maximum = min(copies, batch)
    worst = max(
        sum(c * c for c in places)
        for places in product(range(maximum + 1), repeat=steps)
        if sum(places) <= copies * taken
    )
    phase = Mechanism(6, steps, batch=batch, max_participations=taken).phase(copies)
    squares = phase.steps * (6 / phase.noise_multiplier) ** 2
    assert worst <= squares + 1e-9
    if (copies * taken) % maximum == 0:
        assert squares == pytest.approx(worst)


def test_a_sampled_groups_step_is_bounded() -> None:
    """The hockey-stick divergences of sum_k Bin(n, q)(k) N(k, s^2) and N(0, s^2), both ways, by integration."""
    n, q, sigma = 4, 0.15, 1.7
    x = np.linspace(-20, 30, 200001)
    mixed = sum(binom.pmf(k, n, q) * norm.pdf(x, k, sigma) for k in range(n + 1))
    phase = sampled(sigma, q, 1).phase(n)
    bound = (1 - phase.sampling_rate) * norm.pdf(x) + phase.sampling_rate * norm.pdf(x, 1 / phase.noise_multiplier)
    gaps = []
    for a in (1.0, 1.1, 1.5, e, 10.0):
        for one, other, larger, smaller in (
            (mixed, norm.pdf(x, 0, sigma), bound, norm.pdf(x)),
            (norm.pdf(x, 0, sigma), mixed, norm.pdf(x), bound),
        ):
            true, held = (
                float(np.maximum(u - a * v, 0).sum() * (x[1] - x[0])) for u, v in ((one, other), (larger, smaller))
            )
            gaps.append(held - true)
    assert min(gaps) >= -1e-9 and max(gaps) > 0.01


# --- from an epsilon to noise and rounds ---


@pytest.mark.parametrize(
    ("q", "steps", "accountant", "measured"),
    [(0.1, 10000, "rdp", 11.62), (1 / 12, 12000, "rdp", 10.63), (0.1, 10000, "prv", 10.88)],
)
def test_the_noise_of_a_published_target(q, steps, accountant, measured) -> None:
    """Section 1.7: Opacus' own search, which ends up to 0.01 below the target, i.e. with up to 0.3 % more noise."""
    sigma = calibrate_noise_multiplier(4.0, [(SeenMechanism(sampled(0, q, steps)),)], DELTA, accountant)
    assert 4.0 - 1e-3 <= epsilon(sampled(sigma, q, steps), DELTA, accountant) <= 4.0
    assert measured * 0.997 - 0.005 <= sigma <= measured + 0.005


def test_prv_counts_the_clients_whose_rdp_is_above_what_it_found_and_no_others() -> None:
    bounds, counted = {"a": (3.0, 1.0), "b": (2.9, 2.0), "c": (1.5, 1.5)}, list[str]()  # by RDP, and by PRV

    def count(client: str, by: str) -> float:
        counted.extend([client] * (by == "prv"))
        return bounds[client][by == "prv"]

    assert accountants.largest(count, ["c", "a", "b"], "prv") == ("b", 2.0) and counted == ["a", "b"]


def test_the_noise_is_enough_for_a_client_that_tells_most_only_under_more_of_it() -> None:
    """Little noise: 2,000 samples tell more; under the noise that they need, the ten whole steps do."""
    whole, drawn = Mechanism(0.5, 10), sampled(0.5, 0.05, 2000)
    assert epsilon(whole, DELTA, "rdp") < epsilon(drawn, DELTA, "rdp")
    sigma = calibrate_noise_multiplier(1.0, [(SeenMechanism(whole),), (SeenMechanism(drawn),)], DELTA, "rdp")
    enough = [epsilon(replace(one, noise_multiplier=sigma), DELTA, "rdp") for one in (whole, drawn)]
    assert enough[1] < enough[0] <= 1.0 < enough[0] + 1e-3


@pytest.mark.parametrize("target", [0.05, 1.0, 300.0])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_the_noise_is_the_smallest_that_keeps_the_target(target, accountant) -> None:
    sigma = calibrate_noise_multiplier(target, [(SeenMechanism(Mechanism(1, 8, groups=3)),)], DELTA, accountant)
    assert target - 1e-3 <= epsilon(Mechanism(sigma, 8, groups=3), DELTA, accountant) <= target
    assert epsilon(Mechanism(0.98 * sigma, 8, groups=3), DELTA, accountant) > target


@pytest.mark.slow
def test_a_target_that_an_accountant_cannot_show_is_refused() -> None:
    for accountant, minimum in zip(ACCOUNTANTS, ("0.003", "0.003", "0.02"), strict=True):
        with pytest.raises(InputError, match=f"^Expected a target_epsilon .* least={minimum}"):
            calibrate_noise_multiplier(1e-3, [(SeenMechanism(sampled(0, 0.01, 100)),)], DELTA, accountant)


# --- claims ---


def told(made: Claim, *parts: str) -> bool:
    return all(any(part in sentence for sentence in made.assumptions) for part in parts)


def test_a_claim_says_what_it_rests_on() -> None:
    one = sampled(6, 0.01, 100, clipping_norm=4.0, groups=3)
    made = claim(one, "example", "server", DELTA, 1)
    assert (made.epsilon, made.accountant, made.rounds) == (epsilon(one, DELTA), "prv", 1)
    assert told(made, "one example more or less", "norm of 4 in each of 3 groups", "counts 1.73 times")
    assert told(
        made, "noise of 6 times", "by each client", "100 steps", "coin of its own", "0.01", "seed", "server sees"
    )
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in made.assumptions)
    assert len(set(made.assumptions)) == len(made.assumptions)
    assert not told(made, "no credit")
    each = replace(one, poisson=False, noise_per="example", batch=5)
    bare = claim(each, "example", "outsider", DELTA, 1, others=[Others(max_copies=2)])
    assert told(
        bare, "no credit", "not drawn by independent coins", "drawn 5 times", "more than 2 clients", "An outsider"
    )


def test_a_claim_stands_in_json() -> None:
    made = claim(sampled(6, 0.01, 100), "example", "server", DELTA, 1)
    assert json.loads(json.dumps(made.as_dict(), allow_nan=False)) == asdict(made) | {
        "assumptions": list(made.assumptions)
    }
    none = claim(sampled(0, 0.01, 100), "example", "server", DELTA, 1)
    assert json.loads(json.dumps(none.as_dict(), allow_nan=False))["epsilon"] == "inf"
    assert list(made.as_dict()) == ["unit", "adversary", "epsilon", "delta", "accountant", "assumptions", "rounds"]


def test_how_certain_the_adversary_may_become() -> None:
    def certain(eps: float, delta: float = 0.0) -> float:
        return Claim("example", "server", eps, delta, "rdp", (), 1).certainty

    assert (certain(0.0), certain(log(3)), certain(inf, 0.1)) == (0.5, pytest.approx(0.75), 1.0)
    assert certain(0.0, 0.1) == pytest.approx(0.55)
    sigma = 2.0  # of one Gaussian step the best test is right with probability P(N < 1 / 2 sigma)
    eps = epsilon(Mechanism(sigma, 1), 1e-2)
    assert norm.cdf(1 / (2 * sigma)) <= certain(eps, 1e-2)


def test_no_claim_comes_with_its_reason_first() -> None:
    whole = Mechanism(6, 10, clipped="client", noised_by="server")
    for made, reason in (
        (claim(Mechanism(0, 10), "example", "server", DELTA, 1), "There is no noise"),
        (claim(Mechanism(6, 10, clipping_norm=inf), "example", "server", DELTA, 1), "Nothing is clipped"),
        (claim(Mechanism(6, 10), "client", "server", DELTA, 1), "how many of them one client has is not known"),
        (claim(Mechanism(6, 10), "patient", "outsider", DELTA, 1), "how many of them one patient has is not known"),
        (claim(whole, "client", "server", DELTA, 1), "The server adds the noise itself"),
    ):
        assert isinf(made.epsilon) and made.certainty == 1 and reason in made.assumptions[0]
    assert claim(whole, "client", "outsider", DELTA, 1).epsilon == epsilon(whole, DELTA)


def test_a_client_is_no_example() -> None:
    """Section 7.4 d: one client with 500 examples, 100 steps of 5: epsilon about 73, not 0.65."""
    one = Mechanism(6, 100, batch=5, max_participations=1)
    made = claim(one, "client", "server", DELTA, 1, "rdp", examples=500)
    assert made.epsilon == pytest.approx(73, abs=0.5)
    assert made.epsilon == pytest.approx(epsilon(Mechanism(6 / 5, 100), DELTA, "rdp"))
    assert told(made, "the 500 examples of one client")
    # Copies of its examples elsewhere are not its own; of a patient they are.
    three = [Others(max_copies=3)]
    assert claim(one, "client", "server", DELTA, 1, "rdp", 500, others=three).epsilon == made.epsilon
    assert claim(one, "patient", "server", DELTA, 1, "rdp", 500, others=three).epsilon > 2 * made.epsilon


def test_a_small_group_of_a_sampled_mechanism_by_group_privacy() -> None:
    one = sampled(6, 0.01, 100)
    made = claim(one, "patient", "server", DELTA, 1, examples=3)
    (how,) = [sentence for sentence in made.assumptions if "group privacy" in sentence]
    inner = float(how.partition("at delta ")[2].partition(",")[0])
    eps = made.epsilon / 3
    assert inner * (1 + exp(eps) + exp(2 * eps)) <= DELTA * 1.05  # the sentence has two digits
    assert eps == pytest.approx(epsilon(one, inner, "rdp"), rel=0.02)
    assert epsilon(one, DELTA, "rdp") < eps


def test_a_large_group_of_a_sampled_mechanism_sets_half_of_delta_aside() -> None:
    made = claim(sampled(6, 0.01, 100), "client", "server", DELTA, 1, examples=500)
    assert told(made, "No more than 21 of the group")
    assert 100 * binom.sf(21, 500, 0.01) <= DELTA / 2 < 100 * binom.sf(20, 500, 0.01)
    bound = compute_epsilon([GaussianEvent(6 / 21, 1 - 0.99**500, 100)], DELTA / 2, "prv").epsilon
    assert made.epsilon == pytest.approx(bound, abs=1e-4) and made.epsilon < epsilon(Mechanism(6 / 500, 100), DELTA)


@pytest.mark.slow
def test_a_group_that_is_drawn_at_once_is_never_below_its_true_divergence() -> None:
    """One step, both directions, by integration: the delta that is left at the claimed epsilon."""
    q, sigma, delta = 0.3, 2.0, 1e-3
    x = np.linspace(-30, 60, 20001)
    for n in (2, 6, 20):
        mixed = sum(binom.pmf(k, n, q) * norm.pdf(x, k, sigma) for k in range(n + 1))
        plain = norm.pdf(x, 0, sigma)
        eps = claim(sampled(sigma, q, 1), "patient", "server", delta, 1, examples=n).epsilon
        for one, other in ((mixed, plain), (plain, mixed)):
            assert np.maximum(one - exp(eps) * other, 0).sum() * (x[1] - x[0]) <= delta


def test_an_example_in_a_clipped_client_counts_twice() -> None:
    plain = Mechanism(6, 10, clipped="client")
    assert claim(plain, "client", "server", DELTA, 10).epsilon == epsilon(plain, DELTA)
    changed = claim(plain, "example", "server", DELTA, 10)
    assert changed.epsilon == pytest.approx(epsilon(Mechanism(3, 10), DELTA)) and told(changed, "exchange one update")
    two = claim(plain, "patient", "server", DELTA, 10, others=[Others(max_copies=2)])
    assert two.epsilon == pytest.approx(epsilon(Mechanism(3, 20), DELTA))


def test_drawn_clients_are_hidden_by_the_servers_noise_alone() -> None:
    central = sampled(6, 0.1, 10, clipped="client", noised_by="server")
    unsampled = epsilon(Mechanism(6, 10), DELTA)
    for adversary in ("another client", "outsider"):
        assert claim(central, "client", adversary, DELTA, 10).epsilon == epsilon(central, DELTA) < unsampled / 2
    assert isinf(claim(central, "client", "server", DELTA, 10).epsilon)


def test_clients_that_add_their_own_noise_are_not_hidden() -> None:
    chosen = sampled(6, 0.1, 10, clipped="client")
    for adversary in ADVERSARIES:
        result = claim(chosen, "client", adversary, DELTA, 10)
        assert result.epsilon == epsilon(Mechanism(6, 10), DELTA) and told(result, "who is not drawn adds no noise")
    known = claim(replace(chosen, clipped="example", poisson=False), "example", "server", DELTA, 10)
    assert known.epsilon == epsilon(Mechanism(6, 10), DELTA) and told(known, "not drawn by independent coins")


@pytest.mark.parametrize(
    "one",
    [
        Mechanism(6, 10, clipped="client"),
        Mechanism(6, 10, clipped="client", noised_by="server", max_participations=10),
        Mechanism(6, 10, clipped="client", poisson=True),
        Mechanism(6, 10, poisson=True),
        Mechanism(6, 10, max_participations=10, bins=1),
    ],
)
def test_where_all_take_part_no_draw_is_blamed(one: Mechanism) -> None:
    """There is no coin that somebody might see, and no amplification to lose: half of the steps are no such case."""
    made = claim(one, one.clipped, "outsider", DELTA, 10)
    assert made.epsilon == epsilon(Mechanism(6, 10), DELTA)
    assert told(made, f"No sampling is counted, for each {one.clipped} may be in every step")
    assert not any(told(made, words) for words in ("give no credit", "coin", "choice of its own", "at most 10 of 10"))
    half = claim(replace(one, max_participations=5, poisson=False), one.clipped, "outsider", DELTA, 10)
    assert not told(half, "No sampling is counted")


# --- canaries ---


def test_published_lower_bounds() -> None:
    """Two figures of the paper (arXiv 2305.08846: appendix D; section 7), to the digits it prints."""
    assert lower_bound(1000, 100, 75, 1e-4) == pytest.approx(0.673, abs=1e-3)
    assert lower_bound(100000, 1510, 1439, 1e-5) == pytest.approx(2.675, abs=1e-3)


@pytest.mark.parametrize(
    ("m", "r", "v", "eps", "delta"), [(9, 6, 5, 0.4, 0.0), (9, 6, 5, 0.4, 3e-3), (20, 8, 4, 0.1, 1e-3)]
)
def test_the_p_value_is_the_theorems_loop(m, r, v, eps, delta) -> None:
    right = exp(eps) / (1 + exp(eps))
    pmf = [comb(r, k) * right**k * (1 - right) ** (r - k) for k in range(r + 1)]
    alpha = max(sum(pmf[v - i : v]) / i for i in range(1, v + 1))
    assert p_value(m, r, v, eps, delta) == pytest.approx(min(1, sum(pmf[v:]) + 2 * m * delta * alpha), rel=1e-12)


def test_the_pure_bound_is_an_exact_one_sided_interval() -> None:
    from scipy.stats import binomtest

    share = binomtest(70, 100, alternative="greater").proportion_ci(0.95, method="exact").low
    assert lower_bound(500, 100, 70) == pytest.approx(log(share / (1 - share)), abs=1e-6)
    assert lower_bound(10, 10, 10) == pytest.approx(-log(0.05**-0.1 - 1), abs=1e-6)
    assert lower_bound(10, 10, 5) == lower_bound(10, 0, 0) == lower_bound(10, 10, 10, delta=0.9) == 0
    assert lower_bound(100, 100, 90, 1e-3) < lower_bound(100, 100, 90) < lower_bound(100, 100, 90, confidence=0.5)


def test_of_randomised_answers_as_many_as_stated_are_rejected() -> None:
    """Each canary's coin is told truly with probability exp(e) / (1 + exp(e)): the pure bound is tight."""
    eps, m = 1.0, 200
    right = numpy_generator(0, "test of canaries").binomial(m, exp(eps) / (1 + exp(eps)), size=4000)
    above = np.array([lower_bound(m, m, v) > eps for v in range(m + 1)])[right].mean()
    assert 0.02 < above <= 0.055  # a binomial's steps leave a little less than 5 %


def test_guesses_are_the_two_ends_of_the_scores() -> None:
    scores, included = np.array([0.9, -2.0, 0.1, 3.0, -1.0]), np.array([False, False, True, True, True])
    assert [correct_guesses(scores, included, r) for r in (0, 2, 4)] == [0, 2, 2]


# One Gaussian step claims (epsilon, 1e-6) at mu = 1 / sigma = 0.3: epsilon = 1.29. A rejection needs two things. The
# share of right guesses, of those made, must be above exp(e) / (1 + exp(e)) = 0.785 by several of its standard
# deviations; and 2 m delta / (right guesses above that) must be well below 0.05. Of m = 10^6 canaries the 3000 most
# extreme scores are guessed. At 3 / 2 of the claimed mu 0.819 of them are right on average, 100 more than 0.785, which
# is 4 deviations, and the second term is about 0.02. With 10^5 canaries neither holds; at larger mu epsilon grows
# faster than any score can show; at a larger delta the second term is above 0.05 whatever is guessed.
CANARIES, GUESSES, MU, CLAIMED_DELTA = 10**6, 3000, 0.3, 1e-6


def bound_of(seed: int, claimed: float, actual: float, m: int, r: int, delta: float) -> float:
    """Scores N(1, actual^2) of canaries that are in and N(0, actual^2) of those that are not."""
    rng = numpy_generator(seed, "test of canaries", round(100 * actual))
    included = rng.random(m) < 0.5
    scores = rng.normal(included.astype(float), actual)
    return lower_bound(m, r, correct_guesses(scores, included, r), delta) - epsilon(Mechanism(claimed, 1), delta)


@pytest.mark.slow
def test_a_true_claim_is_hardly_ever_contradicted() -> None:
    over = [bound_of(seed, 1 / MU, 1 / MU, 20000, r, 1e-5) > 0 for seed in range(40) for r in (200, 2000)]
    assert np.mean(over) <= 0.05
    assert max(bound_of(seed, 1 / MU, 1 / MU, CANARIES, GUESSES, CLAIMED_DELTA) for seed in range(3)) < 0


@pytest.mark.slow
def test_noise_at_two_thirds_of_what_is_claimed_is_caught() -> None:
    assert min(bound_of(seed, 1 / MU, 2 / 3 / MU, CANARIES, GUESSES, CLAIMED_DELTA) for seed in range(3)) > 0


# --- bad input ---


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise_multiplier": nan}, "Expected 0 <= noise_multiplier < inf, got noise_multiplier=nan."),
        ({"clipping_norm": nan}, "Expected clipping_norm > 0, got clipping_norm=nan."),
        ({"sampling_rate": 0.0}, "Expected 0 < sampling_rate <= 1, got sampling_rate=0.0."),
        ({"steps": -1}, "Expected a whole number steps >= 0, got steps=-1."),
        ({"steps": 1.5}, "Expected a whole number steps >= 0, got steps=1.5."),
        ({"groups": 0}, "Expected a whole number groups >= 1, got groups=0."),
        ({"batch": -1}, "Expected a whole number batch >= 0, got batch=-1."),
        (
            {"max_participations": 6},
            "Expected a whole number 0 <= max_participations <= steps=5, got max_participations=6.",
        ),
        ({"noise_per": "example"}, "Expected batch >= 1 with noise_per=example, got batch=0."),
        ({"noise_per": "twice"}, "Expected noise_per among batch, example, got noise_per=twice."),
        ({"clipped": "patient"}, "Expected clipped among example, client, got clipped=patient."),
        ({"noised_by": "nobody"}, "Expected noised_by among client, server, got noised_by=nobody."),
    ],
)
def test_a_mechanism_out_of_range_is_refused_by_name(wrong, message) -> None:
    with pytest.raises(InputError) as refused:
        Mechanism(**{"noise_multiplier": 6.0, "steps": 5, **wrong})
    assert str(refused.value) == message


ONE, FOUR = Mechanism(6, 5), np.ones(4)
SEEN, UNCLIPPED = SeenMechanism(ONE), SeenMechanism(replace(ONE, clipping_norm=inf))
least_noise = calibrate_noise_multiplier
OTHER: Any = "other"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Others(max_copies=0), "Expected a whole number max_copies >= 1, got max_copies=0."),
        (lambda: epsilon(ONE, -1e-5), "Expected 0 < delta < 1, got delta=-1e-05."),
        (lambda: epsilon(ONE, 0.0), "Expected 0 < delta < 1, got delta=0.0."),
        (lambda: epsilon(ONE, nan), "Expected 0 < delta < 1, got delta=nan."),
        (lambda: epsilon(ONE, 1.0), "Expected 0 < delta < 1, got delta=1.0."),
        (lambda: epsilon(ONE, 0.1, OTHER), "Expected accountant among prv, rdp, moments, got accountant=other."),
        (lambda: epsilon([], 0.1), "Expected at least one mechanism, got mechanisms=0."),
        (lambda: least_noise(0.0, [(SEEN,)], 0.1), "Expected 0 < target_epsilon < inf, got target_epsilon=0.0."),
        (lambda: least_noise(1.0, [(UNCLIPPED,)], 0.1), "Expected clip < inf, got clip=inf."),
        (lambda: least_noise(1.0, [(SeenMechanism(Mechanism(6, 0)),)], 0.1), "Expected steps >= 1, got steps=0."),
        (lambda: claim(ONE, OTHER, "server", 0.1, 1), "Expected unit among example, patient, client, got unit=other."),
        (lambda: claim(ONE, "client", "server", 2.0, 1), "Expected 0 < delta < 1, got delta=2.0."),
        (lambda: claim(ONE, "client", "server", 0.1, -1), "Expected rounds >= 0, got rounds=-1."),
        (lambda: claim(ONE, "client", "server", 0.1, 1, "rdp", 0), "Expected examples >= 1, got examples=0."),
        (lambda: p_value(10, 5, 4, -1.0), "Expected epsilon >= 0, got epsilon=-1.0."),
        (lambda: p_value(10, 5, 4, nan), "Expected epsilon >= 0, got epsilon=nan."),
        (lambda: gaussian_rejects(10, 5, 4, -1.0, 0.05), "Expected mu >= 0, got mu=-1.0."),
        (lambda: lower_bound(10, 11, 4), "Expected 0 <= guesses <= canaries=10, got guesses=11."),
        (lambda: lower_bound(10, 5, 6), "Expected 0 <= correct <= guesses=5, got correct=6."),
        (lambda: lower_bound(10, 5, 4, nan), "Expected 0 <= delta <= 1, got delta=nan."),
        (lambda: lower_bound(10, 5, 4, confidence=1.0), "Expected 0 < confidence < 1, got confidence=1.0."),
        (lambda: correct_guesses(FOUR, FOUR, 3), "Expected an even number 0 <= guesses <= 4, got guesses=3."),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line_by_name(call, message) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value) == message
