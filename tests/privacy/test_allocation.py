"""Passes in which each example chooses a step: the epsilon against simulated losses, and what gets no credit."""

from dataclasses import replace
from math import exp, inf, sqrt

import numpy as np
import pytest

from flfw.errors import InputError
from flfw.privacy import accountants
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.calibration import calibrate_noise_multiplier
from flfw.privacy.claims import claim
from flfw.privacy.filter import spent
from flfw.privacy.mechanism import GaussianEvent, Mechanism, Others, SeenMechanism

DRAWS = 400_000


def losses(z: float, steps: int, passes: int, added: bool, rng: np.random.Generator, beside: float = inf) -> np.ndarray:
    """Privacy losses of whole runs: log P/Q under P, with a unit; or log Q/P under Q, without."""
    total = (added - 0.5 + beside * rng.normal(0, 1, DRAWS)) / beside**2 if beside < inf else np.zeros(DRAWS)
    for _ in range(passes):
        values = rng.normal(0, z, (DRAWS, steps))
        if added:
            values[np.arange(DRAWS), rng.integers(0, steps, DRAWS)] += 1
        total += np.log(np.exp((values - 0.5) / z**2).mean(1))
    return total if added else -total


def delta_of(sample: np.ndarray, epsilon: float) -> tuple[float, float]:
    """The delta that an epsilon takes, and the deviation of this estimate."""
    excess = np.maximum(0.0, 1 - np.exp(epsilon - sample))
    return float(excess.mean()), float(excess.std() / sqrt(len(sample)))


CASES = [(1.0, 5, 1, 1e-3), (0.7, 3, 2, 3e-3), (2.0, 10, 8, 1e-3), (1.5, 2, 3, 2e-3)]


@pytest.mark.slow
@pytest.mark.parametrize(("z", "steps", "passes", "delta"), CASES)
def test_the_bound_is_above_simulated_losses_and_not_far(z: float, steps: int, passes: int, delta: float) -> None:
    bound = compute_epsilon((GaussianEvent(z, 1.0, passes, steps),), delta)
    without = compute_epsilon((GaussianEvent(z, 1.0, passes),), delta)
    assert bound.accountant == "pld" and 0 < bound.epsilon < 0.95 * without.epsilon
    rng, deltas = np.random.default_rng(0), []
    for added in (True, False):
        sample = losses(z, steps, passes, added, rng)
        taken, std = delta_of(sample, bound.epsilon)
        assert taken - 4 * std <= delta
        deltas.append(delta_of(sample, 0.95 * bound.epsilon - 0.01))
    assert max(taken - 4 * std for taken, std in deltas) > delta  # a smaller epsilon is refuted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "delta"),
    [
        ((GaussianEvent(2.0, 1.0, 2, 8), GaussianEvent(3.0, 1.0, 1)), 1e-3),
        ((GaussianEvent(2.0, 1.0, 2, 8), GaussianEvent(4.0, 1.0, 3), GaussianEvent(6.0, 1.0, 4)), 1e-3),
        ((GaussianEvent(1.0, 1.0, 1, 5), GaussianEvent(1.0, 1.0, 1)), 1e-3),
        ((GaussianEvent(2.0, 1.0, 2, 8), GaussianEvent(1.5, 1.0, 3, 4)), 1e-3),  # other passes, and another number
    ],
)
def test_beside_other_answers_the_bound_is_above_simulated_losses_and_not_far(
    parts: tuple[GaussianEvent, ...], delta: float
) -> None:
    """The losses of parts add up; answers in which all take part are together one Gaussian."""
    bound = compute_epsilon(parts, delta).epsilon
    assert bound < 0.9 * compute_epsilon([replace(part, bins=1) for part in parts], delta).epsilon
    rng, deltas = np.random.default_rng(1), []
    plain = sum(part.steps / part.noise_multiplier**2 for part in parts if part.bins == 1)
    for added in (True, False):
        sample = losses(1.0, 1, 0, added, rng, plain**-0.5 if plain else inf)
        for part in parts:
            if part.bins > 1:
                sample = sample + losses(part.noise_multiplier, part.bins, part.steps, added, rng)
        taken, std = delta_of(sample, bound)
        assert taken - 4 * std <= delta
        deltas.append(delta_of(sample, 0.95 * bound - 0.01))
    assert max(taken - 4 * std for taken, std in deltas) > delta


def test_long_passes_are_not_rounded_to_no_credit() -> None:
    """More steps in a pass give a smaller epsilon; 20,000 simulated runs of 1,000 steps refute none of the bounds."""
    epsilons = [compute_epsilon((GaussianEvent(2.0, 1.0, 1, steps),), 1e-5).epsilon for steps in (10, 100, 1000)]
    assert epsilons == sorted(epsilons, reverse=True) and 0 < epsilons[-1] < 0.25
    bound = compute_epsilon((GaussianEvent(1.0, 1.0, 1, 1000),), 1e-2).epsilon
    values = np.random.default_rng(0).normal(0, 1, (20_000, 1000))
    for added in (True, False):
        values[:, 0] += added
        sample = np.log(np.exp(values - 0.5).mean(1))
        taken, std = delta_of(sample if added else -sample, bound)
        assert taken - 4 * std <= 1e-2
        values[:, 0] -= added


