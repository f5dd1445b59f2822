"""Fully connected layers and hypernetworks, whose inputs and outputs are read off a gradient without a search.

The generated network is read off the gradient of its hypernetwork. The hypernetwork is h = ReLU(A v + c) with a linear
head theta_k = W_k h + b_k for each generated tensor. So

    dL/db_k = dL/dtheta_k               the bias of a head has the gradient of the generated tensor;
    dL/dW_k = dL/dtheta_k h^T           it has rank one, and gives h;
    dL/dA   = d v^T with d = dL/dc      it has rank one too, and gives the embedding v.

With the hypernetwork an attacker can then generate theta. All of this is exact for one gradient, for any batch and any
loss. For several local steps the embedding is a mean over the steps, weighted by the gradients.

Features below a shared classifier are read off its gradient, where the extractor is private.

    z = W f + b, the classifier's first layer
        dL/dW = d f^T,  dL/db = d with d = dL/dz      hence, for one example, f = (dL/dW)^T dL/db / ||dL/db||^2, exactly

This needs neither labels nor the rest of the classifier. For several examples the gradient is a sum of such products.
The classifier is known, so the features are searched for like data: `feature_victim`. An attacker who knows the
extractor searches for the inputs of the features: `ExtractorVictim`. For a private extractor see
`flfw.inversion.private.surrogate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors


class FirstLayer(NamedTuple):
    """First layer with weights of a network.

    Attributes:
        name: its name in the network.
        kind: name and class, for messages.
        dense: whether it is fully connected and reads the inputs themselves, not features of a frozen body.
    """

    name: str
    kind: str
    dense: bool

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> FirstLayer:
        """Find the first layer of a client's network for inputs of this shape."""
        name, layer = next((n, m) for n, m in model.named_modules() if list(m.parameters(recurse=False)))
        dense = isinstance(layer, nn.Linear) and layer.in_features == prod(shape)
        return cls(name, f"{name} ({type(layer).__name__})", dense)


def linear_inputs(weight_gradient: Tensor, bias_gradient: Tensor, count: int) -> Tensor:
    """Read inputs of a linear layer off its gradient: for one example ``dL/dW_k = dL/db_k x``, for each unit k.

    With several examples each unit holds a mixture of the examples that activate it. The units with the largest bias
    gradients are read off.

    Args:
        weight_gradient: (units, d).
        bias_gradient: (units,).
        count: number of inputs to read off, at most ``units``.

    Returns:
        (count, d).

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0, 3.0])
    >>> linear_inputs(torch.outer(torch.tensor([0.1, -0.5]), x), torch.tensor([0.1, -0.5]), 1)
    tensor([[1., 2., 3.]])
    """
    units = bias_gradient.abs().topk(count).indices
    return weight_gradient[units] / bias_gradient[units, None]


_PURE, _ROUNDING = 1e-3, 1e-6  # residual of a column that only decay moved: over the largest change, over its length
_RANK_ONE = 0.5  # largest share of the trunk's gradient that an embedding may leave unexplained


@dataclass(frozen=True)
class RecoveredNetwork:
    """Network and gradient that were read off.

    Attributes:
        weights: the network's tensors, by the names they have in it.
        gradient: the loss's gradient with respect to them.
        embedding: the embedding that generated the network; None: unknown.
    """

    weights: Tensors
    gradient: Tensors
    embedding: Tensor | None = None


def read(targets: Mapping[str, torch.Size], hypernetwork: Tensors, gradient: Tensors) -> RecoveredNetwork:
    """Read the generated network, its gradient and the embedding off a hypernetwork and its gradient.

    The network is generated from v, which changes less in several steps than h. Where the hidden layer is dead, h = 0,
    v stays unknown, but the network is known: it consists of the heads' biases.

    Args:
        targets: shape of each generated tensor by its name, in the order of the heads.
        hypernetwork: its tensors, ``hypernet.*``, as they were before the gradient was taken.
        gradient: their gradients, by the same names.
    """
    slopes = {name: gradient[f"hypernet.heads.{k}.bias"].view(shape) for k, (name, shape) in enumerate(targets.items())}
    embedding = _embedding(gradient)
    if embedding is None:
        return RecoveredNetwork(_from_hidden(targets, hypernetwork, _hidden(gradient, len(targets))), slopes)
    return RecoveredNetwork(generate(targets, hypernetwork, embedding), slopes, embedding)


