"""Statistics that know what hides the data: by hand, against loops, and better than those that do not know."""

import functools
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw.adversary.membership.informed import chosen_ridge, effective_dimension, fitted, joined, projections, scale_of
from flfw.adversary.membership.statistics import RIDGE, Whitening
from flfw.errors import InputError
from flfw.inversion.client_models.operator import ResidualMechanism
from flfw.inversion.sketch import Sketch
from flfw.rng import numpy_generator, torch_generator

WIDTH, N = 40, 12
LOUD = torch.logspace(1, -1, WIDTH, dtype=torch.float64)

Score = Callable[[Tensor, Tensor], Tensor]
"""Scores of candidates (K, WIDTH) by a message (WIDTH,)."""


def gradients(count: int, *numbers: int) -> Tensor:
    """Gradients around a mean that is not 0, loud in some directions."""
    return torch.from_numpy(numpy_generator(0, "gradients", *numbers).normal(size=(count, WIDTH))) * LOUD + 2


def areas(score: Score, hide: Callable[[Tensor, np.random.Generator], Tensor], trials: int = 120) -> float:
    """Mean area under the curve over messages of N members each."""
    result = []
    for trial in range(trials):
        members, others = gradients(N, 1, trial), gradients(N, 2, trial)
        message = hide(members, numpy_generator(0, "hiding", trial))
        scores = score(torch.cat([members, others]), message)
        result.append(float((scores[:N, None] > scores[None, N:]).double().mean()))
    return float(np.mean(result))


def adapted(residual: ResidualMechanism, noise: float = 0.0) -> Score:
    """The adapted statistic of one message, without a sketch."""
    left = residual.of_example
    public = torch.stack([left({"w": one})["w"] for one in gradients(1000)])
    whitening = functools.cache(functools.partial(fitted, public, N, noise))

    def score(candidates: Tensor, message: Tensor) -> Tensor:
        seen = residual.of_message({"w": message})["w"]
        scale = scale_of(public.mean(0), seen) if residual.scaled else 1.0
        rows = torch.stack([left({"w": one})["w"] for one in candidates])
        return joined([projections(whitening(scale), rows, seen, scale)])

    return score


def static(candidates: Tensor, message: Tensor) -> Tensor:
    return STATIC.scores(candidates, message)


STATIC = Whitening.fit(gradients(3000))


def noisy(std: float) -> Callable[[Tensor, np.random.Generator], Tensor]:
    return lambda members, rng: members.mean(0) + std * torch.from_numpy(rng.normal(size=WIDTH))


def test_the_parts_of_the_statistic_are_those_of_a_formula_without_a_factor() -> None:
    public, candidates = gradients(200), gradients(3, 1)
    message, noise = gradients(1, 2)[0], torch.linspace(0.5, 2, WIDTH, dtype=torch.float64)
    whitening = fitted(public, 5, noise, scale=0.5)
    result = projections(whitening, candidates, message, scale=0.5)
    covariance = torch.cov(public.T)
    ridge = chosen_ridge(public, 5 * noise / 0.25)
    inverse = torch.linalg.inv(covariance + torch.diag(ridge * covariance.trace() / WIDTH + 5 * noise / 0.25))
    m = public.mean(0)
    off = torch.eye(WIDTH, dtype=torch.float64) - torch.outer(m, m) @ inverse / (m @ inverse @ m)  # takes m out
    for index, one in enumerate(candidates):
        a, u = off @ (one - m), off @ message
        assert float(result.products[index]) == pytest.approx(float(a @ inverse @ u) / 0.5)
        assert float(result.squares[index]) == pytest.approx(float(a @ inverse @ a))


def test_rounds_are_joined_as_one_long_message() -> None:
    parts = [projections(fitted(gradients(200, t), N), gradients(3, 8, t), gradients(1, 9, t)[0]) for t in range(3)]
    by_hand = [
        sum(float(part.products[i]) for part in parts) / sum(float(part.squares[i]) for part in parts) ** 0.5
        for i in range(3)
    ]
    np.testing.assert_allclose(joined(parts), by_hand)
    with pytest.raises(InputError, match="one round or more, got rounds=0"):
        joined([])


def test_a_round_that_is_all_noise_counts_for_nothing_when_rounds_are_joined() -> None:
    public, candidates = gradients(1000), gradients(N, 1, 0)
    clear = projections(fitted(public, N), candidates, candidates.mean(0))
    drowned = projections(fitted(public, N, 1e8), candidates, 1e4 * gradients(1, 3)[0])
    torch.testing.assert_close(joined([clear, drowned]), joined([clear]), rtol=0.02, atol=0.02)


