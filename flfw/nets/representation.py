"""Representation of an input inside a network: what enters one layer, and how it changes with the input."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for the calls inside, each part back as it was afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def representation(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Return the inputs (B, d) of a layer.

    Args:
        model: takes network inputs; in evaluation mode for this call.
        layer: name of a layer that is called once, on rows (B, d).
        x: network inputs (B, ...).
    """
    with evaluating(model), torch.no_grad():
        return entering(model, layer, x)


def row_norms(model: nn.Module, layer: str, x: Tensor) -> Tensor:
    """Compute the L2 norms (B, d) of the rows of the Jacobian of a layer's inputs by the network's.

    All rows of an example come from one vectorised backward pass.

    Args:
        model: takes network inputs; in evaluation mode for this call.
        layer: as for `representation`.
        x: network inputs (B, ...).
    """

    def norms(one: Tensor) -> Tensor:
        r, pull, *_ = vjp(lambda at: entering(model, layer, at[None])[0], one)
        (rows,) = vmap(pull)(torch.eye(len(r), dtype=r.dtype, device=r.device))
        return rows.flatten(1).norm(dim=1).detach()

    with evaluating(model):
        return torch.stack([norms(one) for one in x])


def entering(model: nn.Module, layer: str, x: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the inputs of a layer in the model's present mode, with their graph; see `representation`.

    Args:
        model: takes network inputs.
        layer: as for `representation`.
        x: network inputs (B, ...).
        weights: used instead of the model's own, by name.
    """
    seen: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        functional_call(model, dict(weights or {}), (x,))
    finally:
        handle.remove()
    return seen[0]
