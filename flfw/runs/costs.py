"""Costs of a client's round and of the server's work on this machine; see `flfw.runs.measuring`.

Time is linear in a client's local epochs, so two measurements give the line.
"""

from __future__ import annotations

import hashlib
import importlib
import time
from collections.abc import Sequence
from dataclasses import replace
from heapq import nsmallest
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from flwr.app import ArrayRecord
from safetensors.torch import save

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import side_by_side
from flfw.client.store import ClientStore
from flfw.data.splits import lazy_parts
from flfw.experiment import Experiment
from flfw.messages.factored_upload import expand
from flfw.messages.sharing import shared
from flfw.messages.wire import nbytes, pack, unpack, views
from flfw.nets.net import Tensors
from flfw.plans.run_plan import RunPlan, plan
from flfw.recording.format import PlainTensors
from flfw.runs import timing
from flfw.runs.timing import at_length, fastest_s
from flfw.server.aggregation import Update
from flfw.server.cohorts import in_turn
from flfw.server.context import ServerContext
from flfw.server.distillation import ServerTraining

LONG_S = 5.0
"""Seconds; a client's round that takes longer is measured once."""
_GIB = 1024**3

Costs = dict[str, float]
"""Seconds (``_s``), GiB (``_gib``) and bytes by name."""


def client_costs(run_plan: RunPlan, folder: Path, costs: Costs) -> None:
    """Measure a client of about the mean size, on one thread as in an actor, and the server's work on its reply.

    Where clients compute together, it is one of a whole cohort. The round is in the middle of the run, since the first
    rounds of some methods have less work.
    """
    torch.set_num_threads(1)
    experiment, settings = run_plan.experiment, run_plan.client.settings
    sizes = lazy_parts.sizes(plan(experiment).task.load(experiment.data_root).split.train)
    together, usual = min(experiment.together, experiment.per_round), fmean(sizes)
    alike = len(sizes) == 1  # all clients have as many examples
    cohort = range(together) if alike else nsmallest(together, range(len(sizes)), key=lambda p: abs(sizes[p] - usual))
    partition = cohort[0]
    fresh = client_of(run_plan, partition, folder)
    arrays = pack(shared(fresh.model.state_dict(), fresh.sharing.downloads))
    costs["private"] = sum(value.nbytes for value in fresh.private_state().values())
    del fresh  # an actor has no second client

    def work(epochs: int, clients: Sequence[int] = cohort) -> tuple[ArrayRecord, dict[str, Any]]:
        workers = [client_of(run_plan.replaced(local_epochs=epochs), each, folder) for each in clients]
        result, *_ = side_by_side(workers, [worker.round(views(arrays), 0) for worker in workers])
        if isinstance(result, Exception):
            raise result
        return pack(result[0]), result[1]

    started = time.process_time()
    record, metrics = work(1)
    epoch = one = time.process_time() - started  # slower than later calls, which reuse its memory
    if one <= LONG_S:
        calls = timing.CALLS if timing.CALLS * one <= timing.ENOUGH_S else 1
        more = max(2, min(experiment.local_epochs, int(timing.ENOUGH_S / calls / one)))
        timing.announce(calls * (1 + more) * one)
        one = fastest_s(lambda: work(1), calls)
        epoch = max(fastest_s(lambda: work(more), calls) - one, 0.0) / (more - 1)
    scale = fmean(sizes) / sizes[partition] / together
    alone = fastest_s(lambda: work(1, cohort[:1]), 1 if one > LONG_S else timing.CALLS) if together > 1 else one
    costs["slower_alone"] = together * alone / one  # the last evaluation has no cohorts
    costs |= {"epoch_s": scale * epoch, "fixed_s": scale * max(one - epoch, 0.0), "peak_gib": peak_gib()}
    sent = expand(unpack(record), views(arrays))  # the upload as the server decodes it, and as probes send it
    costs |= {"largest": max(sizes) / fmean(sizes), "up": nbytes(pack(sent)), "down": nbytes(arrays)}
    costs["message"] = nbytes(record)
    before = unpack(arrays)
    costs |= {"down_file": file_bytes(experiment, before), "up_file": file_bytes(experiment, sent, before)}
    costs["reply_s"] = fastest_s(lambda: expand(unpack(record), views(arrays)))
    if not isinstance(settings, ServerTraining):  # the server's training is measured separately
        updates = [Update(partition, sizes[partition], sent, metrics)] * 4
        place = ServerContext(run_plan.client)

        def combine() -> None:
            server = run_plan.strategy(settings, sample=len(updates))
            server.ctx = place
            server.aggregate_round(arrays, iter(updates), 1)
            costs["kept"] = sum(value.nbytes for value in server.state.values())

        summed = fastest_s(combine)
        costs["reply_s"] += summed / len(updates)
    run_imports(costs)
    costs["write_s"] = fastest_s(lambda: (folder / hashlib.sha256(data := save(sent)).hexdigest()).write_bytes(data))


