"""Estimate of a run's costs before it starts: `flfw.runs.timed_phases` times its phases, and here are the counts."""

import json
import os
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from subprocess import Popen
from typing import Any

import numpy as np

from flfw.audit.attack_process import IMPORTS_S, processes_after_training
from flfw.engines import machine
from flfw.engines.processes import waiting_phase
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.experiment.fields import MOST
from flfw.files.folders import in_units
from flfw.files.progress import say
from flfw.files.provenance import hardware
from flfw.plans.run_plan import RunPlan, resolve_attack_process
from flfw.runs.launch import store_bytes
from flfw.runs.timed_phases import LONG_S, PROGRAM, AuditCosts, TrainingCosts
from flfw.server.aggregation import most_sums

_RAY_GIB = 0.2  # Ray's own code and buffers in the driver and in an actor
_RAY_DAEMONS_GIB = 0.6  # raylet, control store and agents
_PROCESSES = 8  # most clients that are measured at a time
_NEGLIGIBLE = 0.02  # share of a round
_SHOWN_S = 0.1  # least time in a line of the terminal
_ROW_BYTES = 1100  # of a client and round at the end of the training: its row, a copy of it and its text
_GIB = 1024**3


@dataclass(frozen=True)
class ExchangeCosts:
    """Constants of an engine on Ray; to measure them for each estimate, Ray would have to be started.

    Attributes:
        start_s: seconds of starting and ending Ray, beside the imports of its processes.
        processor_s: the same of all processors together.
        exchange_s: seconds of an exchange beside its messages.
        message_s: the processor's seconds of a small message's way to a client and back.
        writes: what a large message adds to this, over the time of writing and hashing a client's reply.
    """

    start_s: float
    processor_s: float
    exchange_s: float
    message_s: float
    writes: float


EXCHANGES = {
    # By `python -m tests.campaigns.exchange`; see research/performance_measurements.md.
    "ray": ExchangeCosts(start_s=5.0, processor_s=5.4, exchange_s=0.05, message_s=0.0015, writes=0.26),
    # Flower's threads look for messages every 0.1 s, ours every 0.05 s; 1,000 tiny messages take 5 to 6 s.
    "flwr": ExchangeCosts(start_s=20.0, processor_s=20.0, exchange_s=0.3, message_s=0.005, writes=6.0),
}
EXCHANGES["flwr-sim"] = EXCHANGES["flwr"]


@dataclass(frozen=True)
class Seconds:
    """Seconds for the ``start`` (and end) of the engine, one ``round``, the whole ``training`` and the ``audit``.

    ``training`` covers rounds, probes and final evaluation. ``server`` is the part of a round in which the server
    trains and clients wait. ``processor`` is the processor time of all clients and the server together in a round,
    ``whole_processor`` that of all processes in the whole run.
    """

    start: float
    round: float
    training: float
    audit: float
    total: float
    server: float
    processor: float
    whole_processor: float


@dataclass(frozen=True)
class Memory:
    """Peak sizes of resident memory; ``total_gib`` counts shared memory once, and includes the attack process.

    With the engine ``inproc`` the actor is the driver.
    """

    driver_gib: float
    actor_gib: float
    actors: int
    total_gib: float


@dataclass(frozen=True)
class Estimate:
    """Expected costs of a run.

    ``sent_bytes``: size of a client's upload. ``disk_bytes``: recordings, checkpoint, the clients' private state.
    ``state_files``: the most files of private state, two for each client that may take part.
    """

    experiment: Experiment
    seconds: Seconds
    memory: Memory
    sent_bytes: int
    disk_bytes: int
    measured_on: str
    state_files: int = 0


