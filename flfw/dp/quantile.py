"""Clipping bound that follows a quantile of the clients' update norms, by a count with noise.

Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021. After each round

    b~ = 1/m (sum_k (b_k - 1/2) + N(0, sigma_b^2)) + 1/2     b_k = 1 if client k's update is no longer than C, else 0
    C <- C exp(-eta_C (b~ - q))                              q the quantile: the share of updates to be left whole

Each client sends b_k - 1/2 beside its update, in the entry `CLIP_FACTOR`. The server sends C there, as a factor of the
bound of the first round: it is a part of the model that is sent down and kept in checkpoints.

What it costs (their theorem 1): one client changes the sum of updates, over its noise z_u C, by at most 1 / z_u, and
the sum of b_k - 1/2, over sigma_b, by at most 1 / (2 sigma_b). Together that is a Gaussian mechanism of multiplier z
with 1 / z^2 = 1 / z_u^2 + 1 / (2 sigma_b)^2. So z is what is asked for and counted, and z_u is larger
(`update_multiplier`).
"""

from math import exp, isfinite, sqrt

import torch
from torch import Tensor

from flfw.nets.net import Net
from flfw.nets.training.clipping import CLIP_FACTOR

_LEAST, _MOST = 1e-12, 1e12  # of the factor, which float32 must hold


def with_factor(net: Net) -> Net:
    """Add the entry `CLIP_FACTOR`, of the value 1, to a network, and return it."""
    place, _, name = CLIP_FACTOR.rpartition(".")
    net.get_submodule(place).register_buffer(name, torch.ones(1))
    return net


def update_multiplier(total: float, ratio: float) -> float:
    """Compute z_u, the noise multiplier of the updates, from that of updates and count together.

    Args:
        total: z >= 0.
        ratio: sigma_b / z > 1/2.

    >>> round(update_multiplier(3.0, 1.0), 4)  # 1 / 3.4641^2 + 1 / (2 * 3)^2 = 1 / 3^2
    3.4641
    """
    return total / sqrt(1 - 1 / (2 * ratio) ** 2)


def answer(norm: float, bound: float) -> float:
    """Return b - 1/2 for an update's norm: 1/2 if it is within the bound, else -1/2, also if it is not finite."""
    return 0.5 if isfinite(norm) and norm <= bound else -0.5


def updated_factor(factor: Tensor, share: float, quantile: float, rate: float) -> Tensor:
    """Compute the next round's factor (1,).

    Args:
        factor: of this round.
        share: b~, any number.
        quantile: q in (0, 1).
        rate: eta_C > 0.

    >>> updated_factor(torch.tensor([2.0]), 1.0, 0.5, 0.2)
    tensor([1.8097])
    """
    exponent = min(max(-rate * (share - quantile), -100.0), 100.0)
    return (factor.double() * exp(exponent)).clamp(_LEAST, _MOST).to(factor.dtype)
