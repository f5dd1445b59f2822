"""Coordinates of a round's sum to which one client alone contributes, counted while uploads are read one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor

from flfw.aggregates.single_contributors import expected_exposed
from flfw.errors import require
from flfw.nets.net import Tensors


@final
class Exposure:
    """Count of the clients that contribute to each coordinate.

    Attributes:
        clients: number of updates so far.
    """

    def __init__(self) -> None:
        self.clients = 0
        self._counts: dict[str, Tensor] = {}
        self._kept: dict[str, list[float]] = {}

    def add(self, update: Tensors) -> None:
        """Count a client's update.

        Raises:
            InputError: it has other tensors than the first one.
        """
        if not self.clients:
            self._counts = {name: torch.zeros(value.shape, dtype=torch.int32) for name, value in update.items()}
            self._kept = {name: [] for name in update}
        shapes = {name: count.shape for name, count in self._counts.items()}
        same = {name: value.shape for name, value in update.items()} == shapes
        require(same, "the same tensors in all updates of a round", tensors=", ".join(update))
        self.clients += 1
        for name, value in update.items():
            self._counts[name] += value != 0
            self._kept[name].append(float((value != 0).double().mean()) if value.numel() else 0.0)

    def figures(self) -> dict[str, Any]:
        """Return the shares: of all coordinates, and of each layer, the most exposed one first.

        Beside each share stands the one that supports of the same sizes would give if they were independent.
        """
        groups: dict[str, list[str]] = {}
        for name in self._counts:
            groups.setdefault(name.rpartition(".")[0] or name, []).append(name)
        layers = [{"layer": layer, **self._share(names)} for layer, names in groups.items()]
        layers.sort(key=lambda row: -row["share"])
        return {**self._share(self._counts), "layers": layers}

    def _share(self, names: Iterable[str]) -> dict[str, Any]:
        chosen = list(names)
        total = sum(self._counts[name].numel() for name in chosen)
        alone = sum(int((self._counts[name] == 1).sum()) for name in chosen)
        nobody = sum(int((self._counts[name] == 0).sum()) for name in chosen)
        expected = sum(self._counts[name].numel() * expected_exposed(self._kept[name]) for name in chosen)
        shares = {"share": alone, "independent": expected, "untouched": nobody}
        return {"coordinates": total, **{key: value / max(1, total) for key, value in shares.items()}}
