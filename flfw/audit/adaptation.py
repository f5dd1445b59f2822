"""What an attacker who knows a client-side defence does about it.

The hand-written adaptation of the defence's name, if there is one; else the defence's own code inside the objective.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, TypeAlias

from flfw import parts
from flfw.audit.jobs import Ticket
from flfw.defence import Defence
from flfw.experiment import Experiment
from flfw.inversion.automatic import Automatic
from flfw.inversion.mechanism import Mechanism, Scaled

How: TypeAlias = Literal["nothing to adapt to", "written", "automatic", "none"]


def adaptation(experiment: Experiment, ticket: Ticket, vantage: str) -> How:
    """How an attacker who knows the experiment's defence adapts to it.

    Args:
        experiment: what was run, with a defence.
        ticket: what was probed.
        vantage: where the attacker stands.

    Returns:
        ``nothing to adapt to``: what it sees has not passed through any hook of the defence; ``none``: there is no way,
        for the defence changes the data, or each of several local steps.
    """
    acts = _hooks(experiment)
    if vantage == "client_example":
        acts -= {"update"}
    if not acts:
        return "nothing to adapt to"
    if experiment.adaptation == "none" or "batch" in acts or ("gradients" in acts and ticket.steps > 1):
        return "none"
    written = experiment.adaptation == "auto" and "update" in acts and parts.adaptation(experiment) is not None
    return "written" if written else "automatic"


def mechanism(experiment: Experiment, ticket: Ticket, vantage: str, factor: float) -> Mechanism | Automatic | None:
    """The defence as the objective has it; None where there is nothing to adapt to, or no way.

    Args:
        experiment: what was run, with a defence.
        ticket: what was probed.
        vantage: where the attacker stands.
        factor: what the defence acts on, over what the attack compares.
    """
    how, defence = adaptation(experiment, ticket, vantage), parts.defence(experiment)
    assert defence is not None, "an attack on a defended client was asked for"
    if how == "written":
        cls = parts.adaptation(experiment)
        assert cls is not None, "it was found before"
        written = cls(asdict(defence.settings))
        return written if factor == 1 else Scaled(written, factor)
    if how == "automatic":
        return Automatic(defence, factor=factor, finished=vantage != "client_example")
    return None


def _hooks(experiment: Experiment) -> set[str]:
    """Where the experiment's defence acts."""
    cls = type(parts.defence(experiment))
    return {hook for hook in ("batch", "gradients", "update") if getattr(cls, hook) is not getattr(Defence, hook)}
