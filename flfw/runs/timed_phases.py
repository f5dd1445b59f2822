"""Phases of a run, timed: ``python -m flfw.runs.timed_phases PHASE BEGUN``; it prints costs as JSON.

    client     a client's round with one local epoch and with several, on one thread as in an actor
    training   the same, and then the server's work on the reply
    audit      one audited round of the run itself, shortened: few images, few steps of each loop of an attack

Each is a process of its own, so that the caller does not change and the peaks of memory are real. `flfw.runs.estimate`
multiplies by the counts of the run's plan.
"""

import hashlib
import importlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from heapq import nsmallest
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord
from safetensors.torch import save

from flfw.adversary.attack import Attack
from flfw.audit.attack_process import processes_after_training
from flfw.audit.jobs import FRESH, AttackJob
from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import run_phases_together
from flfw.client.store import ClientStore
from flfw.data.splits import lazy_parts
from flfw.dp.message_cost import TRAIN
from flfw.experiment import AGGREGATE, PEER, Experiment
from flfw.files.exit_code import exit_code
from flfw.inversion.compute import StepSample
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import select_shared
from flfw.messages.wire import nbytes, pack, unpack, views
from flfw.plans.run_plan import RunPlan, plan
from flfw.plugins import short_name
from flfw.recording.format import MANIFEST
from flfw.server.aggregation import Update
from flfw.server.cohorts import in_turn
from flfw.server.context import ServerContext
from flfw.server.distillation import ServerTraining

PROGRAM = "timed_phases"
LONG_S = 5.0
"""Seconds; what takes longer is measured once."""
MOST_IMAGES = 8
"""Greatest number of images of a shortened audit; more take time in proportion."""
MESSAGES = 16_000_000
"""Bytes of the messages of a shortened audit: of large ones there are fewer than `MOST_IMAGES`, but at least one."""
_MOST_VICTIMS = 2  # clients whose members are guessed in a shortened audit
_ENOUGH_S = 0.2  # between two measurements of a line, and for the steps of an attack's job
_MATCHED = 256  # most guesses that are matched with examples for an estimate; more take time by the third power
_JOBS_S = 4.0  # after which no further job of an attack is timed
_Spent = tuple[float | None, float]  # seconds of a job, and peak memory in GiB
_CALLS = 3  # of short work, of which the fastest counts
# Imported by audits; torch imports the last one with the first trace.
_OF_AUDITS = ("flfw.report.report", "flfw.report.charts", "skimage.metrics", "scipy.stats", "torch._dynamo")
_LENGTHS = ("iterations", "further_iterations")  # settings of an attack's loops, if it does not sample their steps


@dataclass(frozen=True)
class TrainingCosts:
    """Costs of the training. Seconds are of the processor, and of a client of about the mean size.

    Attributes:
        ready_s: of the imports of a process.
        fixed_s: of a client's round, beside its local epochs.
        epoch_s: of a local epoch.
        alone: a client's time without the others of its cohort, over that with them.
        largest: examples of the largest client, over the mean.
        client_gib: peak memory of a client's process.
        base_gib: memory of a process after its imports.
        up: bytes of an upload, as the server decodes it.
        down: bytes of a broadcast.
        message: bytes of an upload, as it is sent.
        private: bytes of a client's private tensors.
        reply_s: of the server's work on one reply.
        round_s: of the server's training in a round; 0: it does not train.
        server_gib: peak memory of the server's training.
        kept: bytes of the server's own tensors.
        write_s: of writing and hashing a reply.
        further_s: of the driver's further imports.
        further_gib: memory of these.
        exit_s: of the end of a process.
        exit_gib: memory of the pages that are touched then.
    """

    ready_s: float
    fixed_s: float
    epoch_s: float
    alone: float = 1.0
    largest: float = 1.0
    client_gib: float = 0.0
    base_gib: float = 0.0
    up: float = 0.0
    down: float = 0.0
    message: float = 0.0
    private: float = 0.0
    reply_s: float = 0.0
    round_s: float = 0.0
    server_gib: float = 0.0
    kept: float = 0.0
    write_s: float = 0.0
    further_s: float = 0.0
    further_gib: float = 0.0
    exit_s: float = 0.0
    exit_gib: float = 0.0


