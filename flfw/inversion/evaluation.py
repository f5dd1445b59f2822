"""Evaluates an objective and its gradient for many problems at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn.functional import pad

from flfw.errors import BadInput
from flfw.inversion.compute import Compute
from flfw.inversion.descent import Evaluate
from flfw.inversion.graph import Graph
from flfw.inversion.objective import Given, Guess, Objective
from flfw.nets.net import Tensors


def stacked(several: Sequence[Tensors]) -> Tensors:
    """Records of named tensors as one; the last dimension is padded with zeros where they differ in it."""
    found = {}
    for name in several[0]:
        values = [tensors[name] for tensors in several]
        width = max(value.shape[-1] for value in values) if values[0].dim() else 0
        found[name] = torch.stack([pad(v, (0, width - v.shape[-1])) if v.dim() else v for v in values])
    return found


def stacked_given(several: Sequence[Given]) -> Given:
    """The same for what stays as it is during a search."""
    return {part: stacked([given[part] for given in several]) for part in several[0]}


class Evaluation(ABC):
    """Evaluates an objective for stacked problems.

    Attributes:
        together: how many problems may be done at once.
    """

    together: int

    @abstractmethod
    def of(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """The evaluation of P problems with what is given about them, stacked, and a generator for each."""


@final
class Fused(Evaluation):
    """An objective and its gradient as one `Graph`.

    Args:
        objective: of one problem.
        guess: of one problem, for its shapes.
        given: of one problem.
        compute: what may be used.

    Raises:
        BadInput: one problem's step takes more memory than there may be.
    """

    def __init__(self, objective: Objective, guess: Guess, given: Given, compute: Compute) -> None:
        self._graph = Graph(grad_and_value(objective, has_aux=True), (guess, given), compute)
        self.together = fitting(self._graph.bytes, len(guess["x"]), compute)

    def of(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """Nothing random is in it."""

        def evaluate(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            gradients, (objective, matched) = self._graph(guess, given)
            return gradients, objective, matched

        return evaluate


def fitting(needed: int, batch: int, compute: Compute) -> int:
    """How many problems whose step takes so many bytes fit into memory.

    Raises:
        BadInput: not even one.
    """
    room = int(compute.memory_gb * 1e9 // max(1, needed))
    if room < 1:
        raise BadInput(
            f"Expected a search whose step fits into {compute.memory_gb:g} GB, got a batch of {batch} that takes "
            f"{needed / 1e9:.2g} GB; lower --victim-batch or --victim-steps, or raise --attack-memory-gb."
        )
    return room
