"""Mean of clipped updates with Gaussian noise, by a fixed bound or by one that follows a quantile of their norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from flfw.dp.quantile import moved
from flfw.dp.settings import AdaptiveClippingSettings, DPSettings, clipped_change
from flfw.nets.net import Tensors
from flfw.server.aggregation import Update
from flfw.training.clipping import FACTOR
from flfw.training.gaussian import GaussianNoise
from flfw.training.secure_gaussian import MARGIN


def noisy_mean(
    updates: Iterable[Update],
    sent: Tensors,
    cohort: int,
    bounds: DPSettings | None,
    deviation: float,
    noise: GaussianNoise,
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
    return shifted(sent, noisy, 1 / cohort)


def clipped_sum(updates: Iterable[Update], sent: Tensors, bounds: DPSettings | None) -> Tensors:
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


def shifted(sent: Tensors, sums: Tensors, share: float) -> Tensors:
    """Return W plus a share of the sums, in the types of W."""
    return {**sent, **{n: (sent[n].double() + share * value).to(sent[n].dtype) for n, value in sums.items()}}


def quantile_mean(
    updates: Iterable[Update], sent: Tensors, cohort: int, settings: AdaptiveClippingSettings, noise: GaussianNoise
) -> Tensors:
    """Compute the noisy mean of updates by the round's bound, and move the bound by a noisy count of short updates.

    Args:
        updates: W_k by name, with b_k - 1/2 in place of the factor; there may be none.
        sent: W, with the factor of the round's bound.
        cohort: number of clients in a round, or its expectation.
        settings: of the clipping, the noise and the quantile.
        noise: source of the noise.
    """
    factor, counted = sent[FACTOR], torch.zeros(1, dtype=torch.float64)

    def counting() -> Iterator[Update]:
        for update in updates:
            counted.add_(update.tensors[FACTOR].double().clamp(-0.5, 0.5))
            yield update

    here = replace(settings, clip=settings.clip * float(factor))
    model = {name: value for name, value in sent.items() if name != FACTOR}
    mean = noisy_mean(counting(), model, cohort, here, settings.server_multiplier * here.clip, noise)
    count = noise.added({FACTOR: counted}, settings.quantile_noise * settings.noise_multiplier)[FACTOR]
    share = float(count) / cohort + 0.5
    renewed = moved(factor, share, settings.quantile, settings.quantile_lr)
    return {name: renewed if name == FACTOR else mean[name] for name in sent}