@dataclass(frozen=True)
class AuditCosts:
    """Costs of a shortened audit, with the scores.

    Attributes:
        images: probes, or clients whose members are guessed.
        imports_s: seconds of the imports.
        once_s: of what is done once: the easy controls.
        probes_s: of the attacks on the probes of a round.
        uploads_s: of the attacks on the uploads of a round of training.
        games_s: of the attacks on membership, for a round of training.
        messages: probes that clients answer in a round, with those of the controls.
        uploads: recorded uploads of a round of training.
        once_bytes: of the recordings of the easy controls.
        round_bytes: of the recordings of a round.
        shared_bytes: of these, of what all clients received.
        peak_gib: peak memory.
        untimed: jobs that were not timed, and count as the mean of the attack's others.
    """

    images: int = 0
    imports_s: float = 0.0
    once_s: float = 0.0
    probes_s: float = 0.0
    uploads_s: float = 0.0
    games_s: float = 0.0
    messages: int = 0
    uploads: int = 0
    once_bytes: float = 0.0
    round_bytes: float = 0.0
    shared_bytes: float = 0.0
    peak_gib: float = 0.0
    untimed: int = 0


class Line(NamedTuple):
    """Seconds that grow with a number: ``fixed + number * each``."""

    fixed: float
    each: float

    def at(self, number: int) -> float:
        """Return the seconds for a number."""
        return self.fixed + number * self.each


def line(seconds: Callable[[int], float], maximum: int, first: int = 1) -> Line:
    """Measure a few numbers of steps; what takes long is measured for the first number alone.

    Args:
        seconds: measures a number of steps.
        maximum: largest number that may be measured.
        first: smallest one, which says nothing of what only begins with more steps.
    """
    few = min(first, maximum)
    once = seconds(few)
    if once > LONG_S or few == maximum:
        return Line(0.0, once / few)
    number, more = few, once
    while number < maximum and more - once < _ENOUGH_S:
        number = min(4 * number, maximum)
        more = seconds(number)
    each = max(0.0, more - once) / (number - few)
    return Line(max(0.0, once - few * each), each)


def fastest_s(work: Callable[[], object]) -> float:
    """Return the least processor time of some calls, or of one that takes long; other programs hardly change it."""
    spent: list[float] = []
    while not spent or (len(spent) < _CALLS and sum(spent) < _ENOUGH_S):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)


# --- training -----------------------------------------------------------------------------------------------------


def _training(run_plan: RunPlan, folder: Path, ready_s: float, server: bool) -> TrainingCosts:
    """Time a client's round, or that of a whole cohort that computes together; and the server's work on the replies."""
    threads, base_gib = torch.get_num_threads(), memory_gib("VmHWM")
    torch.set_num_threads(1)
    experiment = run_plan.experiment
    sizes = lazy_parts.sizes(run_plan.task.load(experiment.data_root).split.train)
    together, usual = min(experiment.clients_per_batch, experiment.per_round), fmean(sizes)
    alike = len(sizes) == 1  # all clients have as many examples
    cohort = range(together) if alike else nsmallest(together, range(len(sizes)), key=lambda p: abs(sizes[p] - usual))
    fresh = client_of(run_plan, cohort[0], folder)
    arrays = pack(select_shared(fresh.model.state_dict(), fresh.sharing.downloads))
    private = sum(value.nbytes for value in fresh.private_state().values())
    del fresh  # an actor has no second client

    def work(epochs: int, clients: Sequence[int] = cohort) -> tuple[ArrayRecord, dict[str, Any]]:
        workers = [client_of(run_plan.replaced(local_epochs=epochs), each, folder) for each in clients]
        result, *_ = run_phases_together(workers, [worker.round(views(arrays), 0) for worker in workers])
        if isinstance(result, Exception):
            raise result
        return pack(result[0]), result[1]

    began = time.process_time()
    record, metrics = work(1)  # slower than later calls, which use its memory again
    if (first := time.process_time() - began) > LONG_S:
        spent, alone = Line(0.0, first), 1.0
    else:
        spent = line(lambda epochs: fastest_s(lambda: work(epochs)), max(2, experiment.local_epochs))
        alone = together * fastest_s(lambda: work(1, cohort[:1])) / spent.at(1) if together > 1 else 1.0
    scale, client_gib = usual / sizes[cohort[0]] / together, memory_gib("VmHWM")
    sent = expand(unpack(record), views(arrays))  # the upload as the server decodes it
    costs = TrainingCosts(
        ready_s,
        scale * spent.fixed,
        scale * spent.each,
        alone,
        max(sizes) / usual,
        client_gib,
        base_gib,
        up=nbytes(pack(sent)),
        down=nbytes(arrays),
        message=nbytes(record),
        private=private,
        write_s=fastest_s(lambda: (folder / hashlib.sha256(data := save(sent)).hexdigest()).write_bytes(data)),
    )
    reply_s = fastest_s(lambda: expand(unpack(record), views(arrays)))
    torch.set_num_threads(threads)
    upload = Update(cohort[0], sizes[cohort[0]], sent, metrics)
    return _with_server(run_plan, replace(costs, reply_s=reply_s), arrays, upload) if server else costs


