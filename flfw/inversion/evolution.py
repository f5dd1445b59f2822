"""Evolution strategy with an adapted covariance matrix (CMA-ES), and the evaluation of many candidates at once.

It needs no derivative of the objective: a network of ReLUs, whose gradient is piecewise constant in the data, or a
defence without a useful derivative, is searched through all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, final

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from flfw.bounds import BoundedSettings, PositiveFinite, PositiveInt, ValueRange
from flfw.inversion.automatic import DifferentiableDefence, Nature, again
from flfw.inversion.compute import ComputeLimits, steps
from flfw.inversion.evaluation import Evaluation, fitting
from flfw.inversion.graph import Graph
from flfw.inversion.matching import Given, Guess, Objective
from flfw.inversion.search_optimisers import Best, Evaluate, SearchOptimiser
from flfw.nets.net import Tensors
from flfw.rng import numpy_generator

_WORST = 1e30  # value of a candidate whose objective is not finite


@final
class CandidateEvaluation(Evaluation):
    """Objective of several candidates for each problem, without gradients, as one `Graph`.

    Args:
        objective: the objective of one problem; without a mechanism where a defence's own code stands in it.
        defence_model: a defence's own code; None: none.
        guess: a candidate of one problem, for its shapes.
        given: the constants of one problem.
        compute: limits of memory, and compilation.
        count: candidates of each problem at once, >= 1.

    Raises:
        InputError: one problem's candidates take more memory than allowed.
    """

    def __init__(
        self,
        objective: Objective,
        defence_model: DifferentiableDefence | None,
        guess: Guess,
        given: Given,
        compute: ComputeLimits,
        count: int,
    ) -> None:
        self._objective, self._automatic, self._count = objective, defence_model, count
        self._graph = Graph(objective if defence_model is None else objective.trial, (guess, given), compute)
        self._prior = vmap(objective.weighed)
        sent = sum(value.numel() * value.element_size() for value in given["observed"].values())
        needed = self._graph.bytes * (count if self._graph.light else 1) + (
            0 if defence_model is None else count * sent
        )
        self.together = fitting(needed, len(guess["x"]), compute)
        self._nature: Nature | None = None

    def prepare(self, given: Given, rngs: Sequence[torch.Generator]) -> Evaluate:
        """Return the evaluation of P problems' candidates, those of a problem side by side; its gradients are empty."""
        each = {
            part: {name: value.repeat_interleave(self._count, 0) for name, value in tensors.items()}
            for part, tensors in given.items()
        }

        def evaluate(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
            if self._automatic is None:
                return {}, *self._graph(guess, each)
            matched = self._through(self._automatic, self._graph(guess, each), given["observed"], rngs)
            return {}, matched + self._prior(guess, each), matched

        return evaluate

    def _through(
        self, defence_model: DifferentiableDefence, trials: Tensors, observed: Tensors, rngs: Sequence[torch.Generator]
    ) -> Tensor:
        """Compute the distances (P * count,) behind the defence, which draws the same for all candidates of a call."""
        values = []
        for index, rng in enumerate(rngs):
            seen, state = {name: value[index] for name, value in observed.items()}, rng.get_state()
            for i in range(index * self._count, (index + 1) * self._count):
                rng.set_state(state)
                trial = {name: trials[name][i] for name in seen}
                self._nature = self._nature or defence_model.nature(trial, again(state))
                sent = defence_model.sent(trial, rng, faithful=False, nature=self._nature)
                values.append(self._objective.distance(defence_model.left(sent, seen), seen))
        return torch.stack(values)


@final
@dataclass(frozen=True)
class CMAES(BoundedSettings, SearchOptimiser):
    """CMA-ES (Hansen, arXiv 1604.00772) by the library ``cma``, in the coordinates ``x``; other variables stay.

    Every search draws the same random numbers, from its own start.

    Attributes:
        iterations: generations, >= 1.
        candidates: candidates in each, >= 2.
        deviation: first standard deviation in units of the normalised coordinates, > 0.
    """

    iterations: PositiveInt
    candidates: Annotated[int, ValueRange(ge=2)] = 50
    deviation: PositiveFinite = 0.5

    @torch.no_grad()
    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        """Evaluate a generation of every problem at once, until all are solved or have converged."""
        start = guess["x"].clamp(*box) if box else guess["x"]
        best = Best({**guess, "x": start}, solved)
        others = {n: value.repeat_interleave(self.candidates, 0) for n, value in guess.items() if n != "x"}
        strategies = [_Strategy(one, self, box) for one in start]
        self._see(best, start.repeat_interleave(self.candidates, 0), others, evaluate)
        for _ in steps(self.iterations):
            objective = self._see(best, torch.cat([strategy.ask() for strategy in strategies]), others, evaluate)
            for strategy, values in zip(strategies, objective.split(self.candidates), strict=True):
                strategy.tell(values)
            best.count()
            if best.all_solved() or all(strategy.converged for strategy in strategies):
                break
        return best

    def _see(self, best: Best, x: Tensor, others: Guess, evaluate: Evaluate) -> Tensor:
        """Evaluate candidates, note the best one of each problem, and return the objectives."""
        guess = {**others, "x": x}
        _, objective, matched = evaluate(guess)
        lowest = objective.nan_to_num(nan=inf).view(-1, self.candidates).argmin(1)
        rows = lowest + self.candidates * torch.arange(len(lowest), device=lowest.device)
        best.see({name: value[rows] for name, value in guess.items()}, objective[rows], matched[rows])
        return objective


@final
class _Strategy:
    """State of one search: an instance of the library's."""

    def __init__(self, start: Tensor, settings: CMAES, box: tuple[Tensor, Tensor] | None) -> None:
        import cma  # imported here, because only this search needs it

        self._like = start
        rng = numpy_generator(0, "evolution")
        bounds: list[Any] = [None, None]
        if box:
            bounds = [end.expand(start.shape).flatten().double().cpu().numpy() for end in box]
        options = {
            "popsize": settings.candidates,
            "bounds": bounds,
            "seed": np.nan,  # leaves the global generator as it is
            "randn": lambda *shape: rng.standard_normal(shape),
            "verbose": -10,  # writes and reads no files
            "maxiter": inf,
            "maxfevals": inf,
        }
        first = start.flatten().double().cpu().numpy()
        self._search: Any = cma.CMAEvolutionStrategy(first, settings.deviation, options)
        self._requested: list[np.ndarray] = []

    def ask(self) -> Tensor:
        """Draw a generation (candidates, ...); after convergence it is the last one again."""
        if not self._requested or not self.converged:
            self._requested = self._search.ask()
        return torch.from_numpy(np.stack(self._requested)).to(self._like).view(-1, *self._like.shape)

    def tell(self, values: Tensor) -> None:
        """Learn from the objectives (candidates,) of the last generation."""
        if not self.converged:
            self._search.tell(self._requested, values.double().nan_to_num(_WORST, _WORST).clamp(max=_WORST).tolist())

    @property
    def converged(self) -> bool:
        """True where the library sees no more progress."""
        return bool(self._search.stop())