@pytest.mark.slow
def test_it_lies_between_a_choice_of_everything_and_no_choice() -> None:
    epsilons = [compute_epsilon((GaussianEvent(2.0, 1.0, 4, steps),), 1e-5).epsilon for steps in (1, 2, 4, 8, 16)]
    assert (
        epsilons == sorted(epsilons, reverse=True)
        and epsilons[0] == compute_epsilon((GaussianEvent(2.0, 1.0, 4),), 1e-5).epsilon
    )
    coins = compute_epsilon((GaussianEvent(2.0, 1 / 16, 64),), 1e-5).epsilon
    assert 0.7 * coins < epsilons[-1] < 1.5 * coins


def test_phases_compose() -> None:
    """Two kinds of passes are worse than each, in any order; a phase with coins beside takes their credit away."""
    parts = (GaussianEvent(2.0, 1.0, 2, 8), GaussianEvent(3.0, 1.0, 2, 4))
    whole = compute_epsilon(parts, 1e-5)
    assert whole.accountant == "pld"
    assert max(compute_epsilon((part,), 1e-5).epsilon for part in parts) < whole.epsilon
    more = (replace(parts[0], steps=3), parts[1])
    assert whole.epsilon < compute_epsilon(more, 1e-5).epsilon
    assert compute_epsilon(more[::-1], 1e-5).epsilon == pytest.approx(compute_epsilon(more, 1e-5).epsilon)
    plain, faint = GaussianEvent(3.0, 1.0, 2), GaussianEvent(1e4, 1.0, 2)
    alone, beside = compute_epsilon(parts[:1], 1e-5).epsilon, compute_epsilon((parts[0], plain), 1e-5)
    assert max(alone, compute_epsilon((plain,), 1e-5).epsilon) < beside.epsilon and beside.accountant == "pld"
    assert compute_epsilon((parts[0], faint), 1e-5).epsilon == pytest.approx(alone, abs=5e-3)
    coins = GaussianEvent(3.0, 0.5, 2)
    without = compute_epsilon((replace(parts[0], bins=1), coins), 1e-5)
    assert compute_epsilon((parts[0], coins), 1e-5) == without


BALLS = Mechanism(4.0, 60, groups=4, batch=10, max_participations=6, bins=10)


def test_who_gets_credit() -> None:
    assert BALLS.phase() == GaussianEvent(2.0, 1.0, 6, 10)
    assert BALLS.phase(amplified=False) == GaussianEvent(2.0, 1.0, 6)
    assert BALLS.phase(copies=3) == GaussianEvent(2.0 / 3, 1.0, 6)  # a step may hold all three, whatever the batch size
    assert BALLS.phase(copies=30) == GaussianEvent(2.0 / 30, 1.0, 6)
    assert BALLS.phase(others=Others(max_copies=3)) == GaussianEvent(2.0, 1.0, 18, 10)
    # A site's own count.
    assert spent([(BALLS, 1)], 10.0, 1e-5) == compute_epsilon((GaussianEvent(2.0, 1.0, 6),), 5e-6).epsilon
    for wrong in ({"poisson": True}, {"max_participations": None}, {"clipped": "client"}):
        with pytest.raises(InputError, match="bins=0 unless examples choose"):
            Mechanism(**{"noise_multiplier": 4.0, "steps": 60, "max_participations": 6, "bins": 10, **wrong})  # type: ignore[arg-type]


def test_a_claim_says_how_steps_are_chosen() -> None:
    example = claim(BALLS, "example", "server", 1e-5, 6)
    assert example.accountant == "pld"
    assert any("one of the 10 or more steps of a pass" in sentence for sentence in example.assumptions)
    assert not any("give no credit" in sentence for sentence in example.assumptions)
    patient = claim(BALLS, "patient", "server", 1e-5, 6, examples=2)
    assert patient.epsilon == compute_epsilon((GaussianEvent(1.0, 1.0, 6),), 1e-5).epsilon


@pytest.mark.slow
def test_noise_for_a_target() -> None:
    sigma = calibrate_noise_multiplier(2.0, [(SeenMechanism(BALLS),)], 1e-5)
    reached = compute_epsilon((GaussianEvent(sigma / 2, 1.0, 6, 10),), 1e-5)
    assert 1.999 <= reached.epsilon <= 2.0 and reached.accountant == "pld"


def test_where_the_package_has_no_bound_there_is_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flfw.privacy.accountants.allocated_epsilon", lambda *_: inf)
    assert compute_epsilon((GaussianEvent(2.0, 1.0, 4, 8),), 1e-5) == compute_epsilon(
        (GaussianEvent(2.0, 1.0, 4),), 1e-5
    )


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(accountants, "import_module", absent)
    with pytest.raises(InputError, match="Expected the package PLD_accounting, got none"):
        compute_epsilon((GaussianEvent(2.125, 1.0, 4, 8),), 1e-5)
    assert exp(compute_epsilon((GaussianEvent(2.125, 1.0, 4),), 1e-5).epsilon) > 1
