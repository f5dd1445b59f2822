"""Membership game on the trusted side: what is asked of an attack, and the entries that its scores give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from torch.func import functional_call

from flfw.adversary.observation import Observation
from flfw.audit.membership_entries import MembershipControls, claim_against, entry
from flfw.audit.membership_game.candidates import untrained_pairs
from flfw.audit.membership_game.controls import Controls
from flfw.audit.membership_game.game import Game
from flfw.audit.membership_game.patient_candidates import candidates_of
from flfw.audit.membership_game.request import (
    NULL,
    ONE_STEP,
    OVERFITTED,
    TARGET,
    GameAnswer,
    MembershipRequest,
    Scores,
)
from flfw.data.splits.on_demand import sizes
from flfw.errors import require
from flfw.experiment import Experiment
from flfw.membership.pairs import Pairs, PatientGame
from flfw.nets.net import Net, Tensors, hits
from flfw.recording.reader import Recordings
from flfw.task import Task
from flfw.terminal.progress import Steps
from flfw.victims.victim import VictimModel

FLOORS = ("label_only", "loss_only")
"""Statistics that read no client's message; each is a floor of the others."""

_WHERE = {OVERFITTED: "on examples learnt by heart", ONE_STEP: "on single steps"}
_AT_ONCE = 500  # examples of one pass


class Clients(Protocol):
    """Defences of a run's clients, and the method's own operation."""

    @property
    def hides(self) -> str | None:
        """Name of the method, if an operation of its own hides the data, such as noise; None: there is none."""
        ...

    def defences(self) -> list[str]:
        """List the names of the clients' defences, ``none`` among them."""
        ...

    def defence_of(self, client: int) -> str:
        """Return the name of a client's defence, or ``none``."""
        ...


