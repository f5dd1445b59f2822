"""Plan of an audit: which attacks run on which recordings, with which grants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

from flfw.adversary.attack import Attack
from flfw.adversary.observation import key
from flfw.audit.adaptation import hiding
from flfw.audit.jobs import EASY, EXAMPLE, Exchange, Job, Ticket, tickets_of
from flfw.audit.knowledge import hidden
from flfw.audit.scorer import read_truth
from flfw.experiment import FREE_ON_RESUME, VANTAGES, Experiment
from flfw.recording.reader import Recordings, is_recorded
from flfw.resolve import Resolved
from flfw.task import Task

_WITHHELD = {"dataset": "withheld", "split": "withheld"}  # paths of a user's own data, withheld from attacks
_NEEDED = ("attack_seconds", "attack_retries")  # kept, although they change no numbers


@final
class Plan:
    """Jobs of an audit.

    Args:
        resolved: the experiment, with its attacks.
        task: the source of the input space.
        source: the folder with ``observations/``, ``examples/`` and ``truth/``.
        attacks: the attacks by name.
        note: receives a sentence for each recording that is left out.
        public: writes the public data for jobs that grant them; returns the file and its number of examples.
    """

    def __init__(
        self,
        resolved: Resolved,
        task: Task,
        source: Path,
        attacks: Mapping[str, Attack],
        note: Callable[[str], None],
        public: Callable[[], tuple[str, int]],
    ) -> None:
        self._resolved, self._experiment, self._task, self._source = resolved, resolved.experiment, task, source
        self._attacks, self._note = attacks, note
        self._public = public

    def tickets(self, last: int | None = None) -> list[Ticket]:
        """Return the tickets, without the control, that this audit attacks in a run that ended after round ``last``.

        Without ``last``, the run is taken to be complete. Jobs are the same either way: they hold the requested
        experiment, which clients and attacks both use.
        """
        audited = self._experiment.audited_by(self._experiment.rounds if last is None else last)
        probed = [EASY, *(ticket for r in audited for ticket in tickets_of(self._experiment, r))]
        return [ticket for ticket in probed if self.vantages(ticket)]

    def vantages(self, ticket: Ticket) -> list[str]:
        """Return the requested vantages that see a ticket's probes; attackers at all of them see the same bytes."""
        if ticket.rung != "target":
            return ["server"]
        on_client = ticket.point == EXAMPLE
        return [v for v in VANTAGES if v in self._experiment.vantage and (v == "client_example") == on_client]

    def jobs(self, ticket: Ticket) -> list[Job]:
        """Return every attack on a ticket's recordings, and its adaptive form where an adaptation exists.

        An adaptive job grants the clients' defence, or the method's own operation for privacy.

        There are no jobs for the control, nor for probes that no requested vantage sees.
        """
        if ticket.rung == "control" or not self.vantages(ticket):
            return []
        exchanges = self._exchanges(ticket)
        hidden = tuple(e for e in exchanges if self.adapts(ticket, self.defence_of(e.client)))
        jobs = []
        for name, attack in self._attacks.items():
            job = partial(self._job, name, ticket)
            labels = attack.labels == "given"
            jobs.append(job(exchanges if labels else _unlabelled(exchanges)))
            if hidden and "defence" in attack.models:
                jobs.append(job(hidden if labels else _unlabelled(hidden), adaptive=True))
        return jobs

    def defence_of(self, client: int) -> str:
        """Return the defence that a client applies to its messages, or ``none``."""
        return self._experiment.defence if client in self._experiment.defended_partitions else "none"

    def defences(self) -> list[str]:
        """Return the defences of the probed clients, ``none`` last; clients with and without one are kept apart."""
        probed = {self.defence_of(slot % self._experiment.clients) for slot in range(self._experiment.images)}
        return sorted(probed, key=lambda defence: defence == "none")

    def adapts(self, ticket: Ticket, defence: str) -> bool:
        """Return whether an informed attacker can adapt to clients with this defence, or with ``none``."""
        return hiding(self._resolved, ticket, self.vantages(ticket)[0], defence != "none").adapts

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
        """Return the other data that the attack uses, where available; nothing is private below the target."""
        uses, resolved = self._attacks[attack].uses, self._resolved
        grants: dict[str, Any] = {"public": self._public() if "public" in uses else None}
        if ticket.rung != "target":
            return grants
        grants["start"] = "start" in uses and bool(hidden(resolved)) and resolved.method.common_start(resolved.settings)
        if "uploads" in uses and ticket.point != EXAMPLE:  # an observer on a client sees no other client's upload
            lines = Recordings(self._recordings(ticket)).update_lines(ticket.round)
            grants["uploads"] = tuple(line["id"] for line in lines)
        return grants

    def _recordings(self, ticket: Ticket) -> Path:
        """Return the folder of the ticket's recorded exchanges; it holds none of them if no client wrote any."""
        examples = (self._source / "examples").absolute()
        if ticket.point == EXAMPLE and is_recorded(examples):
            return examples
        return (self._source / "observations").absolute()

    def _exchanges(self, ticket: Ticket) -> tuple[Exchange, ...]:
        lines = Recordings(self._recordings(ticket)).probe_lines(ticket.rung, ticket.round, point=ticket.point)
        exchanges = []
        for line in lines:
            slot = int(line["config"]["slot"])
            if slot >= self._experiment.images:  # this audit is of fewer probes than were recorded
                continue
            truth = read_truth(self._source / "truth", key(ticket.round, ticket.point, slot))
            if truth is None:
                self._note(f"{line['id']} was left out: no truth of it can be read.")
                continue
            exchanges.append(Exchange(line["id"], line["client"], slot, tuple(int(label) for label in truth.labels)))
        return tuple(exchanges)


def _unlabelled(exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    return tuple(replace(exchange, labels=None) for exchange in exchanges)


def _told(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as every participant knows it, without settings of this machine or without effect."""
    silent = {name: getattr(Experiment(), name) for name in FREE_ON_RESUME if name not in _NEEDED}
    return {**replace(experiment, **silent).to_run_config(), **_WITHHELD}


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
