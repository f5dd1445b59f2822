"""Flow prior of a search: a velocity network of images, its training on public images, and the steps that use it.

The network u(x, t) is a small UNet of an image, its time, and its label where it is known: three levels of width w, 2w
and 4w, each with half the side of the one before. Width 32 has 1.1 million parameters, width 16 a quarter. It is
trained by flow matching (Lipman et al., ICLR 2023, arXiv 2210.02747):

    x_t = (1 - t) e + t x,  e ~ N(0, I),  t ~ U(0, 1)      x: an image in [-1, 1]
    minimise  E || u(x_t, t) - (x - e) ||^2

The best u is E[x - e | x_t], so D(x_t, t) = x_t + (1 - t) u(x_t, t) = E[x | x_t] is the best denoiser of x_t.
`PlugAndPlay` draws a guess x towards D of its own noisy version. `GuidedFlow` follows dx/dt = u from noise to an image,
and turns off the way where the observation disagrees with D (Chung et al., "Diffusion Posterior Sampling", ICLR 2023).
Neither has a score of its own: guesses are compared by the objective of the search alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from math import log
from typing import TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, mse_loss, silu

from flfw.bounds import BoundedSettings, NonNegativeFinite, PositiveFinite, PositiveInt, Share
from flfw.errors import require
from flfw.inversion.compute import steps
from flfw.inversion.matching import Guess
from flfw.inversion.priors import Proximal
from flfw.inversion.search import SearchConfig
from flfw.inversion.search_optimisers import AdamSearch, Best, Evaluate, SearchOptimiser
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import Adam, descend
from flfw.rng import initialising, torch_generator

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
        for index, block in enumerate(self.down):
            x = block(self.halve[index - 1](x) if index else x, code)
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


Velocity: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function of noisy images (B, C, H, W), times (B,) and labels (B,), or None, to velocities (B, C, H, W)."""

_UNKNOWN = 0.1  # share of the labels that are hidden in training
_KEPT = 2  # trained networks that a process remembers


@dataclass(frozen=True)
class FlowTraining(BoundedSettings):
    """Settings of the network and its training.

    Attributes:
        width: channels of the network's first level, a multiple of 8; 32 is the full size.
        iterations: Adam steps, >= 1; at full size 10,000 to 20,000.
        batch: images in a step, >= 1; at full size 128.
        lr: first step size, which falls to 0 along half a cosine, > 0; at full size 2e-4.
    """

    width: int = 16
    iterations: PositiveInt = 1000
    batch: PositiveInt = 64
    lr: PositiveFinite = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 8 and self.width % 8 == 0, "a width that is a multiple of 8", width=self.width)


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

    def loss() -> Tensor:
        rows = torch.randint(len(samples), (settings.batch,), generator=rng)
        t, hidden = torch.rand(settings.batch, generator=rng), torch.rand(settings.batch, generator=rng) < _UNKNOWN
        noise = torch.randn((settings.batch, *samples.shape[1:]), generator=rng)
        rows, t, hidden, noise = (part.to(samples.device) for part in (rows, t, hidden, noise))
        return flow_loss(net, samples[rows], t, noise, public.labels[rows].masked_fill(hidden, classes))

    descend(net, (loss() for _ in steps(settings.iterations)), Adam(settings.lr), settings.iterations)
    return net.requires_grad_(False).eval()


