"""Evaluation of an objective and its gradient for many problems at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn.functional import pad

from flfw.errors import InputError
from flfw.inversion.compute import ComputeLimits, machine_gb
from flfw.inversion.graph import Graph
from flfw.inversion.matching import Given, Guess, Objective
from flfw.inversion.search_optimisers import Evaluate
from flfw.nets.net import Tensors


def stacked(records: Sequence[Tensors]) -> Tensors:
    """Stack records of named tensors; the last dimension is padded with zeros where sizes differ."""
    result = {}
    for name in records[0]:
        values = [tensors[name] for tensors in records]
        width = max(value.shape[-1] for value in values) if values[0].dim() else 0
        result[name] = torch.stack([pad(v, (0, width - v.shape[-1])) if v.dim() else v for v in values])
    return result


def stacked_given(records: Sequence[Given]) -> Given:
    """Stack the constants of many searches."""
    return {part: stacked([given[part] for given in records]) for part in records[0]}


class Evaluation(ABC):
    """Evaluation of an objective for stacked problems.

    Attributes:
        together: number of problems that may run at once.
    """

    together: int

    @abstractmethod
    def prepare(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """Return the evaluation of P problems from their stacked constants and a generator for each."""


@final
class Fused(Evaluation):
    """Objective and its gradient as one `Graph`.

    Args:
        objective: the objective of one problem.
        guess: the guess of one problem, for its shapes.
        given: the constants of one problem.
        compute: limits of memory, and compilation.

    Raises:
        InputError: one problem's step takes more memory than allowed.
    """

    def __init__(self, objective: Objective, guess: Guess, given: Given, compute: ComputeLimits) -> None:
        self._graph = Graph(grad_and_value(objective, has_aux=True), (guess, given), compute)
        self.together = fitting(self._graph.bytes, len(guess["x"]), compute)

    def prepare(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """Return the evaluation of P problems; it uses no randomness."""
        graph = self._graph.given(given)

        def evaluate(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            gradients, (objective, matched) = graph(guess)
            return gradients, objective, matched

        return evaluate


def fitting(needed: int, batch: int, compute: ComputeLimits) -> int:
    """Return the number of problems that fit into the memory of a step, for steps of ``needed`` bytes; 1 at least.

    Raises:
        InputError: one problem alone takes more than the machine has.
    """
    if needed > (maximum := machine_gb() * 1e9):
        raise InputError(
            f"Expected a search whose step fits into {maximum / 1e9:.3g} GB, got a batch of {batch} that takes "
            f"{needed / 1e9:.2g} GB; lower --victim-batch or --victim-steps."
        )
    return max(1, int(compute.memory_gb * 1e9 // max(1, needed)))