@final
class MembershipAudit:
    """Membership game of a run.

    Args:
        experiment: the run, with membership pairs.
        task: its data, with the pairs.
        observations: the folder of the server's recordings.
        put: writes the candidates of a name for the attacks, and returns the file.
        fresh: builds the network of the controls.
        model: builds the model of a client from what it received.

    Attributes:
        remarks: what the audit says nothing about, a sentence each.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        observations: Path,
        put: Callable[[str, Tensors], str],
        fresh: Callable[[], Net],
        model: Callable[[Tensors], VictimModel],
    ) -> None:
        self._experiment, self._task, self._observations = experiment, task, observations
        self._put, self._fresh, self._model = put, fresh, model
        self._controls: dict[tuple[int, ...], Controls] = {}
        self.remarks: list[str] = []

    def requests(self, attack: str, last: int) -> list[MembershipRequest]:
        """Return the requests to an attack: scores in the controls, and of the clients' uploads.

        Args:
            attack: its name.
            last: the round in which training ended.

        Raises:
            BadInput: no upload was recorded.
        """
        recordings = Recordings(self._observations)
        rounds = tuple(r for r in self._experiment.audited_by(last) if r)
        lines = tuple(line for r in rounds for line in recordings.update_lines(r))
        require(bool(lines), f"recorded uploads of rounds {self._experiment.audit_rounds} for {attack}", uploads=0)
        took_part = sorted({line["client"] for line in lines})
        clients = took_part[: self._experiment.images]
        self._say_who_is_missing(attack, len(took_part), len(clients))
        pairs, labels = self._pairs, np.asarray(self._task.dataset.train_y)
        null = untrained_pairs(pairs, clients, labels, self._experiment.seed)
        candidates = candidates_of(self._task, {client: pairs[client] for client in clients}, null)
        steps = tuple(self._steps(client) for client in clients)
        file = self._put("target", candidates.granted())
        game = Game(file, len(candidates.labels), tuple(clients), steps, self._experiment.lr)
        return [
            *self._controls_of(tuple(clients)).requests(attack),
            MembershipRequest(attack, game, rounds, lines, candidates),
        ]

    def _say_who_is_missing(self, attack: str, took_part: int, scored: int) -> None:
        every, images = self._experiment.clients, self._experiment.images
        if scored < every:
            absent = [f"{every - took_part} sent nothing in its rounds"] * (took_part < every)
            absent += [f"{took_part - scored} are beyond --images {images}"] * (scored < took_part)
            why = ", ".join(absent)
            self.remarks.append(f"{attack} says nothing about {every - scored} of {every} clients: {why}.")

    def _controls_of(self, clients: tuple[int, ...]) -> Controls:
        """Return the controls, which all attacks share."""
        if clients not in self._controls:
            pairs = [self._pairs[client] for client in clients]
            self._controls[clients] = Controls(self._task, pairs, self._fresh, self._put, self._experiment.seed)
        return self._controls[clients]

    @cached_property
    def _pairs(self) -> Sequence[Pairs | PatientGame]:
        require(self._task.pairs is not None, "membership-pairs for an attack on membership", pairs="none")
        return self._task.pairs or ()

    def _steps(self, client: int) -> int:
        """Return the local steps of a client in a round; the server knows its number of examples."""
        batches = -(-sizes(self._task.split.train)[client] // self._experiment.batch_size)
        return max(1, self._experiment.local_epochs * batches)

    def play(
        self,
        requests: Sequence[MembershipRequest],
        answers: Iterable[GameAnswer],
        note: Callable[[Sequence[str]], None],
        clients: Clients,
        privacy: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Take the scores as they come; return the items of ``membership`` in result.json.

        Args:
            requests: what is asked of the attacks.
            answers: their answers, in the same order, as they come.
            note: notes what could not be used.
            clients: what hides the data of the clients.
            privacy: the run's claims.

        Raises:
            RunFailed: the attack server could not go on.
        """
        scores: dict[str, dict[str, Scores]] = defaultdict(dict)
        with Steps("attack", len(requests)) as steps:
            for request, answer in zip(requests, answers, strict=True):
                note(answer.refused)
                scores[request.attack] |= request.scored(answer.scores)
                where = _WHERE.get(request.kind, f"on {len(request.game.clients)} clients")
                if answer.stopped:
                    end = "" if answer.stopped.endswith(".") else "."
                    unknown = f"{request.attack} {where} gave no scores: {answer.stopped}{end}"
                    self.remarks.append(f"{unknown} Whether members can be told is not known.")
                steps.done(f"{request.attack} {where}: {answer.stopped or f'{answer.seconds:.0f} s'}")
        targets = [request for request in requests if request.kind == TARGET]
        tests = sum(len(_statistics(scores[one.attack][TARGET])) for one in targets) * len(clients.defences()) or 1
        common = {"clients": clients, "tests": tests, "privacy": privacy}
        return [item for one in targets for item in self.entries(one, scores[one.attack], **common)]

    def entries(
        self,
        asked: MembershipRequest,
        scores: Mapping[str, Scores],
        *,
        clients: Clients,
        tests: int,
        privacy: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return the items of ``membership`` in result.json: one for each statistic, and for each defence of clients.

        Args:
            asked: what was asked of the attack.
            scores: its scores for each kind of game.
            clients: what hides the data of the clients.
            tests: number of statistics and defences that are tried.
            privacy: the run's claims.
        """
        seed, items, defence_of = self._experiment.seed, [], clients.defence_of
        unit = "example" if self._task.split.patients is None else "patient"
        easy, one_step, null = (scores.get(kind, {}) for kind in (OVERFITTED, ONE_STEP, NULL))
        for defence in sorted({defence_of(client) for client in asked.game.clients}, key=lambda name: name == "none"):
            targets = scores[TARGET].items()
            mine = {name: [one for one in rows if defence_of(one.client) == defence] for name, rows in targets}
            for statistic, rows in mine.items():
                if statistic in FLOORS or not rows:
                    continue
                there = {one.client for one in rows}
                floors = {n: [one for one in mine[n] if one.client in there] for n in FLOORS if n in mine}
                untrained = [one for one in null.get(statistic, ()) if one.client in there]
                items.append(
                    entry(
                        statistic,
                        rows,
                        rounds=asked.rounds,
                        defence=defence,
                        floors=floors,
                        claim=claim_against(privacy, "server", unit),
                        unit=unit,
                        controls=MembershipControls(easy.get(statistic), untrained, one_step.get(statistic)),
                        tests=tests,
                        hidden_by=clients.hides,
                        accuracy_gap=self._accuracy_gap(asked, there),
                        attack=asked.attack,
                        seed=seed,
                    )
                )
        return items

    def _accuracy_gap(self, asked: MembershipRequest, clients: Collection[int]) -> float | None:
        """Return how much more often the models that clients received are right on members than on held-out examples.

        Returns:
            The difference in the last round, over all pairs of the clients; None: none of these models is known, as
            clients keep a part of theirs.
        """
        ids = [line["id"] for line in asked.lines if line["round"] == asked.rounds[-1] and line["client"] in clients]
        seen = [one for one in Recordings(self._observations).observations(ids) if one is not None]
        hits = [both for one in seen if (both := self._hits(one)) is not None]
        if not hits:
            return None
        members, held_out = (np.concatenate(side) for side in zip(*hits, strict=True))
        return float(members.mean() - held_out.mean())

    def _hits(self, seen: Observation) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the hits on a client's members, and those on its held-out examples."""
        pairs, victim = self._pairs[seen.client], self._model(seen.received)
        if victim.unknown:
            return None
        return hits_of(victim, self._task, pairs.members), hits_of(victim, self._task, pairs.held_out)


@torch.no_grad()
def hits_of(victim: VictimModel, task: Task, places: np.ndarray) -> np.ndarray:
    """Return for each training example (N,) whether the known model is right on it, of a text the share of places."""
    parts = []
    for some in np.array_split(places, -(-len(places) // _AT_ONCE)):
        x, y = task.examples("train", some)
        scores = functional_call(victim.model, victim.known, (victim.inputs.normalise(x),))
        parts.append(hits(scores, x, y).numpy())
    return np.concatenate(parts)


def _statistics(scores: Scores) -> list[str]:
    """List the statistics that are no floors."""
    return [name for name in scores if name not in FLOORS]
