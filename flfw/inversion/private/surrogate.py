"""Stand-ins for a client's private part, learnt from public data, and decoders from their features to inputs.

    surrogate E~    minimises CE(C(E~(x)), y) over public data, under the client's own classifier C, which is frozen;
    decoder  R      minimises ||R(v(E~(x)) + noise) - x||^2 over the same data, once for each view v;
    then R(v(f)) is a guess, with f the client's features; the guess x~ with a(E~(x~)) nearest to a(f) is kept.

Two extractors under one classifier agree in the directions that the classifier uses, and differ elsewhere, depending on
the data. So a decoder is trained on features of several surrogates, with noise of the features' size: it learns to
ignore their differences. Hence two views: v(f) = f, with the most information, and v(f) = a(f) = W f + b, the output of
the classifier's first layer, in which the extractors have to agree.

A private classifier has a stand-in learnt upon the client's extractor, which is shared, or read off a hypernetwork. A
private extractor has one learnt under the shared classifier. Gradients of given examples are compared with it. It
agrees with the private part as far as both were taught by similar data, and adds as noise what it cannot know; so a
statistic with it is no evidence of protection.
"""

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from flfw.bounds import BoundedSettings, NonNegativeFloat, PositiveFloat, PositiveInt
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.closed_form.linear import without_decay
from flfw.inversion.compute import mini_batches
from flfw.inversion.private.extractor import HeadlessVictim, named, read_off
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.nets.training.optimisers import Adam, descend

_BATCH, _AT_ONCE = 64, 500
_STILL = 1e-4  # least deviation of a feature; a decoder's inputs are in deviations


@dataclass(frozen=True)
class SurrogateTraining(BoundedSettings):
    """Settings of the training of surrogates and decoders.

    Attributes:
        surrogates: number of extractors, each with its own initialisation, >= 1.
        surrogate_epochs: passes over the public data for each, >= 1.
        surrogate_lr: step size of Adam, > 0.
        decoder_epochs: passes for the decoder, >= 1.
        decoder_lr: step size of Adam, > 0; it falls to 0 along half a cosine.
        noise: noise on the decoder's input features, in deviations, >= 0.
        width: width of its two hidden layers, >= 1.
    """

    surrogates: PositiveInt = 2
    surrogate_epochs: PositiveInt = 8
    surrogate_lr: PositiveFloat = 3e-3
    decoder_epochs: PositiveInt = 12
    decoder_lr: PositiveFloat = 2e-3
    noise: NonNegativeFloat = 1.5
    width: PositiveInt = 512


@final
class Decoder(nn.Module):
    """Network from a view of features (B, ...) to raw inputs (B, ...) in [0, 1], with two hidden layers.

    Args:
        features: the surrogates' features in its view, (N, ...), for their mean and deviations.
        shape: shape of one input.
        width: width of the hidden layers.
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
        """Return features in deviations from their mean, (B, d)."""
        return (features.flatten(1) - self.mean) / self.deviation

    def forward(self, features: Tensor) -> Tensor:
        """Compute the guess."""
        return self.layers(self.units(features))


@final
@dataclass(frozen=True)
class SurrogateModels:
    """Surrogate extractors with the decoders of their features, one for each view.

    Attributes:
        extractors: the surrogates; they take network inputs.
        decoders: decoders of features, and of the classifier's first layer's outputs.
        first: this layer, with the layers before it.
        inputs: the input space.
    """

    extractors: tuple[nn.Module, ...]
    decoders: tuple[Decoder, Decoder]
    first: nn.Module
    inputs: InputSpec

    @torch.no_grad()
    def guess(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Decode features (B, ...) to raw inputs (B, ...), with the distance (B,) of each in the classifier's view.

        This is the mean squared distance of a(E~(x~)) from a(f), in deviations over the public data, averaged over the
        surrogates.
        """
        seen = self.first(features).flatten(1)
        guesses = [self.decoders[0](features), self.decoders[1](seen)]
        distance = torch.stack([self._apart(x, seen) for x in guesses])
        best = distance.argmin(0)
        rows = torch.arange(len(features), device=best.device)
        return torch.stack(guesses)[best, rows], distance[best, rows]

    def _apart(self, x: Tensor, seen: Tensor) -> Tensor:
        units = self.decoders[1].units
        again = [units(self.first(extractor(self.inputs.normalise(x)))) for extractor in self.extractors]
        return torch.stack([((a - units(seen)) ** 2).mean(1) for a in again]).mean(0)


