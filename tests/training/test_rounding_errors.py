"""Sensitivity of clipped sums in float32: the rounding errors of neighbours are far below the noise's margin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.rng import initialising, torch_generator
from flfw.training.per_example import PerExample
from flfw.training.secure_gaussian import MARGIN

BOUND = 1e-2  # below all norms: every gradient is clipped


def clipped_sum(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    tested = PerExample(model, way="fixed", grouping="flat")
    sums = tested.clipped_sum(lambda: cross_entropy(model(x), y, reduction="none"), BOUND).sums
    return torch.cat([value.flatten() for value in sums.values()]).double()


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
