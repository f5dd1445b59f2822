"""Stand-ins for a private extractor, learnt from public data, and the way back from its features to inputs.

    surrogate E~    minimises CE(C(E~(x)), y) over public data, under the victim's own classifier C, which is frozen;
    decoder  R      minimises ||R(E~(x) + noise) - x||^2 over the same data;
    then R(f) is the guess, f being the victim's features.

Two extractors that serve one classifier agree in what it looks at, and differ elsewhere. So the decoder is taught on
features of several surrogates, with noise as large as features vary: it learns to do without what they differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import cos, pi
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from flfw.experiment import require
from flfw.inversion.victim import Inputs
from flfw.optimisers import Adam

_BATCH, _AT_ONCE = 64, 500
_STILL = 1e-4  # the least deviation of a feature, in whose units a decoder sees it
_BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Teaching:
    """How stand-ins are learnt.

    Attributes:
        surrogates: extractors, each from a start of its own, >= 1.
        surrogate_epochs: passes over the public data for each, >= 1.
        surrogate_lr: of Adam, > 0.
        decoder_epochs: the same for the decoder.
        decoder_lr: of Adam, > 0; it falls to 0 along half a cosine.
        noise: on the features it sees, in deviations, >= 0.
        width: of its two hidden layers, >= 1.
    """

    surrogates: int = 2
    surrogate_epochs: int = 8
    surrogate_lr: float = 3e-3
    decoder_epochs: int = 12
    decoder_lr: float = 2e-3
    noise: float = 1.5
    width: int = 512

    def __post_init__(self) -> None:
        for name in ("surrogates", "surrogate_epochs", "decoder_epochs", "width"):
            require(getattr(self, name) >= 1, f"{name} >= 1", **{name: getattr(self, name)})
        require(self.surrogate_lr > 0 and self.decoder_lr > 0, "step sizes > 0", surrogate_lr=self.surrogate_lr)
        require(self.noise >= 0, "noise >= 0", noise=self.noise)


@final
class Decoder(nn.Module):
    """From features (B, ...) to raw inputs (B, ...) in [0, 1], through two hidden layers.

    Args:
        features: of the surrogates, (N, ...), for their mean and deviations.
        shape: of one input.
        width: of the hidden layers.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: Tensor, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        flat = features.flatten(1)
        self.register_buffer("mean", flat.mean(0))
        self.register_buffer("deviation", flat.std(0) + _STILL)
        pixels = torch.Size(shape).numel()
        layers = [nn.Linear(flat.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, pixels), nn.Sigmoid(), nn.Unflatten(1, shape))

    def units(self, features: Tensor) -> Tensor:
        """Features in deviations from their mean, (B, d)."""
        return (features.flatten(1) - self.mean) / self.deviation

    def forward(self, features: Tensor) -> Tensor:
        """The guess."""
        return self.layers(self.units(features))


@final
@dataclass(frozen=True)
class StandIns:
    """Surrogate extractors with the decoder of their features."""

    extractors: tuple[nn.Module, ...]
    decoder: Decoder


def restarted(extractor: nn.Module) -> nn.Module:
    """The same architecture with other weights, drawn by each layer's own initialiser from torch's own generator."""
    found = deepcopy(extractor)
    for module in found.modules():
        if isinstance(reset := getattr(module, "reset_parameters", None), Callable):
            reset()
    return found


def learn(
    extractors: Sequence[nn.Module],
    classifier: nn.Module,
    public: tuple[Tensor, Tensor],
    inputs: Inputs,
    teaching: Teaching,
    rng: torch.Generator,
    *,
    frozen: bool = False,
    decoder: Decoder | None = None,
) -> StandIns:
    """Surrogates of a private extractor under a known classifier, and their decoder; nothing that is given is changed.

    Args:
        extractors: with the weights to begin from.
        classifier: the victim's, with its weights.
        public: raw inputs (N, ...) in [0, 1] and labels (N,).
        inputs: the input space.
        teaching: how.
        rng: of the batches and the noise.
        frozen: the extractors are the true one: only the decoder is learnt.
        decoder: to go on from; None: a fresh one, drawn from torch's own generator.
    """
    samples, labels = public
    learnt = [deepcopy(extractor).eval() for extractor in extractors]
    steady = deepcopy(classifier).requires_grad_(False).eval()
    for extractor in [] if frozen else learnt:
        extractor.requires_grad_(True)

        def loss(rows: Tensor, extractor: nn.Module = extractor) -> Tensor:
            return cross_entropy(steady(extractor(inputs.normalise(samples[rows]))), labels[rows])

        _descend(extractor, loss, len(labels), teaching.surrogate_epochs, teaching.surrogate_lr, rng)
    with torch.no_grad():
        seen = [torch.cat([e(inputs.normalise(part)) for part in samples.split(_AT_ONCE)]) for e in learnt]
        of_each = torch.stack([features.flatten(1) for features in seen])
    found = deepcopy(decoder) or Decoder(of_each.flatten(0, 1), inputs.shape, teaching.width).to(samples.device)

    def loss_of_decoder(rows: Tensor) -> Tensor:
        which = torch.randint(len(learnt), (len(rows),), generator=rng).to(rows.device)
        units = found.units(of_each[which, rows])
        drawn = torch.randn(units.shape, generator=rng).to(units.device)
        return mse_loss(found.layers(units + (0.0 if frozen else teaching.noise) * drawn), samples[rows])

    _descend(found, loss_of_decoder, len(labels), teaching.decoder_epochs, teaching.decoder_lr, rng)
    return StandIns(tuple(learnt), found.eval())


def _descend(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    examples: int,
    epochs: int,
    lr: float,
    rng: torch.Generator,
) -> None:
    """Adam on mini-batches, with a step size that falls to 0 along half a cosine."""
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    adam, device = Adam(lr, betas=_BETAS), next(module.parameters()).device
    steps = epochs * -(-examples // _BATCH)
    for done, rows in enumerate(_batches(examples, epochs, rng)):
        adam.lr = lr * (1 + cos(pi * done / steps)) / 2
        found = torch.autograd.grad(loss(rows.to(device)), list(parameters.values()))
        adam.step(parameters, dict(zip(parameters, found, strict=True)))


def _batches(examples: int, epochs: int, rng: torch.Generator) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.randperm(examples, generator=rng).split(_BATCH)
