"""Fit of given data to an observation: how well they explain it, without any search."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from flfw.inversion.automatic import DifferentiableDefence, again
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.evaluation import stacked
from flfw.inversion.graph import LIGHT
from flfw.inversion.matching import Guess, Objective, Problem
from flfw.inversion.search import SearchConfig, SearchTarget
from flfw.nets.net import Tensors

_AT_ONCE, _ENTRIES = 32, 10**8  # most guesses that are evaluated together, and most entries of their gradients


class Fit(NamedTuple):
    """Values of an attack's objective at a guess; lower is better.

    Attributes:
        objective: what the attack minimises, its prior included.
        distance: the part that compares with the observation, without the prior.
    """

    objective: float
    distance: float


def fits(
    victim: VictimModel,
    target: SearchTarget,
    config: SearchConfig,
    guesses: Sequence[tuple[Tensor, Tensor | None]],
    *,
    mechanism: Operator | DifferentiableDefence | None = None,
) -> list[Fit]:
    """Compute the objective of a search's last stage at some guesses.

    Args:
        victim: computes the gradient of a guess; it holds all tensors of the model.
        target: the observation.
        config: settings of the search.
        guesses: raw inputs (B, ...) and labels (B,); None: the target's.
        mechanism: a known mechanism between the gradient and the observation.

    Raises:
        InputError: the observation is of another network, or not finite.
    """
    stage, defence_model = config.stages[-1], mechanism if isinstance(mechanism, DifferentiableDefence) else None
    operator = mechanism.undoing if isinstance(mechanism, DifferentiableDefence) else mechanism
    objective = Objective(victim, stage.distance, stage.prior, operator, stage.through, stage.model_prior)
    problems = [_problem(victim, target, *guess) for guess in guesses]
    constants = objective.constants(problems[0], stage.strength)
    ready = [(problem.guess, {} if problem.labels is None else {"hard": problem.labels}) for problem in problems]
    given = lambda labels: {**constants, "labels": labels}  # noqa: E731
    if defence_model is None or not stage.through:
        values = _evaluated(lambda guess, labels: objective(guess, given(labels)), ready, target.sent)
        return [Fit(float(total), float(distance)) for total, distance in values]
    trials = _evaluated(lambda guess, labels: objective.trial(guess, given(labels)), ready, target.sent)
    state, nature = target.rng.get_state(), None
    result = []
    for (guess, labels), trial in zip(ready, trials, strict=True):
        known, drawing = given(labels), again(state)  # the same random numbers for all guesses
        nature = nature or defence_model.nature(trial, again(state))
        sent = defence_model.sent(trial, drawing, faithful=False, nature=nature)
        distance = objective.distance(defence_model.left(sent, known["observed"]), known["observed"])
        result.append(Fit(float(distance + objective.weighed(guess, known)), float(distance)))
    return result


def _problem(victim: VictimModel, target: SearchTarget, samples: Tensor, labels: Tensor | None) -> Problem:
    inputs = victim.inputs
    start = inputs.normalise(samples.to(inputs.mean.device))
    labels = target.labels if labels is None else labels
    return Problem(target.sent, labels, start, victim.unknown, prior_constants=target.prior_constants)


def _evaluated(
    function: Callable[[Guess, Tensors], Any], ready: Sequence[tuple[Guess, Tensors]], sent: Tensors
) -> Iterator[Any]:
    """Yield a function's result for each guess and its labels; light ones are computed together, as `Graph` does.

    Results are yielded one by one, so that no more of them are in memory than are computed together.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        first = function(*ready[0])
    yield first
    fitting = _ENTRIES // max(1, sum(value.numel() for value in sent.values()))
    width = max(1, min(_AT_ONCE, fitting)) if counter.get_total_flops() <= LIGHT else 1
    for at in range(1, len(ready), width):
        guesses, labels = zip(*ready[at : at + width], strict=True)
        with torch.no_grad():
            stack = vmap(function)(stacked(guesses), stacked(labels))
        for i in range(len(guesses)):
            yield tree_map(lambda values, i=i: values[i], stack)
