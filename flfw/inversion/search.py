"""Search for the data behind observations: for many victims at once, from several starts each.

    results = invert(victim, [Target(sent, labels, rng)], recipe)

needs a `VictimModel` and the sent tensors, but not Flower: it also works on gradients from elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch import Tensor

from flfw.errors import InputError
from flfw.inversion.automatic import DifferentiableDefence, Staged
from flfw.inversion.client_models.cropped_kernels import cropped
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.compute import ComputeLimits, search_copies
from flfw.inversion.evaluation import Evaluation, Fused, stacked, stacked_given
from flfw.inversion.evolution import CandidateEvaluation
from flfw.inversion.matching import Distance, Guess, Objective, Problem
from flfw.inversion.priors import ModelPrior, Prior, none
from flfw.inversion.search_optimisers import Best, Evaluate, SearchOptimiser
from flfw.nets.net import Tensors

Start = Callable[[tuple[int, ...], torch.Generator], Tensor]
"""Draws a first guess of some shape (B, ...), in normalised units."""


def normal(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draw a first guess from N(0, 1)."""
    return torch.randn(shape, generator=rng)


Together = Callable[[Evaluate, Tensor | None, int], Evaluate]
"""Changes the evaluation of all starts of some targets, so that the starts of one target influence each other.

Its arguments are the evaluation of P stacked guesses, in which the starts of a target stand side by side; their labels
(P, B), None where these are searched for; and the iterations of the search."""


@dataclass(frozen=True)
class Stage:
    """Search in a chain of searches; each begins at the end of the one before.

    Attributes:
        distance: distance of a trial from the observation.
        descent: the optimiser.
        prior: prior of a guess.
        strength: factor of the prior, >= 0; stages that differ only in it share their graphs.
        through: whether a known mechanism is part of the objective; a constant that it adds is subtracted in any case.
        model_prior: prior of a guess that uses the victim's network; None: none.
    """

    distance: Distance
    descent: SearchOptimiser
    prior: Prior = none
    strength: float = 1.0
    through: bool = True
    model_prior: ModelPrior | None = None


@dataclass(frozen=True)
class Closing:
    """Searches from the result so far, under weaker priors, whose result counts only where it is much nearer.

    Where an observation determines the data, the distance then falls by far. Where it does not, such a search fits
    remainders and loses what the prior had found, and the distance hardly falls.

    Attributes:
        stages: the searches, each from the end of the one before.
        below: the distance after them, over that before, below which their result counts; in (0, 1].
    """

    stages: tuple[Stage, ...]
    below: float


@dataclass(frozen=True)
class SearchConfig:
    """Settings of a search.

    Attributes:
        distance: distance of a trial from the observation.
        descent: the optimiser.
        prior: prior of a guess.
        start: draws the first guess.
        restarts: largest number of starts, >= 1; the one with the lowest distance counts.
        solved: a distance below which a search ends and needs no other start; 0: never.
        boxed: whether a guess is kept in the box during the search; at the end it always is.
        failed_above: a distance above which a search failed: of a guess whose gradient is 0, where known.
        opening: searches before this one, from each start.
        closing: searches after this one, from each start.
        fit_unknown: whether the victim's unknown tensors are searched for; else they stay as they are.
        model_prior: prior of a guess that uses the victim's network; None: none.
        together: influence of a target's starts on each other; None: none. Then all of them are searched from at once.
    """

    distance: Distance
    descent: SearchOptimiser
    prior: Prior = none
    start: Start = normal
    restarts: int = 1
    solved: float = 0.0
    boxed: bool = True
    failed_above: float = inf
    opening: tuple[Stage, ...] = ()
    closing: tuple[Closing, ...] = ()
    fit_unknown: bool = True
    model_prior: ModelPrior | None = None
    together: Together | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The opening stages, the one described here, and the closing ones; the distance in the last one counts."""
        closing = [stage for one in self.closing for stage in one.stages]
        return *self.opening, Stage(self.distance, self.descent, self.prior, model_prior=self.model_prior), *closing


@dataclass(frozen=True)
class SearchTarget:
    """Observation to be explained.

    Attributes:
        sent: the tensors a client sent, by name.
        labels: (B,) of the examples; None: they are searched for, as class probabilities.
        rng: draws the starts.
        batch: number of examples, where no labels are given.
        start: (B, ...) the first guess, in normalised units; None: the recipe draws it.
        prior_constants: constants of the model prior, by name; all targets of a search have the same names.
    """

    sent: Tensors
    labels: Tensor | None
    rng: torch.Generator
    batch: int = 1
    start: Tensor | None = None
    prior_constants: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        samples: (B, ...) raw inputs in the box; NaN where every start failed.
        matching_loss: the distance at the samples, without the prior.
        labels: (B,) given or searched for.
        iterations: iterations of the start that counts, until it was solved; None where it never was.
    """

    samples: Tensor
    matching_loss: float
    labels: Tensor
    iterations: int | None


