"""Span of clients' hidden units from the sum of a hypernetwork head's changes.

In one step the change of a head is d h^T for each client, with its own hidden units h. So the sum over n clients has
the rank n, and its leading n directions span the clients' h. What each client sent alone tells whether that is so here.
"""

from __future__ import annotations

from math import acos, sqrt
from typing import Any, final

import torch
from torch import Tensor, nn

from flfw.aggregates.embedding_span import EmbeddingSpan, largest_angles, span_of
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.net import Tensors

_NEAR = 0.1  # radians, 6 degrees: below, the span counts as recovered


def head_of(model: nn.Module) -> str | None:
    """Return the name of a head's weight that is read: the smallest of those with as many rows as columns, or the
    largest one; None: no tensors of the model are generated.
    """
    if not isinstance(model, GeneratedNet):
        return None
    sizes = {name: value.shape for name, value in model.state_dict().items() if _is_head(name)}
    tall = {name: shape for name, shape in sizes.items() if shape[0] >= shape[1]}
    return min(tall, key=lambda name: tall[name][0]) if tall else max(sizes, key=lambda name: sizes[name][0])


def _is_head(name: str) -> bool:
    return name.startswith("hypernet.heads.") and name.endswith(".weight")


@final
class HeadSum:
    """Sum of a head's changes over clients, and the leading direction of each client's own change.

    Args:
        name: of the head's weight.
    """

    def __init__(self, name: str) -> None:
        self._name, self._sum = name, torch.zeros(0)
        self._own: list[Tensor] = []

    def add(self, update: Tensors) -> None:
        """Add a client's change; one without this head, or without any change of it, is left out."""
        change = update.get(self._name)
        if change is None or not bool(change.any()):
            return
        self._sum = self._sum + change if len(self._own) else change.clone()
        self._own.append(leading(change, 1)[0])

    def figures(self) -> dict[str, Any] | None:
        """Return the rank, and the angles between the clients' directions and the span; None: no client changed it."""
        if not self._own:
            return None
        span = span_of(self._sum)
        width, clients = self._sum.shape[1], len(self._own)
        most = min(clients, span.rank)
        basis = EmbeddingSpan(leading(self._sum, most), span.values)
        angles = largest_angles(basis, torch.stack(self._own))
        by_chance = acos(sqrt(most / width))
        return {
            "head": self._name,
            "clients": clients,
            "width": width,
            "rank": span.rank,
            "largest_angle": float(angles.max()),
            "angle_by_chance": by_chance,
            "recovered": bool(angles.max() < _NEAR) and most < width and by_chance > 2 * _NEAR,
        }


def leading(matrix: Tensor, count: int) -> Tensor:
    """Return the leading right singular vectors (count, width) of a matrix (rows, width), in float64.

    Args:
        matrix: the matrix.
        count: how many, at most its rank.
    """
    small = matrix.double()
    if len(small) > small.shape[1]:
        small = torch.linalg.qr(small, mode="r").R
    return torch.linalg.svd(small, full_matrices=False)[2][:count]
