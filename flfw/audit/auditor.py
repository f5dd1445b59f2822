"""One audit of one run's recordings: which attacks to ask for, what they found, and what may be concluded."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np

from flfw import parts
from flfw.audit import perceptual
from flfw.audit.entries import entry
from flfw.audit.jobs import EASY, Exchange, Job, Solution, Ticket, ticket_of
from flfw.audit.knowledge import standing
from flfw.audit.ladder import control, easy
from flfw.audit.observation import key
from flfw.audit.public import Public
from flfw.audit.queue import Queue
from flfw.audit.recordings import Recordings
from flfw.audit.scoring import Row, Scorer, read_truth
from flfw.audit.server import Attacks, AttackServer, Inline, place
from flfw.audit.verdict import Rung
from flfw.experiment import FREE_ON_RESUME, Experiment
from flfw.progress import Steps
from flfw.task import Task

_PUBLIC_AT_MOST = 10_000
_WITHHELD = {"dataset": "withheld", "split": "withheld"}  # where a user's own data lie is none of an attack's business
_NEEDED = ("attack_seconds", "attack_retries")  # of what decides no numbers

AuditContext = AbstractContextManager["Auditor | None"]


def auditing(experiment: Experiment, task: Task, out: Path, source: Path | None = None) -> AuditContext:
    """The audit that an experiment asks for, if it asks for one and its method sends anything.

    Args:
        experiment: resolved.
        task: of the experiment.
        out: the run's folder.
        source: the folder with ``observations/`` and ``truth/``, if it is another.
    """
    if not (experiment.audited and parts.method(experiment)[0].uploads):
        return nullcontext(None)
    return Auditor(experiment, task, source or out, out)


@final
class Auditor(AbstractContextManager["Auditor"]):
    """The trusted side of an audit: it grants, asks, scores and concludes. While it is entered, attacks may run.

    Args:
        experiment: what was run, with the attacks to run.
        task: for the public data and the input space.
        source: the folder with ``observations/`` and ``truth/``.
        out: where reconstructions go; the same folder, unless recordings of an earlier run are audited again.

    Attributes:
        source: see above.
        refused: recordings that could not be used, a sentence each.
    """

    def __init__(self, experiment: Experiment, task: Task, source: Path, out: Path) -> None:
        self.experiment, self._task, self.source, self._out = experiment, task, source, out
        self._named = parts.attacks(experiment)
        self._perceptual = perceptual.load(experiment.lpips_weights) if experiment.lpips_weights else None
        self.refused: list[str] = []
        self._queue = Queue((out / "queue").absolute())
        self._attacks = self._place()

    def _place(self) -> Attacks:
        where = place(self.experiment)
        if where == "inline":
            return Inline(self._queue, self.jobs)
        gpu = self.experiment.attack_gpus > 0
        seconds = self.experiment.attack_seconds
        # Of an earlier run everything is there: the process may start at once, while jobs are made.
        early = where == "beside" or self.source != self._out
        return AttackServer(self._queue, self.jobs, beside=early, seconds=seconds, gpu=gpu)

    def __enter__(self) -> Auditor:
        """From here on what is recorded is attacked."""
        self._queue.reopen()
        self._attacks.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """No attack is at work any more."""
        self._attacks.end()

    @cached_property
    def _scorer(self) -> Scorer:
        """What it holds of the public data is not needed while training goes on."""
        samples, labels = self._task.examples("test", evenly(self._task.split.public, _PUBLIC_AT_MOST))
        public = Public.of(samples.numpy(), labels.numpy())
        return Scorer(public, self.source / "truth", self._out, self.experiment.seed, self._perceptual)

    @property
    def weights(self) -> dict[str, Any] | None:
        """The files whose weights the scores depend on, for the provenance."""
        if self._perceptual is None:
            return None
        about = {"sha256": self._perceptual.sha256, "official": self._perceptual.official}
        return {"lpips": {"file": str(self.experiment.lpips_weights), **about}}

    # --- what to ask for ---

    def tickets(self) -> list[Ticket]:
        """What a whole run of the experiment probes, but for the control."""
        rounds = self.experiment.audited
        return [EASY, *(ticket_of(point, r) for r in rounds for point in self.experiment.points)]

    def jobs(self, ticket: Ticket) -> list[Job]:
        """Every attack on what a ticket says is recorded; nothing for the control, which is no attack."""
        if ticket.rung == "control":
            return []
        exchanges = self._exchanges(ticket)
        return [self._job(name, ticket, exchanges) for name in self._named]

    def _job(self, attack: str, ticket: Ticket, exchanges: tuple[Exchange, ...]) -> Job:
        dataset, gpu = self._task.dataset, self.experiment.attack_gpus
        return Job(
            attack=attack,
            ticket=ticket,
            exchanges=exchanges,
            recordings=(self.source / "observations").absolute(),
            run_config=_told(self.experiment),
            shape=tuple(dataset.shape),
            classes=dataset.classes,
            mean=tuple(map(float, dataset.mean)),
            std=tuple(map(float, dataset.std)),
            device="cuda" if gpu and _has_gpu() else "cpu",
            memory=min(gpu, 1.0) or 1.0,
        )

    def _exchanges(self, ticket: Ticket) -> tuple[Exchange, ...]:
        lines = Recordings(self.source / "observations").probe_lines(ticket.rung, ticket.round, point=ticket.point)
        found = []
        for line in lines:
            slot = int(line["config"]["slot"])
            if slot >= self.experiment.images:  # an audit of fewer than were recorded
                continue
            truth = read_truth(self.source / "truth", key(ticket.round, ticket.point, slot))
            if truth is None:
                self._note([f"{line['id']} was left out: no truth of it can be read."])
                continue
            found.append(Exchange(line["id"], line["client"], slot, tuple(int(label) for label in truth.labels)))
        return tuple(found)

    # --- what came of it ---

    def run(self) -> tuple[list[dict[str, Any]], list[Row]]:
        """Have everything done that is left to do; the audit's entries of result.json, and a row an image.

        Raises:
            BadInput: there are no recordings.
            RunFailed: the attack server could not go on.
        """
        tickets = self.tickets()
        jobs = {(job.attack, ticket): job for ticket in tickets for job in self.jobs(ticket)}
        for job in jobs.values():
            self._queue.put(job)
        self._attacks.close()
        base = self._control()
        entries: list[dict[str, Any]] = []
        rows: list[Row] = []
        with Steps("attack", len(jobs)) as steps:
            for name in self._named:
                below = Rung("easy", 0.0, False, stopped="it was not attacked")
                for ticket in tickets:
                    job = jobs[name, ticket]
                    solution = self._attacks.wait(job)
                    started = time.monotonic()
                    found = self._rows(job, solution)
                    rows += found
                    if ticket.rung == "easy":
                        below = easy(found, self.experiment.images, solution)
                        steps.done(f"{name} on the easy rung: {below.stopped or f'{below.psnr:.1f} dB'}")
                        continue
                    several = [self._entry(job, solution, found, (base, below), d) for d in self._defences()]
                    spent = round((time.monotonic() - started) / len(several), 3)
                    for about in several:
                        about["scoring_seconds"] = spent
                    entries += several
                    words = " and ".join(e["verdict"] for e in several)
                    steps.done(f"{name} at round {ticket.round}{_which(ticket)}: {words}")
        return entries, rows

    def _control(self) -> Rung:
        recordings = Recordings(self.source / "observations")
        probes = [(o, read_truth(self.source / "truth", o.key)) for o in recordings.probes("control", 0)]
        self._note(recordings.refused)
        asked = len(recordings.probe_lines("control", 0))
        return control([(seen, truth) for seen, truth in probes if truth is not None], asked, self._task.inputs)

    def _rows(self, job: Job, solution: Solution) -> list[Row]:
        ticket, seed = job.ticket, self.experiment.seed
        self._note(solution.refused)
        about: Row = {"attack": job.attack, "vantage": "server", "source": "probe", "rung": ticket.rung}
        about |= {"curve": ticket.curve, "batch": ticket.batch, "steps": ticket.steps}
        stands = {d: standing(self.experiment, ticket, d != "none") for d in (*self._defences(), "none")}
        rows: list[Row] = []
        for exchange, found in zip(job.exchanges, solution.found, strict=True):
            defence = self._defence_of(exchange.client) if ticket.rung == "target" else "none"
            where: Row = {"defence": defence, "adaptive": stands[defence].adaptive, "round": ticket.round}
            where |= {"client": exchange.client, "victim": exchange.slot, "seed": seed}
            name = key(ticket.round, ticket.point, exchange.slot)
            rows += self._scorer.rows(job, exchange, about | where, name, found)
        return rows

    def _defence_of(self, client: int) -> str:
        return self.experiment.defence if client in self.experiment.defended_partitions else "none"

    def _defences(self) -> list[str]:
        """What the probed clients do to what they send, the defence first: where some do not, they are told apart."""
        probed = {self._defence_of(slot % self.experiment.clients) for slot in range(self.experiment.images)}
        return sorted(probed, key=lambda defence: defence == "none")

    def _entry(
        self, job: Job, solution: Solution, rows: list[Row], ladder: tuple[Rung, Rung], defence: str
    ) -> dict[str, Any]:
        stands, clients = standing(self.experiment, job.ticket, defence != "none"), self.experiment.clients
        about = {
            "attack": job.attack,
            "adaptive": stands.adaptive,
            "vantage": "server",
            "source": "probe",
            "round": job.ticket.round,
            "client": None,
            "defence": defence,
            "granted": list(stands.granted),
            "batch": job.ticket.batch,
            "steps": job.ticket.steps,
            "curve": job.ticket.curve or None,
            "mode": "train",
            **asdict(self._named[job.attack].budget),
            "seeds": [self.experiment.seed],
        }
        probes = sum(self._defence_of(slot % clients) == defence for slot in range(self.experiment.images))
        own = [row for row in rows if row["defence"] == defence]
        return entry(about, solution, own, probes * job.ticket.batch, ladder, self.experiment.seed)

    def _note(self, refused: Iterable[str]) -> None:
        self.refused += [sentence for sentence in refused if sentence not in self.refused]


def _told(experiment: Experiment) -> dict[str, Any]:
    """The experiment as every participant knows it, without what is this machine's or decides nothing."""
    silent = {name: getattr(Experiment(), name) for name in FREE_ON_RESUME if name not in _NEEDED}
    return {**replace(experiment, **silent).to_run_config(), **_WITHHELD}


def _which(ticket: Ticket) -> str:
    return f", {ticket.curve} {getattr(ticket, ticket.curve)}" if ticket.curve else ""


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def evenly(indices: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the indices, from all over: sets of several domains have these one behind the other."""
    places = np.linspace(0, len(indices) - 1, min(len(indices), most)).round().astype(int)
    return indices[places]
