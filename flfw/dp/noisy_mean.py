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
    noisy = noise.added(clipped_sum(updates, sent, bounds), deviation)
    return moved(sent, noisy, 1 / cohort)


def clipped_sum(updates: Iterable[Update], sent: Tensors, bounds: Noise | None) -> Tensors:
    """Sum the clipped changes W_k - W, in float64, by name of each floating tensor; see `noisy_mean`."""
    names = [name for name, value in sent.items() if value.is_floating_point()]
    sums = {name: torch.zeros(sent[name].shape, dtype=torch.float64) for name in names}
    for update in updates:
        change = {name: update.tensors[name].double() - sent[name].double() for name in names}
        if bounds is not None:
            change = clipped_change(change, (1 + MARGIN) * bounds.clip, bounds.grouping)
        for name in names:
            sums[name] += change[name]
    return sums


def moved(sent: Tensors, sums: Tensors, share: float) -> Tensors:
    """Return W plus a share of the sums, in the types of W."""
    return {**sent, **{n: (sent[n].double() + share * value).to(sent[n].dtype) for n, value in sums.items()}}
