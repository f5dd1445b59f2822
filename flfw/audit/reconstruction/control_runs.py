"""Controls of the audited cases: checks of the description, and attacks on the same case where the data must leak.

Every control is run on demand and once for each case. A target that leaks needs none of them.

Candidates are held against a message: whether it points to the true data among other data of the same client. A
reconstruction shows only what a search found. Somebody who holds candidates needs no search: they compute how well each
candidate explains the message. This uses all of the message, so that it may point to the truth where every
reconstruction fails.

Candidates are other examples of the same client and the same classes. The victims are drawn at random from the client's
data, so that before the message is seen, the true batch and the candidates are exchangeable: also where the client's
data are unlike all others, and where the model was trained on them. If the message depends on nothing but which client
and which classes it is from, the truth explains it best with a probability of 1 / (1 + candidates). No example is a
candidate for two messages, so that these events are independent.

Where a client has copies of examples, as after oversampling, candidates may be copies of the truth. Equal data explain
a message equally well, so that they count as one: it comes first with a probability of its number / (1 + candidates).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import final

import numpy as np
import torch

from flfw.adversary.attack import Attack, NotApplicableError
from flfw.adversary.secure_aggregation import Quantiser
from flfw.adversary.sums import Protocol
from flfw.adversary.sums import rounding as of_the_model
from flfw.audit.controls import UNDEFENDED, WEAK_DEFENCE, under_control
from flfw.audit.job_planner import JobPlanner
from flfw.audit.jobs import AttackJob, JobResult
from flfw.audit.knowledge import grant, observed
from flfw.audit.measures.agreement import Agreement, agreement, resolution
from flfw.audit.measures.identification import Identified, convolved, identified_p
from flfw.audit.measures.metrics import psnr
from flfw.audit.reconstruction.reconstruction_evidence import CONTROL_DB, EASY_SHARE, ControlResult, Searched
from flfw.audit.reconstruction.scorer import ScoreRow
from flfw.audit.threat_model import ThreatModel
from flfw.audit.uploads import read_truth, truth_keys
from flfw.errors import InputError
from flfw.inversion.client_models.operator import DataOperator
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.inversion.fit import Fit
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.plans.run_plan import AuditPlan
from flfw.recording.observation import Knowledge, Observation, Reconstruction, Truth
from flfw.recording.reader import Recordings
from flfw.rng import numpy_generator, torch_generator
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

_SHORT = 1e-5  # of the way from a random guess to the truth that a search may lack: about what float32 rounds
_CANDIDATES, _LEAST, _SHARE = 99, 19, 10  # at most as many as a tenth of the search's iterations, within these bounds

Attempt = Callable[[JobPlanner, AttackJob], tuple[JobResult, list[ScoreRow]]]
"""Runs a job of a plan; returns its solution and a row for each example."""

Opened = tuple[Observation, Knowledge, Truth]
"""A message, the knowledge granted about it, and its truth."""


@final
@dataclass(frozen=True)
class Case:
    """Case of an audit: an attack on the messages of clients with one defence, and its results.

    Attributes:
        job: the attack on a target.
        attack: the job's attack.
        clients: the clients in question.
        threat_model: the attacker's grants.
        result: the job's solution.
        rows: a row for each example of these clients.
    """

    job: AttackJob
    attack: Attack
    clients: Sequence[int]
    threat_model: ThreatModel
    result: JobResult
    rows: Sequence[ScoreRow]

    @property
    def recovered(self) -> bool:
        """True if an example was recovered."""
        return any(row["recovered"] for row in self.rows)

    @property
    def defended(self) -> bool:
        """True if a defence, or the method's own mechanism, changed what was sent."""
        return self.threat_model.protected_by is not None


