"""Means of clipped updates with a trusted server's Gaussian noise: by a fixed or a moving bound, or correlated.

A moving bound follows a quantile of the updates' norms. Noise that is correlated over rounds comes from a banded matrix
(`flfw.privacy.banded`). A round of it computes

    y_t = c_0 x_t + c_1 x_(t-1) + ... + z_t                  with noise, on the grid where the source is secure
    s_t = (y_t - c_1 s_(t-1) - c_2 s_(t-2) - ...) / c_0      what the server uses in place of the sum x_t

Only the first line has data in it, and its noise is independent of all other rounds': rounding y_t to a grid is
post-processing, as for any secure noise. The second line is computed from y_1, ..., y_t alone, by rounding errors and
all, so it is post-processing too. (To draw z_t, and to add C^-1 z to x_t, is equal on paper. With a computer's
numbers, the digits of x_t would be left in the sum.)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from flfw.dp.quantile import updated_factor
from flfw.dp.settings import AdaptiveClippingSettings, DPSettings, clipped_change
from flfw.nets.net import Tensors
from flfw.nets.training.clipping import CLIP_FACTOR
from flfw.nets.training.gaussian import MARGIN, GaussianNoise
from flfw.server.aggregation import Update


def noisy_mean(
    updates: Iterable[Update], sent: Tensors, cohort: int, settings: DPSettings, std: float, noise: GaussianNoise
) -> Tensors:
    """Compute W + (sum_k (W_k - W) + N(0, std^2)) / cohort, a trusted server's mean of clipped updates.

    The divisor is not the number of updates, which would reveal participation. Sums are in float64. Clients clip; their
    float32 sums W + Delta_k are not exact, and a client may not have clipped. So a change that is longer than the bound
    by more than `MARGIN`, which the noise allows for, is clipped here.

    Args:
        updates: W_k by name; there may be none.
        sent: W, the tensors sent to the clients of the round.
        cohort: number of clients in a round, or its expectation.
        settings: of the clipping.
        std: of the noise on the sum, >= 0.
        noise: source of the noise.
    """
    return shifted(sent, noise.add(clipped_sum(updates, sent, settings), std), 1 / cohort)


def clipped_sum(updates: Iterable[Update], sent: Tensors, settings: DPSettings | None) -> Tensors:
    """Sum the clipped changes W_k - W, in float64, by name of each floating tensor; see `noisy_mean`.

    Args:
        updates: W_k by name.
        sent: W.
        settings: of the clipping; None: the changes are taken as they are.
    """
    names = [name for name, value in sent.items() if value.is_floating_point()]
    sums = {name: torch.zeros(sent[name].shape, dtype=torch.float64) for name in names}
    for update in updates:
        change = {name: update.tensors[name].double() - sent[name].double() for name in names}
        if settings is not None:
            change = clipped_change(change, (1 + MARGIN) * settings.clip, settings.grouping)
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
    factor, counted = sent[CLIP_FACTOR], torch.zeros(1, dtype=torch.float64)

    def counting() -> Iterator[Update]:
        for update in updates:
            counted.add_(update.tensors[CLIP_FACTOR].double().clamp(-0.5, 0.5))
            yield update

    here = replace(settings, clip=settings.clip * float(factor))
    model = {name: value for name, value in sent.items() if name != CLIP_FACTOR}
    mean = noisy_mean(counting(), model, cohort, here, settings.server_multiplier * here.clip, noise)
    count = noise.add({CLIP_FACTOR: counted}, settings.quantile_noise * settings.noise_multiplier)[CLIP_FACTOR]
    renewed = updated_factor(factor, float(count) / cohort + 0.5, settings.quantile, settings.quantile_lr)
    return {name: renewed if name == CLIP_FACTOR else mean[name] for name in sent}


_SUM, _RELEASED = "sum", "released"


def correlated(
    sums: Tensors, past: Tensors, coefficients: Sequence[float], std: float, noise: GaussianNoise
) -> tuple[Tensors, Tensors]:
    """Return a round's s_t, and the past for the next round.

    Args:
        sums: x_t by name, float64; a client changes them by a bounded length.
        past: what the round before returned; empty before the first round. It holds sums without noise, so it stays
            with the server.
        coefficients: c_0 > 0, ..., c_(b-1).
        std: of z_t in each entry, >= 0.
        noise: source of z_t.
    """
    first, *later = coefficients
    mixed, known = ({name: torch.zeros_like(value) for name, value in sums.items()} for _ in range(2))
    for ago, coefficient in enumerate(later, 1):
        for name in sums:
            if f"{_SUM}.{ago}.{name}" in past:
                mixed[name] += coefficient * past[f"{_SUM}.{ago}.{name}"]
                known[name] += coefficient * past[f"{_RELEASED}.{ago}.{name}"]
    noisy = noise.add({name: value + first * sums[name] for name, value in mixed.items()}, std)
    released = {name: (value - known[name]) / first for name, value in noisy.items()}
    return released, _next_past(past, sums, released, len(later))


def _next_past(past: Tensors, sums: Tensors, released: Tensors, maximum: int) -> Tensors:
    """Return the past of the next round, in which everything is a round older, up to ``maximum`` rounds."""
    moved: Tensors = {}
    for kind, latest in ((_SUM, sums), (_RELEASED, released)):
        for name, value in latest.items():
            for ago in range(maximum, 1, -1):
                if (before := past.get(f"{kind}.{ago - 1}.{name}")) is not None:
                    moved[f"{kind}.{ago}.{name}"] = before
            if maximum:
                moved[f"{kind}.1.{name}"] = value
    return moved