def invert(
    victim: VictimModel,
    targets: Sequence[SearchTarget],
    config: SearchConfig,
    *,
    operator: Operator | DifferentiableDefence | None = None,
    box: tuple[float, float] = (0.0, 1.0),
    compute: ComputeLimits | None = None,
) -> list[SearchResult]:
    """Search for the data behind the observation of each target.

    Args:
        victim: computes the gradient of a guess.
        targets: targets of equal batch size; all with labels, or all without.
        config: settings of the search.
        operator: a known mechanism between the gradient and the observation.
        box: smallest and largest raw input.
        compute: limits of memory, compilation, and precision.

    Returns:
        One for each target. A search fails if every start left the finite numbers, came no closer than at the start,
        or is lost: then its samples are NaN.

    Raises:
        InputError: an observation is of another network or not finite, one search does not fit into memory, or the
            victim cannot be searched for in this precision.
    """
    compute = compute or ComputeLimits()
    with compute.reduced(victim) as victim:
        if operator is None:  # a mechanism may change what is 0, or count entries
            victim, kernels = cropped(victim, [target.sent for target in targets])
            targets = [replace(target, sent=sent) for target, sent in zip(targets, kernels, strict=True)]
        run = _Run(victim, config, operator, box, compute)
        best: list[SearchResult | None] = [None] * len(targets)
        # Without a distance at which to stop, all starts are searched from at once.
        waves = [config.restarts] if config.together or not config.solved else [1] * config.restarts
        for starts in waves:
            open_ = [i for i, result in enumerate(best) if result is None or not result.matching_loss <= config.solved]
            if not open_:
                break
            with search_copies() as copies:
                runs = run.searched([targets[i] for i in open_ for _ in range(starts)], copies)
            for index, result in zip([i for i in open_ for _ in range(starts)], runs, strict=False):  # copies are last
                before = best[index]
                if before is None or result.matching_loss < before.matching_loss:
                    best[index] = result
    return [result for result in best if result is not None]


