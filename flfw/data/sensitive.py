"""Sensitive samples: those of a batch that a defence treats in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.errors import InputError

_FORMS = "sensitive=all, classes such as 3,7, last:M for the last M of each batch, or at:P,P for training positions"


@final
@dataclass(frozen=True)
class SensitiveSamples:
    """Rule for the sensitive samples of a batch; with no field given, all are.

    Attributes:
        classes: their classes.
        last: they are so many at the end of a batch, or a whole smaller batch.
        positions: their positions in the data set's training part, as ``index`` in audit.csv.
    """

    classes: frozenset[int] | None = None
    last: int | None = None
    positions: frozenset[int] | None = None

    @classmethod
    def parse(cls, text: str) -> SensitiveSamples:
        """Parse ``all``, ``3,7``, ``last:2`` or ``at:12,40``.

        Raises:
            InputError: another text, or ``last:0``.

        >>> SensitiveSamples.parse("last:2").mask(torch.tensor([5, 6, 7]), torch.empty(0))
        tensor([False,  True,  True])
        """
        kind, colon, numbers = text.rpartition(":")
        given = [part.strip() for part in numbers.split(",")]
        if text == "all":
            return cls()
        if all(part.isdecimal() for part in given):
            values = frozenset(map(int, given))
            if not colon:
                return cls(classes=values)
            if kind == "at":
                return cls(positions=values)
            if kind == "last" and len(given) == 1 and values != {0}:
                return cls(last=int(given[0]))
        raise InputError(f"Expected {_FORMS}; got sensitive={text}.")

    def mask(self, y: Tensor, positions: Tensor) -> Tensor:
        """Return which samples of a batch are sensitive, (B,).

        Args:
            y: labels (B,).
            positions: (B,) in the training part; used by a rule of positions only, and then empty where not known.

        Raises:
            InputError: the rule needs positions, and there are none.
        """
        if self.last is not None:
            return torch.arange(len(y), device=y.device) >= len(y) - self.last
        if self.positions is not None:
            if len(positions) != len(y):
                raise InputError(
                    "Expected a method whose local steps are on stored examples for sensitive=at:P,P, got a batch "
                    "without positions; choose classes."
                )
            return torch.isin(positions.to(y.device), torch.tensor(sorted(self.positions), device=y.device))
        if self.classes is not None:
            return torch.isin(y, torch.tensor(sorted(self.classes), device=y.device))
        return torch.ones_like(y, dtype=torch.bool)