def server_costs(run_plan: RunPlan, folder: Path, costs: Costs) -> None:
    """Measure a round's training on the server, with uploads of a whole cohort; their values do not matter."""
    experiment, settings = run_plan.experiment, run_plan.client.settings
    place = ServerContext(run_plan.client)
    state, sharing = place.model().state_dict(), place.sharing
    arrays, sent = pack(shared(state, sharing.downloads)), shared(state, sharing.uploads)
    uploads = [Update(p, 1, {n: v.clone() for n, v in sent.items()}) for p in range(experiment.per_round)]

    def seconds(iterations: int) -> float:
        server = run_plan.strategy(replace(settings, iterations=iterations), sample=len(uploads))
        server.ctx = place
        started = time.process_time()
        server.aggregate_round(arrays, iter(uploads), 1)
        return time.process_time() - started

    costs |= {"server_s": at_length(seconds, settings.iterations), "peak_gib": peak_gib()}


def client_of(run_plan: RunPlan, partition: int, folder: Path) -> FederatedClient:
    """Build a client in the middle of the run, in a round in which it takes part.

    Args:
        run_plan: of the run.
        partition: its number.
        folder: folder of its private state.
    """
    experiment = run_plan.experiment
    task, store = plan(experiment).task.load(experiment.data_root), ClientStore(folder, "estimate", partition)
    middle, apart = (1 + experiment.rounds) // 2, run_plan.client.method.min_separation(run_plan.client.settings)
    turn = next(r for r in range(middle, middle + apart) if in_turn([partition], apart, r))
    return run_plan.client_class(
        ClientContext(
            plan=run_plan.client,
            task=task,
            partition=partition,
            round=turn,
            defence=run_plan.client.defences.of_client(partition),
            store=store,
            run="estimate",
        )
    )


def file_bytes(experiment: Experiment, tensors: Tensors, received: Tensors | None = None) -> int:
    """Return the size of the recorded file of a message, which ``--expert compression`` makes smaller.

    Args:
        experiment: the settings.
        tensors: content of the message.
        received: tensors that its sender had received; None: it was sent to a client.
    """
    arrays, before = ({k: v.detach().cpu().numpy() for k, v in part.items()} for part in (tensors, received or {}))
    return len(PlainTensors.of(arrays).encoded(experiment.recorded_as, before).data)


def run_imports(costs: Costs) -> None:
    """Measure the imports of the driver beside those of its clients: for the run, its files and the report."""
    before, began = resident_gib(), time.process_time()
    for name in ("flfw.runs.run", "flfw.runs.final", "flfw.report.report", "flfw.report.charts"):
        importlib.import_module(name)
    costs |= {"run_s": time.process_time() - began, "run_gib": max(0.0, resident_gib() - before)}


def peak_gib() -> float:
    """Return the peak memory of this process alone; `resource` would give that of the process it was forked from."""
    return _memory_gib("VmHWM")


def resident_gib() -> float:
    """Return the present memory of this process."""
    return _memory_gib("VmRSS")


def _memory_gib(name: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(name)) * 1024 / _GIB
