"""Choice of how many clients of a run compute their local steps together."""

from __future__ import annotations

from math import ceil

import torch

from flfw.client.stacked_descent import GradientClient, unstackable
from flfw.engines.machine import at_once, available_resources
from flfw.errors import require
from flfw.plans.run_plan import RunPlan
from flfw.rng import initialising

_ENGINES = ("inproc", "ray")
_ON_GPU = 16
"""Clients that ``batched-clients=auto`` lets compute together at most: each holds its model in the same process."""
_TRIED = 4  # inputs of the trial of a network with stacked weights
_HOOKS = frozenset({"update"})
"""Hooks of a defence that joint steps do not touch."""


def resolve_batched_clients(run_plan: RunPlan) -> tuple[RunPlan, list[str]]:
    """Replace ``batched-clients=auto`` by a number, and refuse a number above 1 where no steps are computed together.

    Returns:
        The experiment, and a note if auto had to be 1.

    Raises:
        InputError: naming what keeps the clients apart.
    """
    experiment = run_plan.experiment
    if experiment.together == 1:
        return run_plan, []
    reason = apart(run_plan)
    if experiment.together:
        require(not reason, f"--batched-clients 1 with {reason}", batched_clients=experiment.batched_clients)
        return run_plan, []
    maximum = _ON_GPU if _on_gpu(run_plan) else run_plan.client_class.cohort_on_cpu(run_plan.client.model)
    if not reason and maximum == 1:
        reason = "a method and a network whose joint steps take as long on a CPU"
    number = 1 if reason else _number(run_plan, maximum)
    notes = [f"batched-clients=auto became 1: {reason}."] if reason else []
    return run_plan.replaced(batched_clients=str(number)), notes


def apart(run_plan: RunPlan) -> str:
    """Name the reason why clients of a run do not compute together; empty: there is none."""
    experiment, plan = run_plan.experiment, run_plan.client
    if experiment.federation:
        return "--federation, whose sites are machines of their own"
    if experiment.engine not in _ENGINES:
        return f"engine={experiment.engine}, which hands out one message at a time"
    if reason := run_plan.client_class.not_batchable_reason(run_plan.client.model, run_plan.client.settings):
        return f"method={experiment.method}, {reason}"
    if (defence := plan.defence) and experiment.defended_partitions and (hooks := defence.active_hooks - _HOOKS):
        return f"defence={experiment.defence}, which acts at the {', '.join(sorted(hooks))} of local steps"
    if run_plan.client.draws:
        return f"net={experiment.net}, which draws random numbers in training"
    if issubclass(run_plan.client_class, GradientClient) and (reason := _tried(run_plan)):
        return f"net={experiment.net}, {reason}"
    return ""


def _tried(run_plan: RunPlan) -> str:
    """Name the reason against a model with stacked weights; see `flfw.client.stacked_descent.unstackable`."""
    shape, _ = run_plan.task.input_space
    with initialising(0, "network with stacked weights"):
        return unstackable(run_plan.client.build_model(), torch.rand(_TRIED, *shape))


def _on_gpu(run_plan: RunPlan) -> bool:
    return bool(run_plan.experiment.gpus_per_client) and torch.cuda.is_available()


def _number(run_plan: RunPlan, maximum: int) -> int:
    """Return how many clients to join: at most ``maximum``, and no more than leave work for each process."""
    experiment = run_plan.experiment
    alone = experiment.engine == "inproc" or bool(experiment.ray_address)
    processes = 1 if alone else max(1, at_once(experiment, experiment.attack_gpus, available_resources("")))
    return min(maximum, ceil(experiment.per_round / processes))
