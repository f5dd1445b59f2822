"""What attacks know of defences: by hand, on what real defences send, and in searches that are lost without."""

from dataclasses import asdict
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from flfw import plugins
from flfw.attacks.adaptations.dp_gaussian import DPGaussianAdaptation
from flfw.attacks.adaptations.low_precision import LowPrecisionAdaptation
from flfw.attacks.adaptations.prune import PruneAdaptation
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.inversion.client_models.operator import Operator, Scaled
from flfw.inversion.matching import cosine_distance, gaussian_likelihood, squared_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import Tensors
from flfw.rng import torch_generator
from flfw.task.defence import Defence
from tests.support.attackable import small_victim


def seeded(seed: int = 0) -> torch.Generator:
    return torch_generator(0, "adaptations", seed)


def flat(many: Tensors) -> Tensor:
    return torch.cat([value.reshape(-1) for value in many.values()])


def seen(operator: Operator, simulated: Tensors, sent: Tensors) -> Tensors:
    """What a trial would have been sent as."""
    return operator.apply(simulated, sent, operator.read(sent))


def rounds(bits: int, rounding: str = "nearest") -> LowPrecisionAdaptation:
    return LowPrecisionAdaptation({"bits": bits, "rounding": rounding})


def noisy(std: float, clip: float = 0.0) -> DPGaussianAdaptation:
    return DPGaussianAdaptation({"std": std, "clip": clip})


def a_gradient(seed: int = 0, size: float = 1.0) -> Tensors:
    """Two tensors of different scale; uniform, so that rounding errors are spread evenly."""
    shapes = {"wide": (40, 50), "narrow": (500,)}
    scales = {"wide": size, "narrow": 0.01 * size}
    return {
        n: scales[n] * (2 * torch.rand(s, generator=seeded(10 * seed + i)) - 1)
        for i, (n, s) in enumerate(shapes.items())
    }


def pair(defence: Defence, name: str) -> tuple[Defence, Operator]:
    """A defence, and the adaptation to it as an audit finds and makes it."""
    return defence, plugins.load_class(plugins.ADAPTATION, name, Operator)(asdict(defence.settings))


def low(bits: int, rounding: Any = "nearest") -> tuple[Defence, Operator]:
    return pair(LowPrecision(LowPrecisionSettings(bits, rounding)), "low_precision")


def dp(std: float, clip: float = 0.0) -> tuple[Defence, Operator]:
    return pair(DPGaussian(DPGaussianSettings(std, clip)), "dp_gaussian")


def pruned(ratio: float) -> tuple[Defence, Operator]:
    return pair(Prune(PruneSettings(ratio)), "prune")


# --- by hand ---


def test_only_what_was_sent_is_compared() -> None:
    sent = {"a": torch.tensor([0.0, -2.0, 0.5]), "b": torch.tensor([[0.0], [1.0]])}
    trial = {"a": torch.tensor([9.0, 1.0, -3.0]), "b": torch.tensor([[7.0], [4.0]])}
    result = seen(PruneAdaptation({"ratio": 0.5}), trial, sent)
    assert {n: v.tolist() for n, v in result.items()} == {"a": [0.0, 1.0, -3.0], "b": [[0.0], [4.0]]}


@pytest.mark.parametrize(("clip", "factor"), [(0.0, 1.0), (2.5, 0.5), (5.1, 1.0)])
def test_a_trial_is_bounded_over_all_tensors_as_the_client_does_it(clip: float, factor: float) -> None:
    trial = {"a": torch.tensor([3.0]), "b": torch.tensor([[0.0], [4.0]])}  # norm 5
    sent = {"a": torch.tensor([100.0]), "b": torch.zeros(2, 1)}
    result = seen(noisy(0.1, clip), trial, sent)
    assert flat(result).tolist() == pytest.approx([3 * factor, 0, 4 * factor])


def test_the_bound_has_a_finite_derivative_at_zero() -> None:
    sent = {"a": torch.ones(2)}
    slope = grad(lambda t: squared_distance(seen(noisy(0.1, 1.0), {"a": t}, sent), sent))(torch.zeros(2))
    assert slope.tolist() == [-2.0, -2.0]