def estimate(run_plan: RunPlan, claims_s: float = 0.0, **begun: Popen[str]) -> Estimate:
    """Time the phases for some seconds, and multiply by the run's counts.

    Args:
        run_plan: of the run, checked, for this machine alone.
        claims_s: seconds that the claims of privacy take.
        **begun: processes of phases that wait for the experiment.

    Raises:
        InputError: a phase refused the experiment.
        RunError: a phase failed, as the run would.
    """
    experiment = run_plan.experiment
    started, load, actors = time.monotonic(), os.getloadavg()[0], _actors(experiment)
    audited = experiment.audited and run_plan.client.method.uploads
    others = min(actors, experiment.per_round, _PROCESSES) - 1 - bool(audited)  # what attacks has a core meanwhile
    say("estimate: the phases of the run are timed, for about ten seconds")
    first, *rest = timed(["training", *["client"] * others, *["audit"] * bool(audited)], experiment, **begun)
    audit = AuditCosts(**rest.pop()) if audited else None
    of_clients = {name: fmean(sample[name] for sample in [first, *rest]) for name in ("fixed_s", "epoch_s", "write_s")}
    training = TrainingCosts(**first | of_clients | {"further_s": first["further_s"] + claims_s})
    origin = f"{hardware()}, in {time.monotonic() - started:.0f} s at a load of {load:.1f}; others at work add to it"
    origin += "; from one local epoch only, which takes long" if training.epoch_s > LONG_S else ""
    origin += f"; {audit.untimed} jobs of attacks were not timed and count as others" if audit and audit.untimed else ""
    return Estimate(
        experiment,
        seconds(experiment, actors, training, audit),
        memory(experiment, actors, training, audit, store_bytes(run_plan)),
        int(training.message),
        disk_bytes(experiment, training, audit),
        origin,
        2 * _taking_part(experiment) if training.private else 0,
    )


def timed(phases: list[str], experiment: Experiment, **begun: Popen[str]) -> list[dict[str, Any]]:
    """Time phases at once, each in a process of its own; as many clients as will work at once share the memory's speed.

    Args:
        phases: names, of `flfw.runs.timed_phases.PHASES`.
        experiment: resolved and checked.
        **begun: processes of phases that wait for the experiment.

    Raises:
        InputError: a phase refused the experiment.
        RunError: a phase failed, as the run would.
    """
    processes = [begun.get(phase) or waiting_phase(phase, experiment.engine) for phase in phases]

    with tempfile.TemporaryDirectory(prefix="flfw-estimate-") as folder, ExitStack() as opened:
        for index, process in enumerate(map(opened.enter_context, processes)):
            assert process.stdin is not None, "it is a pipe"
            with suppress(BrokenPipeError), process.stdin as given:  # how it ended is seen below
                json.dump([experiment.to_run_config(), f"{folder}/{index}"], given)
        # An interrupt does not wait for them and their own processes.
        opened.callback(lambda: [os.killpg(one.pid, signal.SIGKILL) for one in processes if one.returncode is None])
        return [_costs(phase, process) for phase, process in zip(phases, processes, strict=True)]


def _costs(phase: str, process: Popen[str]) -> dict[str, Any]:
    """Wait for the end of a phase, and return what it printed."""
    assert process.stdout is not None, "it is a pipe"
    *_, last = ["", *process.stdout.read().splitlines()]
    message = last.removeprefix(f"{PROGRAM}: ")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if code == 2:
        raise InputError(message)
    if code:
        raise RunError(f"The timing of the phase {phase} failed: {message}")
    found: dict[str, Any] = json.loads(last)
    # At its end a process touches pages of its libraries that it never used.
    ending = {"exit_s": used.ru_utime + used.ru_stime - found.pop("all_s")}
    ending |= {"exit_gib": used.ru_maxrss / 1024**2 - found.pop("all_gib")}
    return found if phase == "audit" else found | {name: max(0.0, value) for name, value in ending.items()}


