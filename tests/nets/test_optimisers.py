"""SGD, Adam and gradient clipping against torch's own."""

import pytest
import torch

from flfw.errors import InputError
from flfw.nets.training.optimisers import SGD, Adam, LocalTraining, clip_norm

LR, STEPS = 0.1, 5
BOTH = (0.9, 0.05)  # momentum, weight decay


def start() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in (("w", (3, 2)), ("b", (2,)))
    }


def gradients(parameters) -> dict[str, torch.Tensor]:
    """Of sum sin(p): different at every point, so that an error in one step grows in the next."""
    return {name: torch.cos(value) for name, value in parameters.items()}


def torchs(momentum: float, weight_decay: float) -> dict[str, torch.Tensor]:
    parameters = {name: torch.nn.Parameter(value) for name, value in start().items()}
    optimiser = torch.optim.SGD(parameters.values(), LR, momentum=momentum, weight_decay=weight_decay)
    for _ in range(STEPS):
        for name, gradient in gradients({n: p.detach() for n, p in parameters.items()}).items():
            parameters[name].grad = gradient
        optimiser.step()
    return {name: value.detach() for name, value in parameters.items()}


def ours(momentum: float, weight_decay: float) -> dict[str, torch.Tensor]:
    parameters, optimiser = start(), SGD(LR, momentum, weight_decay)
    for _ in range(STEPS):
        optimiser.step(parameters, gradients(parameters))
    return parameters


def with_nesterov(momentum: float, weight_decay: float) -> dict[str, torch.Tensor]:
    parameters, velocity = start(), {}
    for _ in range(STEPS):
        for name, gradient in gradients(parameters).items():
            gradient = gradient + weight_decay * parameters[name]
            velocity[name] = gradient + momentum * velocity.get(name, torch.zeros_like(gradient))
            parameters[name] -= LR * (gradient + momentum * velocity[name])
    return parameters


def with_decoupled_decay(momentum: float, weight_decay: float) -> dict[str, torch.Tensor]:
    parameters, velocity = start(), {}
    for _ in range(STEPS):
        for name, gradient in gradients(parameters).items():
            velocity[name] = gradient + momentum * velocity.get(name, torch.zeros_like(gradient))
            parameters[name] -= LR * (velocity[name] + weight_decay * parameters[name])
    return parameters


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.05), BOTH])
def test_steps_are_torchs(momentum, weight_decay) -> None:
    torch.testing.assert_close(ours(momentum, weight_decay), torchs(momentum, weight_decay), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", [with_nesterov, with_decoupled_decay])
def test_the_comparison_would_notice_another_rule(wrong) -> None:
    expected, result = torchs(*BOTH), wrong(*BOTH)
    assert max(float((result[name] - expected[name]).abs().max()) for name in expected) > 1e-4


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_adam_is_torchs(weight_decay) -> None:
    theirs = {name: torch.nn.Parameter(value) for name, value in start().items()}
    reference = torch.optim.Adam(theirs.values(), LR, weight_decay=weight_decay)
    parameters, optimiser = start(), LocalTraining("adam", weight_decay=weight_decay).optimiser_at(LR)
    for _ in range(STEPS):
        optimiser.step(parameters, gradients(parameters))
        for name, gradient in gradients({n: p.detach() for n, p in theirs.items()}).items():
            theirs[name].grad = gradient
        reference.step()
    torch.testing.assert_close(parameters, theirs, rtol=0, atol=1e-12)


def test_adams_first_step_is_the_step_size_whatever_the_gradient() -> None:
    w = torch.tensor([2.0, 2.0], dtype=torch.float64)
    Adam(0.1).step({"w": w}, {"w": torch.tensor([1e-3, -1e3], dtype=torch.float64)})
    assert w.tolist() == pytest.approx([1.9, 2.1], abs=1e-5)


def test_every_call_starts_afresh_with_what_was_asked_for() -> None:
    settings = LocalTraining("sgd", 0.25, 0.125)
    one, two = settings.optimiser_at(0.5), settings.optimiser_at(0.5)
    assert one is not two
    assert isinstance(one, SGD) and (one.lr, one.momentum, one.weight_decay) == (0.5, 0.25, 0.125)


def test_two_steps_by_hand() -> None:
    # w = 2, g = 1: v = 1 + 0.5 * 2 = 2, w = 2 - 0.1 * 2 = 1.8; then v = 0.5 * 2 + 1 + 0.5 * 1.8 = 2.9, w = 1.51.
    w, optimiser = torch.tensor([2.0], dtype=torch.float64), SGD(0.1, momentum=0.5, weight_decay=0.5)
    optimiser.step({"w": w}, {"w": torch.ones(1, dtype=torch.float64)})
    assert float(w) == pytest.approx(1.8, abs=1e-15)
    optimiser.step({"w": w}, {"w": torch.ones(1, dtype=torch.float64)})
    assert float(w) == pytest.approx(1.51, abs=1e-15)


def test_only_the_given_parameters_move_and_no_graph_is_kept() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    SGD(1.0).step({"w": w}, {"w": torch.ones(2), "other": torch.ones(3)})
    assert w.tolist() == [0.0, 0.0]
    assert (w.is_leaf, w.grad) == (True, None)


@pytest.mark.parametrize("bound", [0.5, 3.0, 100.0])
def test_clipping_is_torchs(bound) -> None:
    rng = torch.Generator().manual_seed(2)
    values = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in (("a", (4, 3)), ("b", 5))}
    parameters = [torch.nn.Parameter(torch.zeros_like(value)) for value in values.values()]
    for parameter, value in zip(parameters, values.values(), strict=True):
        parameter.grad = value.clone()
    torch.nn.utils.clip_grad_norm_(parameters, bound)
    for result, parameter in zip(clip_norm(values, bound).values(), parameters, strict=True):
        torch.testing.assert_close(result, parameter.grad, rtol=0, atol=1e-12)


def test_clipping_by_hand_scales_all_gradients_together_and_in_place() -> None:
    values = {"a": torch.tensor([3.0]), "b": torch.tensor([[0.0], [4.0]])}  # joint norm 5
    assert clip_norm(values, 2.5) is values
    assert values["a"].tolist() == pytest.approx([1.5], rel=1e-6)
    assert values["b"].flatten().tolist() == pytest.approx([0.0, 2.0], rel=1e-6)


def test_gradients_within_the_bound_are_left_alone() -> None:
    values = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    clip_norm(values, 5.0)
    assert (values["a"].item(), values["b"].item()) == (3.0, 4.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"momentum": 1.0}, "Expected 0 <= momentum < 1, got momentum=1.0."),
        ({"weight_decay": -1e-9}, "Expected weight_decay >= 0, got weight_decay=-1e-09."),
    ],
)
def test_settings_out_of_range_are_refused(fields, message) -> None:
    with pytest.raises(InputError) as caught:
        LocalTraining(**fields)
    assert str(caught.value) == message


def test_settings_at_the_edge_are_accepted() -> None:
    assert LocalTraining(momentum=0, weight_decay=0) == LocalTraining("sgd", 0.0, 0.0)
    assert LocalTraining(momentum=0.999).momentum == 0.999
