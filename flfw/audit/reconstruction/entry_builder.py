"""Entries of an audit: for each attacked target its facts, its controls and its evidence, for the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any, final

import numpy as np

from flfw.adversary.sums import groups_of
from flfw.audit.adaptation import departure_of_noise
from flfw.audit.controls import UNDEFENDED, WEAK_DEFENCE
from flfw.audit.job_planner import JobPlanner
from flfw.audit.jobs import AttackJob, JobResult, ProbeSet
from flfw.audit.measures.class_inference import PRESENT, Inference
from flfw.audit.measures.identification import Identified
from flfw.audit.measures.metrics import psnr
from flfw.audit.reconstruction.control_runs import ControlRunner
from flfw.audit.reconstruction.entries import entry
from flfw.audit.reconstruction.evidence import (
    CONTROL_DB,
    EASY_SHARE,
    ControlResult,
    ControlResults,
    ReconstructionEvidence,
    Searched,
    SumFacts,
)
from flfw.audit.reconstruction.scorer import Scorer, ScoreRow
from flfw.audit.threat_model import ThreatModel, threat_model_of, unseen
from flfw.experiment import PEER
from flfw.files.verdicts import NO_LEAK_FOUND
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Observation, Truth
from flfw.rng import numpy_generator
from flfw.task.task import Task

_NOT_ATTACKED = ControlResult(None, False, failure_reason="it was not attacked")


@final
class EntryBuilder:
    """Author of the entries of one audit.

    Args:
        job_planner: planner of the audit's jobs.
        task: the source of the clients' classes.
        control_runner: the controls beside the targets.
        scorer: holds the guesses of every attempt.
        analytic: result of the analytic control.
        num_tests: number of tests of identification in the run.

    Attributes:
        below: the easy control of each attack, by its name, once it was tried.
    """

    def __init__(
        self,
        job_planner: JobPlanner,
        task: Task,
        control_runner: ControlRunner,
        scorer: Scorer,
        analytic: ControlResult,
        num_tests: int,
    ) -> None:
        self._job_planner, self._task, self._control_runner, self._scorer = job_planner, task, control_runner, scorer
        self._analytic, self._num_tests = analytic, num_tests
        self._client_plan, self._audit = job_planner.clients, job_planner.audit
        self._named = job_planner.attacks
        self.below: dict[str, ControlResult] = {}
        self._recovered_alone: dict[tuple[str, str, bool, str, int, str], float] = {}
        self._hidden_alone: set[tuple[str, str, str, int, str]] = set()
        self._noise: dict[str, str] = {}

    def entries(
        self, job: AttackJob, result: JobResult, rows: Sequence[ScoreRow], static_rows: Sequence[ScoreRow]
    ) -> list[dict[str, Any]]:
        """Return an entry for each vantage and defence; an adaptive job covers only defences that it can adapt to."""
        entries = []
        for vantage, defence in product(self._job_planner.vantages(job.probe_set), self._job_planner.defences_of(job)):
            threat_model = threat_model_of(
                self._client_plan, self._audit.settings, job, self._named[job.attack], defence != "none", vantage
            )
            description, requested = self._about(job, vantage, defence, threat_model), self._requested(job, defence)
            selected, other = ([row for row in all_ if row["defence"] == defence] for all_ in (rows, static_rows))
            description["label_presence"] = self._presence(result, defence)
            slots, static = {row["probe_slot"] for row in selected}, replace(job, adaptive=False)
            target = ReconstructionEvidence(
                self._controls(job, defence, threat_model, selected),
                private=threat_model.private,
                defended=threat_model.protected_by is not None,
                num_tests=self._num_tests,
                searched=self._searched(job, defence, threat_model, result, selected),
                identified=self._scorer.identified(job, slots),
                static_identified=self._scorer.identified(static, slots) if job.adaptive else None,
                candidate_test=self._candidate_test(job, defence, threat_model, result, selected),
                sums=self._sums(job, defence, selected),
                columns=self._scorer.columns(job, slots),
                expected=self._expected(job, threat_model),
                tampered_by=self._client_plan.task.network.malicious_name,
                bounded=self._named[job.attack].bounded,
                unread=self._client_plan.unread_statistics,
                noise=self._departure_of_noise(vantage) if threat_model.adaptation == "automatic" else "",
                constant=self._control_runner.constant(job, self._clients(job, defence)),
            )
            entries.append(entry(description, result, selected, requested, self._client_plan.seed, target, other))
            if job.probe_set.group == 1 and job.adaptive and entries[-1]["verdict"] == NO_LEAK_FOUND:
                self._hidden_alone.add(_of_messages(job, defence))
        return entries

    def _departure_of_noise(self, vantage: str) -> str:
        if vantage not in self._noise:
            self._noise[vantage] = departure_of_noise(self._client_plan, vantage)
        return self._noise[vantage]

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

    def _controls(
        self, job: AttackJob, defence: str, threat_model: ThreatModel, rows: Sequence[ScoreRow]
    ) -> ControlResults:
        """Run what the verdict needs: the controls beside a target only where its failure could count."""
        controls = ControlResults(self._analytic, self.below.get(job.attack, _NOT_ATTACKED))
        if not threat_model.adaptive:
            return controls
        hidden = threat_model.protected_by is not None
        consistency = self._control_runner.consistency(job, self._clients(job, defence), hidden)
        controls = replace(controls, consistency=consistency)
        if not hidden or not controls.easy.passed or any(row["recovered"] for row in rows):
            return controls
        mild = self._control_runner.beside(job, WEAK_DEFENCE)
        if mild.passed:
            shown = f"shown by the control {WEAK_DEFENCE}: {mild.reason}"
            return replace(controls, weak_defence=mild, undefended=replace(mild, seconds=0.0, reason=shown))
        return replace(controls, weak_defence=mild, undefended=self._control_runner.beside(job, UNDEFENDED))

    def _searched(
        self, job: AttackJob, defence: str, threat_model: ThreatModel, result: JobResult, rows: Sequence[ScoreRow]
    ) -> Searched | None:
        """Return the attack's objective at the truth and at its results, where nothing was recovered."""
        if not threat_model.adaptive or any(row["recovered"] for row in rows):
            return None
        return self._control_runner.searched(job, self._named[job.attack], self._clients(job, defence), result)

    def _candidate_test(
        self, job: AttackJob, defence: str, threat_model: ThreatModel, result: JobResult, rows: Sequence[ScoreRow]
    ) -> Identified | None:
        """Hold candidates against the messages, where something hides the data and nothing was recovered.

        An undefended message is a function of the data that everybody can compute: there the result is known.
        """
        if threat_model.protected_by is None or any(row["recovered"] for row in rows):
            return None
        return self._control_runner.candidates(job, self._named[job.attack], self._clients(job, defence), result)

    def _expected(self, job: AttackJob, threat_model: ThreatModel) -> float | None:
        """Return the share that the attack's theory expects of an undefended probe of one step; None: there is none."""
        plain = job.probe_set.source == "probe" and job.probe_set.steps == 1 and threat_model.protected_by is None
        attack = self._named[job.attack]
        batch = job.probe_set.batch // (job.probe_set.group or 1) if attack.of_sums else job.probe_set.batch
        return attack.expected_share(batch) if plain else None

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

    def inferred(self, jobs: Sequence[tuple[AttackJob, JobResult]]) -> list[dict[str, Any]]:
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

    def _about(self, job: AttackJob, vantage: str, defence: str, threat_model: ThreatModel) -> dict[str, Any]:
        return {
            "attack": job.attack,
            "adaptive": threat_model.adaptive,
            "adaptation": threat_model.adaptation,
            "vantage": vantage,
            "source": job.probe_set.source,
            "round": job.probe_set.round,
            "client": None,
            "defence": defence,
            "protected_by": threat_model.protected_by,
            "granted": list(threat_model.granted),
            "batch": job.probe_set.batch,
            "steps": job.probe_set.steps,
            "curve": job.probe_set.curve or None,
            "sum_size": job.probe_set.group + job.probe_set.colluding or None,
            "num_colluding": self._colluding(job.probe_set) if job.probe_set.group else None,
            "mode": "train",
            **asdict(self._named[job.attack].cost),
            "seeds": [self._client_plan.seed],
        }