def _with_server(run_plan: RunPlan, costs: TrainingCosts, arrays: ArrayRecord, upload: Update) -> TrainingCosts:
    """Add the server's work: the mean of four uploads, or a round's training on those of a whole cohort."""
    settings, ctx, kept = run_plan.client.settings, ServerContext(run_plan.client), 0

    def combine(chosen: Any, uploads: list[Update]) -> None:
        nonlocal kept
        server = run_plan.strategy(chosen, sample=len(uploads))
        server.ctx = ctx
        server.aggregate_round(arrays, iter(uploads), 1)
        kept = sum(value.nbytes for value in server.state.values())

    reply_s, round_s = costs.reply_s, 0.0
    if isinstance(settings, ServerTraining):
        tensors = upload.tensors
        uploads = [
            Update(p, 1, {n: v.clone() for n, v in tensors.items()}) for p in range(run_plan.experiment.per_round)
        ]
        trained = line(
            lambda n: fastest_s(lambda: combine(replace(settings, iterations=n), uploads)), settings.iterations
        )
        round_s = trained.at(settings.iterations)
    else:
        reply_s += fastest_s(lambda: combine(settings, [upload] * 4)) / 4
    server_gib, before, began = memory_gib("VmHWM"), memory_gib("VmRSS"), time.process_time()
    for name in ("flfw.runs.run", "flfw.runs.run_notes", "flfw.report.report", "flfw.report.charts"):
        importlib.import_module(name)
    further_s, further_gib = time.process_time() - began, max(0.0, memory_gib("VmRSS") - before)
    more = {"reply_s": reply_s, "round_s": round_s, "further_s": further_s, "further_gib": further_gib}
    return replace(costs, kept=kept, server_gib=server_gib if round_s else 0.0, **more)


def client_of(run_plan: RunPlan, partition: int, folder: Path) -> FederatedClient:
    """Build a client in the middle of the run, as the first rounds of some methods have less work.

    Args:
        run_plan: of the run.
        partition: its number.
        folder: folder of its private state.
    """
    experiment = run_plan.experiment
    middle = (1 + experiment.rounds) // 2
    min_separation = run_plan.client.method.min_separation(run_plan.client.settings)
    return run_plan.client_class(
        ClientContext(
            plan=run_plan.client,
            task=run_plan.task.load(experiment.data_root),
            partition=partition,
            round=next(r for r in range(middle, middle + min_separation) if in_turn([partition], min_separation, r)),
            defence=run_plan.client.defences.of_client(partition),
            store=ClientStore(folder, "estimate", partition),
            run="estimate",
        )
    )


