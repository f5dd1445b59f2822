"""Mean of clipped updates with Gaussian noise."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flfw.nets.net import Tensors
from flfw.server.aggregation import Update
from flfw.training.gaussian import gaussian


def noisy_mean(
    updates: Iterable[Update], sent: Tensors, cohort: int, deviation: float, rng: torch.Generator
) -> Tensors:
    """Compute W + (sum_k (W_k - W) + N(0, deviation^2)) / cohort, a trusted server's mean of clipped updates.

    The divisor is not the number of updates, which would reveal participation. Sums are in float64.

    Args:
        updates: W_k by name; there may be none.
        sent: W, the tensors sent to the clients of the round.
        cohort: number of clients in a round, or its expectation.
        deviation: of the noise on the sum, >= 0.
        rng: generator of the noise.
    """
    names = [name for name, value in sent.items() if value.is_floating_point()]
    sums = {name: torch.zeros(sent[name].shape, dtype=torch.float64) for name in names}
    for update in updates:
        for name in names:
            sums[name] += update.tensors[name].double() - sent[name].double()
    noise = gaussian({name: sent[name].shape for name in names}, deviation, rng)
    moved = {n: (sent[n].double() + (sums[n] + noise[n]) / cohort).to(sent[n].dtype) for n in names}
    return {**sent, **moved}
