"""A defence's own code in the objective: what is found out about it, and what is made of that."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings, bounded
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.clients.defences.prune import Prune, PruneSettings
from flfw.errors import InputError
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.choose_operator import AsNoise, AsSelection, choose_operator
from flfw.inversion.client_models.operator import AsOffset
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets import Tensors, build, tensors
from flfw.nets.inputs import InputSpec
from flfw.rng import initialising, torch_generator
from flfw.task.defence import Defence


class Scales(Defence):
    """Twice the update: differentiable, and says so."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value * 2 for name, value in update.items()}


class Leaves(Defence):
    """Works outside the graph, and in place."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: torch.from_numpy(value.detach().numpy().copy()) for name, value in update.items()}


class PerStep(Defence):
    """Acts on each step's gradient, and on the finished update."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value + 1 for name, value in gradients.items()}

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value * 10 for name, value in update.items()}


class ReversesInNoise(Defence):
    """Noise a hundred times the entries, which are in reverse order."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value.flip(0) + 100 * torch.randn(value.shape, generator=rng) for name, value in update.items()}


def rng(given: int = 0) -> torch.Generator:
    return torch_generator(0, "automatic", given)


def some(size: int = 4000) -> Tensors:
    return {"a": torch.randn(size, generator=rng(1)), "b": 5 * torch.randn(size // 2, generator=rng(2))}


def rounding(bits: int, how: str = "nearest") -> LowPrecision:
    return LowPrecision(LowPrecisionSettings(bits, how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("defence", "faithful"),
    [
        (Scales(), True),
        (Leaves(), False),
        (rounding(2), False),
        (rounding(3, "stochastic"), False),
        (DPGaussian(DPGaussianSettings(0.1)), True),
        (DPGaussian(DPGaussianSettings(0.1, clip=5.0)), True),
        (Prune(PruneSettings(0.5)), True),
    ],
    ids=["scaling", "outside", "nearest", "stochastic", "noise", "bound", "pruning"],
)
def test_a_derivative_is_used_where_it_foretells_the_response(defence: Defence, faithful: bool) -> None:
    assert DifferentiableDefence(defence).is_faithful(some(), rng()) is faithful


@pytest.mark.parametrize(
    ("defence", "nature"),
    [
        (rounding(2), "fixed"),
        (Prune(PruneSettings(0.9)), "fixed"),
        (DPGaussian(DPGaussianSettings(0.5)), "unbiased"),
        (rounding(2, "stochastic"), "unbiased"),
        (DPGaussian(DPGaussianSettings(0.5, clip=5.0)), "random"),
        (DPGaussian(DPGaussianSettings(1e3)), "unbiased"),
        (DPGaussian(DPGaussianSettings(1e3, clip=5.0)), "random"),
        (ReversesInNoise(), "random"),
    ],
    ids="rounding pruning noise stochastic_rounding bounded_noise loud_noise bound_under_noise permutation".split(),
)
def test_what_is_random_is_told_from_what_is_not_and_from_what_has_the_identity_as_mean(
    defence: Defence, nature: str
) -> None:
    assert DifferentiableDefence(defence).nature(some(), rng()) == nature


def test_a_defence_that_leaves_the_graph_is_passed_straight_through() -> None:
    trial = {"a": torch.tensor([0.4, 1.6], requires_grad=True)}
    sent = DifferentiableDefence(rounding(2)).sent(trial, rng(), faithful=False)
    assert sent["a"].tolist() == pytest.approx([0.0, 1.6])
    (slope,) = torch.autograd.grad((sent["a"] * torch.tensor([3.0, 5.0])).sum(), trial["a"])
    assert slope.tolist() == [3.0, 5.0]


def test_a_faithful_one_is_differentiated() -> None:
    trial = {"a": torch.tensor([0.4, 1.6], requires_grad=True)}
    sent = DifferentiableDefence(Scales()).sent(trial, rng(), faithful=True)
    (slope,) = torch.autograd.grad(sent["a"].sum(), trial["a"])
    assert slope.tolist() == [2.0, 2.0]


def test_what_a_random_defence_sends_is_averaged_before_it_is_compared() -> None:
    defence_model = DifferentiableDefence(DPGaussian(DPGaussianSettings(1.0, clip=1.0)), draws=400)
    sent = defence_model.sent({"a": torch.full((4,), 10.0)}, rng(), faithful=True, nature="random")
    assert sent["a"].tolist() == pytest.approx([0.5] * 4, abs=0.2)  # the bound, without the noise
    assert float(sent["a"].std()) > 0


def test_noise_without_a_bound_is_the_identity_in_the_mean() -> None:
    trial = {"a": torch.tensor([1.0, 2.0])}
    sent = DifferentiableDefence(DPGaussian(DPGaussianSettings(9.0))).sent(
        trial, rng(), faithful=True, nature="unbiased"
    )
    assert torch.equal(sent["a"], trial["a"])


def test_hooks_are_called_in_the_clients_order_and_units() -> None:
    trial = {"a": torch.tensor([1.0])}
    assert DifferentiableDefence(PerStep()).defended(trial, rng())["a"].tolist() == [20.0]
    assert DifferentiableDefence(PerStep(), finished=False).defended(trial, rng())["a"].tolist() == [2.0]
    # It acts on minus twice what is compared: -2 -> (-2 + 1) * 10 = -10 -> 5.
    assert DifferentiableDefence(PerStep(), factor=-2.0).defended(trial, rng())["a"].tolist() == [5.0]


def victim() -> tuple[PlainVictim, Tensors]:
    """A small network, and what it sends for one example."""
    inputs = InputSpec.from_constants((1, 8, 8), (0.5,), (0.5,))
    with initialising(0, "net"):
        net = build("lenet", inputs.shape, 10)
    model = PlainVictim(net, tensors(net), ("*",), inputs)
    x = torch.rand(1, 1, 8, 8, generator=rng(3))
    return model, {n: v.detach() for n, v in model.gradient(x, torch.tensor([3]), {}, {}).items()}


@pytest.mark.parametrize(
    ("defence", "kind", "noise"),
    [
        (rounding(8), AsNoise, 1.0),
        (rounding(4, "stochastic"), AsNoise, 1.0),
        (DPGaussian(DPGaussianSettings(0.01)), AsNoise, 1.0),
        (rounding(1), DifferentiableDefence, None),
        (Prune(PruneSettings(0.9)), AsSelection, None),
        (DPGaussian(DPGaussianSettings(0.001, clip=0.5)), DifferentiableDefence, 1.0),
        (DPGaussian(DPGaussianSettings(0.0, clip=0.5)), DifferentiableDefence, None),
    ],
    ids=["8 bits", "4 bits, stochastic", "noise", "1 bit", "pruning", "noise within a bound", "a bound"],
)
def test_what_a_defence_is_is_found_out(defence: Defence, kind: type, noise: float | None) -> None:
    model, gradient = victim()
    sent = defence.update({n: v.clone() for n, v in gradient.items()}, rng())
    informed = choose_operator(DifferentiableDefence(defence), model, sent, torch.tensor([3]), 1, rng())
    assert type(informed) is kind
    assert informed.noise == noise


class OneInTwo(Defence):
    """Hands on a random half of the entries, doubled."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: 2 * v * (torch.rand(v.shape, generator=rng) < 0.5) for n, v in update.items()}


