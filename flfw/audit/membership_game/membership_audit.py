"""Membership game on the trusted side: what is asked of an attack, and the entries that its scores give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

from flfw.audit.membership_entries import MembershipControls, ScoredClient, claim_against, entry
from flfw.audit.membership_game.candidates import GameCandidates, permuted
from flfw.audit.membership_game.game import Game, easy_exchanges
from flfw.audit.membership_game.patient_candidates import PatientCandidates, candidates_of
from flfw.data.splits.on_demand import sizes
from flfw.errors import require
from flfw.experiment import Experiment
from flfw.membership.pairs import Pairs, PatientGame
from flfw.nets.net import Net, Tensors
from flfw.recording.format import Line
from flfw.recording.reader import Recordings
from flfw.task import Task
from flfw.terminal.progress import Steps
from flfw.victims.victim import PlainVictim

FLOORS = ("label_only", "loss_only")
"""Statistics that read no client's message; each is a floor of the others."""

Scores: TypeAlias = Mapping[str, Sequence[ScoredClient]]
"""For each statistic the clients' scores."""

_EASY_BATCH, _EASY_DRAWS, _EASY_LR = 8, 8, 0.1


@final
@dataclass(frozen=True)
class MembershipRequest:
    """Scores that are asked of one attack.

    Attributes:
        attack: its name.
        game: what it is granted, beside the recordings.
        rounds: the rounds that it reads; none on the easy rung.
        lines: the manifest's lines of the uploads of all clients in them.
        candidates: the trusted side's record of the candidates.
    """

    attack: str
    game: Game
    rounds: tuple[int, ...]
    lines: tuple[Line, ...]
    candidates: GameCandidates | PatientCandidates

    def scored(self, scores: Sequence[tuple[int, str, Sequence[float]]]) -> dict[str, list[ScoredClient]]:
        """Sort an attack's scores by statistic and by pair; a client to which it gave none has scores of NaN.

        So its pairs count as failed: nothing is known of them, and they are no evidence of protection.

        Raises:
            ValueError: a client has another number of scores than of candidates.
        """
        by_statistic: dict[str, list[ScoredClient]] = {}
        for client, statistic, values in scores:
            by_statistic.setdefault(statistic, []).append(self.candidates.scored(client, values, statistic))
        for rows in by_statistic.values():
            there = {one.client for one in rows}
            rows += [self.candidates.unscored(client) for client in self.game.clients if client not in there]
            rows.sort(key=lambda one: one.client)
        return by_statistic