def generate(targets: Mapping[str, torch.Size], hypernetwork: Tensors, embedding: Tensor) -> Tensors:
    """Generate the network from an embedding.

    Args:
        targets: see `read`.
        hypernetwork: see `read`.
        embedding: (embedding,).
    """
    trunk, bias = hypernetwork["hypernet.trunk.weight"], hypernetwork["hypernet.trunk.bias"]
    return _from_hidden(targets, hypernetwork, torch.relu(trunk @ embedding + bias))


def _from_hidden(targets: Mapping[str, torch.Size], hypernetwork: Tensors, hidden: Tensor) -> Tensors:
    heads = [[hypernetwork[f"hypernet.heads.{k}.{part}"] for part in ("weight", "bias")] for k in range(len(targets))]
    both = zip(targets.items(), heads, strict=True)
    return {name: (weight @ hidden + bias).view(shape) for (name, shape), (weight, bias) in both}


def _embedding(gradient: Tensors) -> Tensor | None:
    """Compute v (embedding,) from dL/dA = d v^T and d = dL/dc; None where these are 0 or only rounding."""
    trunk, d = (gradient[f"hypernet.trunk.{part}"].double() for part in ("weight", "bias"))
    if not bool(d.any()):
        return None
    embedding = trunk.T @ d / (d @ d)
    explained = (trunk - torch.outer(d, embedding)).norm() <= _RANK_ONE * trunk.norm()
    return embedding.to(gradient["hypernet.trunk.weight"].dtype) if bool(explained) else None


def _hidden(gradient: Tensors, heads: int) -> Tensor:
    """Compute h (hidden,), the least-squares solution of all dL/dW_k = dL/db_k h^T; 0 where all of them are 0."""
    both = [[gradient[f"hypernet.heads.{k}.{part}"].double() for part in ("weight", "bias")] for k in range(heads)]
    length = torch.stack([bias @ bias for _, bias in both]).sum()
    product = torch.stack([weight.T @ bias for weight, bias in both]).sum(0)
    hidden = product / length if bool(length > 0) else torch.zeros_like(product)
    return hidden.to(gradient["hypernet.heads.0.weight"].dtype)


def without_decay(received: Tensors, sent: Tensors) -> Tensors:
    """Compute a hypernetwork's change in several steps of SGD without weight decay: a weighted sum of gradients.

    With momentum or without, decay alone multiplies every weight by one factor. If a hidden unit is 0 for the client,
    its column of the heads' weights has no gradient. There the factor is read off, up to rounding. If no unit is 0 in
    all steps, decay stays in the result.

    Args:
        received: the hypernetwork's tensors, ``hypernet.*``, before the steps.
        sent: the same tensors after the steps.

    Returns:
        By name, at a scale that depends on the learning rate.
    """
    heads = [name for name in received if name.startswith("hypernet.heads.") and name.endswith(".weight")]
    before, after = (torch.cat([tensors[name] for name in heads]).double() for tensors in (received, sent))
    length, product = (before * before).sum(0), (before * after).sum(0)
    left = (after - before * (product / length)).norm(dim=0)
    pure = left <= torch.maximum(_PURE * (after - before).norm(dim=0).max(), _ROUNDING * length.sqrt())
    pure &= length > 0
    factor = product[pure].sum() / length[pure].sum() if bool(pure.any()) else 1.0
    return {name: (factor * value.double() - sent[name].double()).to(value.dtype) for name, value in received.items()}


CLASSIFIER, EXTRACTOR = "classifier", "extractor"
_FEATURES = "features"
_PASSES_ON = (nn.Flatten, nn.Identity, nn.Dropout)
_RANGES: dict[type[nn.Module], tuple[float, float]] = {nn.Sigmoid: (0.0, 1.0), nn.ReLU: (0.0, inf)}
_MIDDLE, _SPREAD = 0.5, 0.25  # units of the search for features without known statistics


def first_linear(model: nn.Module) -> str | None:
    """Return the name of the classifier's first layer if it is fully connected with a bias, else None.

    >>> first_linear(nn.ModuleDict({"classifier": nn.Sequential(nn.Flatten(), nn.Linear(4, 2))}))
    'classifier.1'
    """
    for name, module in model.get_submodule(CLASSIFIER).named_modules(prefix=CLASSIFIER):
        if isinstance(module, nn.Linear):
            return name if module.bias is not None else None
        if not isinstance(module, (nn.Sequential, *_PASSES_ON)):
            return None
    return None


