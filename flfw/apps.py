"""The two Flower apps, the same in simulation and in deployment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
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
from flfw.client import FederatedClient, Workplace
from flfw.errors import RunFailed
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.progress import Steps
from flfw.provenance import code_hash
from flfw.rng import initialising
from flfw.site import Site
from flfw.store import ClientStore
from flfw.strategy import FederatedStrategy, broadcast
from flfw.streaming import StreamingGrid
from flfw.tap import RecordingGrid
from flfw.task import Task, input_space
from flfw.wire import pack, views

server = ServerApp()
client = ClientApp()


# --- the server ---------------------------------------------------------------------------------------------------


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Train, probe at the audited rounds, evaluate everybody once more, and write ``training.json``."""
    experiment = Experiment.from_run_config(context.run_config)
    assert experiment.out is not None, "the engine names the folder"
    cls, settings = parts.method(experiment)
    strategy = cls(settings, sample=experiment.sample, seed=experiment.seed)
    grid = StreamingGrid(grid)
    if experiment.audited:
        grid = RecordingGrid(grid, experiment.out / "observations", lambda m: m.metadata.message_type == "train.probe")
    _same_code(strategy.enrol(grid, experiment.clients))

    def build(net: str) -> nets.Net:
        return nets.build(net, *input_space(experiment))

    with initialising(experiment.seed, "model"):
        initial = broadcast(cls.build_model(build(experiment.net), settings), cls.downloads)
    audits = bool(experiment.audited and cls.uploads)
    if audits:
        probe.send_ladder(grid, strategy, experiment, build)
    with Steps("round", experiment.rounds) as steps:

        def after(server_round: int, arrays: ArrayRecord) -> None:
            if server_round:
                steps.done(_line(strategy.history.rounds[-1]))
            if audits and server_round in experiment.audited:
                probe.send_probes(grid, strategy, experiment, "target", server_round, arrays)

        result = strategy.start(grid, initial, experiment.rounds, timeout=_FOREVER, evaluate_fn=after)
    final = strategy.evaluate_all(grid, result.arrays, experiment.rounds)
    _write(experiment.out, strategy, final)


_FOREVER = 10 * 365 * 86400.0  # seconds; a deadline for each round comes with the handling of late clients


def _same_code(about: list[dict[str, Any]]) -> None:
    for answer in about:
        if answer["code"] != code_hash():
            raise RunFailed(
                f"client {answer['partition']} runs other code ({answer['code']}) than the server ({code_hash()}); "
                "install the same version on both."
            )


def _line(row: dict[str, Any]) -> str:
    shown = {"loss": row["loss"], "acc before": row["acc_global"], "acc after": row["acc_local"], **row["extra"]}
    numbers = "  ".join(f"{name} {value:.3f}" for name, value in shown.items() if value is not None)
    return f"{numbers}  {row['seconds']:.1f} s"


def _write(folder: Path, strategy: FederatedStrategy, final: list[dict[str, Any]]) -> None:
    training = {"rounds": strategy.history.rounds, "clients": strategy.history.clients, "final": final}
    (folder / "training.json").write_text(json.dumps(training))


# --- the client ---------------------------------------------------------------------------------------------------


@client.query()
def introduce(message: Message, context: Context) -> Message:
    """Which partition this node holds, and a hash of its code."""
    about = {"partition": _partition(context), "code": code_hash()}
    return Message(RecordDict({"about": ConfigRecord(about)}), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    with _one_thread():
        worker, config, received = _open(message, context)
        sent, metrics = worker.fit_named(received, config["version"])
        return _reply(message, sent, metrics)


@client.train("probe")
def answer_probe(message: Message, context: Context) -> Message:
    """What this client would send for a few of its own examples; nothing is trained or kept."""
    with _one_thread():
        worker, config, received = _open(message, context)

        def gradient(x: Tensor, y: Tensor) -> Tensors:
            worker.install(received, config["version"])
            return worker.gradient(x, y)

        at = worker.at
        site = Site.of(context.node_config)
        sent = probe.answer(config, received, at.task, at.experiment, at.partition, site, gradient)
        return _reply(message, sent, {"num-examples": config["batch"], "partition": at.partition})


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's own test data, before and after one more local training."""
    with _one_thread():
        worker, config, received = _open(message, context)
        return _reply(message, {}, worker.evaluate_named(received, config["version"]))


def _open(message: Message, context: Context) -> tuple[FederatedClient, dict[str, Any], dict[str, np.ndarray]]:
    """Make the client half for a message, and take out the message's scalars and arrays."""
    config: Any = dict(message.content.config_records["config"])
    experiment = Experiment.from_run_config(context.run_config)
    site, partition = Site.of(context.node_config), _partition(context)
    method, settings = parts.method(experiment)
    at = Workplace(
        experiment=experiment,
        task=Task.of(experiment, site.data_root),
        method=method,
        settings=settings,
        partition=partition,
        round=int(config["round"]),
        defence=parts.defence(experiment) if partition in experiment.defended_partitions else None,
        store=ClientStore(site.state, str(context.run_config["experiment-id"]), partition) if site.state else None,
    )
    return parts.client(experiment)(at), config, views(message.content.array_records["arrays"])


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
