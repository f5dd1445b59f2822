"""Adaptation of an attacker to the operation that hides the data: a client-side defence, or the method itself.

Against a defence: the adaptation written under its name, if there is one; else its own code inside the objective.
Against a method that clips and adds noise: the adaptation written under the method's name, or none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from flfw import plugins
from flfw.audit.jobs import ProbeSet
from flfw.files.tensor_names import matches
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.client_models.operator import (
    Circumstances,
    Composed,
    DataOperator,
    MethodOperator,
    Operator,
    Scaled,
    fitted,
)
from flfw.rng import torch_generator
from flfw.task.client_plan import ClientPlan
from flfw.task.defence import Defence
from flfw.task.method import Method
from flfw.task.pipeline import DefencePlan, DefenceStage

Acting: TypeAlias = list[tuple[DefenceStage, frozenset[str]]]
How: TypeAlias = Literal["nothing to adapt to", "written", "automatic", "none"]


@dataclass(frozen=True)
class Protection:
    """Operation between a client's data and an observation, and the adaptation of an attacker who knows it.

    Attributes:
        plan: of the run's clients.
        adaptation: what an attacker may adapt with: ``defence_code``, ``automatic`` or ``none``.
        probe_set: the probes.
        vantage: the attacker's position.
        how: the kind of adaptation to ``by``.
        by: name of the defence, or of the method if only the method acts; empty if neither could act.
        method: whether ``by`` is the method.
        before: the method, if it acts before a defence; the attacker adapts to both, one after the other.
        beside: the method, if it acts as well as a defence; the attacker adapts to the defence only.
        idle: the defence, if it does not change the observation and the method does.
        operator: the operator written for the method, if any.
    """

    plan: ClientPlan
    adaptation: str
    probe_set: ProbeSet
    vantage: str
    how: How = "nothing to adapt to"
    by: str = ""
    method: bool = False
    before: str = ""
    beside: str = ""
    idle: str = ""
    operator: MethodOperator | None = None

    @property
    def adapts(self) -> bool:
        """True if an adaptation exists."""
        return self.how in ("written", "automatic")

    def through(self, factor: float) -> Operator | DifferentiableDefence | None:
        """Return the operator in the objective of an informed attacker; None: nothing to adapt to, or no adaptation.

        Args:
            factor: the tensor that a defence acts on, divided by the tensor that the attack compares.
        """
        if not self.adapts or self.method:
            return self.operator if self.adapts else None
        if self.before:
            return Composed(_after(self.operator, _acting(self.plan.defences, self.vantage), factor) or ())
        return defence_operator(self.plan, self.adaptation, self.probe_set, self.vantage, factor)

    @property
    def unmodelled_part(self) -> str:
        """Part of a defence that the adaptation to it leaves out for these messages; empty: none."""
        operator = None if self.method or not self.adapts else self.through(1.0)
        if not isinstance(operator, Operator):
            return ""
        return operator.unmodelled_part(
            self.probe_set.batch, self.probe_set.steps, sent=sent_names(self.plan, self.plan.model)
        )

    def words(self, adaptive: bool, against: str = "") -> Iterator[str]:
        """Yield a sentence for each thing that is granted, withheld or unused.

        Args:
            adaptive: whether the attacker knows the hiding operation.
            against: name of the defence whose recipe the attack itself is built on; empty: none.
        """
        if self.idle:
            yield _does_nothing_here(f"that the client uses {self.idle}")
        if self.method:
            yield from self._of_method(adaptive)
        elif self.by:
            yield self._of_defence(adaptive, against)
            if adaptive and self.unmodelled_part:
                yield f"not made use of: {self.unmodelled_part}"
        if self.before and self.operator:
            known = f"that before it {self.before} {self.operator.known}, to which it adapts as well"
            yield known if adaptive else f"not granted: that {self.before} {self.operator.action}"
        if self.beside:
            action = f"that {self.beside} {self.operator.action}" if self.operator else _unwritten(self.beside)
            yield f"not made use of: {action}, beside the defence"

    def _of_defence(self, adaptive: bool, against: str) -> str:
        name = self.by
        if self.how == "nothing to adapt to":
            return _does_nothing_here(f"that the client uses {name}")
        if not adaptive and against and against in [stage.name for stage in self.plan.defences.stages]:
            return f"the recipe of {against}, with the attack's own settings of it; nothing else of {name}"
        if not adaptive:
            return f"not granted: that the client uses {name}"
        stages = self.plan.defences.stages
        it = "it" if len(stages) == 1 else "each"
        how = f"with what is written for {it}" if self.how == "written" else "with its own code in the objective"
        return f"that the client uses {in_words(stages)}, to which it adapts {how}"

    def _of_method(self, adaptive: bool) -> Iterator[str]:
        operator = self.operator
        if operator is None:
            yield f"not made use of: {_unwritten(self.by)}"
        elif self.how == "nothing to adapt to":
            yield _does_nothing_here(f"that {self.by} {operator.action}")
        elif self.how == "none":
            why = f", for {operator.unsupported_reason}" if operator.unsupported_reason else ""
            yield f"not made use of: that {self.by} {operator.action}{why}"
        elif not adaptive:
            yield f"not granted: that {self.by} {operator.action}"
        else:
            yield f"that {self.by} {operator.known}, to which it adapts with what is written for it"
            if operator.unmodelled_clause:
                yield f"not made use of: {operator.unmodelled_clause}"


def protection_of(plan: ClientPlan, adaptation: str, probe_set: ProbeSet, vantage: str, defended: bool) -> Protection:
    """Return the operation that hides a client's data, and the adaptation to it.

    Args:
        plan: of the run's clients.
        adaptation: what an attacker may adapt with.
        probe_set: the probes.
        vantage: the attacker's position.
        defended: whether the client uses the experiment's defence.
    """
    at = (plan, adaptation, probe_set, vantage)
    if probe_set.fresh:  # below it, neither a method nor a defence acts
        return Protection(*at)
    by_method = _of_method(*at)
    if not defended:
        return by_method
    how, acts = adapted(*at), bool(by_method.by) and by_method.how != "nothing to adapt to"
    if how == "nothing to adapt to" and acts:
        return replace(by_method, idle=plan.defences.name)
    name, operator = by_method.by if acts else "", by_method.operator
    both = by_method.how == how == "written" and probe_set.source == "probe" and probe_set.steps == 1
    both = both and bool(_after(operator, _acting(plan.defences, vantage)))
    before, beside = (name, "") if both else ("", name)
    return Protection(*at, how=how, by=plan.defences.name, before=before, beside=beside, operator=operator)


def in_words(stages: Sequence[DefenceStage]) -> str:
    """Name defences with all their settings, in the order in which they act."""
    return ", then ".join(
        f"{stage.name} ({', '.join(f'{field}={value}' for field, value in vars(stage.settings).items())})"
        for stage in stages
    )


def _after(method: MethodOperator | None, acting: Acting, factor: float = 1.0) -> list[Operator] | None:
    """Return a method's operator and after it those of the defences on its update; None: they do not compose."""
    on_updates = method is not None and all(hooks == {"update"} for _, hooks in acting)
    return _written_for(acting, factor, method) if on_updates else None


