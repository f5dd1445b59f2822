"""Stand-ins for a private extractor, learnt from public data, and the way back from its features to inputs.

    surrogate E~    minimises CE(C(E~(x)), y) over public data, under the victim's own classifier C, which is frozen;
    decoder  R      minimises ||R(v(E~(x)) + noise) - x||^2 over the same data, once for each view v;
    then R(v(f)) is a guess, f being the victim's features; kept is the guess x~ for which a(E~(x~)) is nearest a(f).

Two extractors that serve one classifier agree in what it looks at, and differ elsewhere. So a decoder is taught on
features of several surrogates, with noise as large as features vary: it learns to do without what they differ in. How
much they differ depends on the data. Hence two views: v(f) = f, which tells most, and v(f) = a(f) = W f + b, which is
all that the classifier's first layer lets through, and in which the extractors have to agree.
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

from flfw.errors import require
from flfw.nets.inputs import Inputs
from flfw.training.optimisers import Adam

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
    """From a view of features (B, ...) to raw inputs (B, ...) in [0, 1], through two hidden layers.

    Args:
        features: of the surrogates, as it views them, (N, ...), for their mean and deviations.
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
    """Surrogate extractors with the decoders of their features, one for each view.

    Attributes:
        extractors: take network inputs.
        decoders: of features, and of what the classifier's first layer makes of them.
        first: that layer, with whatever stands before it.
        inputs: the input space.
    """

    extractors: tuple[nn.Module, ...]
    decoders: tuple[Decoder, Decoder]
    first: nn.Module
    inputs: Inputs

    @torch.no_grad()
    def guess(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Raw inputs (B, ...) for features (B, ...), and (B,) how far each is from saying the same to the classifier.

        That is the mean squared distance of a(E~(x~)) from a(f), in deviations over the public data; of several
        surrogates the mean.
        """
        seen = self.first(features).flatten(1)
        guesses = [self.decoders[0](features), self.decoders[1](seen)]
        apart = torch.stack([self._apart(x, seen) for x in guesses])
        best = apart.argmin(0)
        rows = torch.arange(len(features), device=best.device)
        return torch.stack(guesses)[best, rows], apart[best, rows]

    def _apart(self, x: Tensor, seen: Tensor) -> Tensor:
        units = self.decoders[1].units
        again = [units(self.first(extractor(self.inputs.normalise(x)))) for extractor in self.extractors]
        return torch.stack([((a - units(seen)) ** 2).mean(1) for a in again]).mean(0)


def first_layer(classifier: nn.Module) -> nn.Module:
    """The classifier up to its first fully connected layer; all of it, where it has none."""
    layers = list(classifier.children())
    ends = [place for place, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    return nn.Sequential(*layers[: ends[0] + 1]) if ends else classifier


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
    decoders: tuple[Decoder, Decoder] | None = None,
) -> StandIns:
    """Surrogates of a private extractor under a known classifier, and their decoders; nothing given is changed.

    Args:
        extractors: with the weights to begin from.
        classifier: the victim's, with its weights.
        public: raw inputs (N, ...) in [0, 1] and labels (N,).
        inputs: the input space.
        teaching: how.
        rng: of the batches and the noise.
        frozen: the extractors are the true one: only the decoders are learnt.
        decoders: to go on from; None: fresh ones, drawn from torch's own generator.
    """
    samples, labels = public
    learnt = [deepcopy(extractor).eval() for extractor in extractors]
    steady = deepcopy(classifier).requires_grad_(False).eval()
    for extractor in [] if frozen else learnt:
        extractor.requires_grad_(True)

        def loss(rows: Tensor, extractor: nn.Module = extractor) -> Tensor:
            return cross_entropy(steady(extractor(inputs.normalise(samples[rows]))), labels[rows])

        _descend(extractor, loss, len(labels), teaching.surrogate_epochs, teaching.surrogate_lr, rng)
    first = first_layer(steady)
    with torch.no_grad():
        seen = [torch.cat([e(inputs.normalise(part)) for part in samples.split(_AT_ONCE)]) for e in learnt]
        views = [torch.stack([view(f).flatten(1) for f in seen]) for view in (nn.Identity(), first)]
    begun = decoders or [None, None]
    found = [
        _decoder(view, samples, inputs, teaching, rng, 0.0 if frozen else teaching.noise, deepcopy(before))
        for view, before in zip(views, begun, strict=True)
    ]
    return StandIns(tuple(learnt), (found[0], found[1]), first, inputs)


def _decoder(
    views: Tensor,
    samples: Tensor,
    inputs: Inputs,
    teaching: Teaching,
    rng: torch.Generator,
    noise: float,
    before: Decoder | None,
) -> Decoder:
    """From views of the samples' features (S, N, d), of several surrogates."""
    found = before or Decoder(views.flatten(0, 1), inputs.shape, teaching.width).to(samples.device)

    def loss(rows: Tensor) -> Tensor:
        which = torch.randint(len(views), (len(rows),), generator=rng).to(rows.device)
        units = found.units(views[which, rows])
        drawn = torch.randn(units.shape, generator=rng).to(units.device)
        return mse_loss(found.layers(units + noise * drawn), samples[rows])

    _descend(found, loss, len(samples), teaching.decoder_epochs, teaching.decoder_lr, rng)
    return found.eval()


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