def test_entries_that_were_kept_back_are_seen_in_what_was_sent() -> None:
    model, gradient = victim()
    sent = OneInTwo().update(gradient, rng())
    informed = choose_operator(DifferentiableDefence(OneInTwo()), model, sent, torch.tensor([3]), 1, rng())
    assert isinstance(informed, AsSelection)
    torch.testing.assert_close(informed.apply(gradient, sent, informed.read(sent)), sent)


class LastLayerNoise(Defence):
    """Noise on the classifier alone; all else is sent as it is."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        noisy = {n: v + 0.5 * torch.randn(v.shape, generator=rng) for n, v in update.items() if n.startswith("class")}
        return update | noisy


def test_what_is_sent_without_noise_beside_noise_counts_most() -> None:
    model, gradient = victim()
    sent = LastLayerNoise().update(gradient, rng())
    informed = choose_operator(DifferentiableDefence(LastLayerNoise()), model, sent, torch.tensor([3]), 1, rng())
    assert isinstance(informed, AsNoise)
    precision = informed.read(sent)
    exact = [float(v) for n, v in precision.items() if "classifier" not in n]
    assert min(exact) > 100 * float(precision["precision.classifier.weight"])
    assert float(precision["precision.classifier.weight"]) == pytest.approx(2, rel=0.1)


class Offset(Defence):
    """Adds the same numbers each time."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: v + 0.5 for n, v in update.items()}


def test_what_is_added_each_time_is_taken_away_and_no_noise() -> None:
    model, gradient = victim()
    informed = choose_operator(
        DifferentiableDefence(Offset()), model, Offset().update(gradient, rng()), torch.tensor([3]), 1, rng()
    )
    assert isinstance(informed, AsOffset) and informed.noise is None
    assert all(float((v - 0.5).abs().max()) < 1e-6 for v in informed.offset.values())


