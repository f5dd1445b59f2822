"""Victims whose extractor and its gradient were read off; the classifier and the data remain unknown.

reading = read_off(known_model, gradient)
victim = SurrogateVictim(extractor_of(known_model), inputs, batch)
invert(victim, [Target(victim.sent(reading, rng), ...)], recipe)

The search for data by their features, through a known extractor, is first under a smooth prior, then with almost none.

One client model's gradient comes together with known statistics of its features, in one objective.

    ||grad~ - grad||^2 + alpha sum_c ( (mean(E(x)^c) - mu^c)^2 + (var(E(x)^c) - sigma^c)^2 )

This is a squared distance of two records that hold the gradient and, times sqrt(alpha), the statistics. So only the
client model differs from any other search.

The embedding behind a hypernetwork's gradient is searched for together with the generated network's gradient. This
is the first stage of the attack that Guo et al. (AAAI 2025) design for their own method. Embedding and generated
gradient are free variables; the hypernetwork's gradient for them has to match the observation.
`flfw.inversion.closed_form.linear` has the closed form of both.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from math import sqrt
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value
from torch.nn.functional import cross_entropy

from flfw.errors import InputError
from flfw.inversion.client_models.victim import GeneratedVictim, PlainVictim, VictimModel
from flfw.inversion.closed_form.linear import EXTRACTOR, ExtractorVictim, RecoveredNetwork, generate, read
from flfw.inversion.closed_form.rectified import directions, separate
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evaluation import stacked
from flfw.inversion.graph import Graph
from flfw.inversion.matching import cosine_distance, relative_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, Stage, invert
from flfw.inversion.search_optimisers import AdamSearch, SearchOptimiser
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors

_EXTRACTOR, _CLASSIFIER, _WEIGHTS, _GRADIENT = "extractor.", "classifier.", "weights.", "gradient."
_COTANGENTS, _FREE, _SIZE = "cotangents", "directions", "size"
_OFF = 0.1  # scale of a search's correction of separated cotangents, over their length
_SMALL = 0.1  # size of the start of a search for all of delta: over the gradient's length and the root of the outputs


def extractor_of(model: nn.Module) -> nn.Module:
    """Return the extractor of a `GeneratedNet` or a `Net`, as architecture only."""
    return model.architecture() if isinstance(model, GeneratedNet) else model.get_submodule("extractor")


def read_off(victim: VictimModel, gradient: Tensors) -> RecoveredNetwork:
    """Read a client's extractor and its gradient: in closed form where it is generated, else from the shared tensors.

    Args:
        victim: victim with a `GeneratedNet` and a known hypernetwork, or with a `Net` and a known extractor.
        gradient: gradient of the shared tensors, by name.
    """
    if isinstance(victim.model, GeneratedNet):
        return read(victim.model.hypernet.targets, victim.known, gradient)
    extractor = extractor_of(victim.model)
    tensors = {name: victim.known.get(_EXTRACTOR + name) for name in extractor.state_dict()}
    weights = {name: value for name, value in tensors.items() if value is not None}
    return RecoveredNetwork(weights, {name: gradient[_EXTRACTOR + name] for name, _ in extractor.named_parameters()})


class ReadVictim(VictimModel, ABC):
    """Victim of an extractor that was read off, so that its weights differ from client to client.

    Its observation is a `RecoveredNetwork` with names (`named`). The coordinates are the extractor's parameters.
    Buffers, such as the running statistics of BatchNorm, come from the recovered network where it has them.

    Args:
        model: see `VictimModel`.
        known: see `VictimModel`.
        names: names of the extractor's tensors.
        inputs: the input space.
    """

    def __init__(self, model: nn.Module, known: Tensors, names: tuple[str, ...], inputs: InputSpec) -> None:
        super().__init__(model, known, (), inputs)
        self._names = names
        self._buffers = tuple(name for name, _ in model.named_buffers())

    def check(self, sent: Tensors) -> None:
        """Refuse an incomplete reading, and one that is not finite; see `VictimModel.check`."""
        for name in (part + name for name in self._names for part in (_WEIGHTS, _GRADIENT)):
            if name not in sent:
                raise InputError(f"Expected {name} of the extractor, got {', '.join(sent) or 'nothing'}.")
            if not torch.isfinite(sent[name]).all():
                raise InputError(f"Expected finite numbers in {name}, got NaN or infinity: no search is possible.")

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the extractor's gradient; its weights, and the rest of the reading, are constants."""
        gradient = {name: sent[_GRADIENT + name] for name in self._names}
        return gradient, {name: value for name, value in sent.items() if not name.startswith(_GRADIENT)}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the gradient by automatic differentiation in the extractor."""
        weights = {name: constants[_WEIGHTS + name] for name in self._names}
        buffers = {name: constants[_WEIGHTS + name] for name in self._buffers if _WEIGHTS + name in constants}

        def loss(weights: Tensors) -> Tensor:
            return self.loss({**buffers, **weights}, self.inputs.normalise(x), y, unknown, constants)

        return grad(loss)(weights)

    @abstractmethod
    def loss(self, weights: Tensors, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensor:
        """Compute a loss whose gradient is the client's, for the true inputs and unknown tensors.

        Args:
            weights: weights and buffers of the extractor.
            x: network inputs (B, ...).
            y: labels (B,).
            unknown: see `VictimModel.gradient`.
            constants: see `VictimModel.gradient`.
        """


@final
class SurrogateVictim(ReadVictim):
    """Extractor with a loss without classifier and labels: the sum over examples of <delta_b, z(x_b)>.

    z are the outputs of the extractor's last layer with weights, and delta_b is the derivative of the client's loss by
    them. So this loss has the client's gradient at the client's data. For one example, delta is the gradient of a fully
    connected last layer's bias. For several, `flfw.inversion.closed_form.rectified` separates them; where it fails,
    they are known up to a mixing, (B, B), that is searched for with the data. For any other last layer, such as a
    convolution, whose bias sums over positions, all of delta is searched for.

    Args:
        extractor: the client's extractor; its current weights are not used.
        inputs: the input space.
        batch: number of examples.

    Attributes:
        last: the name of the extractor's last layer with weights.
        linear: whether this layer is fully connected, with a bias.
    """

    def __init__(self, extractor: nn.Module, inputs: InputSpec, batch: int) -> None:
        layers, self.last = up_to_last_layer(extractor)
        weights = {name: value.detach() for name, value in layers.named_parameters()}
        super().__init__(layers, weights, tuple(weights), inputs)
        with torch.no_grad():
            sizes = deepcopy(layers).to("meta")  # whatever device its parts are on
            self._width = sizes(torch.zeros(1, *inputs.shape, device="meta")).numel()
        self.linear = ends_fully_connected(extractor)
        self._batch = batch
        if not self.linear:
            self.unknown = {_COTANGENTS: torch.zeros(batch, self._width, device=inputs.mean.device)}
        elif batch > 1:
            self.unknown = {_COTANGENTS: torch.zeros(batch, batch, device=inputs.mean.device)}

    def sent(self, reading: RecoveredNetwork, rng: torch.Generator) -> Tensors:
        """Name a reading's tensors, and add its information on the cotangents.

        Args:
            reading: reading of this extractor.
            rng: generator of the separation of several examples, and of the start of a search for all cotangents.
        """
        weight, bias = f"{self.last}.weight", f"{self.last}.bias"
        if not self.linear:
            length = torch.stack([value.norm() for value in reading.gradient.values()]).norm()
            start = torch.randn((self._batch, self._width), generator=rng).to(length)
            return {**named(reading), _SIZE: _SMALL * length / self._width**0.5, _COTANGENTS: start}
        of_weight, of_bias = reading.gradient[weight], reading.gradient[bias]
        if self._batch == 1:
            return {**named(reading), _COTANGENTS: of_bias[None]}
        basis = directions(of_weight, self._batch).float()
        separation = separate(of_weight, of_bias, reading.weights[weight], reading.weights[bias], self._batch, rng)
        if separation is not None:
            cotangents, size = separation.outputs, _OFF * separation.outputs.norm(dim=1).mean()
        else:
            square = of_bias @ of_bias
            inputs = (of_weight.T @ of_bias / square).norm() if bool(square) else of_weight.shape[1] ** 0.5
            cotangents = (of_bias / self._batch).repeat(self._batch, 1)
            size = of_weight.norm() / inputs * self._batch**-0.5
        free = torch.cat([size * basis, basis.new_zeros(self._batch - len(basis), len(of_bias))])
        return {**named(reading), _COTANGENTS: cotangents, _FREE: free}

    def features(self, simulated: Tensors, observed: Tensors) -> Tensor:
        """Compute the cosine distance plus the relative squared distance in the last layer's weight.

        The gradient there is a sum of delta_b a_b^T, so this measures the distance of the layer's inputs a.
        """
        weight = f"{self.last}.weight"
        return cosine_distance(simulated, observed) + relative_distance(simulated, {weight: observed[weight]})

    def loss(self, weights: Tensors, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensor:
        """Compute the surrogate loss; labels are not used."""
        outputs = functional_call(self.model, weights, (x,)).flatten(1)
        return (outputs * self._cotangents(unknown, constants)).sum()

    def _cotangents(self, unknown: Tensors, constants: Tensors) -> Tensor:
        """Compute the derivatives at the outputs, (B, n)."""
        if not self.linear:
            return constants[_SIZE] * (constants[_COTANGENTS] + unknown[_COTANGENTS])
        if self._batch == 1:
            return constants[_COTANGENTS]
        return constants[_COTANGENTS] + unknown[_COTANGENTS] @ constants[_FREE]


@final
class HeadlessVictim(ReadVictim):
    """Extractor below an unknown classifier, which is searched for together with the data, given the labels.

    Args:
        model: a freshly initialised `GeneratedNet`, whose classifier is the attacker's first guess.
        inputs: the input space.
    """

    def __init__(self, model: GeneratedNet, inputs: InputSpec) -> None:
        settled = {name: value for name, value in model.state_dict().items() if not name.startswith(_CLASSIFIER)}
        super().__init__(model, settled, tuple(model.hypernet.targets), inputs)
        self._net = model

    def loss(self, weights: Tensors, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensor:
        """Compute the client's loss."""
        classifier = {name.removeprefix(_CLASSIFIER): value for name, value in unknown.items()}
        return cross_entropy(functional_call(self._net.classifier, classifier, (self._net.features(x, weights),)), y)


