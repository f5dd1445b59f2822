"""Patches of single images in the gradient of a malicious server's adapters: closed forms, no search.

PEFTLeak, see `flfw.inversion.closed_form.crafted_backbone`. With the gradients dW_k, db_k of unit k of Down,

    z = (dW_k - dW_{k+1}) / (db_k - db_{k+1})       adapter's input for the one patch in the bin between units k, k+1;
    patch = sigma z + m                             the known coordinates +C and -C of a token give sigma and m.

**Departures from PEFTLeak.** The squared length of z is the width for one token. It is another one for nearly every
mixture of tokens, so mixtures are left out. PEFTLeak groups patches to images by clusters of pixels. Here the gains do,
the bias's gradients divided by known factors: they are equal for all patches of an image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flfw.inversion.closed_form.crafted_backbone import CONSTANT, CraftedAdapters, PatchTarget, TokenLayout
from flfw.nets.net import Tensors

ROUNDING = 1e-5
"""Largest relative error of the squared length of a single token, in a gradient in float32."""

_PRESENT = 0.1  # a bin below this, times the rounding, is empty; as a share of the block's largest bias gradient
_APART = 10  # least relative distance of the gains of two images, over the rounding


@dataclass(frozen=True)
class PatchReadings:
    """Patches that were read off a gradient.

    Attributes:
        places: (n,) numbers of the patches in their images.
        inputs: (n, C, side, side) network inputs.
        gains: (n,) equal for patches of one image, up to rounding.
    """

    places: Tensor
    inputs: Tensor
    gains: Tensor


def read_patches(gradient: Tensors, crafted: CraftedAdapters, rounding: float = ROUNDING) -> PatchReadings:
    """Read off the patches that are alone in their bins.

    Args:
        gradient: of the adapters, by their names in the body, for a batch of any size.
        crafted: the adapters that the gradient belongs to.
        rounding: largest relative error of the squared length of a single token. An update of weights is rounded with
            the weights, so that more is needed.
    """
    by_target = [_read_target(gradient, target, crafted.layout, rounding) for target in crafted.targets]
    places, inputs, gains = (torch.cat(parts) for parts in zip(*by_target, strict=True))
    return PatchReadings(places, inputs, gains)


def _read_target(
    gradient: Tensors, target: PatchTarget, layout: TokenLayout, rounding: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Read the patches of one target: their places (k,), network inputs (k, C, side, side) and gains (k,)."""
    name, units = f"blocks.{target.block}.mlp.adapter.down", slice(*target.units)
    weight, bias = gradient[f"{name}.weight"].double(), gradient[f"{name}.bias"].double()
    nothing = bias.new_zeros(1)
    size = -torch.cat([bias[units], nothing]).diff()
    z = -torch.cat([weight[units], nothing.expand(1, layout.width)]).diff(dim=0)
    held = size.abs() > _PRESENT * rounding * bias.abs().max()
    z, size = z[held] / size[held, None], size[held]
    alone = (z.square().mean(1) - 1).abs() < rounding
    z, size = z[alone], size[alone]
    plus, minus = z[:, layout.plus], z[:, layout.plus + 1]
    sigma = 2 * CONSTANT / (plus - minus)
    mean = -(plus + minus) / 2 * sigma
    pixels = z[:, : layout.pixels] * sigma[:, None] + mean[:, None]
    # Each block adds z, of deviation 1, to a token. The deviation behind this block divides the gradient.
    gains = size * (sigma + target.block + 1)
    inputs = pixels.float().view(-1, layout.colours, layout.side, layout.side)
    return torch.full((len(z),), target.place), inputs, gains


def group(readings: PatchReadings, rounding: float = ROUNDING) -> Tensor:
    """Group patches to images by their gains: (n,) the number of each patch's image.

    Images whose gains are closer than rounding, or equal images, become one.

    Args:
        readings: of one gradient.
        rounding: see `read_patches`.
    """
    order = readings.gains.argsort()
    ordered = readings.gains[order]
    apart = ordered.diff() > _APART * rounding * torch.maximum(ordered[1:].abs(), ordered[:-1].abs())
    images = torch.zeros_like(order)
    images[order[1:]] = apart.cumsum(0)
    return images