def lines(expected: Estimate) -> str:
    """Format an estimate for the terminal: time, memory, disk and origin, one line each."""
    time, memory, rounds = expected.seconds, expected.memory, expected.experiment.rounds
    count = f"{'at most ' if expected.experiment.patience else ''}{rounds} rounds"
    spent = f"training {_time(time.training)} ({count} of {_time(time.round)}), audit {_time(time.audit)}"
    clients = f"clients {memory.actors} x {memory.actor_gib:.1f} GiB"
    files = f", at most {expected.state_files:,} files of clients' private state" if expected.state_files else ""
    server = (
        f"round   about {time.processor:,.0f} s of the processor, of which the server trains {_time(time.server)}\n"
    )
    parallel = time.whole_processor > (1 + _NEGLIGIBLE) * time.total
    processor = f", {_time(time.whole_processor)} of all processors" if parallel else ""
    return (
        f"time    about {_time(time.total)}{processor}: start {_time(time.start)}, {spent}\n"
        f"{server if time.server >= _NEGLIGIBLE * time.round else ''}"
        f"memory  about {memory.total_gib:.1f} GiB: driver {memory.driver_gib:.1f} GiB, {clients}\n"
        f"sent    about {in_units(expected.sent_bytes)} by a client in a round\n"
        f"disk    about {in_units(expected.disk_bytes)}{files}\nfrom    {expected.measured_on}"
    )


def _time(seconds: float) -> str:
    if 0 < seconds < _SHOWN_S:
        return f"under {_SHOWN_S} s"
    size, unit = next(u for u in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= 1.5 * u[0] or u[0] == 1)
    return f"{seconds / size:.1f} {unit}"


def _trained(experiment: Experiment) -> list[int]:
    """Return the audited rounds of training, in which clients send uploads."""
    return [number for number in experiment.audited if number]


def _taking_part(experiment: Experiment) -> int:
    """Return the most clients that may take part in a round."""
    return min(experiment.clients, experiment.rounds * experiment.per_round)


def _actors(experiment: Experiment) -> int:
    """Return how many clients work at a time, on this machine alone."""
    return (
        1
        if experiment.engine == "inproc"
        else max(1, machine.at_once(experiment, experiment.attack_gpus, machine.available_resources("")))
    )


def seconds(experiment: Experiment, actors: int, training: TrainingCosts, audit: AuditCosts | None) -> Seconds:
    """Multiply the seconds of the phases by their counts.

    Args:
        experiment: the counts.
        actors: clients that work at a time.
        training: costs of a client's round and of the server.
        audit: costs of an audited round; None: there is no audit.
    """
    through, cores, together = (
        EXCHANGES.get(experiment.engine),
        len(os.sched_getaffinity(0)),
        experiment.clients_per_batch,
    )

    def exchange(messages: int, each: float, server: float, together: int = 1) -> np.ndarray:
        """Return the seconds of an exchange on shared cores, one core per cohort, the largest client among them."""
        if through is None:
            return np.full(2, messages * (each + server))
        each += through.message_s + through.writes * training.write_s
        cohorts = ceil(messages / together)
        alone = max(ceil(cohorts / actors) * min(together, messages) * each, each * training.largest)
        work = messages * (each + server)
        return np.array([max(work / cores, alone), work]) + through.exchange_s

    working = training.fixed_s + experiment.local_epochs * training.epoch_s
    one_round = exchange(experiment.per_round, working, training.reply_s, together)
    one_round += training.round_s + training.write_s  # in which all others wait
    whole = one_round * experiment.rounds
    if experiment.metrics != "none" and experiment.finally_asked:  # else nobody is asked; with noise nobody trains
        requested = working if experiment.metrics == "all" else training.fixed_s
        whole += exchange(experiment.finally_asked, requested * training.alone, 0.0)
    attacks = 0.0
    if audit:  # a probe's step takes about as long as a round without its epochs
        messages = round(audit.messages * _images(experiment, audit))
        probes = exchange(messages, training.fixed_s, 2 * training.write_s)
        whole += probes * (len(experiment.audited) if messages else 0)
        attacks = _attacks_s(experiment, audit)
    (of_round, by_all), (clock_s, processor_s) = one_round.tolist(), whole.tolist()
    start = training.ready_s + training.further_s + training.exit_s
    processor = start + processor_s + attacks
    if through:  # the driver's imports, then the actors'
        start += training.ready_s + through.start_s
        processor += min(actors, experiment.clients) * training.ready_s + through.processor_s
    processor += _attacking(experiment, attacks) * training.ready_s
    attacks /= max(1, _attacking(experiment, attacks))
    total = start + clock_s + attacks
    return Seconds(start, of_round, clock_s, attacks, total, training.round_s, by_all, processor)


