"""Per-example gradients of candidates, compared with updates; none is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import vmap

from flfw.errors import require
from flfw.inversion.sketch import Sketch
from flfw.nets.net import Tensors

Gradient: TypeAlias = Callable[[Tensor, Tensor], Tensors]
"""Function of the inputs (1, ...) and labels (1, ...) of one example for its gradient, fit for vmap."""

CHUNK = 50
"""Examples whose gradients are in memory together."""


@dataclass(frozen=True)
class Products:
    """Losses of N candidates at some parameters, and their gradients against an update.

    Attributes:
        losses: (N,) loss of each candidate.
        products: (N,) inner product of its gradient with the update.
        norms: (N,) L2 norm of its gradient, >= 0.
        length: L2 norm of the update, >= 0.
    """

    losses: Tensor
    products: Tensor
    norms: Tensor
    length: float


@dataclass(frozen=True)
class ComparedGradients:
    """Gradients of N candidates against K updates.

    Attributes:
        sketches: (N, width) their sketches.
        norms: (N,) their L2 norms, >= 0.
        products: (N, K) their inner products with each update.
        lengths: (K,) L2 norm of each update, >= 0.
    """

    sketches: Tensor
    norms: Tensor
    products: Tensor
    lengths: Tensor

    def with_update(self, index: int, losses: Tensor) -> Products:
        """Return the part that belongs to one update, with the candidates' losses (N,)."""
        return Products(losses, self.products[:, index], self.norms, float(self.lengths[index]))


def compared_gradients(
    gradient: Gradient, sketch: Sketch, updates: Sequence[Tensors], x: Tensor, y: Tensor, chunk: int = CHUNK
) -> ComparedGradients:
    """Compare the candidates' gradients with several updates, while ``chunk`` of the gradients are in memory.

    Args:
        gradient: see `Gradient`.
        sketch: a sketch of tensors such as the gradient's.
        updates: K >= 1 updates of the same tensors.
        x: inputs (N, ...).
        y: labels (N, ...).
        chunk: gradients in memory together, >= 1.

    Raises:
        InputError: no update, one of other tensors, or ``chunk`` is no number of examples.
    """
    require(chunk >= 1, "chunk >= 1", chunk=chunk)
    require(bool(updates), "one update or more", updates=0)
    for update in updates:
        _require_same(updates[0], update)
    stacked = {name: torch.stack([update[name].flatten() for update in updates]) for name in updates[0]}

    def one(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        single = gradient(a.unsqueeze(0), b.unsqueeze(0))
        products = torch.stack([stacked[name] @ single[name].flatten() for name in stacked]).sum(0)
        return sketch.of(single), norm(single), products

    parts = [vmap(one)(a, b) for a, b in zip(x.split(chunk), y.split(chunk), strict=True)]
    sketches, norms, products = (torch.cat([part[i] for part in parts]).detach() for i in range(3))
    return ComparedGradients(sketches, norms, products, torch.stack([norm(update) for update in updates]))


def gradient_sketches(gradient: Gradient, sketch: Sketch, x: Tensor, y: Tensor, chunk: int = CHUNK) -> Tensor:
    """Compute sketches (N, width) of the gradients of examples, ``chunk`` of them at a time.

    Args:
        gradient: see `Gradient`.
        sketch: a sketch of tensors such as the gradient's.
        x: inputs (N, ...).
        y: labels (N, ...).
        chunk: gradients in memory together, >= 1.

    Raises:
        InputError: ``chunk`` is no number of examples.
    """
    require(chunk >= 1, "chunk >= 1", chunk=chunk)
    one = vmap(lambda a, b: sketch.of(gradient(a.unsqueeze(0), b.unsqueeze(0))))
    return torch.cat([one(a, b) for a, b in zip(x.split(chunk), y.split(chunk), strict=True)]).detach()


def norm(tensors: Tensors) -> Tensor:
    """Compute the L2 norm of all tensors together, a scalar."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in tensors.values()]))


def _require_same(at: Tensors, update: Tensors) -> None:
    fitting = all(name in update and update[name].shape == value.shape for name, value in at.items())
    require(fitting and len(at) == len(update), f"an update of {', '.join(at)}", update=", ".join(update))
