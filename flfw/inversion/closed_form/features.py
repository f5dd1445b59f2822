"""Features below a shared classifier, read off its gradient, where the extractor is private.

    z = W f + b, the classifier's first layer
        dL/dW = d f^T,  dL/db = d with d = dL/dz      hence, for one example, f = (dL/dW)^T dL/db / ||dL/db||^2, exactly

This needs neither labels nor the rest of the classifier. For several examples the gradient is a sum of such products.
The classifier is known, so the features are searched for like data: `feature_victim`. An attacker who knows the
extractor searches for the inputs of the features: `ExtractorVictim`. For a private extractor see
`flfw.inversion.private.surrogate`.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors

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