class _Run:
    """State of one call of `invert`, built once for all starts."""

    def __init__(
        self,
        victim: VictimModel,
        config: SearchConfig,
        operator: Operator | DifferentiableDefence | None,
        box: tuple[float, float],
        compute: ComputeLimits,
    ) -> None:
        self._victim, self._recipe, self._box, self._compute = victim, config, box, compute
        self._mechanism = operator
        self._built: dict[tuple[Distance, Prior, bool, ModelPrior | None, int], tuple[Objective, Evaluation]] = {}
        inputs, device = victim.inputs, victim.inputs.mean.device
        low, high = (inputs.normalise(torch.full(inputs.shape, end, device=device)) for end in box)
        self._bounds = (low, high) if config.boxed else None

    def searched(self, targets: Sequence[SearchTarget], copies: int) -> list[SearchResult]:
        """Search for each target, in chunks that fit into memory; starts that influence each other share a chunk."""
        problems = [self._problem(target) for target in targets] * copies
        inseparable = self._recipe.restarts if self._recipe.together else 1  # problems that have to run at once
        rngs = [target.rng for target in targets] * copies
        together = min(self._evaluation(stage, problems[0])[1].together for stage in self._recipe.stages)
        if together < inseparable:
            raise InputError(
                f"Expected memory for {inseparable} starts at once, got room for {together}; lower restarts."
            )
        chunks = -(-len(problems) // (together - together % inseparable))
        width = -(-len(problems) // (chunks * inseparable)) * inseparable  # chunks of similar size need few graphs
        results: list[SearchResult] = []
        for at in range(0, len(problems), width):
            results += self._chunk(problems[at : at + width], rngs[at : at + width])
        return results

    def _chunk(self, problems: Sequence[Problem], rngs: Sequence[torch.Generator]) -> list[SearchResult]:
        guess = stacked([problem.guess for problem in problems])
        went = torch.zeros(len(problems), dtype=torch.bool)
        before = 0
        *opening, last = self._recipe.stages[: len(self._recipe.opening) + 1]
        for stage in opening:
            best = self._descended(stage, problems, rngs, guess, 0.0)
            guess, went = best.guess, went | (best.objective < best.first).cpu()  # False where both are infinite
            before += stage.descent.iterations
        best = self._descended(last, problems, rngs, guess, self._recipe.solved)
        for closing in self._recipe.closing:
            nearer = best
            for stage in closing.stages:
                nearer = self._descended(stage, problems, rngs, nearer.guess, self._recipe.solved)
            best.replace(nearer, nearer.matched < closing.below * best.matched)
        went = (went | (best.objective < best.first).cpu()) & (
            best.matched <= self._recipe.failed_above
        ).cpu()  # False for NaN
        return list(self._found(best, problems, went, before))

    def _descended(
        self, stage: Stage, problems: Sequence[Problem], rngs: Sequence[torch.Generator], guess: Guess, solved: float
    ) -> Best:
        objective, evaluation = self._evaluation(stage, problems[0])
        different = {id(problem): problem for problem in problems}
        constants = {key: objective.constants(problem, stage.strength) for key, problem in different.items()}
        given = stacked_given([constants[id(problem)] for problem in problems])
        evaluate = evaluation.prepare(given, rngs)
        if self._recipe.together:
            evaluate = self._recipe.together(evaluate, given["labels"].get("hard"), stage.descent.iterations)
        descent = stage.descent.bind(given["labels"].get("hard"), rngs)
        return descent.descend(evaluate, guess, self._bounds, solved)

    def _problem(self, target: SearchTarget) -> Problem:
        device = self._victim.inputs.mean.device
        count = target.batch if target.labels is None else len(target.labels)
        start = target.start
        if start is None:
            start = self._recipe.start((count, *self._victim.inputs.shape), target.rng).to(device)
        logits = None
        if target.labels is None:
            logits = normal((count, self._victim.classes), target.rng).to(device)
        unknown = self._victim.unknown if self._recipe.fit_unknown else {}
        return Problem(target.sent, target.labels, start, unknown, logits, target.prior_constants)

    def _evaluation(self, stage: Stage, problem: Problem) -> tuple[Objective, Evaluation]:
        like = stage.distance, stage.prior, stage.through, stage.model_prior, stage.descent.candidates
        if like not in self._built:
            known, through = self._mechanism, stage.through
            defence_model = known if isinstance(known, DifferentiableDefence) else None
            operator = known.undoing if isinstance(known, DifferentiableDefence) else known
            objective = Objective(self._victim, stage.distance, stage.prior, operator, through, stage.model_prior)
            example = problem.guess, objective.constants(problem), self._compute
            inside = defence_model if through else None
            if stage.descent.candidates:
                evaluation = CandidateEvaluation(objective, inside, *example, stage.descent.candidates)
            else:
                evaluation = Staged(objective, inside, *example) if inside else Fused(objective, *example)
            self._built[like] = objective, evaluation
        return self._built[like]

    def _found(self, best: Best, problems: Sequence[Problem], went: Tensor, before: int) -> Iterator[SearchResult]:
        inputs = self._victim.inputs
        samples = (best.guess["x"] * inputs.std + inputs.mean).clamp(*self._box)
        for i, problem in enumerate(problems):
            yield SearchResult(
                samples[i] if went[i] else torch.full_like(samples[i], torch.nan),
                float(best.matched[i]) if went[i] else inf,
                problem.labels if problem.labels is not None else best.guess["labels"][i].argmax(-1),
                None if not went[i] or bool(best.unsolved[i]) else before + int(best.iterations[i]),
            )