def memory_gib(name: str) -> float:
    """Return ``VmHWM``, the peak memory of this process alone, or ``VmRSS``, the present one."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in status if row.startswith(name)) / 1024**2


# --- audit --------------------------------------------------------------------------------------------------------


def audit_phase(run_plan: RunPlan, folder: Path, imports_s: float) -> AuditCosts:
    """Time one audited round of the run itself, shortened."""
    from flfw.audit.auditor import auditing
    from flfw.runs import launch
    from flfw.runs.run import site_of

    short = shortened(run_plan, folder)
    task, last = short.task.load(short.experiment.data_root), max(short.experiment.audited)
    with auditing(short.client, short.audit, task, folder) as auditor:
        assert auditor is not None, "estimated only where the run has one"
        launch.run_on_engine(short, site_of(short.experiment, folder))
        jobs = [job for probe_set in auditor.probe_sets(last) for job in auditor.jobs(probe_set)]
        jobs += [job for _, job in auditor.membership_jobs(last)]
    timed = _timed(jobs, run_plan, short)
    known = {job.attack: spent for job, (spent, _) in timed if spent is not None}
    kinds = {"once_s": 0.0, "probes_s": 0.0, "uploads_s": 0.0, "games_s": 0.0}
    for job, (spent, _) in timed:
        kinds[_kind(job)] += known.get(job.attack, max(known.values())) if spent is None else spent
        scored = job.exchanges if job.game is None and job.probe_set.control == "target" else ()
        sizes = [exchange.examples or job.probe_set.batch for exchange in scored]
        kinds[_kind(job)] += scoring_s(sizes, task.dataset.train_x)
    messages = [row for row in _recorded(folder) if row["round"] == last and row["config"].get("control") not in FRESH]
    uploads = sum(row["type"] == TRAIN for row in messages)
    written = [path for name in ("observations", "examples") for path in (folder / name).rglob("*") if path.is_file()]
    once_bytes = sum(path.stat().st_size for path in written if last and path.parent.name == "round-0000")
    received = {folder / "observations" / row["sent_to_client"]["file"] for row in messages}
    return AuditCosts(
        short.experiment.images,
        imports_s,
        messages=len(messages) - uploads,
        uploads=uploads,
        once_bytes=once_bytes,
        round_bytes=sum(path.stat().st_size for path in written) - once_bytes,
        shared_bytes=sum(path.stat().st_size for path in written if {path} == received),
        peak_gib=max([memory_gib("VmHWM"), *(gib for _, (_, gib) in timed)]),
        untimed=sum(spent is None for _, (spent, _) in timed),
        **kinds,
    )


def shortened(run_plan: RunPlan, folder: Path) -> RunPlan:
    """Return the plan of one audited round with few images; a local epoch is enough unless uploads are looked at."""
    experiment, uploads = run_plan.experiment, run_plan.audit.records_uploads
    message = sum(value.nbytes for value in run_plan.client.model.state_dict().values())
    maximum = _MOST_VICTIMS if run_plan.audit.memberships else MOST_IMAGES
    images = min(experiment.images, max(1, min(maximum, MESSAGES // message)))
    summed = run_plan.audit.sum_sizes if {AGGREGATE, PEER} & set(experiment.vantage) else ()
    few = min(experiment.per_round, max([images, experiment.min_clients, *summed]))
    return run_plan.replaced(
        rounds=1,
        audit_rounds="last" if any(experiment.audited) else "0",
        local_epochs=experiment.local_epochs if uploads else 1,
        images=images,
        sample=experiment.sample if uploads or experiment.robust != "none" else few,
        final_eval_clients="none",
        patience=0,
        engine="inproc",
        attack_process="inline",
        track=(),
        federation=None,
        out=folder,
    )


def _kind(job: AttackJob) -> str:
    if job.game is not None:
        return "once_s" if job.game.easy else "games_s"
    return "once_s" if job.probe_set.fresh else "uploads_s" if job.probe_set.source == "update" else "probes_s"


def _recorded(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the recorded messages, at the server and on clients."""
    manifests = [folder / "observations", *(folder / "examples").glob("*")]
    rows = [row for one in manifests if (one / MANIFEST).exists() for row in (one / MANIFEST).read_text().splitlines()]
    return [row for row in map(json.loads, rows) if "round" in row]


