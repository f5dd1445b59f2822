"""Training sets of shadow models: parts of the candidates, and public examples up to the number that a client has."""

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
        """Draw sets in turns: those of a turn divide the candidates among them.

        There are two in a turn, each with half of the candidates, as long as a client has room for so many: then each
        candidate is in as many sets as it is out of. Of more candidates a set has as many as a client has examples.

        Args:
            candidates: number of candidates, N >= 2.
            public: number of public examples.
            examples: number of examples that the client trains on.
            shadows: number of sets, an even number >= 2.
            rng: generator on the CPU.

        Raises:
            InputError: numbers out of range, or too few public examples to fill a set.
        """
        require(candidates >= 2, "at least 2 candidates", candidates=candidates)
        require(shadows >= 2 and shadows % 2 == 0, "an even number of shadows >= 2", shadows=shadows)
        least, most = -(-candidates // shadows), candidates // 2 + public
        wanted = f"{least} to {most} examples of the client, for shadow trainings"
        require(least <= examples <= most, wanted, examples=examples)
        parts = max(2, -(-candidates // examples))
        inside, places = torch.zeros(shadows, candidates, dtype=torch.bool), list[Tensor]()
        while len(places) < shadows:
            order = torch.randperm(candidates, generator=rng)
            for part in order.tensor_split(parts)[: shadows - len(places)]:
                inside[len(places), part] = True
                more = torch.randperm(public, generator=rng)[: examples - len(part)] + candidates
                places.append(torch.cat([part, more]))
        return cls(inside, torch.stack(places))