def _attacking(experiment: Experiment, attacks_s: float) -> int:
    """Return the number of processes that attack; 0: none beside this one."""
    if not attacks_s or resolve_attack_process(experiment.attack_process, experiment.engine) == "inline":
        return 0
    return processes_after_training(experiment.attack_gpus > 0) if attacks_s > IMPORTS_S else 1


def _attacks_s(experiment: Experiment, audit: AuditCosts) -> float:
    """Return the seconds of the attacks and scores in all audited rounds."""
    trained = len(_trained(experiment))
    probes = len(experiment.audited) * audit.probes_s * _images(experiment, audit)
    uploads = trained * audit.uploads_s * _images(experiment, audit, experiment.per_round)
    games = trained * audit.games_s * _images(experiment, audit, experiment.clients)
    return audit.imports_s + audit.once_s + probes + uploads + games


def _images(experiment: Experiment, audit: AuditCosts, maximum: int = MOST) -> float:
    """Return the images of the run over those of the shortened audit, where there are at most so many."""
    return min(experiment.images, maximum) / min(audit.images, maximum)


def memory(
    experiment: Experiment, actors: int, training: TrainingCosts, audit: AuditCosts | None, store: int
) -> Memory:
    """Add up the memory of the processes.

    Args:
        experiment: the counts.
        actors: clients that work at a time.
        training: costs of a client's round and of the server.
        audit: costs of an audited round; None: there is no audit.
        store: bytes of Ray's object store.
    """
    up, down = training.up / _GIB, training.down / _GIB
    # The broadcast and the next one, the sum in float64 and that of a block, the message and tensors of each reply.
    # The server's own tensors: before and after a round, and on their way to the disk.
    replies = actors * min(experiment.clients_per_batch, experiment.per_round)
    rows = experiment.rounds * experiment.per_round * _ROW_BYTES / _GIB
    sums = 2 * down + 2 * up * (most_sums(experiment.clients) + 1 + replies) + 3 * training.kept / _GIB
    averaging = max(rows + training.base_gib + sums, training.server_gib)
    attacking = 0.0
    if audit:  # each image beyond those measured adds its observation, and a copy in the batch that is attacked
        attacking = audit.peak_gib + 2 * up * max(0, experiment.images - audit.images)
        rounds = len(_trained(experiment)) if audit.games_s else 0  # a game holds all uploads of all audited rounds
        attacking += rounds * (audit.uploads * up + down)
    # What is there until the end, and the pages that are touched then.
    held = training.base_gib + training.further_gib + rows + 2 * down
    if experiment.engine == "inproc":
        at_once = averaging + training.further_gib + training.client_gib - training.base_gib
        driver = max(at_once, max(attacking, held) + training.exit_gib)
        return Memory(driver, training.client_gib, actors, driver)
    processes = _attacking(experiment, _attacks_s(experiment, audit) if audit else 0.0)
    ending = max(0.0 if processes else attacking, held) + training.exit_gib
    driver, actor = max(averaging + training.further_gib, ending) + _RAY_GIB, training.client_gib + _RAY_GIB
    beside = store / _GIB + _RAY_DAEMONS_GIB + processes * attacking
    return Memory(driver, actor, actors, driver + actors * actor + beside)


def disk_bytes(experiment: Experiment, training: TrainingCosts, audit: AuditCosts | None) -> int:
    """Add up what a run leaves on disk: the checkpoint, private state in two versions, and the recordings.

    Args:
        experiment: the counts.
        training: sizes of the tensors.
        audit: sizes of the recordings of an audited round; None: there is no audit.
    """
    kept = training.down + training.kept + 2 * _taking_part(experiment) * training.private
    if audit is None:
        return int(kept)
    rounds = len(experiment.audited if audit.messages else _trained(experiment))
    grown = (_images(experiment, audit) if audit.messages else 1.0) * (audit.round_bytes - audit.shared_bytes)
    return int(kept + audit.once_bytes + rounds * (audit.shared_bytes + grown))
