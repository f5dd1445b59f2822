"""Rungs beside an audited case: the same clients, examples, weights and sizes, with less between data and message.

    matched   nothing hides the data: no defence, and the method's mechanism changes nothing; a defence that changes the
              network stays, in the form that hides nothing
    told      what hides the data acts in its mildest form, through which a message is known to leak; of a pipeline,
              every stage does

Clients answer the probes of both with their own code, as they answer the target's. The rungs are recorded where an
attack can adapt to what hides the data, and attacked only where the target's failure could count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from flfw.audit.adaptation import hiding
from flfw.audit.jobs import ProbeSet
from flfw.pipeline import Pipeline, PipelineSettings, changes_network
from flfw.plugins import short_name
from flfw.resolve import Resolved

MATCHED, TOLD = "matched", "told"
BESIDE = (MATCHED, TOLD)
_UNDEFENDED = {"defence": "none", "defended": "all"}


def under_control(resolved: Resolved, rung: str) -> Resolved | None:
    """Return an experiment as clients carry it out on a rung; None: it has no such rung.

    Args:
        resolved: the experiment.
        rung: any rung; on all but `BESIDE` the experiment is unchanged.
    """
    if rung not in BESIDE:
        return resolved
    method, settings, stages = resolved.method, resolved.settings, resolved.stages
    changed = method.disabled_settings(settings) if rung == MATCHED else method.weakest_settings(settings)
    if changed is None:
        return None
    assignments = _assignments(short_name(resolved.experiment.method), settings, changed)
    left = (Pipeline.disabled_settings if rung == MATCHED else Pipeline.weakest_settings)(PipelineSettings(stages))
    if left is None:
        return None
    return _with_stages(resolved, left, assignments)


def undefended(resolved: Resolved) -> Resolved:
    """Return an experiment as clients that do not use its defence carry it out: in the network that it may change."""
    left = (
        Pipeline.disabled_settings(PipelineSettings(resolved.stages)) if changes_network(resolved.experiment) else None
    )
    return resolved if left is None else _with_stages(resolved, left).with_input_space(*resolved.input_space)


def _with_stages(resolved: Resolved, left: PipelineSettings, assignments: tuple[str, ...] = ()) -> Resolved:
    """Return an experiment with these stages of its defence, in these settings, and with further assignments."""
    before = {stage.name: stage.settings for stage in resolved.stages}
    for stage in left.stages:
        assignments += _assignments(short_name(stage.name), before[stage.name], stage.settings)
    chosen = {"defence": "+".join(stage.name for stage in left.stages)} if left.stages else _UNDEFENDED
    return resolved.replaced(set=(*resolved.experiment.set, *assignments), **chosen)


def tickets_beside(resolved: Resolved, probe_set: ProbeSet) -> Iterator[ProbeSet]:
    """Yield the tickets of the rungs beside a target's probes; none where no attack adapts.

    Args:
        resolved: the experiment.
        probe_set: the target's probes.
    """
    if any("defence" in attack.models for attack in resolved.attacks.values()) and _adapts(resolved, probe_set):
        yield from (probe_set.at(rung) for rung in BESIDE if under_control(resolved, rung) is not None)


def _adapts(resolved: Resolved, probe_set: ProbeSet) -> bool:
    vantage = "client_example" if probe_set.on_client else "server"
    defended = len(resolved.experiment.defended_partitions)
    kinds = ([True] if defended else []) + ([False] if defended < resolved.experiment.clients else [])
    return any(hiding(resolved, probe_set, vantage, defended).adapts for defended in kinds)


def _assignments(plugin: str, before: Any, after: Any) -> tuple[str, ...]:
    """Return the values of ``--set`` that turn one record of settings into another."""
    names = [field.name for field in dataclasses.fields(before)]
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return tuple(f"{plugin}.{name}={_word(getattr(after, name))}" for name in changed)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
