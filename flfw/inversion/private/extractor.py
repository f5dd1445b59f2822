"""Victims whose extractor and its gradient were read off; the classifier and the data remain unknown.

reading = read_off(known_model, gradient)
victim = SurrogateVictim(extractor_of(known_model), inputs, batch)
invert(victim, [Target(victim.sent(reading, rng), ...)], recipe)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from flfw.errors import InputError
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.closed_form.rectified import directions, separate
from flfw.inversion.closed_form.shared_gradient import Reading, read
from flfw.inversion.matching import cosine_distance, relative_distance
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


def read_off(victim: VictimModel, gradient: Tensors) -> Reading:
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
    return Reading(weights, {name: gradient[_EXTRACTOR + name] for name, _ in extractor.named_parameters()})


class ReadVictim(VictimModel, ABC):
    """Victim of an extractor that was read off, so that its weights differ from client to client.

    Its observation is a `Reading` with names: `named`. The coordinates are the extractor's parameters. Buffers, such as
    the running statistics of BatchNorm, come from the reading where it has them.

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
                raise InputError(
                    f"Expected finite numbers in {name}, got NaN or infinity: nothing can be searched for."
                )

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

    def sent(self, reading: Reading, rng: torch.Generator) -> Tensors:
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


def named(reading: Reading) -> Tensors:
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
