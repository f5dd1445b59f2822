"""The two Flower apps, the same in simulation and in deployment."""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from flfw import nets, parts
from flfw.audit import probe
from flfw.checkpoint import Checkpoints, locked
from flfw.client import FederatedClient, Workplace
from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment
from flfw.faults import Failure, Tolerance
from flfw.nets import Tensors
from flfw.progress import Steps
from flfw.provenance import code_hash
from flfw.rng import initialising
from flfw.roster import ENROLMENT_S
from flfw.sealed import drop_unfinished, write_whole
from flfw.site import Site
from flfw.store import ClientStore
from flfw.strategy import FederatedStrategy, broadcast
from flfw.streaming import StreamingGrid
from flfw.tap import RecordingGrid
from flfw.task import Task, input_space, resolve
from flfw.wire import pack, views

server = ServerApp()
client = ClientApp()

_AFTER_DEADLINE_S = 1.0  # the server then says who was late, rather than that a process died


# --- the server ---------------------------------------------------------------------------------------------------


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the experiment of the run's configuration; its folder holds the experiment, and maybe a checkpoint."""
    federate(grid, Experiment.from_run_config(context.run_config))


def federate(grid: Grid, experiment: Experiment) -> None:
    """Train, probe at the audited rounds, evaluate everybody once more, and write ``training.json``.

    What fails is also left in ``failure.txt``, for whoever started this through Flower's own commands.
    """
    assert experiment.out is not None, "the engine names the folder"
    reason = experiment.out / "failure.txt"
    reason.unlink(missing_ok=True)  # of an attempt before this one
    try:
        (experiment.out / "checkpoint").mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(experiment.out / "checkpoint" / ".server"):
            _federate(grid, experiment, experiment.out)
    except OSError as error:
        reason.write_text(f"{error}\n")
        raise RunFailed(f"The server could not go on: {error}.") from error
    except (BadInput, RunFailed) as error:
        reason.write_text(f"{error}\n")
        raise


def _federate(grid: Grid, experiment: Experiment, folder: Path) -> None:
    cls, settings = parts.method(experiment)
    drop_unfinished(folder / "checkpoint")
    kept = Checkpoints(folder, experiment)
    tolerance = Tolerance(
        experiment.on_client_failure,
        experiment.min_clients,
        experiment.round_deadline,
        replaces_the_dead=experiment.engine != "flwr",
    )
    strategy = cls(settings, sample=experiment.sample, seed=experiment.seed, tolerance=tolerance)
    strategy.stamp = {"experiment": kept.id, "code": code_hash()}
    grid = StreamingGrid(grid)
    tap = None
    if experiment.audited and cls.uploads:
        mark = kept.last.recordings if kept.last else None
        grid = tap = RecordingGrid(grid, folder / "observations", probe.is_sound, mark)
    about = strategy.roster.enrol(grid, experiment.clients)
    blind = experiment.gpus_per_client > 0 and not all(answer.get("gpu") for answer in about)
    for answer in about:
        if answer["code"] != code_hash():
            other = f"runs other code ({answer['code']}) than the server ({code_hash()}); install the same on both"
            strategy.roster.refuse(answer["partition"], other)
    first = _resumed(kept, strategy)
    with Steps("round", experiment.rounds, strategy.rounds_before) as steps:

        def note_probes(done: int, failed: list[Failure]) -> None:
            steps.note(f"probe of {failure}" for failure in failed)
            strategy.history.probes.extend({"round": done, **asdict(failure)} for failure in failed)

        if first is None:
            first, failed = _initial(grid, strategy, experiment, tap)
            note_probes(0, failed)

        def after(flower_round: int, arrays: ArrayRecord) -> None:
            done = flower_round + strategy.rounds_before
            if kept.last and done == kept.last.round:
                return
            if done:
                row = strategy.history.rounds[-1]
                steps.done(_line(row))
                steps.note(f"client {failure['client']} dropped: {failure['reason']}" for failure in row["failed"])
            if tap and done in experiment.audited:
                note_probes(done, probe.send_probes(grid, strategy, experiment, "target", done, arrays))
            snapshot = strategy.snapshot(done, arrays, tap.mark if tap else None)
            kept.save(snapshot, strategy.history.rows_of(done))

        left = experiment.rounds - strategy.rounds_before
        result = strategy.start(grid, first, left, timeout=experiment.round_deadline, evaluate_fn=after)
    final, failed = strategy.evaluate_all(grid, result.arrays if left else first, experiment.rounds)
    training = {**asdict(strategy.history), "final": final, "final_failed": [asdict(failure) for failure in failed]}
    training |= {"code": kept.code, "resumed": kept.resumed, "engine": experiment.engine, "without_gpu": blind}
    write_whole(folder / "training.json", json.dumps(training).encode())


