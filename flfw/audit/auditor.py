"""Audit of one run's recordings: the attacks to run, their results, and the verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np
from torch import Tensor

from flfw.adversary.attack import tuned_on
from flfw.adversary.observation import key
from flfw.audit.attack_server import Attacks, AttackServer, Inline, place
from flfw.audit.entries import entry
from flfw.audit.jobs import EXAMPLE, Job, Solution, Ticket
from flfw.audit.ladder import control, easy
from flfw.audit.measures import perceptual
from flfw.audit.measures.public import Public
from flfw.audit.plan import Plan
from flfw.audit.queue import Queue
from flfw.audit.scorer import Scorer, ScoreRow, read_truth
from flfw.audit.standing import standing
from flfw.audit.verdict import Rung
from flfw.curves import Point
from flfw.recording.reader import Recordings
from flfw.resolve import Resolved
from flfw.task import Task
from flfw.terminal.progress import Steps

_PUBLIC_AT_MOST = 10_000

AuditContext = AbstractContextManager["Auditor | None"]


def auditing(resolved: Resolved, task: Task, out: Path, source: Path | None = None) -> AuditContext:
    """Return the audit of an experiment; an empty context if it requests none, or if its method sends nothing.

    Args:
        resolved: the experiment.
        task: the experiment's task.
        out: the run's folder.
        source: the folder with ``observations/`` and ``truth/``, if it is a different one.
    """
    experiment = resolved.experiment
    if not (experiment.attacks and experiment.audited and resolved.method.uploads):
        return nullcontext(None)
    return Auditor(resolved, task, source or out, out)


@final
class Auditor(AbstractContextManager["Auditor"]):
    """The trusted side of an audit: it grants, requests, scores and concludes. Attacks run only inside its context.

    Args:
        resolved: the experiment, with its attacks.
        task: the source of the public data and the input space.
        source: the folder with ``observations/``, ``examples/`` and ``truth/``.
        out: the folder of reconstructions; the same one, unless recordings of an earlier run are audited again.

    Attributes:
        source: the folder of the recordings.
        refused: unusable recordings, a sentence each.
    """

    def __init__(self, resolved: Resolved, task: Task, source: Path, out: Path) -> None:
        experiment = resolved.experiment
        self._resolved, self.experiment, self._task, self.source, self._out = resolved, experiment, task, source, out
        self._named = resolved.attacks
        self._perceptual = perceptual.load(experiment.lpips_weights) if experiment.lpips_weights else None
        self.refused: list[str] = []
        self._queue = Queue((out / "queue").absolute())
        self._granted: tuple[str, int] | None = None
        note = lambda sentence: self._note([sentence])  # noqa: E731
        self._plan = Plan(resolved, task, source, self._named, note, self._granted_public)
        self._attacks = self._place()

    def _place(self) -> Attacks:
        where = place(self.experiment)
        if where == "inline":
            return Inline(self._queue, self.jobs)
        gpu = self.experiment.attack_gpus > 0
        seconds = self.experiment.attack_seconds
        # The recordings of an earlier run are complete: the process may start at once, while jobs are made.
        early = where == "beside" or self.source != self._out
        return AttackServer(self._queue, self.jobs, beside=early, seconds=seconds, gpu=gpu)

    def __enter__(self) -> Auditor:
        """Start the attacks on new recordings."""
        self._queue.reopen()
        self._attacks.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop all attacks."""
        self._attacks.end()

    @cached_property
    def _scorer(self) -> Scorer:
        """Scorer, built on first use: training does not need its public data."""
        public = Public.of(*(part.numpy() for part in self._public_data()))
        return Scorer(public, self.source / "truth", self._out, self.experiment.seed, self._perceptual)

    def _public_data(self) -> tuple[Tensor, Tensor]:
        return self._task.examples("test", evenly(self._task.split.public, _PUBLIC_AT_MOST))

    def _granted_public(self) -> tuple[str, int]:
        """Return the file of the public data, for jobs that grant it, and its number of examples."""
        if self._granted is None:
            samples, labels = self._public_data()
            self._granted = self._queue.put_public(samples, labels), len(labels)
        return self._granted

    @property
    def weights(self) -> dict[str, Any] | None:
        """Weight files that the scores depend on, for the provenance."""
        if self._perceptual is None:
            return None
        details = {"sha256": self._perceptual.sha256, "official": self._perceptual.official}
        return {"lpips": {"file": str(self.experiment.lpips_weights), **details}}

    @property
    def tuned_on(self) -> list[str]:
        """Data on which the attacks' defaults were chosen, for the provenance."""
        return tuned_on(self._named)

    def tickets(self, last: int | None = None) -> list[Ticket]:
        """Return the tickets of a run that ended after round ``last``; see `flfw.audit.plan.Plan.tickets`."""
        return self._plan.tickets(last)

    def jobs(self, ticket: Ticket) -> list[Job]:
        """Return the jobs of a ticket whose probes are recorded; see `flfw.audit.plan.Plan.jobs`."""
        return self._plan.jobs(ticket)

    def run(self, last: int | None = None) -> tuple[list[dict[str, Any]], list[ScoreRow]]:
        """Run all jobs that are left; return the audit's entries of result.json, and a row per image.

        Args:
            last: the round in which training ended; None: after the requested rounds.

        Raises:
            BadInput: there are no recordings.
            RunFailed: the attack server could not go on.
        """
        tickets = self.tickets(last)
        jobs = [job for ticket in tickets for job in self.jobs(ticket)]
        for job in jobs:
            self._queue.put(job)
        self._attacks.close()
        base = self._control()
        entries: list[dict[str, Any]] = []
        rows: list[ScoreRow] = []
        with Steps("attack", len(jobs)) as steps:
            for name in self._named:
                below, untold = Rung("easy", 0.0, False, stopped="it was not attacked"), list[ScoreRow]()
                for job in (job for job in jobs if job.attack == name):
                    solution = self._attacks.wait(job)
                    started = time.monotonic()
                    scored = self._rows(job, solution)
                    rows += [row | {"vantage": v} for v in self._plan.vantages(job.ticket) for row in scored]
                    if job.ticket.rung == "easy":
                        below = easy(scored, self.experiment.images, solution)
                        steps.done(f"{name} on the easy rung: {below.stopped or f'{below.psnr:.1f} dB'}")
                        continue
                    summaries = self._entries(job, solution, scored, (base, below), untold if job.adaptive else [])
                    untold = scored  # an adaptive job follows its static one
                    spent = round((time.monotonic() - started) / len(summaries), 3)
                    for summary in summaries:
                        summary["scoring_seconds"] = spent
                    entries += summaries
                    words = " and ".join(e["verdict"] for e in summaries if e["vantage"] == job.vantage)
                    steps.done(f"{name} at round {job.ticket.round}{_which(job)}: {words}")
        return entries, rows

    def _control(self) -> Rung:
        recordings = Recordings(self.source / "observations")
        probes = [(o, read_truth(self.source / "truth", o.key)) for o in recordings.probes("control", 0)]
        self._note(recordings.refused)
        asked = len(recordings.probe_lines("control", 0))
        return control([(seen, truth) for seen, truth in probes if truth is not None], asked, self._task.inputs)

    def _rows(self, job: Job, solution: Solution) -> list[ScoreRow]:
        ticket, seed = job.ticket, self.experiment.seed
        self._note(solution.refused)
        common: ScoreRow = {"attack": job.attack, "vantage": job.vantage, "source": "probe", "rung": ticket.rung}
        common |= {"curve": ticket.curve, "batch": ticket.batch, "steps": ticket.steps}
        rows: list[ScoreRow] = []
        for exchange, reconstruction in zip(job.exchanges, solution.reconstructions, strict=True):
            defence = self._plan.defence_of(exchange.client) if ticket.rung == "target" else "none"
            stands = standing(self._resolved, job, self._named[job.attack], defence != "none")
            where: ScoreRow = {"defence": defence, "adaptive": stands.adaptive, "adaptation": stands.adaptation}
            where["round"] = ticket.round
            where |= {"client": exchange.client, "victim": exchange.slot, "seed": seed}
            name = key(ticket.round, ticket.point, exchange.slot)
            rows += self._scorer.rows(job, exchange, common | where, name, reconstruction)
        return rows

    def _entries(
        self, job: Job, solution: Solution, rows: list[ScoreRow], ladder: tuple[Rung, Rung], untold: list[ScoreRow]
    ) -> list[dict[str, Any]]:
        """Return an entry for each vantage and defence; an adaptive job covers only defences that it can adapt to."""
        defences = [d for d in self._plan.defences() if not job.adaptive or self._plan.adapts(job.ticket, d)]
        which = [(vantage, defence) for vantage in self._plan.vantages(job.ticket) for defence in defences]
        entries = []
        for vantage, defence in which:
            description, asked = self._about(job, vantage, defence), self._probes(defence) * job.ticket.batch
            selected, other = ([row for row in all_ if row["defence"] == defence] for all_ in (rows, untold))
            description["label_presence"] = self._presence(solution, defence)
            entries.append(entry(description, solution, selected, asked, ladder, self.experiment.seed, other))
        return entries

    def _presence(self, solution: Solution, defence: str) -> dict[str, float] | None:
        """Return how often the classes inferred for clients are right, beside the better constant answer."""
        inferred = [(client, held) for client, held in solution.present if self._plan.defence_of(client) == defence]
        if not inferred:
            return None
        labels, split = self._task.dataset.train_y, self._task.split.train
        truth = [np.isin(np.arange(len(held)), labels[split[client]]) for client, held in inferred]
        share = float(np.mean(truth))
        right = float(np.mean([np.array(held) == true for (_, held), true in zip(inferred, truth, strict=True)]))
        return {"clients": len(inferred), "right": right, "null": max(share, 1 - share)}

    def _probes(self, defence: str) -> int:
        slots, clients = range(self.experiment.images), self.experiment.clients
        return sum(self._plan.defence_of(slot % clients) == defence for slot in slots)

    def _about(self, job: Job, vantage: str, defence: str) -> dict[str, Any]:
        attack = self._named[job.attack]
        stands = standing(self._resolved, job, attack, defence != "none", vantage)
        return {
            "attack": job.attack,
            "adaptive": stands.adaptive,
            "adaptation": stands.adaptation,
            "vantage": vantage,
            "source": "probe",
            "round": job.ticket.round,
            "client": None,
            "defence": defence,
            "hidden_by": stands.hidden_by,
            "granted": list(stands.granted),
            "batch": job.ticket.batch,
            "steps": job.ticket.steps,
            "curve": job.ticket.curve or None,
            "mode": "train",
            **asdict(attack.budget),
            "seeds": [self.experiment.seed],
        }

    def _note(self, refused: Iterable[str]) -> None:
        self.refused += [sentence for sentence in refused if sentence not in self.refused]


def _which(job: Job) -> str:
    ticket, suffix = job.ticket, ", told of what hides the data" if job.adaptive else ""
    if ticket.curve:
        return f", {ticket.curve} {Point(ticket.curve, ticket.batch, ticket.steps).value}{suffix}"
    return (", one example's gradient" if ticket.point == EXAMPLE else "") + suffix


def evenly(indices: np.ndarray, most: int) -> np.ndarray:
    """Return at most ``most`` of the indices, evenly spaced: sets of several domains store these one after another."""
    places = np.linspace(0, len(indices) - 1, min(len(indices), most)).round().astype(int)
    return indices[places]
