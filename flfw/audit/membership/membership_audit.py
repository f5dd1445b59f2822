"""Membership game on the trusted side: what is asked of an attack, the entries of its scores, and the controls.

The controls are clients of a fresh network whose members a statistic must find. Nothing stands between the data and
what is seen: the run's own network, undefended, with all of its tensors shared. Labels are assigned by lot, each class
as often as the others, so that nothing general can be learnt from a client's examples: what lowers a member's loss is
its own trace.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch.func import functional_call

from flfw.audit.adaptation import has_mechanism
from flfw.audit.jobs import JobResult, MembershipGame
from flfw.audit.knowledge import hidden, received_victim
from flfw.audit.membership.candidates import GameCandidates, untrained_pairs
from flfw.audit.membership.entry import NULL, ONE_STEP, OVERFITTED, claim_against, entry
from flfw.audit.membership.game import final_tensors, own_exchanges
from flfw.audit.membership.request import TARGET, MembershipRequest, Place, Scores, vantage_points
from flfw.audit.membership.views import InformedAttacker
from flfw.audit.probe import control_net
from flfw.audit.sums import with_min_safe_sum_size
from flfw.data.membership_pairs import MemberPairs, PatientGame, said_of_copies
from flfw.data.splits.lazy_parts import sizes
from flfw.errors import require
from flfw.experiment import AGGREGATE, OUTSIDER, PEER
from flfw.files.progress import Steps
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets.net import Net, Tensors, correct, losses
from flfw.plans.run_plan import AuditPlan
from flfw.recording.format import Line
from flfw.recording.reader import Recordings, examples_in
from flfw.rng import numpy_generator
from flfw.server.checkpoint import Snapshot, last_snapshot
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

FLOORS = ("label_only", "loss_only")
"""Statistics that read no client's message; each is a floor of the others."""

Put: TypeAlias = Callable[[str, Tensors], str]
"""Function that writes the candidates of a name for the attacks, and returns the file."""

_LR = 0.1
_MEMBERS, _CLIENTS = 10, 8  # of the client that learns by heart, and of how many there are
_EPOCHS, _MOST_EPOCHS, _FITTED = 50, 400, 0.3  # it goes on after 50 epochs until its mean loss is below 0.3
_SINGLE = 12  # clients of one step, each with one member


class _Trained(NamedTuple):
    """Weights after a control's training, and the number of its steps."""

    sent: Tensors
    steps: int


