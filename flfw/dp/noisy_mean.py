"""Mean of clipped updates with Gaussian noise."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from flfw.dp.settings import Noise, clipped_change
from flfw.nets.net import Tensors
from flfw.server.aggregation import Update
from flfw.training.gaussian import GaussianNoise
from flfw.training.secure_gaussian import MARGIN


def noisy_mean(
    updates: Iterable[Update], sent: Tensors, cohort: int, bounds: Noise | None, deviation: float, noise: GaussianNoise
) -> Tensors:
    """Compute W + (sum_k (W_k - W) + N(0, deviation^2)) / cohort, a trusted server's mean of clipped updates.

    The divisor is not the number of updates, which would reveal participation. Sums are in float64. Clients clip; their
    float32 sums W + Delta_k are not exact, and a client may not have clipped. So a change that is longer than the bound
    by more than `MARGIN`, which the noise allows for, is clipped here.

    Args:
        updates: W_k by name; there may be none.
        sent: W, the tensors sent to the clients of the round.
        cohort: number of clients in a round, or its expectation.
        bounds: settings of the clipping; None: the clients' noise is in their updates, which are taken as they are.
        deviation: of the noise on the sum, >= 0.
        noise: source of the noise.
    """
    names = [name for name, value in sent.items() if value.is_floating_point()]
    sums = {name: torch.zeros(sent[name].shape, dtype=torch.float64) for name in names}
    for update in updates:
        change = {name: update.tensors[name].double() - sent[name].double() for name in names}
        if bounds is not None:
            change = clipped_change(change, (1 + MARGIN) * bounds.clip, bounds.grouping)
        for name in names:
            sums[name] += change[name]
    noisy = noise.added(sums, deviation)
    moved = {name: (sent[name].double() + noisy[name] / cohort).to(sent[name].dtype) for name in names}
    return {**sent, **moved}
