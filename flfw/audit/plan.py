"""What an audit asks for: which attacks on which recordings, with which grants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

from flfw import resolve as parts
from flfw.adversary.attack import Attack
from flfw.adversary.observation import key
from flfw.audit.adaptation import hiding
from flfw.audit.jobs import EASY, EXAMPLE, Exchange, Job, Ticket, tickets_of
from flfw.audit.knowledge import hidden
from flfw.audit.scorer import read_truth
from flfw.experiment import FREE_ON_RESUME, VANTAGES, Experiment
from flfw.recording.reader import Recordings, is_recorded
from flfw.task import Task

_WITHHELD = {"dataset": "withheld", "split": "withheld"}  # where a user's own data lie is none of an attack's business
_NEEDED = ("attack_seconds", "attack_retries")  # of what decides no numbers


@final
class Plan:
    """The jobs of an audit.

    Args:
        experiment: what was run, with the attacks to run.
        task: for the input space.
        source: the folder with ``observations/``, ``examples/`` and ``truth/``.
        attacks: by name.
        note: is told what had to be left out.
        public: writes the public data for jobs that grant them; returns the file and how many examples are in it.
    """

    def __init__(
        self,
        experiment: Experiment,
        task: Task,
        source: Path,
        attacks: Mapping[str, Attack],
        note: Callable[[str], None],
        public: Callable[[], tuple[str, int]],
    ) -> None:
        self._experiment, self._task, self._source, self._attacks, self._note = experiment, task, source, attacks, note
        self._public = public

    def tickets(self, last: int | None = None) -> list[Ticket]:
        """What a run that ended after round ``last`` probed and this audit attacks, but for the control.

        Without it, what a whole run of the experiment probes. Jobs are the same either way: they are told the
        experiment as it was asked for, by which clients and attacks alike go.
        """
        audited = self._experiment.audited_by(self._experiment.rounds if last is None else last)
        probed = [EASY, *(ticket for r in audited for ticket in tickets_of(self._experiment, r))]
        return [ticket for ticket in probed if self.vantages(ticket)]

    def vantages(self, ticket: Ticket) -> list[str]:
        """Those asked for from which a ticket's probes are seen; attackers at all of them see the same bytes."""
        if ticket.rung != "target":
            return ["server"]
        on_client = ticket.point == EXAMPLE
        return [v for v in VANTAGES if v in self._experiment.vantage and (v == "client_example") == on_client]

    def jobs(self, ticket: Ticket) -> list[Job]:
        """Every attack on what a ticket says is recorded, and once more with what hides it granted, where that helps.

        That is the clients' defence, or what the method itself does to the data for privacy.

        The control is no attack, and what cannot be seen from where attackers stand nobody may ask for.
        """
        if ticket.rung == "control" or not self.vantages(ticket):
            return []
        exchanges = self._exchanges(ticket)
        hidden = tuple(e for e in exchanges if self.adapts(ticket, self.defence_of(e.client)))
        found = []
        for name, attack in self._attacks.items():
            of = partial(self._job, name, ticket)
            labels = attack.labels == "given"
            found.append(of(exchanges if labels else _unlabelled(exchanges)))
            if hidden and "defence" in attack.models:
                found.append(of(hidden if labels else _unlabelled(hidden), adaptive=True))
        return found

    def defence_of(self, client: int) -> str:
        """What a client does to what it sends."""
        return self._experiment.defence if client in self._experiment.defended_partitions else "none"

    def defences(self) -> list[str]:
        """What the probed clients do to what they send, the defence first: where some do not, they are told apart."""
        probed = {self.defence_of(slot % self._experiment.clients) for slot in range(self._experiment.images)}
        return sorted(probed, key=lambda defence: defence == "none")

    def adapts(self, ticket: Ticket, defence: str) -> bool:
        """Whether an attacker who knows what hides the data of clients with a defence, or ``none``, can adapt to it."""
        return hiding(self._experiment, ticket, self.vantages(ticket)[0], defence != "none").adapts

    def _job(self, attack: str, ticket: Ticket, exchanges: tuple[Exchange, ...], adaptive: bool = False) -> Job:
        dataset, gpu = self._task.dataset, self._experiment.attack_gpus
        return Job(
            attack=attack,
            ticket=ticket,
            exchanges=exchanges,
            recordings=self._recordings(ticket),
            run_config=_told(self._experiment),
            shape=tuple(dataset.shape),
            classes=dataset.classes,
            mean=tuple(map(float, dataset.mean)),
            std=tuple(map(float, dataset.std)),
            device="cuda" if gpu and _has_gpu() else "cpu",
            memory=min(gpu, 1.0) or 1.0,
            vantage=self.vantages(ticket)[0],
            adaptive=adaptive,
            **self._beside(attack, ticket),
        )

    def _beside(self, attack: str, ticket: Ticket) -> dict[str, Any]:
        """What else the attack uses, as far as it is there; on the rungs below the target nothing is private."""
        uses, method = self._attacks[attack].uses, parts.method(self._experiment)
        found: dict[str, Any] = {"public": self._public() if "public" in uses else None}
        if ticket.rung != "target":
            return found
        found["start"] = "start" in uses and bool(hidden(self._experiment)) and method[0].common_start(method[1])
        if "uploads" in uses and ticket.point != EXAMPLE:  # who reads on a client sees no other one's
            lines = Recordings(self._recordings(ticket)).update_lines(ticket.round)
            found["uploads"] = tuple(line["id"] for line in lines)
        return found

    def _recordings(self, ticket: Ticket) -> Path:
        """Where the ticket's exchanges are recorded; where no client wrote any down, none are found anywhere."""
        examples = (self._source / "examples").absolute()
        if ticket.point == EXAMPLE and is_recorded(examples):
            return examples
        return (self._source / "observations").absolute()

    def _exchanges(self, ticket: Ticket) -> tuple[Exchange, ...]:
        lines = Recordings(self._recordings(ticket)).probe_lines(ticket.rung, ticket.round, point=ticket.point)
        found = []
        for line in lines:
            slot = int(line["config"]["slot"])
            if slot >= self._experiment.images:  # an audit of fewer than were recorded
                continue
            truth = read_truth(self._source / "truth", key(ticket.round, ticket.point, slot))
            if truth is None:
                self._note(f"{line['id']} was left out: no truth of it can be read.")
                continue
            found.append(Exchange(line["id"], line["client"], slot, tuple(int(label) for label in truth.labels)))
        return tuple(found)


def _unlabelled(exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    return tuple(replace(exchange, labels=None) for exchange in exchanges)


def _told(experiment: Experiment) -> dict[str, Any]:
    """The experiment as every participant knows it, without what is this machine's or decides nothing."""
    silent = {name: getattr(Experiment(), name) for name in FREE_ON_RESUME if name not in _NEEDED}
    return {**replace(experiment, **silent).to_run_config(), **_WITHHELD}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