def named(reading: RecoveredNetwork) -> Tensors:
    """Name the tensors of a reading as a `ReadVictim` expects them."""
    weights = {_WEIGHTS + name: value for name, value in reading.weights.items()}
    return weights | {_GRADIENT + name: value for name, value in reading.gradient.items()}


def up_to_last_layer(extractor: nn.Module) -> tuple[nn.Module, str]:
    """Return the extractor up to its last layer with weights, and that layer's name.

    An extractor that is no `nn.Sequential` is returned whole, with an empty name.

    >>> layers, name = up_to_last_layer(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()))
    >>> len(layers), name
    (2, '1')
    """
    if not isinstance(extractor, nn.Sequential):
        return extractor, ""
    places = [(at, name) for at, (name, layer) in enumerate(extractor.named_children()) if list(layer.parameters())]
    last, name = places[-1]
    return extractor[: last + 1], name


def ends_fully_connected(extractor: nn.Module) -> bool:
    """Return whether the last layer with weights is fully connected with a bias, after a flattening of each example.

    >>> ends_fully_connected(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.ReLU()))
    True
    >>> ends_fully_connected(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()))
    False
    """
    layers = up_to_last_layer(extractor)[0]
    if not isinstance(layers, nn.Sequential) or not isinstance(layers[-1], nn.Linear):
        return False
    flat = [layer for layer in layers if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)]
    return layers[-1].bias is not None and bool(flat)


