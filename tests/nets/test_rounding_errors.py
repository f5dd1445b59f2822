"""Sensitivity of clipped sums in float32: the rounding errors of neighbours are far below the noise's margin."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.nets.training.gaussian import MARGIN
from flfw.nets.training.per_example import ClippedSum, PerExample, accumulated, physical
from flfw.rng import initialising, torch_generator

BOUND = 1e-2  # below all norms: every gradient is clipped


def clipped_sum(model: nn.Module, x: Tensor, y: Tensor, maximum: int = 0) -> Tensor:
    tested = PerExample(model, grouping="flat")

    def summed(x: Tensor, y: Tensor) -> ClippedSum:
        return tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), BOUND)

    sums = accumulated(summed(*part) for part in physical(x, y, maximum)).sums
    return torch.cat([value.flatten() for value in sums.values()]).double()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("net", "batch"), [("cnn3x3", 5), ("cnn3x3", 64), ("cnn3x3", 500), ("mlp", 4000), ("linear", 4000), ("cnn1", 64)]
)
def test_a_neighbour_changes_a_sum_by_the_bound_and_a_thousandth_of_a_percent(net: str, batch: int, seed: int) -> None:
    with initialising(seed, "model"):
        model = nets.build(net, (1, 28, 28), 10)
    rng = torch_generator(seed, "examples")
    x, y = torch.rand(batch, 1, 28, 28, generator=rng), torch.randint(0, 10, (batch,), generator=rng)
    change = clipped_sum(model, x, y) - clipped_sum(model, x[:-1], y[:-1])
    exact = clipped_sum(model.double(), x[-1:].double(), y[-1:])
    error = float((change - exact).norm()) / BOUND
    assert 0 < error < 2e-5 < MARGIN / 40
    assert float(change.norm()) / BOUND == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [0, 2, 16])
def test_where_all_examples_are_of_one_class_it_is_half_of_the_margin_at_most(maximum: int) -> None:
    """Gradients that point the same way have the longest sums, and errors are relative to them; the first one is left.

    Parts of two that are added up in float32 had an error of 3.4e-3.
    """
    with initialising(0, "model"):
        model = nets.build("linear", (1, 28, 28), 10)
    x, y = torch.rand(4000, 1, 28, 28, generator=torch_generator(0, "examples")), torch.zeros(4000, dtype=torch.int64)
    change = clipped_sum(model, x, y, maximum) - clipped_sum(model, x[1:], y[1:], maximum)
    exact = clipped_sum(model.double(), x[:1].double(), y[:1])
    assert 2e-5 < float((change - exact).norm()) / BOUND < MARGIN / 2
    assert float(change.norm()) / BOUND == pytest.approx(1, abs=MARGIN / 20)