class GameAnswer(Protocol):
    """Answer of an attack to a request."""

    @property
    def scores(self) -> Sequence[tuple[int, str, Sequence[float]]]:
        """Scores: a client's number, a statistic, and the score of each of the client's candidates."""
        ...

    @property
    def refused(self) -> Sequence[str]:
        """Unusable recordings, a sentence each."""
        ...

    @property
    def stopped(self) -> str | None:
        """Reason why there are no scores; None: there are."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds that the attack took."""
        ...


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
        fresh: builds the network of the easy rung.

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
    ) -> None:
        self._experiment, self._task, self._observations = experiment, task, observations
        self._put, self._fresh = put, fresh
        self.remarks: list[str] = []

    def requests(self, attack: str, last: int) -> list[MembershipRequest]:
        """Return the requests to an attack: scores on the easy rung, and of the clients' uploads.

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
        candidates = candidates_of(self._task, {client: self._pairs[client] for client in clients})
        steps = tuple(self._steps(client) for client in clients)
        file = self._put("target", candidates.granted())
        game = Game(file, len(candidates.labels), tuple(clients), steps, self._experiment.lr)
        return [self._easy(attack, clients), MembershipRequest(attack, game, rounds, lines, candidates)]

    def _say_who_is_missing(self, attack: str, took_part: int, scored: int) -> None:
        every, images = self._experiment.clients, self._experiment.images
        if scored < every:
            absent = [f"{every - took_part} sent nothing in its rounds"] * (took_part < every)
            absent += [f"{took_part - scored} are beyond --images {images}"] * (scored < took_part)
            why = ", ".join(absent)
            self.remarks.append(f"{attack} says nothing about {every - scored} of {every} clients: {why}.")

    @cached_property
    def _pairs(self) -> Sequence[Pairs | PatientGame]:
        require(self._task.pairs is not None, "membership-pairs for an attack on membership", pairs="none")
        return self._task.pairs or ()

    def _steps(self, client: int) -> int:
        """Return the local steps of a client in a round; the server knows its number of examples."""
        batches = -(-sizes(self._task.split.train)[client] // self._experiment.batch_size)
        return max(1, self._experiment.local_epochs * batches)

    def _easy(self, attack: str, clients: Sequence[int]) -> MembershipRequest:
        """Return the easy rung: one step of a fresh, wholly shared and undefended network over few members.

        Each draw is numbered as a client of its own.
        """
        groups: list[Pairs | PatientGame] = []
        for client in clients:
            drawn = self._pairs[client]
            starts = range(0, max(1, drawn.count // _EASY_BATCH * _EASY_BATCH), _EASY_BATCH)
            groups += [drawn.part(at, at + _EASY_BATCH) for at in starts]
        groups = groups[:_EASY_DRAWS]
        net = self._fresh()
        victim = PlainVictim(net, net.state_dict(), ("*",), self._task.inputs)
        received = {name: value.detach().clone() for name, value in net.state_dict().items()}
        sent = [self._stepped(victim, received, group) for group in groups]
        candidates = candidates_of(self._task, dict(enumerate(groups)))
        file = self._put("easy", candidates.granted() | easy_exchanges(received, sent))
        numbers = tuple(range(len(groups)))
        game = Game(file, len(candidates.labels), numbers, (1,) * len(groups), _EASY_LR, easy=True)
        return MembershipRequest(attack, game, (), (), candidates)

    def _stepped(self, victim: PlainVictim, received: Tensors, group: Pairs | PatientGame) -> Tensors:
        x, y = self._task.examples("train", group.members)
        gradient = victim.gradient(x, y, {}, {})
        return {n: value - _EASY_LR * gradient[n].detach() if n in gradient else value for n, value in received.items()}

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
        scores: dict[str, dict[bool, Scores]] = defaultdict(dict)
        with Steps("attack", len(requests)) as steps:
            for request, answer in zip(requests, answers, strict=True):
                game = request.game
                note(answer.refused)
                scores[request.attack][game.easy] = request.scored(answer.scores)
                where = "on the easy rung" if game.easy else f"on {len(game.clients)} clients"
                if answer.stopped:
                    end = "" if answer.stopped.endswith(".") else "."
                    unknown = f"{request.attack} {where} gave no scores: {answer.stopped}{end}"
                    self.remarks.append(f"{unknown} Whether members can be told is not known.")
                steps.done(f"{request.attack} {where}: {answer.stopped or f'{answer.seconds:.0f} s'}")
        targets = [request for request in requests if not request.game.easy]
        tests = sum(len(_statistics(scores[one.attack][False])) for one in targets) * len(clients.defences()) or 1
        played = ((one, scores[one.attack]) for one in targets)
        common = {"clients": clients, "tests": tests, "privacy": privacy}
        return [item for one, by in played for item in self.entries(one, by[False], by[True], **common)]

    def entries(
        self,
        asked: MembershipRequest,
        scores: Scores,
        easy: Scores,
        *,
        clients: Clients,
        tests: int,
        privacy: Sequence[Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return the items of ``membership`` in result.json: one for each statistic, and for each defence of clients.

        Args:
            asked: what was asked of the attack.
            scores: its scores.
            easy: its scores on the easy rung.
            clients: what hides the data of the clients.
            tests: number of statistics and defences that are tried.
            privacy: the run's claims.
        """
        seed, items, defence_of = self._experiment.seed, [], clients.defence_of
        unit = "example" if self._task.split.patients is None else "patient"
        for defence in sorted({defence_of(client) for client in asked.game.clients}, key=lambda name: name == "none"):
            mine = {name: [one for one in rows if defence_of(one.client) == defence] for name, rows in scores.items()}
            for statistic, rows in mine.items():
                if statistic in FLOORS or not rows:
                    continue
                there = {one.client for one in rows}
                floors = {n: [one for one in mine[n] if one.client in there] for n in FLOORS if n in mine}
                items.append(
                    entry(
                        statistic,
                        rows,
                        rounds=asked.rounds,
                        defence=defence,
                        floors=floors,
                        claim=claim_against(privacy, "server", unit),
                        unit=unit,
                        controls=MembershipControls(easy.get(statistic), permuted(rows, seed)),
                        tests=tests,
                        hidden_by=clients.hides,
                        attack=asked.attack,
                        seed=seed,
                    )
                )
        return items


def _statistics(scores: Scores) -> list[str]:
    """List the statistics that are no floors."""
    return [name for name in scores if name not in FLOORS]
