"""Audit of one run's recordings: the attacks to run, their results, and the verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np

from flfw.adversary.attack import tuned_on
from flfw.audit.attack_process import Attacks, AttackServer, Inline, Jobs, require_gpu
from flfw.audit.job_planner import JobPlanner
from flfw.audit.jobs import ANALYTIC, AttackJob, JobResult, ProbeSet
from flfw.audit.measures import perceptual
from flfw.audit.measures.perceptual import Extractors
from flfw.audit.measures.public import PublicData
from flfw.audit.membership.membership_audit import MembershipAudit
from flfw.audit.membership.request import MembershipRequest
from flfw.audit.membership.views import with_informed
from flfw.audit.queue import Queue
from flfw.audit.reconstruction.control_runs import ControlRunner
from flfw.audit.reconstruction.entry_builder import EntryBuilder, analytic, easy, easy_words
from flfw.audit.reconstruction.evidence import ControlResult
from flfw.audit.reconstruction.scorer import Scorer, ScoreRow
from flfw.audit.threat_model import threat_model_of
from flfw.audit.uploads import read_truth, truth_keys
from flfw.audit.verdict import with_min_safe_sum_size
from flfw.errors import InputError
from flfw.experiment.curves import SUM_SIZE, Point
from flfw.files import verdicts
from flfw.files.progress import Steps
from flfw.plans.run_plan import AuditPlan
from flfw.recording.reader import Recordings
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

AuditContext = AbstractContextManager["Auditor | None"]

AttackPlace = Callable[[Queue, Jobs], Attacks]
"""Makes the place where a queue's attacks run."""


def auditing(
    clients: ClientPlan,
    audit: AuditPlan,
    task: Task,
    out: Path,
    source: Path | None = None,
    place: AttackPlace | None = None,
) -> AuditContext:
    """Return the audit of an experiment; an empty context if it requests none, or if its method sends nothing.

    Args:
        clients: what the run's clients do.
        audit: the attacks and what they see.
        task: the run's data.
        out: the run's folder.
        source: the folder with ``observations/`` and ``truth/``, if it is a different one.
        place: where attacks run; None: where the experiment has them.

    Raises:
        InputError: the data have no public examples, without which nothing is compared, or the attacks no GPU.
    """
    if not (audit.settings.attacks and audit.audited and clients.method.uploads):
        return nullcontext(None)
    require_gpu(audit.settings)
    if not len(task.split.public):
        raise InputError(
            "Expected test examples that are no training examples, for the floors of the audit, got none among "
            f"{len(task.dataset.test_y)} of {clients.task.data.dataset}; add others to its test part, or leave out "
            "--attack."
        )
    return Auditor(clients, audit, task, source or out, out, place)