def _timed(jobs: Sequence[AttackJob], run_plan: RunPlan, short: RunPlan) -> list[tuple[AttackJob, _Spent]]:
    """Time jobs, those of targets first, on as many cores as attack in the run; what follows too late has no time."""
    inline, gpu = run_plan.audit.process == "inline", run_plan.experiment.attack_gpus > 0
    processes, until = 1 if inline else processes_after_training(gpu), time.monotonic() + _JOBS_S
    ordered = sorted(jobs, key=lambda job: job.probe_set.control != "target")
    asked = [(job, _copies(job, run_plan.experiment, short.experiment), until) for job in ordered]
    if processes == 1:
        return [(one[0], job_s(*one)) for one in asked]
    with get_context("fork").Pool(processes, torch.set_num_threads, (1,)) as pool:  # they import nothing anew
        return list(zip(ordered, pool.starmap(job_s, asked, 1), strict=True))


def scoring_s(sizes: Sequence[int], inputs: np.ndarray) -> float:
    """Return the seconds of the test whether examples were identified, and of its control: both match guesses often.

    Args:
        sizes: number of examples behind each message.
        inputs: (N, ...) bytes of the dataset, of which some stand for the guesses.
    """
    from scipy.optimize import linear_sum_assignment

    from flfw.audit.measures.metrics import squared_distances
    from flfw.audit.reconstruction.scorer import draws_of

    if max(sizes, default=1) == 1:
        return 0.0
    few = min(max(sizes), _MATCHED, len(inputs) // 2)
    distances = squared_distances(inputs[:few] / 255, inputs[few : 2 * few] / 255)
    each = fastest_s(lambda: linear_sum_assignment(distances)) * (max(sizes) / few) ** 3
    return 2 * len(sizes) * draws_of(sizes) * each


def _copies(job: AttackJob, experiment: Experiment, short: Experiment) -> int:
    """Return for how many victims of the run's search each of the shortened one stands."""
    maximum = min(MOST_IMAGES, experiment.per_round if job.probe_set.source == "update" else MOST_IMAGES)
    return min(experiment.images, maximum) // min(short.images, maximum)


def job_s(job: AttackJob, copies: int, until: float) -> _Spent:
    """Return the seconds that a job would take, from a few steps of its loops, and the peak memory of this process.

    Args:
        job: the job; its recordings are there.
        copies: how often a search takes each of its victims.
        until: of the clock: a job that begins later has no seconds.
    """
    from flfw.audit.attack_worker import solve

    if time.monotonic() > until:
        return None, 0.0
    kind, settings = plan(Experiment.from_run_config(job.run_config)).audit.classes[job.attack]
    lengths = {name: count for name in _LENGTHS if isinstance(count := getattr(settings, name, None), int)}
    whole = max(lengths.values(), default=1) if issubclass(kind, Attack) and not kind.sampled else 1

    def seconds(steps: int) -> float:
        words = [f"{short_name(job.attack)}.{name}={max(1, round(n * steps / whole))}" for name, n in lengths.items()]
        config = job.run_config | {"set": f"{job.run_config['set']} {shlex.join(words)}"}
        with StepSample(_ENOUGH_S, copies) as sample:
            solve(replace(job, run_config=config) if whole > 1 else job)
        return sample.seconds

    # One step has no parts, and each part takes its time to begin.
    return line(seconds, whole, first=2).at(whole), memory_gib("VmHWM")


client_phase, training_phase = (partial(_training, server=server) for server in (False, True))
PHASES = {"client": client_phase, "training": training_phase, "audit": audit_phase}


def _print_costs(phase: str, begun: float) -> int:
    importlib.import_module("flfw.engines.apps")  # the modules that clients and server import
    ready_s = min(time.time() - begun, time.process_time())
    if phase == "audit":
        for name in _OF_AUDITS:
            importlib.import_module(name)
        ready_s = time.process_time() - ready_s
    config, folder = json.load(sys.stdin)
    Path(folder).mkdir()
    costs = PHASES[phase](plan(Experiment.from_run_config(config)), Path(folder), ready_s)
    print(json.dumps(asdict(costs) | {"all_gib": memory_gib("VmHWM"), "all_s": time.process_time()}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(PROGRAM, lambda: _print_costs(sys.argv[1], float(sys.argv[2]))))
