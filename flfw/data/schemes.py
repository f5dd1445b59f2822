"""The ways to share a data set out to clients, and their settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from flfw.errors import BadInput


@dataclass(frozen=True)
class IID:
    """Training and test part are each shuffled and cut into nearly equal, disjoint parts."""


@dataclass(frozen=True)
class Dirichlet:
    """Each class of the training part is shared out, disjointly, in proportions drawn from Dir(alpha)."""

    alpha: float = 0.5  # > 0; small: few classes a client

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise BadInput(f"Expected alpha > 0, got alpha={self.alpha}; 0.5 is usual, 100 is nearly iid.")


@dataclass(frozen=True)
class Dominant:
    """The papers' split, see ``flfw.data.dominant``: clients may share examples, see ``assign`` there."""

    train: int = 0  # examples a client, before rounding; 0: the data set's own number
    test: int = 0  # likewise

    def __post_init__(self) -> None:
        if min(self.train, self.test) < 0:
            raise BadInput(
                f"Expected train, test >= 0 examples a client, got train={self.train} test={self.test}; "
                "0 takes the data set's own numbers."
            )


Scheme: TypeAlias = IID | Dirichlet | Dominant

_SCHEMES: dict[str, type[Scheme]] = {"iid": IID, "dirichlet": Dirichlet, "dominant": Dominant}


def schemes() -> tuple[str, ...]:
    """The ways to split there are."""
    return tuple(_SCHEMES)


def scheme(name: str) -> type[Scheme]:
    """The configuration class of that name; an unknown name says which ones there are."""
    if name not in _SCHEMES:
        raise BadInput(f"Expected a split among {', '.join(_SCHEMES)}; got split={name}.")
    return _SCHEMES[name]