@final
class Auditor(AbstractContextManager["Auditor"]):
    """The trusted side of an audit: it grants, requests, scores and concludes. Attacks run only inside its context.

    Args:
        clients: what the run's clients do.
        audit: the attacks and what they see.
        task: the source of the public data and the input space.
        source: the folder with ``observations/``, ``examples/`` and ``truth/``.
        out: the folder of reconstructions; the same one, unless recordings of an earlier run are audited again.
        place: where attacks run; None: where the experiment has them.

    Attributes:
        source: the folder of the recordings.
        refused: unusable recordings, a sentence each.
        inference: after `run`, entries of result.json on what was inferred of the clients' classes.
        membership: after `run`, entries of result.json on what tells the clients' examples from others.
        remarks: after `run`, what attacks on membership say nothing about, a sentence each.
    """

    def __init__(
        self,
        clients: ClientPlan,
        audit: AuditPlan,
        task: Task,
        source: Path,
        out: Path,
        place: AttackPlace | None = None,
    ) -> None:
        self._client_plan, self.audit, self._task, self.source, self._out = clients, audit, task, source, out
        self._named, self._of_membership = audit.reconstructions, audit.memberships
        weights = audit.settings.lpips_weights
        self._perceptual = perceptual.load(weights) if weights else None
        self.refused: list[str] = []
        self.inference: list[dict[str, Any]] = []
        self.membership: list[dict[str, Any]] = []
        self.remarks: list[str] = []
        self._queue = Queue((out / "queue").absolute())
        self._granted: tuple[str, int] | None = None
        self._job_planner = self._planner_of(clients)
        self._attacks = place(self._queue, self.jobs) if place else self._place()
        self._control_runner = ControlRunner(clients, audit, self._planner_of, self._attempt, source / "truth", task)

    def _planner_of(self, clients: ClientPlan) -> JobPlanner:
        note = lambda sentence: self._note([sentence])  # noqa: E731
        return JobPlanner(clients, self.audit, self._task, self.source, self._named, note, self._granted_public)

    def _place(self) -> Attacks:
        if self.audit.process == "inline":
            return Inline(self._queue, self.jobs)
        gpu, seconds = self.audit.settings.attack_gpus > 0, self.audit.settings.attack_timeout
        # The recordings of an earlier run are complete: the process may start at once, while jobs are made.
        early = self.audit.process == "concurrent" or self.source != self._out
        return AttackServer(self._queue, self.jobs, concurrent=early, seconds=seconds, gpu=gpu)

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
        sides = (self._perceptual, self._task.own_side, self._task.dataset)
        return Scorer(self._public, self.source / "truth", self._out, self._client_plan.seed, *sides)

    @cached_property
    def _public(self) -> PublicData:
        (samples, labels), held = self._task.public(), self._task.dataset
        return PublicData.from_arrays(samples.numpy(), held.kinds(labels.numpy()), bool(held.vocabulary), held.columns)

    @cached_property
    def _extractors(self) -> Extractors:
        return Extractors(self._client_plan, Recordings(self.source / "observations"), self._task.inputs)

    def _granted_public(self) -> tuple[str, int]:
        """Return the file of the public data, for jobs that grant it, and its number of examples."""
        if self._granted is None:
            samples, labels = self._task.public()
            self._granted = self._queue.put_public(samples, labels), len(labels)
        return self._granted

    @property
    def weights(self) -> dict[str, Any] | None:
        """Weight files that the scores depend on, for the provenance."""
        if self._perceptual is None:
            return None
        details = {"sha256": self._perceptual.sha256, "official": self._perceptual.official}
        return {"lpips": {"file": str(self.audit.settings.lpips_weights), **details}}

    @property
    def tuned_on(self) -> list[str]:
        """Data on which the attacks' defaults were chosen, for the provenance."""
        return tuned_on({**self._named, **self._of_membership})

    def probe_sets(self, last: int | None = None) -> list[ProbeSet]:
        """Return the probe sets of a run that ended after round ``last``; see `flfw.audit.job_planner.JobPlanner`."""
        return self._job_planner.probe_sets(last) if self._named else []

    def jobs(self, probe_set: ProbeSet) -> list[AttackJob]:
        """Return the jobs of a probe set that is recorded; see `flfw.audit.job_planner.JobPlanner`."""
        return self._job_planner.jobs(probe_set)

    def run(
        self, last: int | None = None, privacy: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[list[dict[str, Any]], list[ScoreRow]]:
        """Run all jobs that are left; return the audit's entries of result.json, and a row per image.

        Args:
            last: the round in which training ended; None: after the requested rounds.
            privacy: the run's claims, with which what is told of members is compared.

        Raises:
            InputError: there are no recordings.
            RunError: the attack process could not go on.
        """
        probe_sets = self.probe_sets(last)
        jobs, games = [job for probe_set in probe_sets for job in self.jobs(probe_set)], self.membership_jobs(last)
        for job in (*jobs, *(job for _, job in games)):
            self._queue.put(job)
        self._attacks.close()
        self._scored: list[ScoreRow] = []
        entries = self._reconstructed(jobs) if self._named else []
        answers = (self._attacks.wait(job) for _, job in games)
        requested = [request for request, _ in games]
        self.membership = self._game.play(requested, answers, self._note, privacy) if games else []
        self.remarks = self._game.remarks if games else []
        return entries, self._scored

    def _reconstructed(self, jobs: Sequence[AttackJob]) -> list[dict[str, Any]]:
        """Score the jobs of attacks that reconstruct, as they come; return the entries of ``audit``."""
        entry_builder = EntryBuilder(
            self._job_planner, self._task, self._control_runner, self._scorer, self._analytic(), self._num_tests(jobs)
        )
        entries: list[dict[str, Any]] = []
        inferring: list[tuple[AttackJob, JobResult]] = []
        with Steps("attack", len(jobs)) as steps:
            for name in self._named:
                static_rows: list[ScoreRow] = []
                for job in (job for job in jobs if job.attack == name):
                    result = self._attacks.wait(job)
                    inferring += [(job, result)] * (job.probe_set.control == "target" and not job.adaptive)
                    if not self._named[name].reconstructs:
                        self._note(result.refused)
                        steps.done(f"{name} at round {job.probe_set.round}: {result.stopped or 'done'}")
                        continue
                    started = time.monotonic()
                    scored = self._rows(self._job_planner, job, result)
                    views = self._job_planner.vantages(job.probe_set)
                    self._scored += [row | {"vantage": view} for view in views for row in scored]
                    if job.probe_set.control == "easy":
                        entry_builder.below[name] = below = easy(scored, self.audit.probes.images, result)
                        steps.done(f"{name} on the easy control: {easy_words(scored, below)}")
                        continue
                    summaries = entry_builder.entries(job, result, scored, static_rows if job.adaptive else [])
                    static_rows = scored  # an adaptive job follows its static one
                    spent = round((time.monotonic() - started) / len(summaries), 3)
                    for summary in summaries:
                        summary["scoring_seconds"] = spent
                    entries += summaries
                    words = " and ".join(verdicts.in_words(e) for e in summaries if e["vantage"] == job.vantage)
                    steps.done(f"{name} at round {job.probe_set.round}{_which(job)}: {words}")
        self.inference = entry_builder.inferred(inferring)
        return with_min_safe_sum_size(entries)

    def membership_jobs(self, last: int | None = None) -> list[tuple[MembershipRequest, AttackJob]]:
        """Return the requests to the attacks on membership, each with its job.

        Args:
            last: the round in which training ended; None: after the requested rounds.

        Raises:
            InputError: no upload was recorded.
        """
        ended, game, settings = self.audit.rounds if last is None else last, self._game, self.audit.settings
        requested = [
            request
            for name, attack in self._of_membership.items()
            for request in with_informed(self._client_plan, settings.adaptation, attack, game.requests(name, ended))
        ]
        return [(request, self._job_planner.game_job(request)) for request in requested]

    @cached_property
    def _game(self) -> MembershipAudit:
        folder = self.source / "observations"
        return MembershipAudit(self._client_plan, self.audit, self._task, folder, self._queue.put_candidates)

    def _num_tests(self, jobs: Sequence[AttackJob]) -> int:
        """Return the number of tests of identification: two in each setting; other vantages see the same bytes."""
        tested = (job for job in jobs if job.probe_set.control == "target" and self._named[job.attack].reconstructs)
        return 2 * sum(len(self._job_planner.defences_of(job)) for job in tested) or 1

    def _attempt(self, planner: JobPlanner, job: AttackJob) -> tuple[JobResult, list[ScoreRow]]:
        """Run a job that was not foreseen; return its solution and rows, which are kept."""
        self._queue.put(job)
        result = self._attacks.wait(job)
        rows = self._rows(planner, job, result)
        self._scored += rows
        return result, rows

    def _analytic(self) -> ControlResult:
        recordings = Recordings(self.source / "observations")
        probes = [(o, read_truth(self.source / "truth", o.key)) for o in recordings.probes(ANALYTIC, 0)]
        self._note(recordings.refused)
        requested = len(recordings.probe_lines(ANALYTIC, 0))
        return analytic(
            [(observation, truth) for observation, truth in probes if truth is not None], requested, self._task.inputs
        )

    def _rows(self, planner: JobPlanner, job: AttackJob, result: JobResult) -> list[ScoreRow]:
        probe_set, seed = job.probe_set, self._client_plan.seed
        self._note(result.refused)
        common: ScoreRow = {
            "attack": job.attack,
            "vantage": job.vantage,
            "source": probe_set.source,
            "rung": probe_set.control,
            "curve": probe_set.curve,
            "batch": probe_set.batch,
            "steps": probe_set.steps,
            "sum_size": probe_set.group + probe_set.colluding or "",
        }
        rows: list[ScoreRow] = []
        for exchange, reconstruction in zip(job.exchanges, result.reconstructions, strict=True):
            defence = "none" if probe_set.fresh else planner.clients.defence_of(exchange.client)
            threat_model = threat_model_of(
                planner.clients, self.audit.settings, job, self._named[job.attack], defence != "none"
            )
            where: ScoreRow = {"defence": defence, "adaptive": threat_model.adaptive}
            where |= {"adaptation": threat_model.adaptation, "round": probe_set.round}
            where |= {"client": exchange.client, "probe_slot": exchange.slot, "seed": seed}
            names = truth_keys(probe_set, exchange)
            attacked = reconstruction is not None and not probe_set.fresh
            extractor = self._extractors.behind(exchange.id) if attacked else None
            ceiling = self._named[job.attack].ceiling
            scored = self._scorer.rows(job, exchange, common | where, names, reconstruction, extractor, ceiling)
            each = len(scored) // max(1, len(exchange.slots))
            for row, slot in zip(scored, np.repeat(exchange.slots, each), strict=False):
                row["client"] = int(slot) % self._client_plan.rounds.clients  # of a sum, the owner of the example
            rows += scored
        groups = [[row for row in rows if row["defence"] == name] for name in {row["defence"]: None for row in rows}]
        controlled = [row for group in groups for row in self._scorer.controlled(job, group)]
        return sorted(controlled, key=lambda row: (row["probe_slot"], row["image"]))

    def _note(self, refused: Iterable[str]) -> None:
        self.refused += [sentence for sentence in refused if sentence not in self.refused]


def _which(job: AttackJob) -> str:
    probe_set, suffix = job.probe_set, ", told of what hides the data" if job.adaptive else ""
    if probe_set.group:
        rest = "the rest of " * bool(probe_set.colluding)
        size = probe_set.group + probe_set.colluding
        whose = "" if probe_set.isolated is None else f" with client {probe_set.isolated} alone"
        suffix = f", {rest}sums over {size} client{'s' * (size > 1)}{whose}, {probe_set.batch} examples{suffix}"
    if probe_set.curve == SUM_SIZE:
        return suffix
    if probe_set.curve:
        return f", {probe_set.curve} {Point(probe_set.curve, probe_set.batch, probe_set.steps).value}{suffix}"
    return (", one example's gradient" if probe_set.on_client else "") + suffix
