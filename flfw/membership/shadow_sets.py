"""Training sets of shadow models: half of the candidates, and public examples up to the number that a client has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from flfw.errors import require


@final
@dataclass(frozen=True)
class ShadowSets:
    """Training sets of S shadow models; `draw` makes them.

    Attributes:
        inside: (S, N) whether a candidate is in a set.
        places: (S, n) places of the examples in each: among the N candidates, and from N on among public ones.
    """

    inside: Tensor
    places: Tensor

    @classmethod
    def draw(cls, candidates: int, public: int, examples: int, shadows: int, rng: torch.Generator) -> ShadowSets:
        """Draw sets two by two: the second has the candidates that the first has not.

        So each candidate is in as many sets as it is out of, and the difference of both sides is not that of their
        numbers.

        Args:
            candidates: number of candidates, N >= 2.
            public: number of public examples.
            examples: number of examples that the client trains on, about half of the candidates or more.
            shadows: number of sets, an even number >= 2.
            rng: generator on the CPU.

        Raises:
            BadInput: numbers out of range, or too few public examples to fill a set.
        """
        require(candidates >= 2, "at least 2 candidates", candidates=candidates)
        require(shadows >= 2 and shadows % 2 == 0, "an even number of shadows >= 2", shadows=shadows)
        least, most = candidates - candidates // 2, candidates // 2 + public
        require(
            least <= examples <= most,
            f"{least} to {most} examples of the client, for shadow trainings",
            examples=examples,
        )
        inside, places = torch.zeros(shadows, candidates, dtype=torch.bool), []
        for first in range(0, shadows, 2):
            order = torch.randperm(candidates, generator=rng)
            for place, half in enumerate((order[: candidates // 2], order[candidates // 2 :])):
                inside[first + place, half] = True
                more = torch.randperm(public, generator=rng)[: examples - len(half)] + candidates
                places.append(torch.cat([half, more]))
        return cls(inside, torch.stack(places))