def read_features(weight_gradient: Tensor, bias_gradient: Tensor) -> Tensor:
    """Read the inputs of a fully connected layer off its gradient for one example, from all units at once.

    Args:
        weight_gradient: (units, d).
        bias_gradient: (units,).

    Returns:
        (d,); NaN where the bias has no gradient.

    >>> f, delta = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.0])
    >>> read_features(torch.outer(delta, f), delta)
    tensor([1., 2., 3.])
    """
    weight, d = weight_gradient.double(), bias_gradient.double()
    return (weight.T @ d / (d @ d)).to(weight_gradient.dtype)


def features_shape(model: nn.Module, inputs: InputSpec) -> tuple[int, ...]:
    """Return the shape of one input's features."""
    with torch.no_grad():
        return tuple(model.get_submodule(EXTRACTOR)(_blank(inputs)).shape[1:])


def features_range(model: nn.Module) -> tuple[float, float]:
    """Return the bounds of the features, by the extractor's last layer."""
    *_, last = (module for module in model.get_submodule(EXTRACTOR).modules())
    return _RANGES.get(type(last), (-inf, inf))


def feature_victim(victim: VictimModel) -> PlainVictim:
    """Build a victim whose data are the features: the classifier alone, which is known.

    Features are its raw inputs; the search uses units of `_SPREAD` about `_MIDDLE`.

    Args:
        victim: victim with extractor and classifier; the classifier is known and its gradient sent.
    """
    model, device = victim.model, victim.inputs.mean.device
    inputs = InputSpec(
        features_shape(model, victim.inputs), *(torch.tensor(v, device=device) for v in (_MIDDLE, _SPREAD))
    )
    parts = OrderedDict[str, nn.Module](units=_Units(), classifier=model.get_submodule(CLASSIFIER))
    known = {name: value for name, value in victim.known.items() if name.startswith(f"{CLASSIFIER}.")}
    return PlainVictim(nn.Sequential(parts), known, (f"{CLASSIFIER}.*",), inputs)


@final
class _Units(nn.Module):
    """Layer from the units of a search to those of features."""

    def forward(self, x: Tensor) -> Tensor:
        return x * _SPREAD + _MIDDLE


@final
class ExtractorVictim(VictimModel):
    """Victim that sends the features of its data, through a known extractor.

    The sent tensor is named ``features``, (B, ...). Its coordinates are differences from the features of a blank input,
    so that distances are of order 1.

    Args:
        model: a network with an extractor.
        known: all tensors of the extractor, by their names in the model.
        inputs: the input space.
    """

    def __init__(self, model: nn.Module, known: Tensors, inputs: InputSpec) -> None:
        super().__init__(model, dict(known), (), inputs)
        self.unknown = {}
        self._extractor = model.get_submodule(EXTRACTOR)
        prefix = f"{EXTRACTOR}."
        self._weights = {n.removeprefix(prefix): value for n, value in self.known.items() if n.startswith(prefix)}
        with torch.no_grad():
            self._middle = self._of(_blank(inputs))

    def check(self, sent: Tensors) -> None:
        """Refuse missing features, and features that are not finite."""
        if _FEATURES not in sent or not torch.isfinite(sent[_FEATURES]).all():
            raise InputError("Expected finite features, got NaN, infinity or none: nothing can be searched for.")

    def sent(self, features: Tensor) -> Tensors:
        """Wrap features (B, ...) for `check` and `observed`."""
        return {_FEATURES: features}

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the features, relative to those of a blank input."""
        return {_FEATURES: sent[_FEATURES] - self._middle}, {}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the features of a guess; labels and unknown tensors are ignored."""
        return {_FEATURES: self._of(self.inputs.normalise(x)) - self._middle}

    def _of(self, x: Tensor) -> Tensor:
        return functional_call(self._extractor, self._weights, (x,))


def _blank(inputs: InputSpec) -> Tensor:
    """Build one network input whose normalised values are 0."""
    return torch.zeros(1, *inputs.shape, device=inputs.mean.device)
