"""Estimate of a run's costs before it starts: some seconds of measurements by `flfw.runs.measuring`, extrapolated."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from flfw.audit.jobs import round_probe_sets
from flfw.engines import machine
from flfw.experiment import Experiment
from flfw.files.provenance import hardware
from flfw.plans.run_plan import RunPlan, resolve_attack_process
from flfw.runs.attack_costs import MOST
from flfw.runs.costs import LONG_S, Costs
from flfw.runs.engine import store_bytes
from flfw.runs.measuring import UNSAID_S, measured, measuring_s
from flfw.server.aggregation import most_sums
from flfw.server.distillation import ServerTraining

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
    # By `python -m tests.campaigns.exchange`; see docs/performance.md.
    "ray": ExchangeCosts(start_s=5.0, processor_s=5.4, exchange_s=0.05, message_s=0.0015, writes=0.26),
    # Flower's threads look for messages every 0.1 s, ours every 0.05 s; 1,000 tiny messages take 5 to 6 s.
    "flwr": ExchangeCosts(start_s=20.0, processor_s=20.0, exchange_s=0.3, message_s=0.005, writes=6.0),
}
EXCHANGES["flwr-sim"] = EXCHANGES["flwr"]


@dataclass(frozen=True)
class _Spent:
    """Seconds of a clock, and of all processors together."""

    clock_s: float
    processor_s: float

    def plus(self, more_s: float) -> _Spent:
        """Add seconds in which one process works and all others wait."""
        return _Spent(self.clock_s + more_s, self.processor_s + more_s)

    def and_(self, other: _Spent) -> _Spent:
        """Add the time of the work after it."""
        return _Spent(self.clock_s + other.clock_s, self.processor_s + other.processor_s)

    def times(self, count: int) -> _Spent:
        """Multiply, for the same several times."""
        return _Spent(count * self.clock_s, count * self.processor_s)


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
    """Peak sizes of resident memory; ``total_gib`` counts shared memory once, and includes the attack server's process.

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


def estimate(run_plan: RunPlan, claims_s: float = 0.0, own_s: float = 0.0) -> Estimate:
    """Measure the costs for some seconds, and extrapolate.

    Args:
        run_plan: of the run, checked, for this machine alone.
        claims_s: seconds that the claims of privacy take.
        own_s: seconds that this process took for its imports and data, by which it says at once how long the
            measurements take, should that be long; 0: nothing is said at once.

    Raises:
        RunError: a measurement failed, as the run would.
    """
    experiment = run_plan.experiment
    started, load, actors = time.monotonic(), os.getloadavg()[0], _actors(experiment)
    trains, audits = (
        isinstance(run_plan.client.settings, ServerTraining),
        bool(experiment.audited and run_plan.client.method.uploads),
    )
    expected_s = measuring_s(run_plan, 1 + trains + audits, own_s)
    if own_s and expected_s > UNSAID_S:
        print(f"estimate: its measurements take about {expected_s:.0f} s", file=sys.stderr)
    samples = measured("client", experiment, min(actors, experiment.per_round, _PROCESSES), started)
    client = {name: fmean(costs[name] for costs in samples) for name in samples[0]}
    server = measured("server", experiment, 1, started)[0] if trains else {}
    client["run_s"] += claims_s
    client |= {"server_s": server.get("server_s", 0.0), "server_gib": server.get("peak_gib", 0.0)}
    audit = measured("audit", experiment, 1, started)[0] if audits else {}
    origin = f"{hardware()}, in {time.monotonic() - started:.0f} s at a load of {load:.1f}; others at work add to it"
    origin += "; from one local epoch only, which takes long" if client["epoch_s"] > LONG_S else ""
    costs = (experiment, actors, client, audit)
    store = store_bytes(run_plan)
    files = 2 * _taking_part(experiment) if client["private"] else 0
    sent, disk = int(client["message"]), _disk(*costs)
    return Estimate(experiment, _seconds(*costs), _memory(*costs, store), sent, disk, origin, files)


def lines(expected: Estimate) -> str:
    """Format an estimate for the terminal: time, memory, disk and origin, one line each."""
    time, memory, rounds = expected.seconds, expected.memory, expected.experiment.rounds
    count = f"{'at most ' if expected.experiment.patience else ''}{rounds} rounds"
    spent = f"training {_time(time.training)} ({count} of {_time(time.round)}), audit {_time(time.audit)}"
    clients = f"clients {memory.actors} x {memory.actor_gib:.1f} GiB"
    most = f", at most {expected.state_files:,} files of clients' private state"
    files = most if expected.state_files else ""
    server = (
        f"round   about {time.processor:,.0f} s of the processor, of which the server trains {_time(time.server)}\n"
    )
    parallel = time.whole_processor > (1 + _NEGLIGIBLE) * time.total
    processor = f", {_time(time.whole_processor)} of all processors" if parallel else ""
    return (
        f"time    about {_time(time.total)}{processor}: start {_time(time.start)}, {spent}\n"
        f"{server if time.server >= _NEGLIGIBLE * time.round else ''}"
        f"memory  about {memory.total_gib:.1f} GiB: driver {memory.driver_gib:.1f} GiB, {clients}\n"
        f"sent    about {_size(expected.sent_bytes)} by a client in a round\n"
        f"disk    about {_size(expected.disk_bytes)}{files}\nfrom    {expected.measured_on}"
    )


def _size(count: int) -> str:
    """Format a number of bytes: ``56.8 kB``, ``1,080 MB``."""
    size, unit = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / size:,.{0 if count >= 100 * size else 1}f} {unit}"


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
        else max(1, machine.at_once(experiment, experiment.attack_gpus, machine.resources("")))
    )