def _of_method(plan: ClientPlan, adaptation: str, probe_set: ProbeSet, vantage: str) -> Protection:
    at = (plan, adaptation, probe_set, vantage)
    name, cls, settings = plan.name, plan.method, plan.settings
    if not has_mechanism(cls):
        return Protection(*at)
    if name not in plugins.names(plugins.ADAPTATION):
        return Protection(*at, how="none", by=name, method=True)
    circumstances = Circumstances(
        lr=plan.local.lr,
        batch=probe_set.batch,
        steps=probe_set.steps,
        round=probe_set.round,
        rounds=plan.rounds.rounds,
        on_client=vantage == "client_example",
        shared=cls.descended(plan.model, settings),
    )
    operator = _written(name)(asdict(settings), circumstances)
    how: How = "written" if adaptation == "auto" and not operator.unsupported_reason else "none"
    return Protection(*at, how=how if operator.acts else "nothing to adapt to", by=name, method=True, operator=operator)


def _written(method: str) -> type[MethodOperator]:
    return plugins.load_class(plugins.ADAPTATION, method, MethodOperator)


def sent_names(plan: ClientPlan, model: nn.Module, fresh: bool = False) -> list[str]:
    """Return the names of a model's tensors in a message; of a ``fresh`` one, which no method divides, all."""
    descended = ("*",) if fresh else plan.method.descended(model, plan.settings)
    return [name for name, _ in model.named_parameters() if matches(name, descended)]


