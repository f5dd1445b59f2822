"""Fully connected first layers, and their inputs without a search."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from torch import Tensor, nn


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
