"""Training of a velocity network on public images by flow matching (Lipman et al., ICLR 2023, arXiv 2210.02747).

    x_t = (1 - t) e + t x,  e ~ N(0, I),  t ~ U(0, 1)      x: an image in [-1, 1]
    minimise  E || u(x_t, t) - (x - e) ||^2

The best u for given data is E[x - e | x_t], so that x_t + (1 - t) u(x_t, t) = E[x | x_t], the best denoiser of x_t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from math import cos, inf, pi
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from flfw.errors import require
from flfw.inversion.compute import steps
from flfw.inversion.flow.velocity import VelocityNet
from flfw.rng import initialising, torch_generator
from flfw.training.optimisers import Adam

Velocity: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function of noisy images (B, C, H, W), times (B,) and labels (B,), or None, to velocities (B, C, H, W)."""

_UNKNOWN = 0.1  # share of the labels that are hidden in training
_KEPT = 2  # trained networks that a process remembers


@dataclass(frozen=True)
class FlowTraining:
    """Settings of the network and its training.

    Attributes:
        width: channels of the network's first level, a multiple of 8; 32 is the full size.
        iterations: Adam steps, >= 1; at full size 10,000 to 20,000.
        batch: images in a step, >= 1; at full size 128.
        lr: first step size, which falls to 0 along half a cosine, > 0; at full size 2e-4.
    """

    width: int = 16
    iterations: int = 1000
    batch: int = 64
    lr: float = 2e-3

    def __post_init__(self) -> None:
        require(self.width >= 8 and self.width % 8 == 0, "a width that is a multiple of 8", width=self.width)
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(self.batch >= 1, "batch >= 1", batch=self.batch)
        require(0 < self.lr < inf, "0 < lr < inf", lr=self.lr)


@dataclass(frozen=True)
class PublicImages:
    """Public images; two are equal if their contents are.

    Attributes:
        digest: sha256 of all contents.
        samples: (N, C, H, W) raw images in [0, 1].
        labels: (N,).
    """

    digest: str
    samples: Tensor = field(compare=False)
    labels: Tensor = field(compare=False)

    @classmethod
    def of(cls, samples: Tensor, labels: Tensor) -> PublicImages:
        """Make them from raw images (N, C, H, W) in [0, 1] and labels (N,)."""
        require(samples.dim() == 4 and len(samples) > 0, "public images (N, C, H, W), N >= 1", shape=samples.shape)
        parts = (str(samples.shape).encode(), *(part.cpu().numpy().tobytes() for part in (samples, labels)))
        return cls(sha256(b"".join(parts)).hexdigest() + str(samples.device), samples, labels)


def flow_loss(velocity: Velocity, x: Tensor, t: Tensor, noise: Tensor, labels: Tensor | None) -> Tensor:
    """Compute the mean squared error of the velocities on the straight lines from noise to images.

    Args:
        velocity: the function to be judged.
        x: (B, C, H, W) images in [-1, 1].
        t: (B,) times in [0, 1].
        noise: (B, C, H, W) from N(0, 1).
        labels: (B,); None: unknown.

    >>> x, e = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2)
    >>> float(flow_loss(lambda x_t, t, y: x_t, x, torch.tensor([0.25]), e, None))
    0.5625
    """
    late = t.view(-1, 1, 1, 1)
    return mse_loss(velocity((1 - late) * noise + late * x, t, labels), x - noise)


@lru_cache(maxsize=_KEPT)
def trained_flow(public: PublicImages, classes: int, settings: FlowTraining) -> VelocityNet:
    """Train a velocity network on public images; the same arguments give the same network in one process.

    Its generators come from a fixed seed: it depends on nothing but the arguments.

    Args:
        public: the images.
        classes: number of labels, >= 1.
        settings: size and training.
    """
    samples, rng = 2 * public.samples - 1, torch_generator(0, "flow matching")
    with initialising(0, "velocity network"):
        net = VelocityNet(samples.shape[1], settings.width, classes).to(samples.device)
    net = net.to(memory_format=torch.channels_last)
    parameters, adam = dict(net.named_parameters()), Adam(settings.lr)
    for done in steps(settings.iterations, learning=True):
        rows = torch.randint(len(samples), (settings.batch,), generator=rng)
        t, hidden = torch.rand(settings.batch, generator=rng), torch.rand(settings.batch, generator=rng) < _UNKNOWN
        noise = torch.randn((settings.batch, *samples.shape[1:]), generator=rng)
        rows, t, hidden, noise = (part.to(samples.device) for part in (rows, t, hidden, noise))
        loss = flow_loss(net, samples[rows], t, noise, public.labels[rows].masked_fill(hidden, classes))
        adam.lr = settings.lr * (1 + cos(pi * done / settings.iterations)) / 2
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        adam.step(parameters, dict(zip(parameters, gradients, strict=True)))
    return net.requires_grad_(False).eval()