def has_mechanism(method: type[Method]) -> bool:
    """Return whether a method hides the data by an operation of its own, such as noise."""
    its_own: Any = method.mechanism
    inherited: Any = Method.mechanism
    return its_own.__func__ is not inherited.__func__


def _does_nothing_here(action: str) -> str:
    return f"{action}, which does nothing to what is read here"


def _unwritten(name: str) -> str:
    return f"what {name} does to the data for their privacy, for which no adaptation is written"


def adapted(plan: ClientPlan, adaptation: str, probe_set: ProbeSet, vantage: str) -> How:
    """Return how an attacker who knows the experiment's defence adapts to it.

    Args:
        plan: of the run's clients, with a defence.
        adaptation: what an attacker may adapt with.
        probe_set: the probes.
        vantage: the attacker's position.

    Returns:
        ``nothing to adapt to``: no hook of the defence acted on the observation; ``none``: there is no adaptation,
        since the defence changes each of several local steps, or nothing is written for one that changes the network,
        or changes or looks at the batch. A pipeline is adapted to as a whole, or not at all.
    """
    acting = _acting(plan.defences, vantage)
    acts = frozenset[str]().union(*(hooks for _, hooks in acting))
    if not acts:
        return "nothing to adapt to"
    if adaptation == "none" or (acts & {"batch", "gradients", "step"} and probe_set.steps > 1):
        return "none"
    written = adaptation == "auto" and _written_for(acting) is not None
    if acts & {"batch", "step", "network"} and not written:
        return "none"  # an objective has no batch to show to the defence's own code, nor the noise in a network
    return "written" if written else "automatic"


def defence_operator(
    plan: ClientPlan, adaptation: str, probe_set: ProbeSet, vantage: str, factor: float
) -> Operator | DifferentiableDefence | None:
    """Return the defence as the objective uses it; None: nothing to adapt to, or no adaptation.

    Args:
        plan: of the run's clients, with a defence.
        adaptation: what an attacker may adapt with.
        probe_set: the probes.
        vantage: the attacker's position.
        factor: the tensor that `Defence.update` acts on, divided by the tensor that the attack compares.
    """
    how, defence = adapted(plan, adaptation, probe_set, vantage), plan.defences.build()
    assert defence is not None, "an attack on a defended client was asked for"
    if how == "written":
        return written_operator(plan.defences, vantage, factor)
    if how == "automatic":
        return DifferentiableDefence(defence, factor=factor, finished=vantage != "client_example")
    return None


def written_operator(defences: DefencePlan, vantage: str, factor: float = 1.0) -> Operator | None:
    """Return what is written for the acting defences, as one operator; None: one lacks it, or they do not compose.

    Args:
        defences: of the clients.
        vantage: the attacker's position.
        factor: as for `defence_operator`.
    """
    operators = _written_for(_acting(defences, vantage), factor)
    if operators is None:
        return None
    return operators[0] if len(operators) == 1 else Composed(operators)


