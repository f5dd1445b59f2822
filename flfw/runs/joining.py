"""Choice of how many clients of a run compute their local steps together."""

from __future__ import annotations

from math import ceil

import torch

from flfw.client.stacked_descent import GradientClient, unstackable
from flfw.engines import machine
from flfw.errors import require
from flfw.resolve import Resolved
from flfw.rng import initialising

_ENGINES = ("inproc", "ray")
_ON_GPU = 16
"""Clients that ``cohort=auto`` lets compute together at most: each holds its model in the same process."""
_TRIED = 4  # inputs of the trial of a network with stacked weights
_HOOKS = frozenset({"update"})
"""Hooks of a defence that joint steps do not touch."""


def resolve_batched_clients(resolved: Resolved) -> tuple[Resolved, list[str]]:
    """Replace ``cohort=auto`` by a number, and refuse a number above 1 where no steps are computed together.

    Returns:
        The experiment, and a note if auto had to be 1.

    Raises:
        InputError: naming what keeps the clients apart.
    """
    experiment = resolved.experiment
    if experiment.together == 1:
        return resolved, []
    reason = apart(resolved)
    if experiment.together:
        require(not reason, f"--cohort 1 with {reason}", cohort=experiment.cohort)
        return resolved, []
    most = _ON_GPU if _on_gpu(resolved) else resolved.client.cohort_on_cpu(resolved.model)
    if not reason and most == 1:
        reason = "a method and a network whose joint steps take as long on a CPU"
    number = 1 if reason else _number(resolved, most)
    notes = [f"cohort=auto became 1: {reason}."] if reason else []
    return resolved.replaced(cohort=str(number)), notes


def apart(resolved: Resolved) -> str:
    """Name the reason why clients of an experiment do not compute together; empty: there is none."""
    experiment = resolved.experiment
    if experiment.federation:
        return "--federation, whose sites are machines of their own"
    if experiment.engine not in _ENGINES:
        return f"engine={experiment.engine}, which hands out one message at a time"
    if reason := resolved.client.not_batchable_reason(resolved.model, resolved.settings):
        return f"method={experiment.method}, {reason}"
    if (defence := resolved.defence) and experiment.defended_partitions and (hooks := defence.active_hooks - _HOOKS):
        return f"defence={experiment.defence}, which acts at the {', '.join(sorted(hooks))} of local steps"
    if resolved.draws:
        return f"net={experiment.net}, which draws random numbers in training"
    if issubclass(resolved.client, GradientClient) and (reason := _tried(resolved)):
        return f"net={experiment.net}, {reason}"
    return ""


def _tried(resolved: Resolved) -> str:
    """Name the reason against a model with stacked weights; see `flfw.client.stacked_descent.unstackable`."""
    shape, _ = resolved.input_space
    with initialising(0, "network with stacked weights"):
        return unstackable(resolved.build_model(), torch.rand(_TRIED, *shape))


def _on_gpu(resolved: Resolved) -> bool:
    return bool(resolved.experiment.gpus_per_client) and torch.cuda.is_available()


def _number(resolved: Resolved, most: int) -> int:
    """Return how many clients to join: at most ``most``, and no more than leave work for each process."""
    experiment = resolved.experiment
    alone = experiment.engine == "inproc" or bool(experiment.ray_address)
    processes = 1 if alone else max(1, machine.at_once(experiment, machine.resources("")))
    return min(most, ceil(experiment.per_round / processes))
