"""Views of a membership game, built from a job alone; those of an attacker who is told what hides the data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from safetensors.torch import load_file

from flfw.adversary.membership_attack import MembershipAttack, MembershipView
from flfw.audit.adaptation import Protection, protection_of
from flfw.audit.jobs import AttackJob, MembershipGame, ProbeSet
from flfw.audit.knowledge import granted_public, hidden, on_device, protocol, received_victim
from flfw.audit.membership.game import views
from flfw.audit.membership.request import TARGET, MembershipRequest
from flfw.audit.probe import control_net
from flfw.data.feed import raw
from flfw.inversion.client_models.batch_statistics import normalise_by_instance
from flfw.inversion.client_models.operator import MethodOperator, Operator
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.nets.training.devices import device_of
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Observation
from flfw.task.client_plan import ClientPlan


def game_views(
    job: AttackJob,
    game: MembershipGame,
    plan: ClientPlan,
    attack: MembershipAttack,
    adaptation: str,
    observations: Sequence[Observation],
) -> Iterator[MembershipView]:
    """Yield the views of a membership game on the job's device.

    Args:
        job: the job; it grants public data.
        game: its game.
        plan: of the run's clients, with the job's input space.
        attack: the job's attack.
        adaptation: what an attacker may adapt with.
        observations: the readable uploads; equal ids of ``received`` mean the same tensors.
    """
    device = device_of(job.device == "cuda")
    inputs = InputSpec.from_constants(job.shape, job.mean, job.std).to(device)
    public = granted_public(job, device)
    assert public is not None, "every game grants public data"

    def model(received: Tensors) -> VictimModel:
        if game.easy:
            net = control_net("easy", plan.task.network, plan.seed, *plan.task.input_space).to(device)
            return PlainVictim(net, received, ("*",), inputs)
        victim = received_victim(plan, received, inputs)
        normalise_by_instance(victim)
        return victim

    def local(steps: int) -> LocalSteps | None:
        if game.easy:
            return LocalSteps(game.lr, steps)
        granted = plan.method.local_steps(plan.settings, game.lr, steps)
        return granted and replace(granted, batch_size=plan.local.batch_size)

    moved: dict[int, Tensors] = {}
    brought = []
    for one in observations:
        received = moved.setdefault(id(one.received), on_device(one.received, device))
        brought.append(replace(one, sent=on_device(one.sent, device), received=received))
    held = {name: raw(value) if name == "samples" else value for name, value in load_file(game.file).items()}
    known = InformedAttacker(plan, adaptation, game, attack, job.vantage)
    for view in views(game, held, brought, public, model, local, partial(protocol, plan.seed)):
        yield known.with_operators(view) if job.adaptive else view


@final
@dataclass(frozen=True)
class InformedAttacker:
    """Knowledge of an attacker on membership about the mechanisms that hide the data of a run's clients.

    Attributes:
        plan: of the run's clients.
        adaptation: what an attacker may adapt with.
        game: the game.
        attack: the attack.
        vantage: the attacker's position.
    """

    plan: ClientPlan
    adaptation: str
    game: MembershipGame
    attack: MembershipAttack
    vantage: str = "server"

    @property
    def clients(self) -> tuple[int, ...]:
        """Targets whose messages are modelled, or that have a stand-in."""
        if self.replaced and not self.game.easy:
            return self.game.clients
        return tuple(client for client in self.game.clients if self.operator(client, 1) is not None)

    @property
    def replaced(self) -> str:
        """Private part of the model in whose place the attack learns a stand-in; empty: none."""
        return self.attack.replaceable(self.plan.model, hidden(self.plan))

    def missed(self, client: int) -> str:
        """Name the parts that the model of a client's messages leaves out; empty: none."""
        protection, operator = self._protection(client, 1), self.operator(client, 1)
        unmodelled = operator.unmodelled_clause if isinstance(operator, MethodOperator) else ""
        parts = [protection.unmodelled_part, protection.beside, unmodelled]
        if protection.how != "nothing to adapt to" and operator is None:
            parts += [f"what {name} does" for name in (protection.before, protection.by) if name]
        if kept := hidden(self.plan):
            instead = "in whose place stands what public data teach" if self.replaced else "which are guessed"
            names = ", ".join(sorted({name.partition(".")[0] for name in kept}))
            parts.append(f"the private tensors ({names}), {instead}")
        return " and ".join(filter(None, parts))

    def with_operators(self, view: MembershipView) -> MembershipView:
        """Return a view with the mechanism of each round."""
        rounds = tuple(replace(one, operator=self.operator(view.client, one.round)) for one in view.rounds)
        return replace(view, rounds=rounds, adaptive=True, replaced="" if self.game.easy else self.replaced)

    def operator(self, client: int, server_round: int) -> Operator | None:
        """Return the mechanism behind a client's message of a round; None: there is none, or it is not modelled."""
        protection, index = self._protection(client, server_round), self.game.clients.index(client)
        if not protection.adapts:
            return None
        # A defence acts on the change of the weights, and the attack compares the mean gradient of the steps.
        operator = protection.through(-self.game.lr * self.game.steps[index])
        return operator if isinstance(operator, Operator) and operator.passes else None

    def _protection(self, client: int, server_round: int) -> Protection:
        index = self.game.clients.index(client)
        batch = min([self.plan.local.batch_size, *self.game.examples[index : index + 1]])
        control = "easy" if self.game.easy else "target"
        probe_set = ProbeSet(control, server_round, "", batch, self.game.steps[index], "membership")
        defended = client in self.plan.defences.partitions
        return protection_of(self.plan, self.adaptation, probe_set, self.vantage, defended)


def with_informed(
    plan: ClientPlan, adaptation: str, attack: MembershipAttack, requests: Sequence[MembershipRequest]
) -> list[MembershipRequest]:
    """Return the requests, and after them those of an attacker who is told what hides the data, where that is modelled.

    Args:
        plan: of the run's clients.
        adaptation: what an attacker may adapt with.
        attack: the attack.
        requests: all its requests: the controls and the targets at every vantage.
    """
    by_server = [one for one in requests if one.game.vantage == "server"]
    targets = [one for one in by_server if one.kind == TARGET]
    informed = {one.attack: InformedAttacker(plan, adaptation, one.game, attack).clients for one in targets}
    more = [
        replace(one, adaptive=True, game=one.game if one.game.easy else one.game.among(informed[one.attack]))
        for one in by_server
        if informed.get(one.attack)
    ]
    return [*requests, *more]