@lru_cache(maxsize=16)  # many targets are attacked behind one defence
def departure_of_noise(plan: ClientPlan, vantage: str) -> str:
    """Return in words what tells a defence's randomness from the noise that the automatic adaptation takes it for.

    Empty if the defence is not random, or if no test of `flfw.audit.measures.noise` tells them apart.

    Args:
        plan: of the run's clients, with a defence to which the adaptation is automatic.
        vantage: the attacker's position.
    """
    if not any(_is_random(plan, stage.build(), hooks) for stage, hooks in _acting(plan.defences, vantage)):
        return ""
    defence = plan.defences.build()
    assert defence is not None, "it acted"
    from flfw.audit.measures.noise import departure_from_normal  # with scipy, which takes clients long to import

    acts = DifferentiableDefence(defence, finished=vantage != "client_example").defended
    return departure_from_normal(acts, dict(_shared_tensors(plan)))


def draws_from_seed(plan: ClientPlan, vantage: str) -> bool:
    """Return whether an acting defence draws from the run's seed, or may: before the gradients nothing is tried.

    None does with ``defence_randomness=secure``, nor one with the setting ``noise_source=secure``.
    """
    if plan.defences.randomness == "secure":
        return False
    acting = [(stage.build(), hooks) for stage, hooks in _acting(plan.defences, vantage)]
    seeded = [one for one in acting if getattr(one[0].settings, "noise_source", "seed") == "seed"]
    return any(hooks & {"network", "batch", "step"} or _is_random(plan, defence, hooks) for defence, hooks in seeded)


def _is_random(plan: ClientPlan, defence: Defence, hooks: frozenset[str]) -> bool:
    rng = torch_generator(0, "relies on noise")
    trial = {name: torch.randn(value.shape, generator=rng) for name, value in _shared_tensors(plan)}
    for hook in (getattr(defence, name) for name in sorted(hooks & {"gradients", "update"})):
        copies = ({n: v.clone() for n, v in trial.items()} for _ in range(2))
        once, again = (hook(copy, torch_generator(seed, "trial")) for seed, copy in enumerate(copies))
        if any(not torch.equal(once[name], again[name]) for name in once):
            return True
    return False


def _shared_tensors(plan: ClientPlan) -> Iterator[tuple[str, torch.Tensor]]:
    shared = plan.method.descended(plan.model, plan.settings)
    yield from ((name, value) for name, value in plan.model.named_parameters() if matches(name, shared))


def _acting(defences: DefencePlan, vantage: str) -> Acting:
    """Return the defences that acted on the observation, each with the hooks at which it did, in order.

    The network stands before the steps, and all steps before the update.
    """
    unseen = {"update"} if vantage == "client_example" else set[str]()
    acting = [(stage, stage.active_hooks - unseen) for stage in defences.stages]
    return sorted((one for one in acting if one[1]), key=lambda one: (one[1] == {"update"}, "network" not in one[1]))


def _adaptation_to(defence: str) -> type[Operator] | None:
    """Return the adaptation written for a defence of this name; None: there is none."""
    if defence not in plugins.names(plugins.ADAPTATION):
        return None
    return plugins.load_class(plugins.ADAPTATION, defence, Operator)


def _written_for(acting: Acting, factor: float = 1.0, method: MethodOperator | None = None) -> list[Operator] | None:
    """Return the operators written for the acting defences, in order; None: one is missing, or they do not compose.

    Args:
        acting: from `_acting`.
        factor: as for `mechanism`; defences of steps and of the network act on the compared tensors themselves.
        method: a method's operator, which acts before them; None: none does.
    """
    operators: list[Operator] = [] if method is None else [method]
    for stage, hooks in acting:
        cls, changes_update = _adaptation_to(stage.name), "update" in hooks
        # One that acts on steps and on updates acts both before and after other stages.
        around = len(acting) > 1 and changes_update and len(hooks) > 1
        if cls is None or around or not hooks & {"batch", "update", "step", "network"}:
            return None
        written = cls(asdict(stage.settings))
        if isinstance(written, DataOperator) and (method or len(acting) > 1):
            return None  # its work begins after a search, the others' is in the objective
        operators.append(Scaled(written, factor) if changes_update and factor != 1 else written)
    return fitted(operators)
