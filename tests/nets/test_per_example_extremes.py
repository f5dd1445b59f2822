"""Clipping holds for gradients that overflow, underflow or cancel, as weights chosen by the server can make them."""

from collections.abc import Callable
from math import inf, isfinite

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.nets.training.clipping import Clipping, Grouping
from flfw.nets.training.per_example import ClippedSum, PerExample
from flfw.nets.training.per_example_layers import Formed, Outer, row_norms, trusted
from flfw.rng import initialising, torch_generator

SHAPES = {"mlp": (12,), "cnn3x3": (1, 28, 28), "cnn1": (1, 28, 28), "lenet": (3, 32, 32)}


def network(name: str) -> nn.Module:
    with initialising(0, "model"):
        return nets.build(name, SHAPES[name], 10)


def scaled(name: str, factors: Callable[[int, int], float]) -> nn.Module:
    """A network with parameter i of n multiplied by a factor."""
    model = network(name)
    parameters = list(model.parameters())
    with torch.no_grad():
        for i, parameter in enumerate(parameters):
            parameter.mul_(factors(i, len(parameters)))
    return model


def examples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Four examples, one of them blank and one grey."""
    x = torch.rand(4, *shape, generator=torch_generator(0, "x"))
    x[2], x[3] = 0.0, 0.5
    return x, torch.arange(4)


def summed(tested: PerExample, model: nn.Module, x: Tensor, y: Tensor, bound: float) -> ClippedSum:
    return tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), bound)


def sizes(tested: PerExample, result: ClippedSum) -> list[float]:
    """The norm of each group of the sum, in float64."""
    return [
        float(torch.stack([result.sums[name].double().square().sum() for name in names]).sum().sqrt())
        for names in tested.groups.values()
    ]


# --- overflow ---


@pytest.mark.parametrize("grouping", ["layer", "tensor", "flat"])
@pytest.mark.parametrize(("name", "weight"), [("mlp", 1e9), ("cnn3x3", 1e9), ("cnn1", 1e12)])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_example_whose_gradient_overflows_is_left_out(
    name: str, weight: float, grouping: Grouping, where: int
) -> None:
    """The sum of three, one of which overflows in each group, equals the loop over the other two."""
    model = scaled(name, lambda i, n: weight if i == n - 2 else 1.0)
    tested = PerExample(model, grouping=grouping)
    x, y = examples(SHAPES[name])
    x, y = x[:3] + 0.1, y[:3]
    x[where] *= 3e38
    expected = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for j in range(3):
        gradients = torch.autograd.grad(cross_entropy(model(x[j : j + 1]), y[j : j + 1]), list(model.parameters()))
        given = dict(zip(expected, gradients, strict=True))
        for members in tested.groups.values():
            norm = sum(float(given[n].double().square().sum()) for n in members) ** 0.5
            for n in members:
                if j != where:
                    expected[n] += (given[n].double() * min(1.0, 0.5 / norm) if norm else given[n].double()).float()
    result = summed(tested, model, x, y, 0.5)
    lost = result.scales[where] == 0
    assert bool(lost.any())
    assert bool(result.norms[where][lost].isinf().all())
    assert not result.norms.isnan().any()
    for members, gone in zip(tested.groups.values(), lost.tolist(), strict=True):
        for n in members:
            assert bool(result.sums[n].isfinite().all()), n
            if gone:
                assert float((result.sums[n] - expected[n]).norm()) <= 3e-5 * float(expected[n].norm()), n


def test_nothing_is_left_of_a_batch_at_weights_that_are_not_finite() -> None:
    model = scaled("mlp", lambda i, n: inf if i == 0 else 1.0)
    result = summed(PerExample(model), model, *examples((12,)), 1.0)
    assert not any(value.any() for value in result.sums.values())
    assert not result.scales.any()


# --- the bound, whatever the weights ---

KINDS: dict[str, Callable[[float], Callable[[int, int], float]]] = {
    "all": lambda s: lambda i, n: s,
    "first": lambda s: lambda i, n: s if i < 2 else 1 / s if i < 4 else 1.0,
    "last": lambda s: lambda i, n: s if i >= n - 2 else 1.0,
    "in turns": lambda s: lambda i, n: s if (i // 2) % 2 else 1 / s,
    "biases": lambda s: lambda i, n: s if i % 2 else 1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("clipping", ["abadi", "automatic"])
@pytest.mark.parametrize("grouping", ["layer", "flat"])
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.nightly) for name in SHAPES if name != "mlp")]
)
def test_no_weights_make_an_example_exceed_its_bound(name: str, grouping: Grouping, clipping: Clipping) -> None:
    """Alone and in a batch, computed again in float64; and no batch is refused, which would tell what it holds."""
    x, y = examples(SHAPES[name])
    worst = 0.0
    for factors in KINDS.values():
        for scale in (1e-9, 1e-5, 1e3, 1e6, 1e9, 1e15, 1e25, 1e37):
            model = scaled(name, factors(scale))
            for bound in (4.0, 1e-6):
                tested = PerExample(model, grouping=grouping, clipping=clipping)
                for some in (slice(None), *(slice(j, j + 1) for j in range(4))):
                    result = summed(tested, model, x[some], y[some], bound)
                    reached = sizes(tested, result)
                    assert all(isfinite(size) for size in reached)
                    worst = max(worst, *(size / bound / len(y[some]) for size in reached))
    assert 0.999 <= worst <= 1 + 1e-3


def test_a_product_of_a_vanishing_and_a_huge_factor_is_clipped() -> None:
    """Slopes of 1e-25, whose squares float32 has not, times inputs of 1e30: each entry of the gradient is 1e5."""
    model = nn.Linear(3, 2, bias=False)
    x = torch.full((2, 3), 1e30)
    result = PerExample(model).clipped_sum(lambda: (model(x) * 1e-25).sum(1), 1.0)
    assert result.norms.tolist() == [[pytest.approx(1e5 * 6**0.5)]] * 2
    assert float(result.sums["weight"].norm()) == pytest.approx(2.0)


def test_small_gradients_are_not_scaled() -> None:
    """Of norm 0 in float32, but not zero: they are added as they are."""
    model = nn.Linear(3, 2)
    x = torch.ones(2, 3)
    result = PerExample(model).clipped_sum(lambda: (model(x) * 1e-25).sum(1), 1.0)
    assert bool((result.scales == 1).all())
    assert result.sums["weight"].flatten().tolist() == [pytest.approx(2e-25)] * 6


def test_small_bounds_count_the_lost_squares() -> None:
    """Slopes of 1e-24 have the norm 0, and the gradient has 2.4e-16: too much for a bound of 1e-17."""
    model = nn.Linear(3, 2, bias=False)
    x = torch.full((2, 3), 1e8)
    result = PerExample(model).clipped_sum(lambda: (model(x) * 1e-24).sum(1), 1e-17)
    assert float(result.sums["weight"].norm()) == pytest.approx(2e-17)


@pytest.mark.parametrize("numbers", [65535, 65536, 1_000_001])
def test_norms_of_many_equal_numbers_are_exact(numbers: int) -> None:
    """Adding a million squares in float32 one after another loses 0.07 %."""
    values = torch.full((2, numbers), 0.7)
    exact = values.double().square().sum(1).sqrt()
    assert torch.allclose(row_norms(values).double(), exact, rtol=1e-4, atol=0)


# --- the check of a first batch ---


def test_gradients_that_cancel_are_not_refused() -> None:
    """A blank image at weights whose sums over pixels vanish: all that is left of its gradient is rounding."""
    with initialising(0, "model"):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 26 * 26, 10))
    weight = model[2].weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        pixels = weight.view(10, 4, -1)
        pixels.sub_(pixels.mean(2, keepdim=True)).mul_(1e3)
    tested = PerExample(model)
    result = summed(tested, model, torch.full((2, 1, 28, 28), 0.37), torch.arange(2), 4.0)
    assert max(sizes(tested, result)) <= 2 * 4.0 * 1.001


class Centred(nn.Module):
    """Subtracts the batch's mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


