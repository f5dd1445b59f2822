"""What an attacker who knows what hides the data does about it: a client-side defence, or a method that itself does.

Against a defence, the hand-written adaptation of its name, if there is one; else its own code inside the objective.
Against a method that clips and adds noise, the hand-written adaptation of the method's name, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from flfw import plugins
from flfw import resolve as parts
from flfw.audit.jobs import Ticket
from flfw.defence import Defence
from flfw.experiment import Experiment
from flfw.inversion.automatic import Automatic
from flfw.server.strategy import FederatedStrategy
from flfw.victims.operator import Circumstances, MethodOperator, Operator, Scaled

How: TypeAlias = Literal["nothing to adapt to", "written", "automatic", "none"]


@dataclass(frozen=True)
class Hiding:
    """What stands between a client's data and what an attacker reads, and how one who knows of it adapts.

    Attributes:
        experiment: what was run.
        ticket: what was probed.
        vantage: where the attacker stands.
        how: it adapts to ``by``.
        by: the defence's name, or the method's where it is that which acts; empty: nothing that could act is there.
        method: whether that is the method.
        beside: the method, where it acts as well as a defence: only the defence is adapted to.
        idle: the defence, where it does nothing to what is read and the method does.
        told: what is written for the method, if anything.
    """

    experiment: Experiment
    ticket: Ticket
    vantage: str
    how: How = "nothing to adapt to"
    by: str = ""
    method: bool = False
    beside: str = ""
    idle: str = ""
    told: MethodOperator | None = None

    @property
    def adapts(self) -> bool:
        """Whether there is a way."""
        return self.how in ("written", "automatic")

    def through(self, factor: float) -> Operator | Automatic | None:
        """What stands in the objective of who knows; None: there is nothing to adapt to, or no way.

        Args:
            factor: what a defence acts on, over what the attack compares.
        """
        if self.method:
            return self.told if self.adapts else None
        return mechanism(self.experiment, self.ticket, self.vantage, factor) if self.adapts else None

    def words(self, adaptive: bool) -> Iterator[str]:
        """A sentence each, of what is granted and made use of.

        Args:
            adaptive: whether the attacker is told.
        """
        if self.idle:
            yield _does_nothing_here(f"that the client uses {self.idle}")
        if self.method:
            yield from self._of_method(adaptive)
        elif self.by:
            yield self._of_defence(adaptive)
        if self.beside:
            deed = f"that {self.beside} {self.told.deed}" if self.told else _unwritten(self.beside)
            yield f"not made use of: {deed}, beside the defence"

    def _of_defence(self, adaptive: bool) -> str:
        name, defence = self.by, parts.defence(self.experiment)
        if self.how == "nothing to adapt to":
            return _does_nothing_here(f"that the client uses {name}")
        if not adaptive:
            return f"not granted: that the client uses {name}"
        chosen = ", ".join(f"{field}={value}" for field, value in vars(defence.settings).items()) if defence else ""
        how = "with what is written for it" if self.how == "written" else "with its own code in the objective"
        return f"that the client uses {name} ({chosen}), to which it adapts {how}"

    def _of_method(self, adaptive: bool) -> Iterator[str]:
        told = self.told
        if told is None:
            yield f"not made use of: {_unwritten(self.by)}"
        elif self.how == "nothing to adapt to":
            yield _does_nothing_here(f"that {self.by} {told.deed}")
        elif self.how == "none":
            why = f", for {told.obstacle}" if told.obstacle else ""
            yield f"not made use of: that {self.by} {told.deed}{why}"
        elif not adaptive:
            yield f"not granted: that {self.by} {told.deed}"
        else:
            yield f"that {self.by} {told.known}, to which it adapts with what is written for it"
            if told.missed:
                yield f"not made use of: {told.missed}"


def hiding(experiment: Experiment, ticket: Ticket, vantage: str, defended: bool) -> Hiding:
    """What hides the data of a client, and what one who knows of it does.

    Args:
        experiment: what was run.
        ticket: what was probed.
        vantage: where the attacker stands.
        defended: whether the client uses the experiment's defence.
    """
    at = experiment, ticket, vantage
    if ticket.rung != "target":  # of which neither a method nor a defence hides anything
        return Hiding(*at)
    own = _of_method(*at)
    if not defended:
        return own
    how, acts = adaptation(*at), bool(own.by) and own.how != "nothing to adapt to"
    if how == "nothing to adapt to" and acts:
        return replace(own, idle=experiment.defence)
    return Hiding(*at, how=how, by=experiment.defence, beside=own.by if acts else "", told=own.told)


def _of_method(experiment: Experiment, ticket: Ticket, vantage: str) -> Hiding:
    at, name = (experiment, ticket, vantage), experiment.method
    cls, settings = parts.method(experiment)
    if _function(cls.mechanism) is _function(FederatedStrategy.mechanism):
        return Hiding(*at)
    if name not in plugins.names(plugins.ADAPTATION):
        return Hiding(*at, how="none", by=name, method=True)
    about = Circumstances(
        lr=experiment.lr,
        batch=ticket.batch,
        steps=ticket.steps,
        round=ticket.round,
        rounds=experiment.rounds,
        on_client=vantage == "client_example",
        shared=cls.descended(parts.blank_model(experiment), settings),
    )
    told = _written(name)(asdict(settings), about)
    how: How = "written" if experiment.adaptation == "auto" and not told.obstacle else "none"
    return Hiding(*at, how=how if told.acts else "nothing to adapt to", by=name, method=True, told=told)


def _written(method: str) -> type[MethodOperator]:
    return plugins.find(plugins.ADAPTATION, method, MethodOperator)


def _function(method: Any) -> Any:
    return method.__func__


def _does_nothing_here(deed: str) -> str:
    return f"{deed}, which does nothing to what is read here"


def _unwritten(name: str) -> str:
    return f"what {name} does to the data for their privacy, for which no adaptation is written"


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


def mechanism(experiment: Experiment, ticket: Ticket, vantage: str, factor: float) -> Operator | Automatic | None:
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