_LR, _FALLING = 0.1, 1000.0  # step size in deviations of the normalised input; first weight of the prior over the last
_SMOOTH = 0.4  # share of the iterations under the smooth prior


def side_by_side(victims: Sequence[ExtractorVictim]) -> ExtractorVictim:
    """Build a victim whose features are those of several extractors, one after another in each row (B, ...).

    A client's weights move between rounds, so each round's features tell something else about the same data.
    """
    parts = [deepcopy(victim.model.get_submodule(EXTRACTOR)) for victim in victims]  # a shared layer has one value only
    known = {}
    for i, victim in enumerate(victims):
        for name, value in victim.known.items():
            part, _, rest = name.partition(".")
            known |= {f"{EXTRACTOR}.parts.{i}.{rest}": value} if part == EXTRACTOR else {}
    return ExtractorVictim(nn.ModuleDict({EXTRACTOR: _SideBySide(parts)}), known, victims[0].inputs)


@final
class _SideBySide(nn.Module):
    """Several extractors of the same inputs."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x).flatten(1) for part in self.parts], 1)


def by_features(
    victim: ExtractorVictim,
    features: Sequence[Tensor],
    rngs: Sequence[torch.Generator],
    box: tuple[float, float],
    *,
    iterations: int,
    tv: float,
    compute: ComputeLimits,
) -> list[SearchResult]:
    """Search for the data of several messages.

    Args:
        victim: the extractor.
        features: features (B, ...) of each message.
        rngs: a generator for each.
        box: range of raw inputs.
        iterations: steps of Adam, >= 1.
        tv: first weight of the total variation, >= 0; it falls to a thousandth.
        compute: limits of memory, and compilation.
    """
    unused = torch.zeros(len(features[0]), dtype=torch.int64, device=victim.inputs.mean.device)
    targets = [SearchTarget(victim.sent(f), unused, rng) for f, rng in zip(features, rngs, strict=True)]
    prior, opening = weighted((tv / _FALLING, total_variation)), max(1, round(_SMOOTH * iterations))
    smooth = Stage(relative_distance, AdamSearch(opening, _LR, schedule="cosine"), prior, _FALLING)
    last = AdamSearch(max(1, iterations - opening), _LR / 2, schedule="cosine")
    recipe = SearchConfig(relative_distance, last, prior, start=_blank, opening=(smooth,))
    return invert(victim, targets, recipe, box=box, compute=compute)


def _blank(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Return the start of the search: the mean of all inputs."""
    return torch.zeros(shape)