def test_a_batch_that_overflows_does_not_stand_for_the_check() -> None:
    """The check is made up for with the next batch."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    tested = PerExample(model)
    x, y = torch.rand(3, 4, generator=torch_generator(0, "x")), torch.arange(3)
    summed(tested, model, x * torch.tensor([1.0, inf, 1.0])[:, None], y, 1.0)
    assert not tested._checked
    model.append(Centred())
    with pytest.raises(ValueError, match="depends on what it makes of another"):
        summed(tested, model, x, y, 1.0)


# --- parts ---


def test_parts_that_are_lost_are_zero() -> None:
    values = torch.tensor([[3.0, 4.0], [inf, 0.0], [float("nan"), 1.0], [0.0, 0.0]])
    bias = Formed(values)
    part = Outer(bias, torch.tensor([[2.0], [1.0], [1.0], [inf]]))
    assert not trusted([bias, part])
    assert bias.careful().norms.tolist() == [5.0, inf, inf, 0.0]
    assert part.careful().norms.tolist() == [10.0, inf, inf, inf]
    assert part.careful().weighted(torch.tensor([1.0, 0.0, 0.0, 0.0]).double()).tolist() == [[6.0], [8.0]]
    assert part.careful().formed()[1:].any().item() is False
    assert trusted([Formed(values[:1])])
    assert trusted([])