def test_the_noise_of_a_sketch_is_counted_where_something_was_sent() -> None:
    message = {"a": torch.zeros(2), "b": torch.zeros(4)}
    sketch = Sketch.draw(message, 2, torch_generator(0, "sketch"))
    whole = ResidualMechanism(deviation=2.0).noise(sketch, message)
    assert whole.tolist() == [12.0, 12.0]  # 3 entries in each, of variance 4
    sent = ResidualMechanism({"a": torch.tensor([1.0, 0.0]), "b": torch.zeros(4)}, deviation=2.0).noise(sketch, message)
    assert sorted(sent.tolist()) == [0.0, 4.0]


def test_with_noise_the_area_is_the_predicted_one_and_above_that_without_knowledge() -> None:
    std = 0.5
    noise = std**2
    whitening = fitted(gradients(1000), N, noise)
    dimension = effective_dimension(whitening, gradients(1000, 7), N * noise)
    exact = float((LOUD**2 / (LOUD**2 + N * noise)).sum())  # tr S (S + n I)^-1
    assert dimension == pytest.approx(exact, rel=0.1)
    result = areas(adapted(ResidualMechanism(), noise), noisy(std))
    assert result == pytest.approx(NormalDist().cdf((dimension / (2 * N)) ** 0.5), abs=0.02)
    assert result > areas(static, noisy(std)) + 0.05


@pytest.mark.parametrize("std", (0.3, 1.0))
def test_a_wrong_deviation_of_the_noise_is_never_better(std: float) -> None:
    right = areas(adapted(ResidualMechanism(), std**2), noisy(std))
    for factor in (0.5, 2.0):
        assert areas(adapted(ResidualMechanism(), (factor * std) ** 2), noisy(std)) <= right + 0.002


def test_who_knows_which_entries_were_sent_finds_more() -> None:
    mask = torch.zeros(WIDTH, dtype=torch.float64)
    mask[::4] = 1
    hide: Callable[[Tensor, np.random.Generator], Tensor] = lambda members, rng: members.mean(0) * mask  # noqa: E731
    assert areas(adapted(ResidualMechanism({"w": mask})), hide) > areas(static, hide) + 0.1


def test_who_clips_examples_as_the_client_does_finds_more() -> None:
    def clip(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"w": gradient["w"] * (8 / gradient["w"].norm()).clamp(max=1)}

    def hide(members: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.stack([clip({"w": one})["w"] for one in members]).mean(0)

    assert areas(adapted(ResidualMechanism(clip=clip)), hide) > areas(static, hide) + 0.05


@pytest.mark.slow
def test_a_scale_that_the_client_chose_does_no_harm_to_who_knows_that_there_is_one() -> None:
    hide: Callable[[Tensor, np.random.Generator], Tensor] = lambda members, rng: 0.1 * members.mean(0)  # noqa: E731
    open_ = areas(adapted(ResidualMechanism()), lambda members, rng: members.mean(0))
    scaled = areas(adapted(ResidualMechanism(scaled=True)), hide)
    assert scaled == pytest.approx(open_, abs=1e-6)
    assert scaled > areas(static, hide) + 0.05


def test_the_ridge_is_larger_with_few_public_examples_and_then_finds_more() -> None:
    flat = torch.from_numpy(numpy_generator(0, "public").normal(size=(1000, WIDTH)))
    assert chosen_ridge(flat[:50]) > chosen_ridge(gradients(1000))
    assert chosen_ridge(flat[:6]) == RIDGE

    def score(ridge: float) -> Score:
        return lambda candidates, message: Whitening.fit(flat[:50], ridge).scores(candidates, message)

    def area(ridge: float) -> float:
        result = []
        for trial in range(60):
            both = torch.from_numpy(numpy_generator(0, "candidates", trial).normal(size=(2 * N, WIDTH)))
            scores = score(ridge)(both, both[:N].mean(0))
            result.append(float((scores[:N, None] > scores[None, N:]).double().mean()))
        return float(np.mean(result))

    assert area(chosen_ridge(flat[:50])) > area(RIDGE) + 0.05


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="examples >= 1, got examples=0"):
        fitted(gradients(9), 0)
    with pytest.raises(InputError, match=r"scale > 0, got scale=0\.0"):
        fitted(gradients(9), 1, scale=0.0)
    with pytest.raises(InputError, match="at least 2 public examples, got public=1"):
        effective_dimension(STATIC, gradients(1), 0.0)
