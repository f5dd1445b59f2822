"""Adaptation of an attacker to the operation that hides the data: a client-side defence, or the method itself.

Against a defence: the adaptation written under its name, if there is one; else its own code inside the objective.
Against a method that clips and adds noise: the adaptation written under the method's name, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import torch

from flfw import plugins
from flfw.audit.jobs import Ticket
from flfw.defence import Defence
from flfw.inversion.automatic import Automatic
from flfw.messages.sharing import matches
from flfw.resolve import Resolved
from flfw.rng import torch_generator
from flfw.server.strategy import FederatedStrategy
from flfw.victims.operator import Circumstances, DataOperator, MethodOperator, Operator, Scaled

How: TypeAlias = Literal["nothing to adapt to", "written", "automatic", "none"]


@dataclass(frozen=True)
class Hiding:
    """Operation between a client's data and an observation, and the adaptation of an attacker who knows it.

    Attributes:
        resolved: the experiment.
        ticket: the probes.
        vantage: the attacker's position.
        how: the kind of adaptation to ``by``.
        by: name of the defence, or of the method if only the method acts; empty if neither could act.
        method: whether ``by`` is the method.
        beside: the method, if it acts as well as a defence; the attacker adapts to the defence only.
        idle: the defence, if it does not change the observation and the method does.
        operator: the operator written for the method, if any.
    """

    resolved: Resolved
    ticket: Ticket
    vantage: str
    how: How = "nothing to adapt to"
    by: str = ""
    method: bool = False
    beside: str = ""
    idle: str = ""
    operator: MethodOperator | None = None

    @property
    def adapts(self) -> bool:
        """True if an adaptation exists."""
        return self.how in ("written", "automatic")

    def through(self, factor: float) -> Operator | Automatic | None:
        """Return the operator in the objective of an informed attacker; None: nothing to adapt to, or no adaptation.

        Args:
            factor: the tensor that a defence acts on, divided by the tensor that the attack compares.
        """
        if self.method:
            return self.operator if self.adapts else None
        return mechanism(self.resolved, self.ticket, self.vantage, factor) if self.adapts else None

    def words(self, adaptive: bool) -> Iterator[str]:
        """Yield a sentence for each thing that is granted, withheld or unused.

        Args:
            adaptive: whether the attacker knows the hiding operation.
        """
        if self.idle:
            yield _does_nothing_here(f"that the client uses {self.idle}")
        if self.method:
            yield from self._of_method(adaptive)
        elif self.by:
            yield self._of_defence(adaptive)
        if self.beside:
            deed = f"that {self.beside} {self.operator.deed}" if self.operator else _unwritten(self.beside)
            yield f"not made use of: {deed}, beside the defence"

    def _of_defence(self, adaptive: bool) -> str:
        name, defence = self.by, self.resolved.defence
        if self.how == "nothing to adapt to":
            return _does_nothing_here(f"that the client uses {name}")
        if not adaptive:
            return f"not granted: that the client uses {name}"
        chosen = ", ".join(f"{field}={value}" for field, value in vars(defence.settings).items()) if defence else ""
        how = "with what is written for it" if self.how == "written" else "with its own code in the objective"
        return f"that the client uses {name} ({chosen}), to which it adapts {how}"

    def _of_method(self, adaptive: bool) -> Iterator[str]:
        operator = self.operator
        if operator is None:
            yield f"not made use of: {_unwritten(self.by)}"
        elif self.how == "nothing to adapt to":
            yield _does_nothing_here(f"that {self.by} {operator.deed}")
        elif self.how == "none":
            why = f", for {operator.obstacle}" if operator.obstacle else ""
            yield f"not made use of: that {self.by} {operator.deed}{why}"
        elif not adaptive:
            yield f"not granted: that {self.by} {operator.deed}"
        else:
            yield f"that {self.by} {operator.known}, to which it adapts with what is written for it"
            if operator.missed:
                yield f"not made use of: {operator.missed}"


def hiding(resolved: Resolved, ticket: Ticket, vantage: str, defended: bool) -> Hiding:
    """Return the operation that hides a client's data, and the adaptation to it.

    Args:
        resolved: the experiment.
        ticket: the probes.
        vantage: the attacker's position.
        defended: whether the client uses the experiment's defence.
    """
    at, experiment = (resolved, ticket, vantage), resolved.experiment
    if ticket.fresh:  # below it, neither a method nor a defence acts
        return Hiding(*at)
    by_method = _of_method(*at)
    if not defended:
        return by_method
    how, acts = adaptation(*at), bool(by_method.by) and by_method.how != "nothing to adapt to"
    if how == "nothing to adapt to" and acts:
        return replace(by_method, idle=experiment.defence)
    return Hiding(*at, how=how, by=experiment.defence, beside=by_method.by if acts else "", operator=by_method.operator)


def _of_method(resolved: Resolved, ticket: Ticket, vantage: str) -> Hiding:
    at, experiment = (resolved, ticket, vantage), resolved.experiment
    name, cls, settings = experiment.method, resolved.method, resolved.settings
    if _function(cls.mechanism) is _function(FederatedStrategy.mechanism):
        return Hiding(*at)
    if name not in plugins.names(plugins.ADAPTATION):
        return Hiding(*at, how="none", by=name, method=True)
    circumstances = Circumstances(
        lr=experiment.lr,
        batch=ticket.batch,
        steps=ticket.steps,
        round=ticket.round,
        rounds=experiment.rounds,
        on_client=vantage == "client_example",
        shared=cls.descended(resolved.model, settings),
    )
    operator = _written(name)(asdict(settings), circumstances)
    how: How = "written" if experiment.adaptation == "auto" and not operator.obstacle else "none"
    return Hiding(*at, how=how if operator.acts else "nothing to adapt to", by=name, method=True, operator=operator)


def _written(method: str) -> type[MethodOperator]:
    return plugins.find(plugins.ADAPTATION, method, MethodOperator)


def _function(method: Any) -> Any:
    return method.__func__


def _does_nothing_here(deed: str) -> str:
    return f"{deed}, which does nothing to what is read here"


def _unwritten(name: str) -> str:
    return f"what {name} does to the data for their privacy, for which no adaptation is written"


def adaptation(resolved: Resolved, ticket: Ticket, vantage: str) -> How:
    """Return how an attacker who knows the experiment's defence adapts to it.

    Args:
        resolved: the experiment, with a defence.
        ticket: the probes.
        vantage: the attacker's position.

    Returns:
        ``nothing to adapt to``: no hook of the defence acted on the observation; ``none``: there is no adaptation,
        since the defence changes each of several local steps, or nothing is written for one that changes the network,
        or changes or looks at the batch.
    """
    acts, experiment = _hooks(resolved), resolved.experiment
    if vantage == "client_example":
        acts -= {"update"}
    if not acts:
        return "nothing to adapt to"
    if experiment.adaptation == "none" or (acts & {"batch", "gradients", "step"} and ticket.steps > 1):
        return "none"
    hooks = {"batch", "update", "step", "network"}
    written = experiment.adaptation == "auto" and acts & hooks and resolved.adaptation is not None
    if acts & {"batch", "step", "network"} and not written:
        return "none"  # an objective has no batch to show to the defence's own code, nor the noise in a network
    return "written" if written else "automatic"


def mechanism(resolved: Resolved, ticket: Ticket, vantage: str, factor: float) -> Operator | Automatic | None:
    """Return the defence as the objective uses it; None: nothing to adapt to, or no adaptation.

    Args:
        resolved: the experiment, with a defence.
        ticket: the probes.
        vantage: the attacker's position.
        factor: the tensor that the defence acts on, divided by the tensor that the attack compares.
    """
    how, defence = adaptation(resolved, ticket, vantage), resolved.new_defence()
    assert defence is not None, "an attack on a defended client was asked for"
    if how == "written":
        cls = resolved.adaptation
        assert cls is not None, "it was found before"
        written = cls(asdict(defence.settings))
        return written if factor == 1 or isinstance(written, DataOperator) else Scaled(written, factor)
    if how == "automatic":
        return Automatic(defence, factor=factor, finished=vantage != "client_example")
    return None


def relies_on_noise(resolved: Resolved, ticket: Ticket, vantage: str) -> bool:
    """Return whether the adaptation takes a defence's randomness for independent noise that the defence does not claim.

    The defence acts twice on the same random tensors, with generators of different seeds.

    Args:
        resolved: the experiment, with a defence.
        ticket: the probes.
        vantage: the attacker's position.
    """
    defence = resolved.new_defence()
    if defence is None or defence.independent_noise or adaptation(resolved, ticket, vantage) != "automatic":
        return False
    rng = torch_generator(0, "relies on noise")
    shared = resolved.method.descended(resolved.model, resolved.settings)
    named = {n: p for n, p in resolved.model.named_parameters() if matches(n, shared)}
    trial = {name: torch.randn(p.shape, generator=rng) for name, p in named.items()}
    for hook in (getattr(defence, name) for name in _hooks(resolved) - {"batch", "step", "network"}):
        copies = ({n: v.clone() for n, v in trial.items()} for _ in range(2))
        once, again = (hook(copy, torch_generator(seed, "trial")) for seed, copy in enumerate(copies))
        if any(not torch.equal(once[name], again[name]) for name in once):
            return True
    return False


def _hooks(resolved: Resolved) -> set[str]:
    """Return the hooks in which the experiment's defence acts."""
    cls = type(resolved.defence)
    return {
        hook
        for hook in ("batch", "gradients", "step", "update", "network")
        if getattr(cls, hook) is not getattr(Defence, hook)
    }
