"""Suppression: a malicious server under which all clients of a sum but one send zeros, so that the sum is one update.

Paper       Pasquini, Francati and Ateniese, "Eluding Secure Aggregation in Federated Learning via Model Inconsistency",
            ACM CCS 2022, arXiv 2111.07380: gradient suppression.
Needs       ``--malicious-server suppression --vantage aggregate`` beside an attack that reads one update, such as
            ``--attack analytic``; a network whose features come out of a ReLU behind a layer with a bias, and whose
            classifier is one linear layer (``mlp``). No layer normalises by the batch. Others are refused.
Granted     what each client was sent; of their messages only the sum, as behind secure aggregation.

    to the target the server sends its weights; to all others with b = ``bias`` in the last layer before the classifier:
    features = ReLU(W h + b) = 0, so dL/dW' = delta 0 = 0 in the classifier, and no gradient passes the ReLU, as
    ReLU'(z) = 0 for z < 0: all layers before have a gradient of 0. Only the classifier's own bias moves.

Exact       in all tensors but the classifier's bias, if no input brings a unit of the last layer above -``bias``: after
            one step or many, of SGD with momentum or of Adam, without weight decay. The sum of the classifier's biases
            is left out: each other client adds softmax(bias) minus the shares of its labels.
Refused     weight decay where several local steps are attacked, since then the others' weights shrink.
Measured    a run notes what the others' messages really held, such as the noise of a defence or a method's own step.
Departures  1. The server lies in the probes that are attacked, and trains as an honest one. In the paper it lies in a
               round, whose mean is then lost: here the mean of the biases would be ``bias``, too.
            2. One client is the target, in all rounds; the paper may change it from round to round.
            3. The paper also lets one layer alone be suppressed, or all clients' but chosen parameters. Not here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.adversary.attack import AttackPlugin
from flfw.bounds import BoundedSettings, NonNegativeInt, ValueRange
from flfw.errors import require
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import Net, Tensors

_EXTRACTOR, _CLASSIFIER = "extractor.", "classifier."
_KEEPS_ZEROS = (nn.Flatten, nn.Dropout, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity)
"""Layers without parameters that make zeros of zeros; they may stand behind the ReLU."""


@dataclass(frozen=True)
class SuppressionSettings(BoundedSettings):
    """Settings of the server."""

    target: NonNegativeInt = 0  # the client whose update is to be alone in the sum
    bias: Annotated[float, ValueRange(gt=-inf, lt=0)] = -1000.0  # all others' before the classifier


@final
class Suppression(AttackPlugin, ModelModification):
    """Server that sends dead units to all clients but one; other attacks then read the sum."""

    Settings = SuppressionSettings

    @property
    def isolates(self) -> int:
        """The target."""
        return self.settings.target

    def network(self, net: Net) -> Net:
        """Return the network as it is.

        Raises:
            InputError: dead units would not make its updates zero.
        """
        for layer, needed in _obstacles(net):
            require(not layer, f"{needed}, for --malicious-server suppression", layer=layer)
        return net

    def touched(self, model: nn.Module) -> list[str]:
        """List the bias of the last layer before the classifier; empty for a method with a model of its own."""
        return _last_bias([*model.state_dict()])

    def alone(self, names: Sequence[str]) -> list[str]:
        """List all tensors but the classifier's bias."""
        return [name for name in names if not (name.startswith(_CLASSIFIER) and name.endswith(".bias"))]

    def crafted(self, tensors: Tensors, public: Tensor) -> Tensors:
        """Overwrite nothing for the target."""
        return {}

    def personal(self, client: int, tensors: Tensors, public: Tensor) -> Tensors:
        """Return the biases of dead units for all clients but the target."""
        if client == self.settings.target:
            return {}
        return {name: torch.full_like(tensors[name], self.settings.bias) for name in _last_bias([*tensors])}


def _last_bias(names: Sequence[str]) -> list[str]:
    """Return the last name of a bias in the extractor; its layers are in the order of their names."""
    return [name for name in names if name.startswith(_EXTRACTOR) and name.endswith(".bias")][-1:]


def _obstacles(net: Net) -> list[tuple[str, str]]:
    """Return the layers, by class, that keep a dead network's update from being zero, each with the layer needed."""
    layers = [part for part in net.extractor.modules() if not [*part.children()]]
    while layers and isinstance(layers[-1], _KEEPS_ZEROS):
        layers.pop()
    last = layers.pop() if layers else nn.Identity()
    while layers and isinstance(layers[-1], nn.MaxPool2d):  # the largest of low numbers is low
        layers.pop()
    before = layers[-1] if layers else nn.Identity()
    head = [part for part in net.classifier.modules() if not [*part.children()] and not isinstance(part, _KEEPS_ZEROS)]
    chain = [part for part in net.extractor.modules() if [*part.children()] and not isinstance(part, nn.Sequential)]
    normed = [part for part in net.modules() if isinstance(part, _BatchNorm)]
    biased = isinstance(before, nn.Linear | nn.Conv2d) and before.bias is not None
    return [
        (_kind(chain), "layers in a sequence before the classifier"),
        (_kind(normed), "a network without BatchNorm, whose statistics would move"),
        ("" if isinstance(last, nn.ReLU) else _kind([last]), "a ReLU before the classifier"),
        ("" if biased else f"{_kind([before])} without bias", "a layer with a bias before the last ReLU"),
        ("" if len(head) == 1 and isinstance(head[0], nn.Linear) else _kind(head), "one linear layer as classifier"),
    ]


def _kind(parts: Sequence[nn.Module]) -> str:
    return type(parts[0]).__name__ if parts else ""