_MEAN, _VARIANCE = "statistics.mean", "statistics.variance"


def channel_statistics(features: Tensor) -> Tensors:
    """Compute mean and variance of each channel of features (N, C, ...), over examples and places, (C,) each.

    >>> {n: v.tolist() for n, v in channel_statistics(torch.tensor([[[1.0, 3.0]]])).items()}
    {'statistics.mean': [2.0], 'statistics.variance': [1.0]}
    """
    by_channel = features.flatten(2).transpose(0, 1).flatten(1) if features.dim() > 2 else features.T
    return {_MEAN: by_channel.mean(1), _VARIANCE: by_channel.var(1, correction=0)}


@final
class StatisticsVictim(VictimModel):
    """Victim with known statistics of its features, and an extractor that stays unchanged.

    The observation holds the statistics beside the gradient, as `channel_statistics` names them. Without them, their
    term is left out.

    Args:
        plain: the client; all of its tensors count as known, with the attacker's values for the private ones.
        alpha: weight of the statistics, >= 0.
    """

    def __init__(self, plain: VictimModel, alpha: float) -> None:
        super().__init__(plain.model, {**plain.unknown, **plain.known}, plain.shared, plain.inputs)
        self._plain = PlainVictim(plain.model, {**self.known, **self.unknown}, plain.shared, plain.inputs)
        self._extractor = plain.model.get_submodule(EXTRACTOR)
        prefix = f"{EXTRACTOR}."
        self._weights = {n.removeprefix(prefix): v for n, v in self.known.items() if n.startswith(prefix)}
        self._root = sqrt(alpha)
        self.unknown = {}

    def check(self, sent: Tensors) -> None:
        """Refuse an observation of another network, or one that is not finite."""
        super().check(sent)
        for name in (_MEAN, _VARIANCE):
            if name in sent and not bool(torch.isfinite(sent[name]).all()):
                raise InputError(f"Expected finite numbers in {name}, got NaN or infinity: no search is possible.")

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the sent gradient and, where they are known, the statistics times the root of their weight."""
        observed, constants = self._plain.observed(sent)
        return {**observed, **{n: self._root * sent[n] for n in (_MEAN, _VARIANCE) if n in sent}}, constants

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the gradient of a guess, and the statistics of its features."""
        features = functional_call(self._extractor, self._weights, (self.inputs.normalise(x),))
        beside = {name: self._root * value for name, value in channel_statistics(features).items()}
        return {**self._plain.gradient(x, y, {}, constants), **beside}


