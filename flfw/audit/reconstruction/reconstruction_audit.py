"""Reconstruction on the trusted side: the rows, the controls and the evidence of each attacked target, its entry."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, final

import numpy as np

from flfw.adversary.sums import groups_of
from flfw.audit.adaptation import departure_of_noise
from flfw.audit.attack_process import AttackExecutor
from flfw.audit.controls import UNDEFENDED, WEAK_DEFENCE
from flfw.audit.job_planner import JobPlanner
from flfw.audit.jobs import ANALYTIC, AttackJob, JobResult, ProbeSet
from flfw.audit.measures import perceptual
from flfw.audit.measures.class_inference import PRESENT, Inference
from flfw.audit.measures.perceptual import Extractors
from flfw.audit.measures.public import PublicData
from flfw.audit.queue import Queue
from flfw.audit.reconstruction.control_runs import Case, ControlRunner, analytic, easy, easy_words, shown_by_weak
from flfw.audit.reconstruction.entries import description, entry
from flfw.audit.reconstruction.reconstruction_evidence import (
    ControlResult,
    ControlResults,
    ReconstructionEvidence,
    SumFacts,
)
from flfw.audit.reconstruction.scorer import Scorer, ScoreRow, columns
from flfw.audit.sums import with_min_safe_sum_size
from flfw.audit.threat_model import threat_model_of, unseen
from flfw.audit.uploads import read_truth, truth_keys
from flfw.experiment import PEER
from flfw.experiment.curves import SUM_SIZE, Point
from flfw.files import outcomes
from flfw.files.outcomes import NO_LEAK_FOUND
from flfw.files.progress import Steps
from flfw.recording.reader import Recordings
from flfw.rng import numpy_generator
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

_NOT_ATTACKED = ControlResult(None, False, failure_reason="it was not attacked")


@final
class ReconstructionAudit:
    """Reconstruction of a run's examples on the trusted side: scores, controls, evidence and entries.

    Args:
        job_planner: planner of the audit's jobs.
        planner_of: builds the planner of the jobs of clients under a control.
        task: the source of the public data, the input space and the clients' classes.
        source: the folder with ``observations/`` and ``truth/``.
        out: the folder of reconstructions.
        queue: the jobs of the attacks.
        attacks: where they run.
        note: notes what could not be used.

    Attributes:
        scored: a row per example of all jobs so far.
        inference: after `entries`, entries of result.json on what was inferred of the clients' classes.
    """

    def __init__(
        self,
        job_planner: JobPlanner,
        planner_of: Callable[[ClientPlan], JobPlanner],
        task: Task,
        source: Path,
        out: Path,
        queue: Queue,
        attacks: AttackExecutor,
        note: Callable[[Iterable[str]], None],
    ) -> None:
        self._job_planner, self._task, self._source, self._out = job_planner, task, source, out
        self._queue, self._attacks, self._note = queue, attacks, note
        self._client_plan, self._audit = job_planner.clients, job_planner.audit
        self._named = job_planner.attacks
        weights = self._audit.settings.lpips_weights
        self._perceptual = perceptual.load(weights) if weights else None
        self._control_runner = ControlRunner(
            self._client_plan, self._audit, planner_of, self._attempt, source / "truth", task
        )
        self.scored: list[ScoreRow] = []
        self.inference: list[dict[str, Any]] = []
        self._easy: dict[str, ControlResult] = {}
        self._recovered_alone: dict[tuple[str, str, bool, str, int, str], float] = {}
        self._hidden_alone: set[tuple[str, str, str, int, str]] = set()

    @cached_property
    def _scorer(self) -> Scorer:
        """Scorer, built on first use: training does not need its public data."""
        sides = (self._perceptual, self._task.own_side, self._task.dataset)
        return Scorer(self._public, self._source / "truth", self._out, self._client_plan.seed, *sides)

    @cached_property
    def _public(self) -> PublicData:
        (samples, labels), held = self._task.public(), self._task.dataset
        return PublicData.from_arrays(samples.numpy(), held.kinds(labels.numpy()), bool(held.vocabulary), held.columns)

    @cached_property
    def _extractors(self) -> Extractors:
        return Extractors(self._client_plan, Recordings(self._source / "observations"), self._task.inputs)

    @property
    def weights(self) -> dict[str, Any] | None:
        """Weight files that the scores depend on, for the provenance."""
        if self._perceptual is None:
            return None
        details = {"sha256": self._perceptual.sha256, "official": self._perceptual.official}
        return {"lpips": {"file": str(self._audit.settings.lpips_weights), **details}}

    def entries(self, jobs: Sequence[AttackJob]) -> list[dict[str, Any]]:
        """Score the jobs of attacks that reconstruct, as they come; return the entries of ``audit``."""
        self._base, self._num_tests, self.scored = self._analytic(), self._tests(jobs), []
        entries: list[dict[str, Any]] = []
        inferring: list[tuple[AttackJob, JobResult]] = []
        with Steps("attack", len(jobs)) as steps:
            self._attacks.report = steps.part
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
                    self.scored += [row | {"vantage": view} for view in views for row in scored]
                    if job.probe_set.control == "easy":
                        self._easy[name] = below = easy(scored, self._audit.probes.images, result)
                        steps.done(f"{name} on the easy control: {easy_words(scored, below)}")
                        continue
                    summaries = self._entries(job, result, scored, static_rows if job.adaptive else [])
                    static_rows = scored  # an adaptive job follows its static one
                    spent = round((time.monotonic() - started) / len(summaries), 3)
                    for summary in summaries:
                        summary["scoring_seconds"] = spent
                    entries += summaries
                    words = " and ".join(outcomes.in_words(e) for e in summaries if e["vantage"] == job.vantage)
                    steps.done(f"{name} at round {job.probe_set.round}{_which(job)}: {words}")
        self.inference = self._inferred(inferring)
        return with_min_safe_sum_size(entries)

    def _tests(self, jobs: Sequence[AttackJob]) -> int:
        """Return the number of tests of identification: two in each setting; other vantages see the same bytes."""
        tested = (job for job in jobs if job.probe_set.control == "target" and self._named[job.attack].reconstructs)
        return 2 * sum(len(self._job_planner.defences_of(job)) for job in tested) or 1

    def _attempt(self, planner: JobPlanner, job: AttackJob) -> tuple[JobResult, list[ScoreRow]]:
        """Run a job that was not foreseen; return its solution and rows, which are kept."""
        self._queue.put(job)
        result = self._attacks.wait(job)
        rows = self._rows(planner, job, result)
        self.scored += rows
        return result, rows

    def _analytic(self) -> ControlResult:
        recordings = Recordings(self._source / "observations")
        probes = [(o, read_truth(self._source / "truth", o.key)) for o in recordings.probes(ANALYTIC, 0)]
        self._note(recordings.refused)
        requested = len(recordings.probe_lines(ANALYTIC, 0))
        return analytic(
            [(observation, truth) for observation, truth in probes if truth is not None], requested, self._task.inputs
        )

    def _rows(self, planner: JobPlanner, job: AttackJob, result: JobResult) -> list[ScoreRow]:
        probe_set, seed = job.probe_set, self._client_plan.seed
        self._note(result.refused)
        rows: list[ScoreRow] = []
        for exchange, reconstruction in zip(job.exchanges, result.reconstructions, strict=True):
            defence = "none" if probe_set.fresh else planner.clients.defence_of(exchange.client)
            threat_model = threat_model_of(
                planner.clients, self._audit.settings, job, self._named[job.attack], defence != "none"
            )
            where = columns(job, exchange, threat_model, defence, seed)
            names = truth_keys(probe_set, exchange)
            attacked = reconstruction is not None and not probe_set.fresh
            extractor = self._extractors.behind(exchange.id) if attacked else None
            ceiling = self._named[job.attack].ceiling
            scored = self._scorer.rows(job, exchange, where, names, reconstruction, extractor, ceiling)
            each = len(scored) // max(1, len(exchange.slots))
            for row, slot in zip(scored, np.repeat(exchange.slots, each), strict=False):
                row["client"] = int(slot) % self._client_plan.rounds.clients  # of a sum, the owner of the example
            rows += scored
        groups = [[row for row in rows if row["defence"] == name] for name in {row["defence"]: None for row in rows}]
        controlled = [row for group in groups for row in self._scorer.controlled(job, group)]
        return sorted(controlled, key=lambda row: (row["probe_slot"], row["image"]))

    def _entries(
        self, job: AttackJob, result: JobResult, rows: Sequence[ScoreRow], static_rows: Sequence[ScoreRow]
    ) -> list[dict[str, Any]]:
        """Return an entry for each vantage and defence; an adaptive job covers only defences that it can adapt to."""
        entries = []
        for vantage, defence in product(self._job_planner.vantages(job.probe_set), self._job_planner.defences_of(job)):
            attack, clients = self._named[job.attack], self._clients(job, defence)
            threat_model = threat_model_of(
                self._client_plan, self._audit.settings, job, attack, defence != "none", vantage
            )
            requested, seed = self._requested(job, defence), self._client_plan.seed
            about = description(job, attack, threat_model, defence, seed, vantage=vantage)
            about["num_colluding"] = self._colluding(job.probe_set) if job.probe_set.group else None
            selected, other = ([row for row in all_ if row["defence"] == defence] for all_ in (rows, static_rows))
            about["label_presence"] = self._presence(result, defence)
            slots, static = {row["probe_slot"] for row in selected}, replace(job, adaptive=False)
            case = Case(job, attack, clients, threat_model, result, selected)
            target = ReconstructionEvidence(
                self._controls(case),
                private=threat_model.private,
                defended=case.defended,
                num_tests=self._num_tests,
                searched=self._control_runner.searched(case),
                identified=self._scorer.identified(job, slots),
                static_identified=self._scorer.identified(static, slots) if job.adaptive else None,
                candidate_test=self._control_runner.candidates(case),
                sums=self._sums(job, defence, selected),
                columns=self._scorer.columns(job, slots),
                expected=self._expected(case),
                tampered_by=self._client_plan.task.network.malicious_name,
                bounded=attack.bounded,
                unread=self._client_plan.unread_statistics,
                noise=departure_of_noise(self._client_plan, vantage) if threat_model.adaptation == "automatic" else "",
                constant=self._control_runner.constant(case),
            )
            entries.append(entry(about, result, selected, requested, seed, target, other))
            if job.probe_set.group == 1 and job.adaptive and entries[-1]["verdict"] == NO_LEAK_FOUND:
                self._hidden_alone.add(_of_messages(job, defence))
        return entries

    def _sums(self, job: AttackJob, defence: str, rows: Sequence[ScoreRow]) -> SumFacts | None:
        """Return the facts of a job's sums; those with one client left are attacked first, and kept for the others."""
        probe_set = job.probe_set
        if not probe_set.group:
            return None
        at = job.attack, job.vantage, job.adaptive, defence, probe_set.round, probe_set.recorded
        if probe_set.group == 1:
            self._recovered_alone[at] = sum(row["recovered"] for row in rows) / max(1, len(rows))
        computed = probe_set.vantage == PEER and not unseen(self._client_plan, PEER)
        size, lost = probe_set.group + probe_set.colluding, computed and self._control_runner.lost(job)
        colluding, alone = self._colluding(probe_set), self._recovered_alone.get(at)
        hidden = _of_messages(job, defence) in self._hidden_alone
        return SumFacts(size, colluding, alone, self._untried(), computed, lost, hidden)

    def _colluding(self, probe_set: ProbeSet) -> int:
        """Return the number of clients of a sum that work together with the attacker."""
        return probe_set.colluding or min(self._audit.colluding, probe_set.group - 1)

    def _untried(self) -> tuple[str, ...]:
        """Return in words the kinds of attacks without which a failure on sums is no evidence."""
        ran = [attack for attack in self._named.values() if attack.reconstructs]
        kinds = {
            "closed form": any(attack.cost.iterations == 0 for attack in ran),
            "search": any(attack.cost.iterations > 0 for attack in ran),
            "attack on membership": bool(self._audit.memberships),
        }
        return tuple(kind for kind, tried in kinds.items() if not tried)

    def _controls(self, case: Case) -> ControlResults:
        """Run what the verdict needs: the controls beside a target only where its failure could count."""
        job = case.job
        controls = ControlResults(self._base, self._easy.get(job.attack, _NOT_ATTACKED))
        if not case.threat_model.adaptive:
            return controls
        controls = replace(controls, consistency=self._control_runner.consistency(case))
        if not case.defended or not controls.easy.passed or case.recovered:
            return controls
        mild = self._control_runner.run(job, WEAK_DEFENCE)
        if mild.passed:
            return replace(controls, weak_defence=mild, undefended=shown_by_weak(mild))
        return replace(controls, weak_defence=mild, undefended=self._control_runner.run(job, UNDEFENDED))

    def _expected(self, case: Case) -> float | None:
        """Return the share that the attack's theory expects of an undefended probe of one step; None: there is none."""
        probe_set, attack = case.job.probe_set, case.attack
        plain = probe_set.source == "probe" and probe_set.steps == 1 and not case.defended
        clients = (probe_set.group or 1) if attack.of_sums else 1
        return attack.expected_share(probe_set.batch // clients) if plain else None

    def _clients(self, job: AttackJob, defence: str) -> list[int]:
        """Return the clients with a defence among those whose messages a job attacks."""
        seen = dict.fromkeys(exchange.client for exchange in job.exchanges)
        return [client for client in seen if self._client_plan.defence_of(client) == defence]

    def _presence(self, result: JobResult, defence: str) -> dict[str, float] | None:
        """Return how often the classes inferred for clients are right, beside the better constant answer."""
        inferred = [(one, held) for one, held in result.present if self._client_plan.defence_of(one) == defence]
        if not inferred:
            return None
        labels, split = self._task.dataset.train_y, self._task.split.train
        truth = [np.isin(np.arange(len(held)), labels[split[client]]) for client, held in inferred]
        share = float(np.mean(truth))
        right = float(np.mean([np.array(held) == true for (_, held), true in zip(inferred, truth, strict=True)]))
        return {"clients": len(inferred), "correct": right, "null": max(share, 1 - share)}

    def _inferred(self, jobs: Sequence[tuple[AttackJob, JobResult]]) -> list[dict[str, Any]]:
        """Return an entry for each attack and defence on the inferred classes of the clients, over all rounds.

        Args:
            jobs: the static jobs on targets, with their solutions.
        """
        cases: dict[tuple[str, str], list[tuple[AttackJob, JobResult]]] = defaultdict(list)
        for job, result in jobs:
            answers = dict([*result.present, *result.shares])
            if answers or not self._named[job.attack].reconstructs:
                clients = answers or dict(job.examples) or range(self._client_plan.rounds.clients)
                for defence in dict.fromkeys(map(self._client_plan.defence_of, clients)):
                    cases[job.attack, defence].append((job, result))
        rng = numpy_generator(self._client_plan.seed, "inference of classes")
        inferences = [self._inference(defence, solved) for (_, defence), solved in cases.items()]
        compared = [one.compared(rng) for one in inferences]
        tests = sum(map(len, compared)) or 1
        return [one.entry(its, tests, rng) for one, its in zip(inferences, compared, strict=True)]

    def _inference(self, defence: str, solved: Sequence[tuple[AttackJob, JobResult]]) -> Inference:
        """Join the inferences of an attack in all rounds, of clients with one defence: the mean over the rounds."""
        (job, first), task, classes = solved[0], self._task, self._task.dataset.classes
        shares = self._means(defence, [result.shares for _, result in solved])
        held = {client: one >= PRESENT / classes for client, one in shares.items()}
        if not shares:
            present = self._means(defence, [result.present for _, result in solved])
            held = {client: one >= 0.5 for client, one in present.items()}
        clients, train = sorted(held), task.split.train
        counts = [np.bincount(task.dataset.train_y[train[client]], minlength=classes) for client in clients]
        description = {"attack": job.attack, "vantage": job.vantage, "defence": defence}
        rounds = {"rounds": sorted(each.probe_set.round for each, _ in solved)}
        public = np.bincount(task.public()[1].numpy(), minlength=classes)
        return Inference(
            description | rounds,
            np.array([shares[client] for client in clients]) if shares else None,
            np.array([held[client] for client in clients]) if held else None,
            np.array(counts).reshape(-1, classes),
            clients,
            public / public.sum(),
            threat_model_of(
                self._client_plan, self._audit.settings, job, self._named[job.attack], defence != "none"
            ).protected_by,
            first.stopped if not held else None,
        )

    def _means(self, defence: str, rounds: Sequence[Sequence[tuple[int, Sequence[float]]]]) -> dict[int, np.ndarray]:
        """Return the mean over the rounds of the inferences about each client with a defence."""
        answers: dict[int, list[Sequence[float]]] = defaultdict(list)
        for client, values in (one for each in rounds for one in each):
            if self._client_plan.defence_of(client) == defence:
                answers[client].append(values)
        return {client: np.mean(values, axis=0) for client, values in answers.items()}

    def _requested(self, job: AttackJob, defence: str) -> int:
        """Return the number of examples that a job should give: also those of probes that were not recorded."""
        if job.probe_set.source == "update":
            return sum(e.examples or 0 for e in job.exchanges if self._client_plan.defence_of(e.client) == defence)
        slots, clients = range(self._audit.probes.images), self._client_plan.rounds.clients
        if job.probe_set.group:  # a sum stands for its first or isolated client, whose defence is everybody's
            size, alone = job.probe_set.group + job.probe_set.colluding, job.probe_set.isolated
            groups = groups_of(len(slots), clients, size)
            slots = [s for members in groups for s in (members[:1] if alone is None else members)]
            slots = [slot for slot in slots if alone is None or slot % clients == alone]
        return job.probe_set.batch * sum(self._client_plan.defence_of(slot % clients) == defence for slot in slots)


def _of_messages(job: AttackJob, defence: str) -> tuple[str, str, str, int, str]:
    return job.attack, job.vantage, defence, job.probe_set.round, job.probe_set.recorded


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
