"""Weights that a malicious server sends so that a batch's gradient holds single examples.

Fowl et al., "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models", ICLR 2022:
all units of the first layer measure one quantity, here the mean of the inputs, with increasing thresholds. The
difference of two neighbouring units' gradients belongs to the examples of one bin. If a bin holds one example, the
difference is that example times the difference of the biases' gradients.
`flfw.inversion.closed_form.shared_gradient.serving` makes a hypernetwork generate such weights for every client.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flfw.errors import BadInput
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.nets.net import Tensors

_PRESENT = 1e-3  # a bin below this share of the largest difference of the biases' gradients is empty


def imprint(extractor: nn.Module, means: Tensor) -> Tensors:
    """Compute weights of a fully connected extractor whose first layer sorts examples into bins.

    Args:
        extractor: `nn.Sequential` of fully connected layers with biases and rectifiers.
        means: (n,) means of public inputs, normalised like the network's inputs: their quantiles bound the bins.

    Raises:
        BadInput: the extractor has other layers with weights, such as convolutions.
    """
    first, *others = _layers(extractor)
    weights = {name: means.new_zeros(value.shape) for name, value in extractor.named_parameters()}
    units, inputs = weights[f"{first}.weight"].shape
    weights[f"{first}.weight"] += 1 / inputs
    weights[f"{first}.bias"] -= torch.quantile(means, torch.linspace(0, 1, units, device=means.device))
    for name in others:  # these layers pass on all units alike, and are never off
        weights[f"{name}.weight"] += 1 / weights[f"{name}.weight"].shape[1]
        weights[f"{name}.bias"] += 1
    return weights


def alone_in_their_bins(extractor: nn.Module, gradient: Tensors) -> Tensor:
    """Read the examples off the bins of an imprinted extractor: (k, d) inputs; a shared bin gives a mixture.

    Args:
        extractor: see `imprint`.
        gradient: gradient of its weights, for a batch.
    """
    first = _layers(extractor)[0]
    weight, bias = (gradient[f"{first}.{part}"].diff(dim=0) for part in ("weight", "bias"))
    held = bias.abs() > _PRESENT * bias.abs().max()
    return linear_inputs(weight[held], bias[held], int(held.sum()))


def _layers(extractor: nn.Module) -> list[str]:
    """Return the names of the layers with weights."""
    layers = [(name, layer) for name, layer in extractor.named_children() if list(layer.parameters())]
    kinds = [type(layer).__name__ for _, layer in layers if not isinstance(layer, nn.Linear)]
    if kinds or not layers:
        raise BadInput(f"Expected an extractor of fully connected layers, got {', '.join(kinds) or 'none'}.")
    return [name for name, _ in layers]