def search(
    victim: GeneratedVictim,
    batch: Sequence[Tensors],
    rngs: Sequence[torch.Generator],
    descent: SearchOptimiser,
    compute: ComputeLimits,
) -> list[RecoveredNetwork]:
    """Search for a reading of each gradient, all at once.

    The squared distance is minimised, relative to the observation's squared length. The generated gradient starts from
    noise of the observation's size, the embedding from that of the attacker's model.

    Args:
        victim: model of the client.
        batch: the observations, each by name.
        rngs: a generator for each.
        descent: the optimiser.
        compute: limits of memory, and compilation.
    """
    observed, constants = zip(*(victim.observed(sent) for sent in batch), strict=True)
    sizes = [seen["heads.bias"].square().mean().sqrt() for seen in observed]
    given = {"observed": stacked(observed), "constants": stacked(constants), "size": torch.stack(sizes)}
    start = torch.stack(
        [torch.randn(len(seen["heads.bias"]), generator=g) for seen, g in zip(observed, rngs, strict=True)]
    )
    embedding = victim.unknown["embedding"].expand(len(batch), -1)
    # A descent calls the first of its variables x; here it is the embedding.
    guess = {"x": embedding, "gradient": start.to(embedding.device)}

    def distance(guess: Tensors, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
        trial = victim.hypernetwork_gradient(given["size"] * guess["gradient"], guess["x"], given["constants"]["basis"])
        left = relative_distance(trial, given["observed"])
        return left, left

    graph = Graph(grad_and_value(distance, has_aux=True), (_first(guess), _first(given)), compute)

    def evaluate(guess: Tensors) -> tuple[Tensors, Tensor, Tensor]:
        gradients, (objective, matched) = graph(guess, given)
        return gradients, objective, matched

    best = descent.descend(evaluate, guess, None, 0.0).guess
    return [_reading(victim, best["x"][i], size * best["gradient"][i]) for i, size in enumerate(sizes)]


def _first(records: Any) -> Any:
    return {n: _first(value) if isinstance(value, dict) else value[0] for n, value in records.items()}


def _reading(victim: GeneratedVictim, embedding: Tensor, gradient: Tensor) -> RecoveredNetwork:
    targets = victim.targets
    parts = gradient.split([shape.numel() for shape in targets.values()])
    gradients = {name: part.view(shape) for (name, shape), part in zip(targets.items(), parts, strict=True)}
    return RecoveredNetwork(generate(targets, victim.known, embedding), gradients, embedding)
