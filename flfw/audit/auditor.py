"""Audit of one run's recordings: the attacks to run, their results, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, final

from flfw.adversary.attack import tuned_on
from flfw.audit.attack_process import AttackExecutor, AttackProcess, Inline, require_gpu
from flfw.audit.job_planner import JobPlanner
from flfw.audit.jobs import AttackJob, ProbeSet
from flfw.audit.membership.membership_audit import MembershipAudit
from flfw.audit.membership.request import MembershipRequest
from flfw.audit.membership.views import with_informed
from flfw.audit.queue import Queue
from flfw.audit.reconstruction.reconstruction_audit import ReconstructionAudit
from flfw.audit.reconstruction.scorer import ScoreRow
from flfw.errors import InputError
from flfw.plans.run_plan import AuditPlan
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

AuditContext = AbstractContextManager["Auditor | None"]


def auditing(clients: ClientPlan, audit: AuditPlan, task: Task, out: Path, source: Path | None = None) -> AuditContext:
    """Return the audit of an experiment; an empty context if it requests none, or if its method sends nothing.

    Args:
        clients: what the run's clients do.
        audit: the attacks and what they see.
        task: the run's data.
        out: the run's folder.
        source: the folder with ``observations/`` and ``truth/``, if it is a different one.

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
    return Auditor(clients, audit, task, source or out, out)


@final
class Auditor(AbstractContextManager["Auditor"]):
    """The trusted side of an audit: it grants, requests, scores and concludes. Attacks run only inside its context.

    Args:
        clients: what the run's clients do.
        audit: the attacks and what they see.
        task: the source of the public data and the input space.
        source: the folder with ``observations/``, ``examples/`` and ``truth/``.
        out: the folder of reconstructions; the same one, unless recordings of an earlier run are audited again.

    Attributes:
        source: the folder of the recordings.
        refused: unusable recordings, a sentence each.
        inference: after `run`, entries of result.json on what was inferred of the clients' classes.
        membership: after `run`, entries of result.json on what tells the clients' examples from others.
        remarks: after `run`, what attacks on membership say nothing about, a sentence each.
    """

    def __init__(self, clients: ClientPlan, audit: AuditPlan, task: Task, source: Path, out: Path) -> None:
        self._client_plan, self.audit, self._task, self.source, self._out = clients, audit, task, source, out
        self._named, self._of_membership = audit.reconstructions, audit.memberships
        self.refused: list[str] = []
        self.inference: list[dict[str, Any]] = []
        self.membership: list[dict[str, Any]] = []
        self.remarks: list[str] = []
        self._queue = Queue((out / "queue").absolute())
        self._job_planner = self._planner_of(clients)
        self._attacks = self._place()
        self._reconstruction = ReconstructionAudit(
            self._job_planner, self._planner_of, task, source, out, self._queue, self._attacks, self._note
        )

    def _planner_of(self, clients: ClientPlan) -> JobPlanner:
        note = lambda sentence: self._note([sentence])  # noqa: E731
        return JobPlanner(clients, self.audit, self._task, self.source, self._named, note, lambda: self._granted_public)

    def _place(self) -> AttackExecutor:
        if self.audit.process == "inline":
            return Inline(self._queue, self.jobs)
        gpu, seconds = self.audit.settings.attack_gpus > 0, self.audit.settings.attack_timeout
        # The recordings of an earlier run are complete: the process may start at once, while jobs are made.
        early = self.audit.process == "concurrent" or self.source != self._out
        return AttackProcess(self._queue, self.jobs, concurrent=early, seconds=seconds, gpu=gpu)

    def __enter__(self) -> Auditor:
        """Start the attacks on new recordings."""
        self._queue.reopen()
        self._attacks.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop all attacks."""
        self._attacks.end()

    @cached_property
    def _granted_public(self) -> tuple[str, int]:
        """File of the public data, for jobs that grant it, and its number of examples."""
        samples, labels = self._task.public()
        return self._queue.put_public(samples, labels), len(labels)

    @property
    def weights(self) -> dict[str, Any] | None:
        """Weight files that the scores depend on, for the provenance."""
        return self._reconstruction.weights

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
        entries = self._reconstruction.entries(jobs) if self._named else []
        self.inference = self._reconstruction.inference
        answers = (self._attacks.wait(job) for _, job in games)
        requested = [request for request, _ in games]
        self.membership = self._game.play(requested, answers, self._note, privacy) if games else []
        self.remarks = self._game.remarks if games else []
        return entries, self._reconstruction.scored

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

    def _note(self, refused: Iterable[str]) -> None:
        self.refused += [sentence for sentence in refused if sentence not in self.refused]