_Denoise: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Function of noisy images (B, C, H, W) ``(1 - t) e + t x``, times t (B,) and labels (B,), or None, to estimates of
the images x in [-1, 1]."""

_TINY = 1e-12


def denoiser(velocity: Velocity) -> _Denoise:
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
class PlugAndPlay(BoundedSettings, Proximal):
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

    denoise: _Denoise
    inputs: InputSpec
    every: PositiveInt = 10
    weights: tuple[float, float] = (0.5, 0.05)
    times: tuple[float, float] = (0.5, 0.98)
    labels: Tensor | None = None
    rngs: tuple[torch.Generator, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(0 <= w <= 1 for w in self.weights), "weights in [0, 1]", weights=self.weights)
        require(all(0 <= t <= 1 for t in self.times), "times in [0, 1]", times=self.times)

    def bound(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> PlugAndPlay:
        """Return the step for P problems."""
        return replace(self, labels=labels, rngs=tuple(rngs))

    @torch.no_grad()
    def moved(self, x: Tensor, done: float) -> Tensor:
        """Return guesses (P, B, C, H, W) in normalised units after the step."""
        weight, minimum = (a + (b - a) * done for a, b in (self.weights, self.times))
        images = 2 * (x * self.inputs.std + self.inputs.mean) - 1  # in [-1, 1]
        drawn = [(torch.rand(x.shape[1], generator=r), torch.randn(x.shape[1:], generator=r)) for r in self.rngs]
        t, noise = (torch.stack(parts).to(x.device) for parts in zip(*drawn, strict=True))
        t = minimum + (1 - minimum) * t
        late = t.view(*t.shape, 1, 1, 1)
        target = _each(self.denoise, (1 - late) * noise + late * images, t, self.labels)
        return _to_inputs(images - weight * (images - target), self.inputs)


@final
@dataclass(frozen=True)
class GuidedFlow(BoundedSettings, SearchOptimiser):
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
    iterations: PositiveInt = 50
    guidance: NonNegativeFinite = 0.1
    labels: Tensor | None = None

    def bind(self, labels: Tensor | None, rngs: Sequence[torch.Generator]) -> GuidedFlow:
        """Return the flow for P problems; it draws nothing, as its noise is the start."""
        return replace(self, labels=labels)

    @torch.no_grad()
    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        """Follow the flow; the denoised guess with the lowest objective counts."""
        best, x = Best(guess, solved), guess["x"]
        for done in steps(self.iterations):
            u = _each(self.velocity, x, torch.full(x.shape[:2], done / self.iterations, device=x.device), self.labels)
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


def _each(function: _Denoise | Velocity, x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
    """Apply a function of a batch to guesses (P, B, ...), problem by problem.

    So each problem's result has the same digits whichever others are beside it.
    """
    return torch.stack([function(x[i], t[i], None if labels is None else labels[i]) for i in range(len(x))])


def _to_inputs(images: Tensor, inputs: InputSpec) -> Tensor:
    """Return guesses in normalised units of images in [-1, 1]."""
    return ((images + 1) / 2 - inputs.mean) / inputs.std


_FALLING = 0.1  # last weight of the plug-and-play step over the first


@dataclass(frozen=True, kw_only=True)
class FlowSettings(BoundedSettings):
    """Settings of the flow prior, of an attack that can use one."""

    flow_width: int = 16  # channels of the velocity network's first level, a multiple of 8; 32: full size
    flow_iterations: int = 1000  # Adam steps of its training, >= 1; 10,000 to 20,000: full size
    flow_batch: int = 64  # images in such a step, >= 1; 128: full size
    flow_lr: float = 2e-3  # first step size of its training, > 0; 2e-4: full size
    # First weight of the total variation beside the flow, >= 0; it falls as without a flow.
    flow_tv: NonNegativeFinite = 0.05
    flow_every: PositiveInt = 10  # steps of the search for each plug-and-play step
    flow_weight: Share = 0.5  # first weight of that step; it falls to a tenth
    flow_steps: PositiveInt = 50  # Euler steps of the guided flow
    flow_guidance: NonNegativeFinite = 0.1  # root mean square of its steps down the objective, images in [-1, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.training

    @property
    def training(self) -> FlowTraining:
        """Settings of the network and its training."""
        return FlowTraining(self.flow_width, self.flow_iterations, self.flow_batch, self.flow_lr)


def flow_recipes(
    config: SearchConfig, velocity: Velocity, inputs: InputSpec, settings: FlowSettings
) -> tuple[SearchConfig, SearchConfig]:
    """Return the recipe with plug-and-play steps, and the recipe that begins at the end of a guided flow.

    The plug-and-play steps stand in its opening and main searches by Adam, not in the closing ones, where the prior is
    weak on purpose. So all three end in the same stages, and their distances can be compared.

    Args:
        config: the search without a flow; it starts from N(0, 1).
        velocity: the velocity network.
        inputs: the input space.
        settings: settings of the flow.
    """
    weights = settings.flow_weight, _FALLING * settings.flow_weight
    step = PlugAndPlay(denoiser(velocity), inputs, settings.flow_every, weights)

    def plugged(descent: SearchOptimiser) -> SearchOptimiser:
        return replace(descent, proximal=step) if isinstance(descent, AdamSearch) else descent

    opening = tuple(replace(stage, descent=plugged(stage.descent)) for stage in config.opening)
    plug_and_play = replace(config, descent=plugged(config.descent), opening=opening)
    flow = GuidedFlow(velocity, inputs, settings.flow_steps, settings.flow_guidance)
    return plug_and_play, replace(config, opening=(replace(config.stages[0], descent=flow), *config.opening))