@final
class Controls:
    """Clients of a fresh network whose members are known to be there to find.

    Their members are drawn from members and held-out examples of the game alike: who finds them learns nothing about
    the game's coins.

    Args:
        task: source of the examples.
        pairs: of the attacked clients.
        fresh: builds the network.
        put: writes the candidates of a name for the attacks, and returns the file.
        seed: of the experiment.
    """

    def __init__(
        self, task: Task, pairs: Sequence[MemberPairs | PatientGame], fresh: Callable[[], Net], put: Put, seed: int
    ) -> None:
        rng = numpy_generator(seed, "controls of membership")
        indices = np.sort(np.concatenate([part for one in pairs for part in (one.members, one.held_out)]))
        self._places, self._fresh, self._put = rng.permutation(indices), fresh, put
        singles = min(_SINGLE, len(indices) // 2)
        self._singles = self._groups(0, singles, 1)
        left = (len(indices) - 2 * singles) // 2
        members = min(_MEMBERS, left)
        self._overfitted = self._groups(2 * singles, min(_CLIENTS, left // members), members) if members else []
        self._task = self._relabelled(task, rng)

    def _groups(self, start: int, count: int, members: int) -> list[MemberPairs]:
        """Return groups of places that are in no other."""
        rows = self._places[start : start + 2 * count * members].reshape(count, 2, members)
        return [MemberPairs(row[0], row[1]) for row in rows]

    def _relabelled(self, task: Task, rng: np.random.Generator) -> Task:
        """Return the task with labels by lot; both of a pair have the same."""
        labels, classes = np.array(task.dataset.train_y), task.dataset.classes
        together = np.array([group.members[0] for group in self._singles], np.int64)
        for indices in (together, *(group.members for group in self._overfitted)):
            by_lot = rng.standard_normal if task.dataset.is_regression else lambda count: np.arange(count) % classes
            labels[indices] = rng.permutation(by_lot(len(indices)))
        for group in (*self._singles, *self._overfitted):
            labels[group.held_out] = labels[group.members]
        return replace(task, dataset=replace(task.dataset, train_y=labels))

    def requests(self, attack: str, vantage: str = "server") -> list[MembershipRequest]:
        """Return the requests to an attack; each group is numbered as a client of its own.

        Args:
            attack: its name.
            vantage: ``outsider`` sees what was learnt by heart, and no message; all others see messages.
        """
        kinds = [(OVERFITTED, self._overfitted, self._by_heart)]
        kinds += [(ONE_STEP, self._singles, self._stepped)] if vantage != OUTSIDER else []
        return [self._request(attack, kind, groups, trained, vantage) for kind, groups, trained in kinds if groups]

    def _request(
        self, attack: str, kind: str, groups: Sequence[MemberPairs], trained: Sequence[_Trained], vantage: str
    ) -> MembershipRequest:
        candidates = GameCandidates.of(self._task, dict(enumerate(groups)))
        exchanges = own_exchanges(self._received, [one.sent for one in trained])
        file = self._put(kind.replace("_", "-"), candidates.granted() | exchanges)
        steps = tuple(one.steps for one in trained)
        game = MembershipGame(
            file, len(candidates.labels), tuple(range(len(groups))), steps, _LR, easy=True, vantage=vantage
        )
        examples = tuple(len(group.members) for group in groups)
        game = replace(game, trained=max(steps), batch=max(examples), examples=examples)
        return MembershipRequest(attack, game, (), (), candidates, kind)

    @cached_property
    def _victim(self) -> PlainVictim:
        net = self._fresh()
        return PlainVictim(net, net.state_dict(), ("*",), self._task.inputs)

    @cached_property
    def _received(self) -> Tensors:
        return {name: value.detach().clone() for name, value in self._victim.model.state_dict().items()}

    @cached_property
    def _by_heart(self) -> list[_Trained]:
        return [self._trained(group, _EPOCHS, _MOST_EPOCHS) for group in self._overfitted]

    @cached_property
    def _stepped(self) -> list[_Trained]:
        return [self._trained(group, 1, 1) for group in self._singles]

    def _trained(self, group: MemberPairs, minimum: int, maximum: int) -> _Trained:
        """Train on a group's members, all in one batch, until they are fitted."""
        x, y = self._task.examples("train", group.members)
        held = {name: value.clone() for name, value in self._received.items()}  # buffers too: files share no memory
        for step in range(maximum):
            if step >= minimum and self._loss(held, x, y) < _FITTED:
                return _Trained(held, step)
            at = PlainVictim(self._victim.model, held, ("*",), self._task.inputs)
            gradient = at.gradient(x, y, {}, {})
            held = {n: value - _LR * gradient[n].detach() if n in gradient else value for n, value in held.items()}
        return _Trained(held, maximum)

    @torch.no_grad()
    def _loss(self, tensors: Tensors, x: torch.Tensor, y: torch.Tensor) -> float:
        scores = torch.func.functional_call(self._victim.model, tensors, (self._task.inputs.normalise(x),))
        return float(losses(scores, x, y).mean())


@final
class MembershipAudit:
    """Membership game of a run.

    Args:
        clients: what the run's clients do.
        audit: the attacks and what they see.
        task: the run's data, with the pairs.
        observations: the folder of the server's recordings.
        put: writes the candidates of a name for the attacks, and returns the file.

    Attributes:
        remarks: what the audit says nothing about, a sentence each.
    """

    def __init__(self, clients: ClientPlan, audit: AuditPlan, task: Task, observations: Path, put: Put) -> None:
        self._client_plan, self._audit, self._task, self._observations = clients, audit, task, observations
        self._put = put
        self._controls: dict[tuple[int, ...], Controls] = {}
        self.remarks = said_of_copies(task.split.train, task.dataset.train_x, task.split.patients)

    def requests(self, attack: str, last: int) -> list[MembershipRequest]:
        """Return the requests to an attack: scores in the controls, and of the clients' uploads.

        Args:
            attack: its name.
            last: the round in which training ended.

        Raises:
            InputError: no upload was recorded, or the final model is missing, which the vantage needs.
        """
        recordings = Recordings(self._observations)
        rounds = tuple(r for r in self._audit.audited_by(last) if r)
        lines = tuple(line for r in rounds for line in recordings.update_lines(r))
        require(bool(lines), f"recorded uploads of rounds {self._audit.probes.audit_rounds} for {attack}", uploads=0)
        self._say_who_is_missing(attack, len({line["client"] for line in lines}), len(self._targets(lines)))
        points = vantage_points(self._audit.probes.vantage, self._audit.sum_sizes)
        shared = self._controls_of(tuple(self._targets(lines)))
        kinds = dict.fromkeys(OUTSIDER if vantage == OUTSIDER else "server" for vantage, _ in points)
        controls = [request for kind in kinds for request in shared.requests(attack, kind)]
        return controls + [self._target(attack, lines, vantage, group, last) for vantage, group in points]

    def _target(self, attack: str, lines: Sequence[Line], vantage: str, group: int, last: int) -> MembershipRequest:
        """Return the request to an attack at one vantage, of as many clients as there are to be probes."""
        everyone, local = self._client_plan.rounds.clients, self._client_plan.local
        peers = tuple(range(everyone - self._audit.colluding, everyone)) if vantage == PEER else ()
        clients = self._targets(line for line in lines if line["client"] not in peers)
        dataset = self._task.dataset
        pairs, labels = self._pairs, dataset.kinds(np.asarray(dataset.train_y))
        null = untrained_pairs(pairs, clients, labels, self._client_plan.seed)
        candidates = GameCandidates.of(self._task, {client: pairs[client] for client in clients}, null)
        held, rounds, steps = candidates.granted(), sorted({line["round"] for line in lines}), map(self._steps, clients)
        train = sizes(self._task.split.train)
        known = {"vantage": vantage, "examples": tuple(int(train[client]) for client in clients)}
        game = MembershipGame("", len(candidates.labels), tuple(clients), tuple(steps), local.lr, **known)
        hidden, final = 0, self._final if vantage in (PEER, OUTSIDER) else None
        if vantage in (AGGREGATE, PEER):
            cohorts = tuple(sorted({(one["round"], one["client"], examples_in(one)) for one in lines}))
            game = replace(game, group=group, peers=peers, cohorts=cohorts)
            others = Counter(number for number, client, _ in cohorts if client not in peers)
            hidden = group or min(others.values())
        if final and (vantage == OUTSIDER or not final.average):
            held = held | final_tensors(final.evaluated)
            game = replace(game, last=last, trained=last * max(game.steps), batch=local.batch_size)
        if vantage == PEER:
            lines = [line for line in lines if line["client"] in peers]
        if vantage == OUTSIDER:
            lines, rounds = (), ()
        game = replace(game, file=self._put("target" if final is None else vantage, held))
        return MembershipRequest(attack, game, tuple(rounds), tuple(lines), candidates, anonymity_set_size=hidden)

    @cached_property
    def _final(self) -> Snapshot:
        return last_snapshot(self._observations.parent)

    def _targets(self, lines: Iterable[Line]) -> list[int]:
        return sorted({line["client"] for line in lines})[: self._audit.probes.images]

    def _say_who_is_missing(self, attack: str, took_part: int, scored: int) -> None:
        every, images = self._client_plan.rounds.clients, self._audit.probes.images
        if scored < every:
            absent = [f"{every - took_part} sent nothing in its rounds"] * (took_part < every)
            beyond = took_part - scored
            absent += [f"{beyond} {'is' if beyond == 1 else 'are'} beyond --images {images}"] * (beyond > 0)
            why = ", ".join(absent)
            self.remarks.append(f"{attack} says nothing about {every - scored} of {every} clients: {why}.")

    def _controls_of(self, clients: tuple[int, ...]) -> Controls:
        """Return the controls, which all attacks share."""
        if clients not in self._controls:
            pairs, plan = [self._pairs[client] for client in clients], self._client_plan
            fresh = lambda: control_net("easy", plan.task.network, plan.seed, *plan.task.input_space)  # noqa: E731
            self._controls[clients] = Controls(self._task, pairs, fresh, self._put, plan.seed)
        return self._controls[clients]

    @cached_property
    def _pairs(self) -> Sequence[MemberPairs | PatientGame]:
        require(self._task.pairs is not None, "membership-pairs for an attack on membership", pairs="none")
        return self._task.pairs or ()

    def _steps(self, client: int) -> int:
        """Return the local steps of a client in a round; the server knows its number of examples."""
        batches = -(-sizes(self._task.split.train)[client] // self._client_plan.local.batch_size)
        return max(1, self._client_plan.local.local_epochs * batches)

    def play(
        self,
        requests: Sequence[MembershipRequest],
        answers: Iterable[JobResult],
        note: Callable[[Sequence[str]], None],
        privacy: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Take the scores as they come; return the items of ``membership`` in result.json.

        Args:
            requests: what is asked of the attacks.
            answers: their answers, in the same order, as they come.
            note: notes what could not be used.
            privacy: the run's claims.

        Raises:
            RunError: the attack process could not go on.
        """
        scores: dict[tuple[Place, bool], dict[str, Scores]] = defaultdict(dict)
        with Steps("attack", len(requests)) as steps:
            for request, answer in zip(requests, answers, strict=True):
                note(answer.refused)
                scores[request.place, request.adaptive] |= request.scored(answer.scores)
                where = request.where + ", told of what hides the data" * request.adaptive
                if answer.stopped:
                    end = "" if answer.stopped.endswith(".") else "."
                    unknown = f"{request.attack} {where} gave no scores: {answer.stopped}{end}"
                    self.remarks.append(f"{unknown} Whether members can be told is not known.")
                steps.done(f"{request.attack} {where}: {answer.stopped or f'{answer.seconds:.0f} s'}")
        targets = [request for request in requests if request.kind == TARGET]
        tried = [name for one in targets for name in scores[one.place, one.adaptive][TARGET] if name not in FLOORS]
        images, plan = range(self._audit.probes.images), self._client_plan
        probed = {plan.defence_of(slot % plan.rounds.clients) for slot in images}
        tests = len(tried) * len(probed) or 1
        played = ((o, scores[o.controls, o.adaptive] | scores[o.place, o.adaptive]) for o in targets)
        return with_min_safe_sum_size([item for one, by in played for item in self.entries(one, by, tests, privacy)])

    def entries(
        self, request: MembershipRequest, scores: Mapping[str, Scores], tests: int, privacy: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the items of ``membership`` in result.json: one for each statistic, and for each defence of clients.

        Args:
            request: what was asked of the attack.
            scores: its scores for each kind of game.
            tests: number of statistics and defences that are tried.
            privacy: the run's claims.
        """
        items, plan, game, attack = [], self._client_plan, request.game, self._audit.memberships[request.attack]
        informed = InformedAttacker(plan, self._audit.settings.adaptation, game, attack)
        hides = has_mechanism(plan.method) or hidden(plan)  # tensors that clients keep hide the data as well
        unit = "example" if self._task.split.patients is None else "patient"
        for defence in sorted({plan.defence_of(client) for client in game.clients}, key=lambda name: name == "none"):
            first = next(client for client in game.clients if plan.defence_of(client) == defence)
            missed = informed.missed(first) if request.adaptive else ""
            targets = scores[TARGET].items()
            mine = {name: [one for one in rows if plan.defence_of(one.client) == defence] for name, rows in targets}
            for statistic, rows in mine.items():
                if statistic in FLOORS or not rows:
                    continue
                there = {one.client for one in rows}
                controls = {kind: of[statistic] for kind, of in scores.items() if kind != TARGET and statistic in of}
                if NULL in controls:
                    controls[NULL] = [one for one in controls[NULL] if one.client in there]
                description = {
                    "attack": request.attack,
                    "statistic": statistic,
                    "vantage": game.vantage,
                    "defence": defence,
                    "sum_size": game.group or None,
                    "anonymity_set_size": request.anonymity_set_size or None,
                    "num_colluding": len(game.peers) or None,
                    "adaptive": request.adaptive and not missed,
                    "adaptation": "written" if request.adaptive else None,
                    "protected_by": plan.name if hides else None,
                    "unit": unit,
                    "rounds": list(request.rounds),
                }
                items.append(
                    entry(
                        description,
                        rows,
                        {n: [one for one in mine[n] if one.client in there] for n in FLOORS if n in mine},
                        controls,
                        missed=missed,
                        unread="" if attack.reads_statistics else plan.unread_statistics,
                        claim=claim_against(privacy, game.vantage, unit),
                        tests=tests,
                        accuracy_gap=self._accuracy_gap(request, there),
                        seed=plan.seed,
                    )
                )
        return items

    def _accuracy_gap(self, request: MembershipRequest, clients: Collection[int]) -> float | None:
        """Return how much more often the models that clients received are right on members than on held-out examples.

        Returns:
            The difference in the last round, over all pairs of the clients; None: none of these models is known, as
            clients keep a part of theirs, or labels are numbers.
        """
        if self._task.dataset.is_regression:
            return None
        received = self._received(request, clients)
        right = [both for client, tensors in received if (both := self._hits(client, tensors)) is not None]
        if not right:
            return None
        members, held_out = (np.concatenate(side) for side in zip(*right, strict=True))
        return float(members.mean() - held_out.mean())

    def _received(self, request: MembershipRequest, clients: Collection[int]) -> list[tuple[int, Tensors]]:
        """Return the last model that each client received, as far as it is recorded; for an outsider the final one."""
        if request.game.vantage == OUTSIDER:
            return [(client, self._final.evaluated) for client in clients]
        lines, peers = (line for line in request.lines if line["round"] == request.rounds[-1]), request.game.peers
        ids = [line["id"] for line in lines if peers or line["client"] in clients]
        seen = [one for one in Recordings(self._observations).observations(ids) if one is not None]
        same = [(client, seen[0].received) for client in clients] if seen else []  # peers receive what all others do
        return same if peers else [(one.client, one.received) for one in seen]

    def _hits(self, client: int, received: Tensors) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the hits on a client's members, and those on its held-out examples."""
        pairs, victim = self._pairs[client], received_victim(self._client_plan, received, self._task.inputs)
        if victim.unknown:
            return None
        return _is_right(victim, self._task, pairs.members), _is_right(victim, self._task, pairs.held_out)


@torch.no_grad()
def _is_right(victim: VictimModel, task: Task, indices: np.ndarray) -> np.ndarray:
    """Return for each training example (N,) whether the known model is right on it, of a text the share of places."""
    parts = []
    for some in np.array_split(indices, -(-len(indices) // 500)):  # examples of one pass
        x, y = task.examples("train", some)
        parts.append(correct(functional_call(victim.model, victim.known, (victim.inputs.normalise(x),)), x, y).numpy())
    return np.concatenate(parts)
