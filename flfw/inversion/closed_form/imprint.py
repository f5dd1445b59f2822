"""Weights that a malicious server hands out so that a batch's gradient holds single examples.

Fowl et al., "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models", ICLR 2022:
the units of the first layer all measure one quantity, here the mean of the inputs, and switch on one after the other.
What two neighbouring units differ by are then the examples of one bin, and of an example alone in its bin the
difference of the units' gradients is the example, times a number that the biases' gradients tell.
`flfw.inversion.closed_form.shared_gradient.serving` has a hypernetwork generate such weights for every client.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flfw.errors import BadInput
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.nets.net import Tensors

_PRESENT = 1e-3  # of the largest difference of the biases' gradients, below which a bin holds nobody


def imprint(extractor: nn.Module, means: Tensor) -> Tensors:
    """Weights of a fully connected extractor whose first layer sorts examples into bins.

    Args:
        extractor: `nn.Sequential` of fully connected layers with biases and rectifiers.
        means: (n,) of public inputs, each normalised as the network is given it: the bins lie between their quantiles.

    Raises:
        BadInput: the extractor has other layers with weights, such as convolutions.
    """
    first, *others = _layers(extractor)
    weights = {name: means.new_zeros(value.shape) for name, value in extractor.named_parameters()}
    units, inputs = weights[f"{first}.weight"].shape
    weights[f"{first}.weight"] += 1 / inputs
    weights[f"{first}.bias"] -= torch.quantile(means, torch.linspace(0, 1, units, device=means.device))
    for name in others:  # which pass all units on alike, and are never off
        weights[f"{name}.weight"] += 1 / weights[f"{name}.weight"].shape[1]
        weights[f"{name}.bias"] += 1
    return weights


def alone_in_their_bins(extractor: nn.Module, gradient: Tensors) -> Tensor:
    """What the bins of an imprinted extractor hold: (k, d) inputs, those of bins with several examples mixed.

    Args:
        extractor: see `imprint`.
        gradient: of its weights, for a batch.
    """
    first = _layers(extractor)[0]
    weight, bias = (gradient[f"{first}.{part}"].diff(dim=0) for part in ("weight", "bias"))
    held = bias.abs() > _PRESENT * bias.abs().max()
    return linear_inputs(weight[held], bias[held], int(held.sum()))


def _layers(extractor: nn.Module) -> list[str]:
    """The names of the layers with weights."""
    found = [(name, layer) for name, layer in extractor.named_children() if list(layer.parameters())]
    kinds = [type(layer).__name__ for _, layer in found if not isinstance(layer, nn.Linear)]
    if kinds or not found:
        raise BadInput(f"Expected an extractor of fully connected layers, got {', '.join(kinds) or 'none'}.")
    return [name for name, _ in found]