def test_which_adaptations_know_of_noise() -> None:
    assert [m.noise for m in (noisy(0.3), noisy(0.3, 1.0), noisy(0.0, 1.0))] == [0.3, 0.3, None]
    assert PruneAdaptation({"ratio": 0.9}).noise is None
    assert [rounds(bits).noise for bits in (1, 2, 3, 16)] == [None, None, 1.0, 1.0]
    assert [rounds(bits, "stochastic").noise for bits in (1, 2, 3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("bits", "trial", "expected"),
    [
        (1, [3.0, -1.0, 0.5, -1.5], [1.5, -1.5, 1.5, -1.5]),
        (2, [-4.0, 1.9, 2.1, -2.1], [-4.0, 0.0, 4.0, -4.0]),
        (2, [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_coarse_rounding_of_a_trial_to_its_own_grid(bits: int, trial: list[float], expected: list[float]) -> None:
    sent = {"a": torch.full((4,), 77.0)}
    assert seen(rounds(bits), {"a": torch.tensor(trial)}, sent)["a"].tolist() == expected
    slope = grad(lambda t: (seen(rounds(bits), {"a": t}, sent)["a"] * torch.arange(4.0)).sum())(torch.tensor(trial))
    assert slope.tolist() == [0.0, 1.0, 2.0, 3.0]  # the identity's


@pytest.mark.parametrize(
    ("bits", "rounding", "std"),
    [
        (3, "nearest", 2 / sqrt(12)),  # step 6 / 3
        (4, "nearest", 6 / 7 / sqrt(12)),
        (3, "stochastic", 2 / sqrt(6)),  # mean magnitude 2
        (2, "stochastic", sqrt(6.0)),  # step 6: 36 / 6 is less than 6 * 2
        (1, "stochastic", 6.0),
    ],
)
def test_fine_rounding_leaves_an_error_in_its_own_deviations(bits: int, rounding: str, std: float) -> None:
    sent = {"a": torch.tensor([6.0, 0.0, -2.0, 0.0]), "zeros": torch.zeros(2)}
    trial = {"a": torch.tensor([5.0, 0.5, -2.0, -1.0]), "zeros": torch.ones(2)}
    left = {name: value - sent[name] for name, value in seen(rounds(bits, rounding), trial, sent).items()}
    assert left["a"].tolist() == pytest.approx([-1 / std, 0.5 / std, 0.0, -1 / std], rel=1e-5)
    assert left["zeros"].tolist() == [0.0, 0.0]


def test_a_mostly_small_tensor_has_a_smaller_error_of_stochastic_rounding() -> None:
    sent = {"a": torch.tensor([8.0] + [0.0] * 63)}  # 2 bits: step 8, mean magnitude 1/8; 8 / 8 is less than 64 / 6
    assert float(rounds(2, "stochastic").read(sent)["precision.a"]) == pytest.approx(1.0)


# --- on what real defences send ---


@pytest.mark.parametrize("made", [pruned(0.9), low(1), low(2)], ids=["prune", "1 bit", "2 bits"])
def test_the_true_gradient_explains_all_that_was_sent(made: tuple[Defence, Operator]) -> None:
    defence, operator = made
    true = a_gradient()
    sent = defence.update(true, seeded(1))
    assert float(squared_distance(true, sent)) > 1e-2
    torch.testing.assert_close(flat(seen(operator, true, sent)), flat(sent), rtol=1e-5, atol=1e-8)
    assert float(squared_distance(seen(operator, a_gradient(seed=1), sent), sent)) > 1


LIKELY = [
    (dp(0.3), 0.05),
    (dp(0.3, 100.0), 0.05),
    (low(3), 0.1),
    (low(8), 0.1),
    (low(4, "stochastic"), 0.1),
    (low(2, "stochastic"), 0.1),
    (low(1, "stochastic"), 0.4),  # the variance is max^2 - g^2, of uniform g two thirds of what it is taken for
]


@pytest.mark.parametrize(("made", "tolerance"), LIKELY, ids=[str(made[0].settings) for made, _ in LIKELY])
def test_the_true_gradient_is_as_likely_as_its_noise(made: tuple[Defence, Operator], tolerance: float) -> None:
    defence, operator = made
    true = a_gradient(size=10.0)
    assert operator.noise is not None
    likelihood = gaussian_likelihood(operator.noise)
    sent = defence.update(true, seeded(1))
    half = len(flat(true)) / 2  # nats: half of each entry's squared deviation, whose mean is 1
    assert float(likelihood(seen(operator, true, sent), sent)) == pytest.approx(half, rel=tolerance)
    assert float(likelihood(seen(operator, a_gradient(seed=1, size=10.0), sent), sent)) > 1.2 * half


@pytest.mark.parametrize("bits", [1, 2])
def test_coarse_rounding_is_the_clients_own(bits: int) -> None:
    trial = {"a": torch.randn(2000, generator=seeded())}
    client = LowPrecision(LowPrecisionSettings(bits)).update(trial, seeded())
    torch.testing.assert_close(seen(rounds(bits), trial, trial), client)


ALL = [noisy(0.1, 0.5), noisy(0.1), PruneAdaptation({"ratio": 0.5}), rounds(1), rounds(2), rounds(4)]
ALL += [rounds(1, "stochastic"), rounds(4, "stochastic")]


@pytest.mark.parametrize("operator", ALL, ids=lambda m: f"{type(m).__name__} {m.settings}")
def test_several_at_once_are_each_alone_and_have_a_derivative(operator: Operator) -> None:
    trials = {"a": torch.randn(3, 2, 4, generator=seeded(1)), "b": torch.randn(3, 5, generator=seeded(2))}
    sent = {n: torch.randn(v.shape, generator=seeded(3)).clamp(min=0) for n, v in trials.items()}

    def objective(simulated: Tensors, sent: Tensors) -> Tensor:
        return squared_distance(seen(operator, simulated, sent), sent)

    together = vmap(grad(objective))(trials, sent)
    for i in range(3):
        alone = grad(objective)({n: v[i] for n, v in trials.items()}, {n: v[i] for n, v in sent.items()})
        torch.testing.assert_close({n: v[i] for n, v in together.items()}, alone)
        assert bool(torch.isfinite(flat(alone)).all()) and float(flat(alone).norm()) > 0


@pytest.mark.parametrize("operator", [noisy(0.1, 0.5), rounds(4), rounds(2, "stochastic")], ids=["dp", "4", "2"])
def test_likelihoods_do_not_depend_on_the_units_that_are_compared(operator: Operator) -> None:
    scaled = Scaled(operator, -0.05)  # the change of the weights over the gradient
    trial, sent = a_gradient(), a_gradient(seed=1)
    chosen = {n: -0.05 * v for n, v in trial.items()}, {n: -0.05 * v for n, v in sent.items()}
    assert operator.noise is not None and scaled.noise is not None
    expected = gaussian_likelihood(operator.noise)(seen(operator, *chosen), chosen[1])
    torch.testing.assert_close(gaussian_likelihood(scaled.noise)(seen(scaled, trial, sent), sent), expected)


# --- in a search ---

ADAM = AdamSearch(100, 0.1, schedule="cosine")
SMOOTH = weighted((30.0, total_variation))  # in nats: 30 pairs of neighbours either way, differences of 1 deviation
COSINE = SearchConfig(cosine_distance, ADAM, weighted((1e-2, total_variation)))
SQUARES = SearchConfig(squared_distance, ADAM)


def likely(noise: float) -> SearchConfig:
    return SearchConfig(gaussian_likelihood(noise), ADAM, SMOOTH)


def pictures() -> Tensor:
    """Two halves of one grey each, four times."""
    greys = torch.rand(4, 1, 2, 1, 1, generator=seeded(20))
    return greys.expand(4, 1, 2, 3, 6).reshape(4, 1, 6, 6)


def error(made: tuple[Defence, Operator], config: SearchConfig, informed: bool) -> float:
    """Root mean square deviation, on average over 4 images."""
    defence, operator = made
    at, images, labels = small_victim(), pictures(), torch.arange(4)
    sent = [at.gradient(images[i : i + 1], labels[i : i + 1], {}, {}) for i in range(4)]
    targets = [
        SearchTarget(defence.update(s, seeded(i)), labels[i : i + 1], seeded(40 + i)) for i, s in enumerate(sent)
    ]
    result = invert(at, targets, config, operator=operator if informed else None)
    return float((torch.cat([f.samples for f in result]) - images).square().mean((1, 2, 3)).sqrt().mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "static", "informed", "margin"),
    [
        (pruned(0.9), COSINE, COSINE, 4.0),
        (low(1), COSINE, COSINE, 1.5),
        (low(2), COSINE, COSINE, 1.5),
        (low(4), COSINE, likely(1.0), 2.0),
        (low(2, "stochastic"), COSINE, likely(1.0), 3.0),
        (dp(0.0, 0.05), SQUARES, SQUARES, 10.0),
        (dp(0.1), COSINE, likely(0.1), 1.2),
    ],
    ids=["prune", "1 bit", "2 bits", "4 bits", "2 stochastic bits", "bound", "noise"],
)
def test_a_search_that_is_told_of_the_defence_comes_closer(
    made: tuple[Defence, Operator], static: SearchConfig, informed: SearchConfig, margin: float
) -> None:
    assert error(made, static, informed=False) > margin * error(made, informed, informed=True)