def first_layer(classifier: nn.Module) -> nn.Module:
    """Return the classifier up to its first fully connected layer; all of it, where it has none."""
    layers = list(classifier.children())
    ends = [index for index, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    return nn.Sequential(*layers[: ends[0] + 1]) if ends else classifier


def restarted(extractor: nn.Module) -> nn.Module:
    """Return a copy with new weights, drawn by each layer's initialiser from torch's global generator."""
    extractor_copy = deepcopy(extractor)
    for module in extractor_copy.modules():
        if isinstance(reset := getattr(module, "reset_parameters", None), Callable):
            reset()
    return extractor_copy


def learn(
    extractors: Sequence[nn.Module],
    classifier: nn.Module,
    public: tuple[Tensor, Tensor],
    inputs: InputSpec,
    training: SurrogateTraining,
    rng: torch.Generator,
    *,
    frozen: bool = False,
    decoders: tuple[Decoder, Decoder] | None = None,
) -> SurrogateModels:
    """Train surrogates of a private extractor under a known classifier, and their decoders, on copies.

    Args:
        extractors: extractors with their initial weights.
        classifier: the victim's, with its weights.
        public: raw inputs (N, ...) in [0, 1] and labels (N,).
        inputs: the input space.
        training: settings of the training.
        rng: generator of the batches and the noise.
        frozen: the extractors are the true one: only the decoders are trained.
        decoders: decoders to continue from; None: new ones, drawn from torch's global generator.
    """
    samples = public[0]
    if frozen:
        learnt = [deepcopy(extractor).eval() for extractor in extractors]
    else:
        learnt = [trained_under(classifier, one, public, inputs, training, rng) for one in extractors]
    first = first_layer(deepcopy(classifier).requires_grad_(False).eval())
    with torch.no_grad():
        seen = [torch.cat([e(inputs.normalise(part)) for part in samples.split(_AT_ONCE)]) for e in learnt]
        views = [torch.stack([view(f).flatten(1) for f in seen]) for view in (nn.Identity(), first)]
    trained = [
        _decoder(view, samples, inputs, training, rng, 0.0 if frozen else training.noise, deepcopy(before))
        for view, before in zip(views, decoders or [None, None], strict=True)
    ]
    return SurrogateModels(tuple(learnt), (trained[0], trained[1]), first, inputs)


def trained_under(
    classifier: nn.Module,
    extractor: nn.Module,
    data: tuple[Tensor, Tensor],
    inputs: InputSpec,
    training: SurrogateTraining,
    rng: torch.Generator,
) -> nn.Module:
    """Train a copy of an extractor so that a frozen classifier classifies its features.

    Args:
        classifier: with its weights; it is left as it is.
        extractor: with its initial weights.
        data: raw inputs (N, ...) in [0, 1] and labels (N,).
        inputs: the input space.
        training: epochs and step size.
        rng: generator of the batches.
    """
    samples, labels = data
    steady = deepcopy(classifier).requires_grad_(False).eval()
    learnt = deepcopy(extractor).requires_grad_(True).eval()

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(steady(learnt(inputs.normalise(samples[rows]))), labels[rows])

    _descend(learnt, loss, len(labels), training.surrogate_epochs, training.surrogate_lr, rng)
    return learnt


def trained_upon(
    features: Tensor, labels: Tensor, classifier: nn.Module, training: SurrogateTraining, rng: torch.Generator
) -> nn.Module:
    """Train a copy of a classifier on the features of an extractor that stays as it is.

    Args:
        features: (N, ...) of public examples.
        labels: (N,) their classes.
        classifier: with its initial weights.
        training: epochs and step size, those of surrogates.
        rng: generator of the batches.
    """
    learnt = deepcopy(classifier).requires_grad_(True).eval()

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(learnt(features[rows]), labels[rows])

    _descend(learnt, loss, len(labels), training.surrogate_epochs, training.surrogate_lr, rng)
    return learnt


def _decoder(
    views: Tensor,
    samples: Tensor,
    inputs: InputSpec,
    training: SurrogateTraining,
    rng: torch.Generator,
    noise: float,
    before: Decoder | None,
) -> Decoder:
    """Train a decoder from views (S, N, d) of the samples' features, of S surrogates."""
    decoder = before or Decoder(views.flatten(0, 1), inputs.shape, training.width).to(samples.device)

    def loss(rows: Tensor) -> Tensor:
        which = torch.randint(len(views), (len(rows),), generator=rng).to(rows.device)
        units = decoder.units(views[which, rows])
        drawn = torch.randn(units.shape, generator=rng).to(units.device)
        return mse_loss(decoder.layers(units + noise * drawn), samples[rows])

    _descend(decoder, loss, len(samples), training.decoder_epochs, training.decoder_lr, rng)
    return decoder.eval()


def _descend(
    module: nn.Module, loss: Callable[[Tensor], Tensor], examples: int, epochs: int, lr: float, rng: torch.Generator
) -> None:
    """Run Adam on mini-batches."""
    device = next(module.parameters()).device
    losses = (loss(rows.to(device)) for rows in mini_batches(examples, _BATCH, epochs, rng))
    descend(module, losses, Adam(lr), epochs * -(-examples // _BATCH))


_EXTRACTOR, _CLASSIFIER = "extractor", "classifier"
_CLASSIFIERS_AT_ONCE = 500


@final
@dataclass(frozen=True)
class StoodIn:
    """Client with a stand-in for its private part.

    Attributes:
        victim: model of the client.
        update: its mean gradient in the coordinates of the victim.
        constants: constants of the victim.
        unknown: values of its unknown tensors.
    """

    victim: VictimModel
    update: Tensors
    constants: Tensors
    unknown: Tensors


def replaceable(model: nn.Module, private: Collection[str]) -> str:
    """Return the part of a model that a stand-in can replace: ``classifier`` or ``extractor``; empty: neither.

    Args:
        model: the method's model.
        private: names of the tensors that clients keep.
    """
    parts = dict(model.named_children())
    if not (_EXTRACTOR in parts and _CLASSIFIER in parts):
        return ""
    held = {
        part: [f"{part}.{name}" in private for name, _ in parts[part].named_parameters()]
        for part in (_EXTRACTOR, _CLASSIFIER)
    }
    if all(held[_CLASSIFIER]) and not any(held[_EXTRACTOR]):
        return _CLASSIFIER
    full = bool(held[_EXTRACTOR]) and all(held[_EXTRACTOR]) and not any(held[_CLASSIFIER])
    return _EXTRACTOR if full else ""


def stood_in(
    victim: VictimModel,
    part: str,
    sent: Tensors,
    scale: float,
    public: tuple[Tensor, Tensor],
    training: SurrogateTraining,
    rng: torch.Generator,
) -> StoodIn:
    """Build the client with a stand-in.

    Args:
        victim: model of the client, with the tensors that it received.
        part: from `replaceable`.
        sent: tensors that the client sent after its steps.
        scale: learning rate times the number of steps.
        public: raw inputs (N, ...) and labels (N,) of no client.
        training: epochs and step size of the stand-in.
        rng: generator of its training.
    """
    if isinstance(victim.model, GeneratedNet):
        return _read(victim, victim.model, sent, scale, public, training, rng)
    moved = {name: (victim.known[name] - value) / scale for name, value in sent.items() if name in victim.known}
    update, constants = victim.observed(moved)
    model = deepcopy(victim.model)
    model.load_state_dict({**victim.known, **victim.unknown}, strict=False)
    extractor, classifier = (model.get_submodule(name) for name in (_EXTRACTOR, _CLASSIFIER))
    if part == _CLASSIFIER:
        features = _in_parts(extractor, victim.inputs.normalise(public[0]))
        learnt = trained_upon(features, public[1], classifier, training, rng)
    else:
        learnt = trained_under(classifier, extractor, public, victim.inputs, training, rng)
    values = {f"{part}.{name}": value.detach() for name, value in learnt.state_dict().items()}
    unknown = {name: values.get(name, value) for name, value in victim.unknown.items()}
    return StoodIn(victim, update, constants, unknown)


def _read(
    victim: VictimModel,
    model: GeneratedNet,
    sent: Tensors,
    scale: float,
    public: tuple[Tensor, Tensor],
    training: SurrogateTraining,
    rng: torch.Generator,
) -> StoodIn:
    """Read the generated extractor and its gradient off a hypernetwork's change, and learn a classifier upon it."""
    received = {name: victim.known[name] for name in sent if name in victim.known}
    change = without_decay(received, {name: sent[name] for name in received})
    reading = read_off(victim, {name: value / scale for name, value in change.items()})
    headless = HeadlessVictim(model, victim.inputs)
    update, constants = headless.observed(named(replace(reading, embedding=None)))

    def extract(x: Tensor) -> Tensor:
        return model.features(x, reading.weights)

    features = _in_parts(extract, victim.inputs.normalise(public[0]))
    learnt = trained_upon(features, public[1], model.classifier, training, rng)
    values = {f"{_CLASSIFIER}.{name}": value.detach() for name, value in learnt.state_dict().items()}
    return StoodIn(headless, update, constants, {**headless.unknown, **values})


@torch.no_grad()
def _in_parts(extract: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([extract(part) for part in x.split(_CLASSIFIERS_AT_ONCE)])