@final
class ControlRunner:
    """Controls of one audit.

    Args:
        clients: what the run's clients do.
        audit: the attacks and what they see.
        planner_of: builds the planner of the jobs of clients under a control.
        attempt: runs a job of a plan.
        truth: the folder of the clients' examples.
        task: the source of further examples of the clients.
    """

    def __init__(
        self,
        clients: ClientPlan,
        audit: AuditPlan,
        planner_of: Callable[[ClientPlan], JobPlanner],
        attempt: Attempt,
        truth: Path,
        task: Task,
    ) -> None:
        self._client_plan, self._audit = clients, audit
        self._planner_of, self._attempt, self._truth = planner_of, attempt, truth
        self._task = task
        self._job_planners: dict[str, JobPlanner | None] = {}
        self._done: dict[tuple[str, str, str], ControlResult] = {}

    def run(self, job: AttackJob, control: str) -> ControlResult:
        """Return the result of a job's attack on a control beside its target.

        Args:
            job: attack on a target; behind the weak defence its adapted form runs, else its plain one.
            control: ``undefended`` or ``weak_defence``.
        """
        at = job.attack, job.probe_set.name, control
        if at not in self._done:
            self._done[at] = self._run_control(job, control)
        return self._done[at]

    def _run_control(self, job: AttackJob, control: str) -> ControlResult:
        planner, beside = self._job_planner(control), self._job(job, control)
        if planner is None:
            protection_name = self._client_plan.defences.name
            protection_name = self._client_plan.name if protection_name == "none" else protection_name
            reason = f"{protection_name} has no settings for this control: write `weakest_settings`"
            return ControlResult(None, None, failure_reason=reason)
        if beside is None or not beside.exchanges:
            return ControlResult(None, None, failure_reason="its probes were not recorded")
        result, rows = self._attempt(planner, beside)
        return beside_target(rows, result)

    def consistency(self, case: Case) -> ControlResult:
        """Return whether the attacker's model of the client, at the true examples, gives the message.

        Where something hides the data, the messages of the undefended control are checked.
        """
        checked = self._job(case.job, UNDEFENDED) if case.defended else case.job
        if checked is None:
            return ControlResult(None, None, failure_reason="no undefended probes were recorded")
        if checked.probe_set.group and not checked.probe_set.colluding and self._cut(checked):
            return ControlResult(None, None, failure_reason="secure aggregation cut the largest numbers off")
        compared: list[Agreement] = []
        for observation, knowledge, truth in self._open(checked):
            if observation.client not in case.clients:
                continue
            if knowledge.model.unknown:
                return ControlResult(None, None, failure_reason="clients keep tensors private")
            shown, constants = knowledge.model.observed(observation.sent)
            trial = knowledge.model.gradient(truth.samples, truth.labels, {}, constants)
            rounding = (
                resolution(observation.sent, observation.received, shown, knowledge.steps) if knowledge.weights else 0.0
            )
            rounding += of_the_sum(shown, observation, knowledge.weights, case.job)
            compared.append(agreement(shown, [trial], rounding))
        if not compared:
            return ControlResult(None, None, failure_reason="none of its messages could be checked")
        worst = max(compared, key=lambda one: (one.outcome == "failed", one.outcome == "not possible", one.off))
        if worst.outcome == "not possible":
            return ControlResult(None, None, failure_reason=worst.sentence.rstrip("."))
        return ControlResult(None, worst.agrees, reason=worst.sentence)

    def _cut(self, job: AttackJob) -> bool:
        """Return whether secure aggregation clips any message of a job's sums."""
        seen = Recordings(job.recordings).observations([id_ for exchange in job.exchanges for id_ in exchange.summed])
        return Protocol(0).cuts([one.sent for one in seen if one is not None])

    def lost(self, job: AttackJob) -> bool:
        """Return whether rounding may be as large as the message in half of a job's sums; so where none was seen."""
        errors = [
            of_the_sum(observation.sent, observation, knowledge.weights, job)
            for observation, knowledge, _ in self._open(job)
        ]
        return not errors or median(errors) >= 1

    def constant(self, case: Case) -> int:
        """Return the number of messages, where those to clients with equal weights are the same for different data.

        0: some differ, or sums were attacked. Of equal data one message counts, and none alone with its weights.
        """
        job = case.job
        if job.probe_set.group:
            return 0
        sent: dict[int, dict[str, bytes]] = {}
        data: dict[int, set[bytes]] = defaultdict(set)
        names = {exchange.slot: truth_keys(job.probe_set, exchange) for exchange in job.exchanges}
        for o in Recordings(job.recordings).observations([exchange.id for exchange in job.exchanges]):
            truth = None if o is None else read_truth(self._truth, names[o.slot][0])
            if o is not None and truth is not None and o.client in case.clients:
                message = {name: value.numpy().tobytes() for name, value in o.sent.items()}
                if sent.setdefault(id(o.received), message) != message:
                    return 0
                data[id(o.received)].add(truth.samples.numpy().tobytes())
        return sum(len(different) for different in data.values() if len(different) > 1)

    def candidates(self, case: Case) -> Identified | None:
        """Hold other data of the same client and classes against each message; None: it cannot, or need not be done.

        It need not where the result is known: where something was recovered, or where nothing hides the data, so that
        a message is a function of them that everybody can compute. Uploads are not held against data. Where the client
        changes its data in too many ways for the attack's distance, the changed data are compared with its result.
        """
        job, attack = case.job, case.attack
        known = case.recovered or not case.defended
        if known or job.probe_set.source != "probe" or job.probe_set.pooled or not self._task.has_data:
            return None
        opened = [one for one in self._open(job) if one[0].client in case.clients]
        maximum = min(_CANDIDATES, max(_LEAST, attack.cost.iterations * attack.cost.restarts // _SHARE))
        drawn = self._drawn(opened, maximum)
        results = by_slot(job, case.result)

        def explain(message: int) -> list[float] | None:
            truth = opened[message][2]
            others = (self._task.examples("train", indices)[0] for indices in drawn[message])
            guesses = [truth, *(replace(truth, samples=samples) for samples in others)]
            values = fits(attack, job.attack, opened[message], guesses, self._client_plan.seed)
            if values is None:
                observation, knowledge, _ = opened[message]
                return _distances(knowledge.operator, results.get(observation.slot), guesses)
            return [value.distance for value in values]

        def alike(message: int) -> np.ndarray:
            indices = [opened[message][2].indices.numpy(), *drawn[message]]
            return numbered([self._task.examples("train", batch)[0].numpy() for batch in indices])

        return candidate_test([len(indices) for indices in drawn], explain, alike)

    def _drawn(self, opened: Sequence[Opened], maximum: int) -> list[np.ndarray]:
        """Draw candidates for messages (n, B), as training indices; no example serves twice, and no victim at all."""
        drawn = [np.empty((0, 0), np.intp)] * len(opened)
        taken = np.concatenate([truth.indices.numpy() for _, _, truth in opened] or [np.empty(0, np.intp)])
        for client in dict.fromkeys(observation.client for observation, _, _ in opened):
            mine = [index for index, (observation, _, _) in enumerate(opened) if observation.client == client]
            pool = np.setdiff1d(self._task.victim_pool(client), taken)
            rng = numpy_generator(self._client_plan.seed, "candidates", client)
            dataset = self._task.dataset
            labels = [dataset.kinds(opened[index][2].labels.numpy()) for index in mine]
            there = dataset.kinds(dataset.train_y[pool])
            for index, chosen in zip(mine, disjoint_candidates(labels, there, rng, maximum), strict=True):
                drawn[index] = pool[chosen]
                taken = np.append(taken, drawn[index])
        return drawn

    def searched(self, case: Case) -> Searched | None:
        """Return the objective at the truth, at the reconstructions and at random guesses; None: it has no finite one.

        It is not asked of an attack that recovered something, or that does not know all.
        """
        if case.recovered or not case.threat_model.adaptive:
            return None
        opened = (one for one in self._open(case.job) if one[0].client in case.clients)
        return searched(case.attack, case.job.attack, opened, by_slot(case.job, case.result), self._client_plan.seed)

    def _open(self, job: AttackJob) -> list[Opened]:
        """Return the observations of a job with the knowledge granted about each, and the truth."""
        clients = under_control(self._client_plan, job.probe_set.control)
        assert clients is not None, "a job is made only under controls that there are"
        clients = clients.with_input_space(job.shape, job.classes)
        recordings = Recordings(job.recordings)
        try:
            seen = [o for o in observed(job, recordings, clients.seed, clients.task.network.malicious) if o is not None]
        except InputError:  # a sum of no single model
            return []
        uploads = [upload for upload in recordings.observations(job.uploads) if upload is not None]
        adaptation, attack = self._audit.settings.adaptation, self._audit.reconstructions[job.attack]
        pairs = zip(*grant(replace(job, device="cpu"), clients, adaptation, attack, seen, uploads), strict=True)
        names = {exchange.slot: truth_keys(job.probe_set, exchange) for exchange in job.exchanges}
        opened = []
        for o, knowledge in pairs:
            parts = [read_truth(self._truth, name) for name in names[o.slot]]
            whole = [part for part in parts if part is not None]
            if len(whole) == len(parts):
                opened.append((o, knowledge, Truth.joined(whole) if job.probe_set.group else whole[0]))
        return opened

    def _job_planner(self, control: str) -> JobPlanner | None:
        if control not in self._job_planners:
            changed = under_control(self._client_plan, control)
            self._job_planners[control] = None if changed is None else self._planner_of(changed)
        return self._job_planners[control]

    def _job(self, job: AttackJob, control: str) -> AttackJob | None:
        """Return the same attack on a control beside the target."""
        planner = self._job_planner(control)
        jobs = [] if planner is None else planner.jobs(job.probe_set.at(control))
        matching = [one for one in jobs if one.attack == job.attack and one.adaptive == (control == WEAK_DEFENCE)]
        return matching[0] if matching else None


def of_the_sum(shown: Tensors, observation: Observation, weights: bool, job: AttackJob) -> float:
    """Return the relative error of a mean or sum of a group that rounding explains: of the protocol, or the model."""
    probe_set = job.probe_set
    # Of an isolated one, the sum.
    group = probe_set.group if probe_set.isolated is None else 1 / max(1, probe_set.group)
    if not probe_set.group or not shown:
        return 0.0
    names = [n for n in shown if n in observation.sent]
    changes = [observation.sent[n].double() - (observation.received[n].double() if weights else 0) for n in names]
    length = sum(float(change.square().sum()) for change in changes) ** 0.5
    if not length:
        return inf
    if probe_set.colluding:
        step = 1.0 if weights else float(job.run_config["lr"])
        everyone = probe_set.group + probe_set.colluding
        return of_the_model(observation.received, names, everyone, probe_set.group) / step / length
    # Rounding at random has at most a deviation of half a step in each number of each client.
    return Quantiser().step / 2 * (sum(change.numel() for change in changes) / group) ** 0.5 / length


def shown_by_weak(weak: ControlResult) -> ControlResult:
    """Return the undefended control as the weak defence's shows it: who works through the defence works without it."""
    return replace(weak, seconds=0.0, reason=f"shown by the control {WEAK_DEFENCE}: {weak.reason}")


def by_slot(job: AttackJob, result: JobResult) -> dict[int, Reconstruction]:
    """Return the reconstructions of a job by the places of their messages."""
    pairs = zip(job.exchanges, result.reconstructions, strict=True)
    return {exchange.slot: given for exchange, given in pairs if given is not None}


def searched(
    attack: Attack, name: str, messages: Iterable[Opened], results: Mapping[int, Reconstruction], seed: int
) -> Searched | None:
    """Return the objective at the truth, at the reconstructions and at random guesses; None: it has no finite one.

    Args:
        attack: the attack.
        name: its name in the run.
        messages: the attacked messages.
        results: the reconstructions by the messages' places.
        seed: of the run.
    """
    values: list[tuple[float, float, float]] = []
    for opened in messages:
        o, _, truth = opened
        if o.slot not in results:
            continue
        noise = torch.rand(
            truth.samples.shape, generator=torch_generator(seed, f"random guess {name}", o.round, o.slot)
        )
        fitted = fits(attack, name, opened, [truth, results[o.slot], Reconstruction(noise)], seed)
        if fitted is None:
            return None
        truth_at, found_at, noise_at = (fit.objective for fit in fitted)
        if isfinite(truth_at) and isfinite(noise_at):  # else, as for the cosine with a message of zeros, no search
            values.append((truth_at, found_at if isfinite(found_at) else inf, noise_at))  # inf: the search failed
    short = sum(at > truth + _SHORT * max(noise - truth, 0.0) for truth, at, noise in values)
    reached = [at for _, at, _ in values if isfinite(at)]
    if not reached:
        return None
    at_truth, at_noise = (median(value[index] for value in values) for index in (0, 2))
    return Searched(at_truth, median(reached), at_noise, unconverged=short, total=len(values))


def fits(
    attack: Attack, name: str, opened: Opened, guesses: Sequence[Truth | Reconstruction], seed: int
) -> list[Fit] | None:
    """Compute an attack's objective at some guesses; None: it has none, or cannot compute it.

    Args:
        attack: the attack.
        name: its name in the run.
        opened: the message.
        guesses: data that may be behind it.
        seed: of the run.
    """
    observation, knowledge, _ = opened
    rng = torch_generator(seed, f"objective {name}", observation.round, observation.slot)
    placed = [g if isinstance(g, Reconstruction) else Reconstruction(g.samples, labels=g.labels) for g in guesses]
    try:
        return attack.objective(observation, knowledge, placed, rng)
    except (InputError, NotApplicableError):  # the search itself said so before
        return None


def _distances(mechanism: object, result: Reconstruction | None, guesses: Sequence[Truth]) -> list[float] | None:
    """Compute the distance of a search's result from the nearest versions of each batch; None: it is not known.

    A result is compared with examples of its own label, as the order within a label is not known.
    """
    if not isinstance(mechanism, DataOperator) or result is None or result.searched is None:
        return None
    values = []
    for guess in guesses:
        labels = guess.labels if result.labels is None else result.labels
        each = mechanism.augmentation_distance(guess.samples, result.searched)
        each = each.masked_fill(guess.labels[:, None] != labels[None, :], inf)
        values.append(float(each.min(1).values.square().sum()))
    return values


def disjoint_candidates(
    labels: Sequence[np.ndarray], pool: np.ndarray, rng: np.random.Generator, maximum: int = 99
) -> list[np.ndarray]:
    """Draw candidates for each message of a client from a pool, each example at most once for all messages together.

    Args:
        labels: for each message the classes (B,) of its batch.
        pool: the classes (N,) of the examples in the pool, among which is none of these batches.
        rng: generator of the drawing.
        maximum: most candidates of a message.

    Returns:
        For each message (n, B): the places in the pool of n batches of the same classes in the same order. n is 0 where
        a class has too few examples.

    >>> zero, one = np.array([0]), np.array([1])
    >>> drawn = disjoint_candidates([zero, zero, one], np.array([0, 0, 0, 0, 1]), np.random.default_rng(0))
    >>> [len(places) for places in drawn]
    [2, 2, 1]
    """
    wanted = Counter(int(label) for classes in labels for label in classes)
    places_of = {label: rng.permutation(np.flatnonzero(pool == label)) for label in sorted(wanted)}
    share = {label: len(indices) // wanted[label] for label, indices in places_of.items()}
    taken: Counter[int] = Counter()
    drawn = []
    for classes in labels:
        count = min([maximum, *(share[int(label)] for label in classes)])
        indices = np.empty((count, len(classes)), np.intp)
        for column, label in enumerate(map(int, classes)):
            indices[:, column] = places_of[label][taken[label] : taken[label] + count]
            taken[label] += share[label]
        drawn.append(indices)
    return drawn


def candidate_test(
    counts: Sequence[int],
    explain: Callable[[int], Sequence[float] | None],
    alike: Callable[[int], np.ndarray] | None = None,
) -> Identified | None:
    """Count the messages that their true data explain better than all candidates do, and test whether this is chance.

    Args:
        counts: number of candidates of each message; messages without any are left out, copies of the truth apart.
        explain: computes how badly the truth and the candidates explain a message, by its place, the truth first. None:
            it cannot be computed, and the message is left out.
        alike: numbers (1 + candidates,) the data behind these values; equal data have one number. None: all differ.

    Returns:
        The count among the other messages, its null and p; None: there is no such message.

    >>> result = candidate_test([99] * 3, lambda message: [0.0, *[1.0] * 99])
    >>> result.count, result.compared, round(1e6 * result.p)
    (3, 3, 1)
    """
    first, nulls = [], []
    for index, count in enumerate(counts):
        values = explain(index) if count else None
        if values is not None:
            same = np.arange(1 + count) if alike is None else alike(index)
            if (same == same[0]).all():  # copies of the truth alone
                continue
            others = [value for value, one in zip(values, same, strict=True) if one != same[0]]
            # A tie, or no number, is no sign of the truth.
            first.append(int(isfinite(values[0]) and all(value > values[0] for value in others)))
            best = int(np.argmin([value if isfinite(value) else inf for value in values]))
            chance = float(np.mean(same == same[best]))  # the truth is any of them, and copies count
            nulls.append(np.array([1 - chance, chance]))
    if not first:
        return None
    return Identified(sum(first), len(first), convolved(nulls), identified_p(first, nulls))


def numbered(batches: Sequence[np.ndarray]) -> np.ndarray:
    """Number batches (B, ...) by their bytes: equal ones have one number.

    >>> one, other = np.zeros((1, 2)), np.ones((1, 2))
    >>> numbered([one, other, one.copy()]).tolist()
    [0, 1, 0]
    """
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(batch.tobytes(), len(numbers)) for batch in batches])


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


def beside_target(rows: Sequence[ScoreRow], result: JobResult) -> ControlResult:
    """Return the result of an attack on a control beside its target: the same messages, with less that hides the data.

    Args:
        rows: a row per attacked example.
        result: the attack's solution.
    """
    values = [row["db"] for row in rows if row["db"] is not None]
    share = sum(row["recovered"] for row in rows) / max(1, len(rows))
    mean = _mean_psnr(values) if values else None
    reason = f"{share:.0%} of the examples reconstructed" + (f", {mean:.1f} dB on average" if values else "")
    return ControlResult(
        mean, share >= EASY_SHARE, round(result.seconds, 3), None if values else result.stopped, reason
    )


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