def _seconds(experiment: Experiment, actors: int, client: Costs, audit: Costs) -> Seconds:
    through, cores = EXCHANGES.get(experiment.engine), len(os.sched_getaffinity(0))

    def exchange(messages: int, each: float, server: float, loaded: float = 1.0, together: int = 1) -> _Spent:
        """Return the time of an exchange on shared cores, one core per cohort, the largest client among them."""
        if through is None:
            return _Spent(messages * (each + server), messages * (each + server))
        each += through.message_s + loaded * through.writes * client["write_s"]
        cohorts = ceil(messages / together)
        alone = max(ceil(cohorts / actors) * min(together, messages) * each, each * client["largest"])
        work = messages * (each + server)
        return _Spent(max(work / cores, alone) + through.exchange_s, work + through.exchange_s)

    working = client["fixed_s"] + experiment.local_epochs * client["epoch_s"]
    waits, together = client["server_s"] + client["write_s"], experiment.together
    one_round = exchange(experiment.per_round, working, client["reply_s"], together=together).plus(waits)
    whole = one_round.times(experiment.rounds)
    if experiment.metrics != "none" and experiment.finally_asked:  # else nobody is asked; with noise nobody trains
        asked = working if experiment.metrics == "all" else client["fixed_s"]
        whole = whole.and_(exchange(experiment.finally_asked, asked * client["slower_alone"], 0.0))
    attacks, audited, images = 0.0, len(experiment.audited), experiment.images
    if audit and audit["probed"]:
        # The ladder's networks are small; a probe's step takes about as long as a round without its epochs.
        tickets = round_probe_sets(experiment, experiment.record, 0)
        whole = whole.and_(exchange(images, 0.0, 0.0, 0.0).times(2))
        probes = exchange(images, client["fixed_s"], 2 * client["write_s"])
        whole = whole.and_(probes.times(audited * len(tickets) * (1 + round(audit["beside"]))))
    if audit:
        each = audit["probes_s"] + audit["uploads_s"]
        attacks = audit["imports_s"] + audit["easy_s"] + audited * each + audit["game_s"]
    start = client["ready_s"] + client["run_s"] + client["exit_s"]
    processor = start + whole.processor_s + attacks
    if through:  # the driver's imports, then the actors'
        start += client["ready_s"] + through.start_s
        beside = bool(audit) and resolve_attack_process(experiment.attack_process, experiment.engine) == "concurrent"
        processor += (min(actors, experiment.clients) + beside) * client["ready_s"] + through.processor_s
    total = start + whole.clock_s + attacks
    trains = client["server_s"]
    return Seconds(start, one_round.clock_s, whole.clock_s, attacks, total, trains, one_round.processor_s, processor)


def _memory(experiment: Experiment, actors: int, client: Costs, audit: Costs, store_bytes: int) -> Memory:
    up, down, peak = client["up"] / _GIB, client["down"] / _GIB, client["peak_gib"]
    # The broadcast and the next one, the sum in float64 and that of a block, the message and tensors of each reply.
    # The server's own tensors: before and after a round, and on their way to the disk.
    kept = 3 * client.get("kept", 0.0) / _GIB
    replies = actors * min(experiment.together, experiment.per_round)
    rows = experiment.rounds * experiment.per_round * _ROW_BYTES / _GIB
    sums = 2 * down + 2 * up * most_sums(experiment.clients) + 2 * up * (1 + replies) + kept
    averaging = max(rows + client["base_gib"] + sums, client["server_gib"])
    # Each image beyond those measured adds its observation, and a copy in the batch that is attacked.
    attacking = audit["peak_gib"] + 2 * up * max(0, experiment.images - MOST) if audit else 0.0
    if audit and audit["game_s"]:  # an attack on membership holds what all clients sent in all audited rounds
        attacking += len(_trained(experiment)) * (audit["uploads"] * up + down)
    # What is there until the end, and the pages that are touched then.
    held = client["base_gib"] + client["run_gib"] + rows + 2 * down
    if experiment.engine == "inproc":
        training = averaging + client["run_gib"] + peak - client["base_gib"]
        driver = max(training, max(attacking, held) + client["exit_gib"])
        return Memory(driver, peak, actors, driver)
    inline = resolve_attack_process(experiment.attack_process, experiment.engine) == "inline"
    ending = max(attacking if inline else 0.0, held) + client["exit_gib"]
    driver, actor = max(averaging + client["run_gib"], ending) + _RAY_GIB, peak + _RAY_GIB
    shared = store_bytes / _GIB + _RAY_DAEMONS_GIB + (0.0 if inline else attacking)
    return Memory(driver, actor, actors, driver + actors * actor + shared)


def _disk(experiment: Experiment, actors: int, client: Costs, audit: Costs) -> int:
    """Return the bytes on disk: a broadcast once and once per watched client, private state in two versions.

    The checkpoint also has the server's own tensors.
    """
    probes = len(round_probe_sets(experiment, experiment.record, 0)) * experiment.images * (1 + audit.get("beside", 0))
    easy = audit["easy_file"] + experiment.images * audit["easy_probe_file"] if audit.get("probed") else 0
    probes = probes if audit.get("probed") else 0
    on_clients = min(experiment.images, experiment.clients) if "client_example" in experiment.vantage else 0
    rounds = experiment.audited if probes else _trained(experiment)
    each = (1 + on_clients) * client["down_file"] + probes * audit.get("probe_file", 0)
    seen = len(rounds) * each if audit else 0
    seen += len(_trained(experiment)) * audit.get("uploads", 0) * client["up_file"]
    return int(
        client["down"] + client.get("kept", 0.0) + 2 * _taking_part(experiment) * client["private"] + seen + easy
    )