def _resumed(kept: Checkpoints, strategy: FederatedStrategy) -> ArrayRecord | None:
    """Put the strategy back to its last checkpoint; what it broadcasts next."""
    if kept.last is None:
        return None
    strategy.restore(kept.last, kept.history)
    return kept.last.arrays


def _initial(
    grid: Grid, strategy: FederatedStrategy, experiment: Experiment, tap: RecordingGrid | None
) -> tuple[ArrayRecord, list[Failure]]:
    """The first broadcast; an audited run climbs its ladder here, and who failed on it is returned."""

    def build(net: str) -> nets.Net:
        return nets.build(net, *input_space(experiment))

    failed = probe.send_ladder(grid, strategy, experiment, build) if tap else []
    with initialising(experiment.seed, "model"):
        return broadcast(strategy.build_model(build(experiment.net), strategy.settings), strategy.downloads), failed


def _line(row: dict[str, Any]) -> str:
    shown = {"loss": row["loss"], "acc before": row["acc_global"], "acc after": row["acc_local"], **row["extra"]}
    numbers = "  ".join(f"{name} {value:.3f}" for name, value in shown.items() if value is not None)
    return f"{numbers}  {row['seconds']:.1f} s"


# --- the client ---------------------------------------------------------------------------------------------------


@client.query()
def introduce(message: Message, context: Context) -> Message:
    """Which partition this node holds, a hash of its code, and whether it sees a GPU."""
    with _until(message.metadata.created_at + ENROLMENT_S, context):
        about = {"partition": _partition(context), "code": code_hash(), "gpu": torch.cuda.is_available()}
        return Message(RecordDict({"about": ConfigRecord(about)}), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    with _at_work(message, context) as (worker, config, received):
        sent, metrics = worker.fit_named(received, config["version"])
        return _reply(message, sent, metrics)


@client.train("probe")
def answer_probe(message: Message, context: Context) -> Message:
    """What this client would send for a few of its own examples; nothing is trained or kept."""
    with _at_work(message, context) as (worker, config, received):

        def gradient(x: Tensor, y: Tensor) -> Tensors:
            worker.install(received, config["version"])
            return worker.gradient(x, y)

        at = worker.at
        site = Site.of(context.node_config, config["experiment"])
        sent = probe.answer(config, received, at.task, at.experiment, at.partition, site, gradient)
        return _reply(message, sent, {"num-examples": config["batch"], "partition": at.partition})


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's own test data, before and after one more local training."""
    with _at_work(message, context) as (worker, config, received):
        return _reply(message, {}, worker.evaluate_named(received, config["version"]))


@contextmanager
def _at_work(
    message: Message, context: Context
) -> Iterator[tuple[FederatedClient, dict[str, Any], dict[str, np.ndarray]]]:
    """The client half for a message, and the message's scalars and arrays; on one thread, while the server waits."""
    config: Any = dict(message.content.config_records["config"])
    if config["code"] != code_hash():
        raise RuntimeError(f"runs other code ({code_hash()}) than the server ({config['code']}); install the same")
    experiment = resolve(Experiment.from_run_config(context.run_config))
    site, partition = Site.of(context.node_config, config["experiment"]), _partition(context)
    with _until(message.metadata.created_at + config["deadline"], context), _one_thread():
        method, settings = parts.method(experiment)
        at = Workplace(
            experiment=experiment,
            task=Task.of(experiment, site.data_root),
            method=method,
            settings=settings,
            partition=partition,
            round=int(config["round"]),
            defence=parts.defence(experiment) if partition in experiment.defended_partitions else None,
            store=ClientStore(site.state, config["experiment"], partition) if site.state else None,
        )
        yield parts.client(experiment)(at), config, views(message.content.array_records["arrays"])


@contextmanager
def _until(deadline: float, context: Context) -> Iterator[None]:
    """Do nothing for a server that has stopped waiting, and end this process when it does so.

    A hung client would hold its core for good. Python may be what hangs, so it is not asked to end it.

    Args:
        deadline: seconds since the epoch; the machines' clocks may differ by less than the time given.
        context: says whether the server is in this process too, which is then not ended.
    """
    own_process = not context.node_config.get("in-process")
    left = deadline - time.time()
    if left <= 0:
        raise RuntimeError("was asked too late")
    if own_process:
        faulthandler.dump_traceback_later(left + _AFTER_DEADLINE_S, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        yield
    finally:
        if own_process:
            faulthandler.cancel_dump_traceback_later()


def _reply(message: Message, sent: Tensors, metrics: dict[str, Any]) -> Message:
    content = RecordDict({"arrays": pack(sent), "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)


def _partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Pin torch to one thread for a client's work, so that every engine sums in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