def _of_messages(job: AttackJob, defence: str) -> tuple[str, str, str, int, str]:
    return job.attack, job.vantage, defence, job.probe_set.round, job.probe_set.recorded


def analytic(probes: Iterable[tuple[Observation, Truth]], requested: int, inputs: InputSpec) -> ControlResult:
    """Run the closed form on softmax regression: it must recover the example of every usable recording.

    Args:
        probes: gradients of single examples, each with its example; more than half of ``requested`` are needed.
        requested: number of recorded probes.
        inputs: the input space.
    """
    values = []
    for observation, truth in probes:
        raw = linear_inputs(observation.sent["classifier.weight"], observation.sent["classifier.bias"], 1)
        guess = (raw.view(1, *inputs.shape) * inputs.std + inputs.mean).nan_to_num(nan=0.5)
        values.append(psnr(truth.samples[0].numpy(), guess[0].numpy()))
    all_recovered = 2 * len(values) > requested and all(value >= CONTROL_DB for value in values)
    return ControlResult(_mean_psnr(values), all_recovered)


def easy(rows: Sequence[ScoreRow], requested: int, result: JobResult) -> ControlResult:
    """Return the result of an attack on the fresh network; failed and missing examples count as not recovered.

    Args:
        rows: a row per attacked example.
        requested: number of rows that there should be.
        result: the attack's solution.
    """
    share = sum(row["recovered"] for row in rows) / requested
    values = [row["db"] for row in rows if row["db"] is not None]
    stopped = result.stopped or (None if values else "no example gave a result")
    return ControlResult(_mean_psnr(values) if values else None, share >= EASY_SHARE, round(result.seconds, 3), stopped)


def easy_words(rows: Sequence[ScoreRow], below: ControlResult) -> str:
    """Return the result of the easy control in some words; decibels are for images alone."""
    if below.failure_reason or below.psnr is None:
        return below.failure_reason or "no example gave a result"
    if any(row["psnr"] is not None for row in rows):
        return f"{below.psnr:.1f} dB"
    return "passed" if below.passed else "not passed"


def _mean_psnr(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
