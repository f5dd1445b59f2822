"""Coordinates of a sum to which a single client contributes: they pass secure aggregation in the clear.

Rare words and categories, dead units and uploads of the largest entries leave zeros; where all clients but one have a
zero, the sum is that client's own value (arXiv 2508.04285).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from flfw.errors import require
from flfw.nets.net import Tensors


def contributors(updates: Sequence[Tensors]) -> dict[str, Tensor]:
    """Count for each coordinate the clients whose value is not 0; tensors of int64 by name.

    Args:
        updates: the updates of one round, at least one, all of the same tensors.

    Raises:
        InputError: no updates, or tensors that do not belong together.
    """
    require(len(updates) >= 1, "at least one update", updates=len(updates))
    first = updates[0]
    for update in updates:
        same = update.keys() == first.keys() and all(update[n].shape == value.shape for n, value in first.items())
        require(same, "the same tensors in all updates", tensors=", ".join(update))
    return {name: torch.stack([update[name] != 0 for update in updates]).sum(0) for name in first}


def exposed_share(updates: Sequence[Tensors]) -> float:
    """Return the share of coordinates, in [0, 1], to which exactly one client contributes.

    >>> exposed_share([{"w": torch.tensor([1.0, 2.0, 0.0, 0.0])}, {"w": torch.tensor([3.0, 0.0, 0.0, 0.0])}])
    0.25
    """
    counts = contributors(updates)
    exposed = sum(int((count == 1).sum()) for count in counts.values())
    return exposed / max(1, sum(count.numel() for count in counts.values()))


def expected_exposed_share(kept: float, clients: int) -> float:
    """Return the same for independent supports, each with a share ``kept`` of the coordinates.

    >>> round(expected_exposed_share(0.1, 10), 2)
    0.39
    """
    require(0 <= kept <= 1, "0 <= kept <= 1", kept=kept)
    require(clients >= 1, "clients >= 1", clients=clients)
    return clients * kept * (1 - kept) ** (clients - 1)


def expected_exposed(kept: Sequence[float]) -> float:
    """Return the same for supports of different sizes.

    Args:
        kept: for each client the share of the coordinates that it keeps, in [0, 1].

    >>> expected_exposed([0.5, 0.5, 0.0])
    0.5
    """
    others = [prod(1 - other for k, other in enumerate(kept) if k != client) for client in range(len(kept))]
    return sum(share * rest for share, rest in zip(kept, others, strict=True))
