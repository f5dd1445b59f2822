"""A denoiser as a prior of a search: plug-and-play steps between those of a descent, and a guided flow from noise.

    D(x_t, t) = x_t + (1 - t) u(x_t, t)          the denoiser of a velocity network, for images in [-1, 1]

`PlugAndPlay` draws a guess x towards D of its own noisy version. `GuidedFlow` follows dx/dt = u from noise to an image,
and turns off the way where the observation disagrees with D (Chung et al., "Diffusion Posterior Sampling", ICLR 2023).
Neither has a score of its own: guesses are compared by the objective of the search alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias, final

import torch
from torch import Tensor

from flfw.errors import require
from flfw.inversion.compute import steps
from flfw.inversion.flow.training import Velocity
from flfw.inversion.objective import Guess
from flfw.inversion.priors import Proximal
from flfw.inversion.search_optimisers import Best, Evaluate, SearchOptimiser
from flfw.nets.inputs import InputSpec

Denoise: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function of noisy images (B, C, H, W) ``(1 - t) e + t x``, times t (B,) and labels (B,), or None, to estimates of
the images x in [-1, 1]."""

_TINY = 1e-12


def denoiser(velocity: Velocity) -> Denoise:
    """Return D(x_t, t) = x_t + (1 - t) u(x_t, t).

    If u is the best velocity of some data, D is their mean given x_t: for a single point x* the best velocity is
    (x* - x_t) / (1 - t), and D is x*.

    >>> to_one = lambda x_t, t, y: (1 - x_t) / (1 - t.view(-1, 1, 1, 1))
    >>> denoiser(to_one)(torch.full((1, 1, 1, 2), 0.3), torch.tensor([0.5]), None).tolist()
    [[[[1.0, 1.0]]]]
    """
    return lambda x, t, labels: x + (1 - t.view(-1, 1, 1, 1)) * velocity(x, t, labels)


@final
@dataclass(frozen=True)
class PlugAndPlay(Proximal):
    """Plug-and-play step: x <- x - w (x - D((1 - t) e + t x, t)) with t ~ U(t0, 1) and e ~ N(0, I).

    It is a gradient step of w/2 ||x - D||^2 with D as a constant. t0 rises and w falls linearly along a descent: first
    the denoiser decides the coarse content, then only details.

    Attributes:
        denoise: the denoiser.
        inputs: the input space of the guesses.
        every: steps of the descent for each of these, >= 1.
        weights: w at the beginning and at the end, each in [0, 1].
        times: t0 at the beginning and at the end, each in [0, 1].
        labels: (P, B) of the problems, once bound; None: unknown.
        rngs: a generator for each problem, once bound.
    """

    denoise: Denoise
    inputs: InputSpec
    every: int = 10
    weights: tuple[float, float] = (0.5, 0.05)
    times: tuple[float, float] = (0.5, 0.98)
    labels: Tensor | None = None
    rngs: tuple[torch.Generator, ...] = ()

    def __post_init__(self) -> None:
        require(self.every >= 1, "every >= 1", every=self.every)
        require(all(0 <= w <= 1 for w in self.weights), "weights in [0, 1]", weights=self.weights)
        require(all(0 <= t <= 1 for t in self.times), "times in [0, 1]", times=self.times)

    def bound(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> PlugAndPlay:
        """Return the step for P problems."""
        return replace(self, labels=labels, rngs=tuple(rngs))

    @torch.no_grad()
    def moved(self, x: Tensor, done: float) -> Tensor:
        """Return guesses (P, B, C, H, W) in normalised units after the step."""
        weight, least = (a + (b - a) * done for a, b in (self.weights, self.times))
        images = _to_images(x, self.inputs)
        drawn = [(torch.rand(x.shape[1], generator=r), torch.randn(x.shape[1:], generator=r)) for r in self.rngs]
        t, noise = (torch.stack(parts).to(x.device) for parts in zip(*drawn, strict=True))
        t = least + (1 - least) * t
        late = t.view(*t.shape, 1, 1, 1)
        target = _each(self.denoise, (1 - late) * noise + late * images, t, self.labels)
        return _to_inputs(images - weight * (images - target), self.inputs)


@final
@dataclass(frozen=True)
class GuidedFlow(SearchOptimiser):
    """Euler steps of dx/dt = u from noise to images, each with a step down the objective at the denoised guess.

    The start is the noise. At time t the guess is D(x_t, t); the objective's gradient there, scaled to a root mean
    square of 1 in each problem, is subtracted ``guidance * t`` times from the next x_t, which holds a share t of the
    image. Other variables of the search stay as they are.

    Attributes:
        velocity: the velocity network.
        inputs: the input space of the guesses.
        iterations: Euler steps, >= 1.
        guidance: root mean square of a step down the objective, in units of images in [-1, 1], >= 0.
        labels: (P, B) of the problems, once bound; None: unknown.
    """

    velocity: Velocity
    inputs: InputSpec
    iterations: int = 50
    guidance: float = 0.1
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations >= 1", iterations=self.iterations)
        require(0 <= self.guidance < inf, "0 <= guidance < inf", guidance=self.guidance)

    def bind(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> GuidedFlow:
        """Return the flow for P problems; it draws nothing, as its noise is the start."""
        return replace(self, labels=labels)

    @torch.no_grad()
    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        """Follow the flow; the denoised guess with the lowest objective counts."""
        best, x = Best(guess, solved), guess["x"]
        for done in steps(self.iterations):
            t = torch.full(x.shape[:2], done / self.iterations, device=x.device)
            u = _each(self.velocity, x, t, self.labels)
            here = {**guess, "x": _to_inputs(x + (1 - done / self.iterations) * u, self.inputs)}
            if box:
                here["x"] = here["x"].clamp(*box)
            gradients, objective, matched = evaluate(here)
            best.see(here, objective, matched)
            best.count()
            down = (gradients["x"] / (2 * self.inputs.std)).nan_to_num(0.0, 0.0, 0.0)
            size = down.flatten(1).square().mean(1).sqrt().view(-1, *(1,) * (down.dim() - 1))
            share = (done + 1) / self.iterations
            x = x + u / self.iterations - self.guidance * share * down / (size + _TINY)
        end = {**guess, "x": _to_inputs(x, self.inputs)}
        if box:
            end["x"] = end["x"].clamp(*box)
        _, objective, matched = evaluate(end)
        best.see(end, objective, matched)
        return best


def _each(function: Denoise | Velocity, x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
    """Apply a function of a batch to guesses (P, B, ...), problem by problem.

    So each problem's result has the same digits whichever others are beside it.
    """
    return torch.stack([function(x[i], t[i], None if labels is None else labels[i]) for i in range(len(x))])


def _to_images(x: Tensor, inputs: InputSpec) -> Tensor:
    """Return images in [-1, 1] of guesses in normalised units."""
    return 2 * (x * inputs.std + inputs.mean) - 1


def _to_inputs(images: Tensor, inputs: InputSpec) -> Tensor:
    """Return guesses in normalised units of images in [-1, 1]."""
    return ((images + 1) / 2 - inputs.mean) / inputs.std