class Remembers(Defence):
    """Sends what it kept back the last time as well."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensors = {}

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        whole = {n: v + self.kept.get(n, 0) for n, v in update.items()}
        self.kept = {n: v / 2 for n, v in whole.items()}
        return self.kept


def test_a_defence_that_remembers_is_each_time_as_the_client_began() -> None:
    defence_model, ones = DifferentiableDefence(Remembers()), {"w": torch.ones(2)}
    for _ in range(3):
        assert torch.equal(defence_model.defended(ones, rng())["w"], torch.full((2,), 0.5))


def larger_half(update: Tensors) -> Tensors:
    return {n: v * (v.abs() >= v.abs().flatten().median()) for n, v in update.items()}


class BoundedHalf(Defence):
    """The larger half of each tensor, of joint norm at most 0.1."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return bounded(larger_half(update), 0.1)


class UnitHalves(Defence):
    """The larger half of each tensor, of norm 1."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: v / v.norm() for n, v in larger_half(update).items()}


@pytest.mark.parametrize(
    ("defence", "factor"),
    [(BoundedHalf(), "one for all"), (UnitHalves(), "one for each"), (Prune(PruneSettings(0.5)), 1)],
)
def test_the_factor_of_a_selection_is_known_or_fitted(defence: Defence, factor: Any) -> None:
    model, gradient = victim()
    sent = defence.update({n: v.clone() for n, v in gradient.items()}, rng())
    informed = choose_operator(DifferentiableDefence(defence), model, sent, torch.tensor([3]), 1, rng())
    assert isinstance(informed, AsSelection)
    assert informed.factor == factor if isinstance(factor, str) else informed.factor == pytest.approx(factor)
    torch.testing.assert_close(informed.apply(gradient, sent, informed.read(sent)), sent)


class OffsetElsewhere(Defence):
    """Adds the same numbers each time, by code that no derivative passes."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        return {n: torch.from_numpy(v.detach().numpy() + np.float32(0.5)) for n, v in update.items()}


def test_a_fixed_addition_outside_the_graph_is_no_noise() -> None:
    model, gradient = victim()
    informed = choose_operator(
        DifferentiableDefence(OffsetElsewhere()), model, OffsetElsewhere().update(gradient, rng()), None, 1, rng()
    )
    assert isinstance(informed, AsOffset) and informed.noise is None
    assert all(float((v - 0.5).abs().max()) < 1e-6 for v in informed.offset.values())


def test_what_was_sent_by_another_network_is_refused() -> None:
    model, gradient = victim()
    short = {n: v for n, v in gradient.items() if n != "classifier.bias"}
    with pytest.raises(InputError, match=r"Expected classifier\.bias, which .* shares"):
        choose_operator(DifferentiableDefence(Offset()), model, short, None, 1, rng())


@pytest.mark.parametrize(("std", "right"), [(0.02, True), (0.02 * 2 / 3, False), (0.02 * 3 / 2, False)])
def test_the_size_of_noise_is_measured(std: float, right: bool) -> None:
    model, gradient = victim()
    defence_model = DifferentiableDefence(DPGaussian(DPGaussianSettings(0.02)))
    informed = choose_operator(defence_model, model, gradient, torch.tensor([3]), 1, rng())
    assert isinstance(informed, AsNoise)
    name = "extractor.2.weight"
    measured = 1 / float(informed.read(gradient)[f"precision.{name}"])
    assert (abs(measured / std - 1) < 0.1) is right


def test_what_is_left_is_counted_in_deviations() -> None:
    model, gradient = victim()
    informed = choose_operator(
        DifferentiableDefence(DPGaussian(DPGaussianSettings(0.02))), model, gradient, None, 1, rng()
    )
    constants = informed.read(gradient) if isinstance(informed, AsNoise) else {}
    moved = {name: value + 0.04 for name, value in gradient.items()}
    left = informed.apply(moved, gradient, constants) if isinstance(informed, AsNoise) else {}
    name = "extractor.2.weight"
    assert float((left[name] - gradient[name]).mean()) == pytest.approx(2.0, rel=0.1)


def test_tensors_of_zeros_tell_nothing_and_break_nothing() -> None:
    model, gradient = victim()
    silent = {**gradient, "classifier.bias": torch.zeros(10)}
    informed = AsNoise(DifferentiableDefence(rounding(8)), gradient)
    result: Callable[[str], Tensor] = informed.read(silent).__getitem__
    assert float(result("precision.classifier.bias")) == 0.0
    assert float(result("precision.classifier.weight")) > 0.0
    assert model.shared
