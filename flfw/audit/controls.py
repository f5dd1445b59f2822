"""Controls beside an audited case: the same clients, examples, weights and sizes, with less between data and message.

    undefended     nothing hides the data: no defence, and the method's mechanism changes nothing; a defence that
                   changes the network stays, in the form that hides nothing
    weak_defence   what hides the data acts in its weakest form, through which a message is known to leak; of a
                   pipeline, every stage does

Clients answer the probes of both with their own code, as they answer the target's. The controls are recorded where an
attack can adapt to what hides the data, and attacked only where the target's failure could count.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from flfw.adversary.attack import Attack
from flfw.audit.adaptation import protection_of
from flfw.audit.jobs import ProbeSet
from flfw.task.client_plan import ClientPlan
from flfw.task.pipeline import Pipeline, PipelineSettings

UNDEFENDED, WEAK_DEFENCE = "undefended", "weak_defence"
TARGET_CONTROLS = (UNDEFENDED, WEAK_DEFENCE)


@lru_cache(maxsize=16)  # a client is asked for many probes under one control
def under_control(plan: ClientPlan, control: str) -> ClientPlan | None:
    """Return a plan as clients carry it out on a control; None: it has no such control.

    Args:
        plan: of the run's clients.
        control: any control; on all but `TARGET_CONTROLS` the plan is unchanged.
    """
    if control not in TARGET_CONTROLS:
        return plan
    method, settings, stages = plan.method, plan.settings, plan.defences.stages
    changed = method.disabled_settings(settings) if control == UNDEFENDED else method.weakest_settings(settings)
    left = (Pipeline.disabled_settings if control == UNDEFENDED else Pipeline.weakest_settings)(
        PipelineSettings(stages)
    )
    if changed is None or left is None:
        return None
    return _with_stages(replace(plan, settings=changed), left)


def undefended(plan: ClientPlan) -> ClientPlan:
    """Return a plan as clients that do not use its defence carry it out: in the network that it may change."""
    if not plan.defences.changes_network:
        return plan
    left = Pipeline.disabled_settings(PipelineSettings(plan.defences.stages))
    return plan if left is None else _with_stages(plan, left)


def _with_stages(plan: ClientPlan, left: PipelineSettings) -> ClientPlan:
    """Return a plan with these stages of its defence, in these settings; without one nobody uses a defence."""
    partitions = plan.defences.partitions if left.stages else frozenset[int]()
    return plan.with_defences(replace(plan.defences, stages=left.stages, partitions=partitions))


def control_probe_sets(
    plan: ClientPlan, attacks: Iterable[Attack], adaptation: str, probe_set: ProbeSet
) -> Iterator[ProbeSet]:
    """Yield the probe sets of the controls beside a target's probes; none where no attack adapts.

    Args:
        plan: of the run's clients.
        attacks: those of the audit.
        adaptation: of attackers, as the experiment has it.
        probe_set: the target's probes.
    """
    if any("defence" in attack.models for attack in attacks) and _adapts(plan, adaptation, probe_set):
        yield from (probe_set.at(control) for control in TARGET_CONTROLS if under_control(plan, control) is not None)


def _adapts(plan: ClientPlan, adaptation: str, probe_set: ProbeSet) -> bool:
    vantage = "client_example" if probe_set.on_client else "server"
    defended = len(plan.defences.partitions)
    kinds = ([True] if defended else []) + ([False] if defended < plan.rounds.clients else [])
    return any(protection_of(plan, adaptation, probe_set, vantage, defended).adapts for defended in kinds)
