"""Velocity network: a small UNet u(x, t) of images, of their time, and of their label where it is known.

It has three levels of width w, 2w and 4w, each with half the side of the one before, one residual block at each level
on the way down and on the way up, and one more at the lowest. Width 32 has 1.1 million parameters, width 16 a quarter.
"""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, silu

from flfw.errors import require

_GROUPS = 8  # of channels that are normalised together
_FREQUENCIES, _HIGHEST = 16, 1000.0  # of the time's sines and cosines, geometric from 1 radian to the highest


@final
class VelocityNet(nn.Module):
    """UNet of images of any side.

    Args:
        channels: channels of an image, >= 1.
        width: channels of the first level, a multiple of 8.
        classes: number of labels, >= 1; one more embedding stands for an unknown label.
    """

    frequencies: Tensor

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        require(width >= _GROUPS and width % _GROUPS == 0, f"a width that is a multiple of {_GROUPS}", width=width)
        widths, code = (width, 2 * width, 4 * width), 4 * width
        self.classes = classes
        self.register_buffer("frequencies", torch.linspace(0, log(_HIGHEST), _FREQUENCIES).exp(), persistent=False)
        self.time = nn.Sequential(nn.Linear(2 * _FREQUENCIES, code), nn.SiLU(), nn.Linear(code, code))
        self.label = nn.Embedding(classes + 1, code)
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList(_Block(w, w, code) for w in widths)
        self.halve = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.middle = _Block(widths[-1], widths[-1], code)
        self.up = nn.ModuleList(_Block(a + b, a, code) for a, b in reversed([*pairwise(widths)]))
        self.last = nn.Sequential(nn.GroupNorm(_GROUPS, width), nn.SiLU(), _zero(nn.Conv2d(width, channels, 3, 1, 1)))

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """Compute velocities (B, C, H, W).

        Args:
            x: (B, C, H, W) images with noise.
            t: (B,) times in [0, 1]; 0 is noise, 1 an image.
            labels: (B,); ``classes``, or None for all: unknown.
        """
        phases = t[:, None] * self.frequencies
        unknown = torch.full((len(x),), self.classes, device=x.device) if labels is None else labels
        code = self.time(torch.cat([phases.sin(), phases.cos()], 1)) + self.label(unknown)
        x, skipped = self.first(x), []
        for place, block in enumerate(self.down):
            x = block(self.halve[place - 1](x) if place else x, code)
            skipped.append(x)
        x = self.middle(skipped.pop(), code)
        for block in self.up:
            skip = skipped.pop()
            x = block(torch.cat([interpolate(x, skip.shape[-2:]), skip], 1), code)
        return self.last(x)


@final
class _Block(nn.Module):
    """Residual block of two convolutions, with a scale and a shift of each channel by time and label in between."""

    def __init__(self, before: int, after: int, code: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(_GROUPS, before), nn.GroupNorm(_GROUPS, after)])
        self.convolutions = nn.ModuleList([nn.Conv2d(before, after, 3, 1, 1), _zero(nn.Conv2d(after, after, 3, 1, 1))])
        self.turn = nn.Linear(code, 2 * after)
        self.straight = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        scale, shift = self.turn(silu(code))[..., None, None].chunk(2, 1)
        inner = self.norms[1](self.convolutions[0](silu(self.norms[0](x)))) * (1 + scale) + shift
        return self.straight(x) + self.convolutions[1](silu(inner))


def _zero(layer: nn.Conv2d) -> nn.Conv2d:
    """Set a layer to zero, so that its block begins as the identity."""
    nn.init.zeros_(layer.weight)
    assert layer.bias is not None, "all layers here have one"
    nn.init.zeros_(layer.bias)
    return layer
