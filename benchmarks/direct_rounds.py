"""Rounds of a federation without messages: client halves and their server half in one process, without Flower.

The training is that of a run by ``--engine inproc``: the same client halves, generators, joint steps and mean. There
are no messages, no checks of what is sent and no checkpoints. Methods with private tensors do not fit: they need a
disk.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any, final

import torch

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.client.phases import Phases, run_phases_together
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.server.aggregation import Update, update_of
from flfw.server.context import ServerContext
from flfw.task.task import Task


@final
class DirectRounds:
    """Federation of all clients of an experiment.

    Args:
        experiment: the experiment.
        task: its data; None: they are loaded.
        together: most clients whose steps are computed together.

    Attributes:
        experiment: the experiment without ``auto``.
        tensors: what the server sends next.
        done: number of rounds that are done.
    """

    def __init__(self, experiment: Experiment, task: Task | None, together: int) -> None:
        run_plan = plan(without_auto(experiment))
        self.experiment, self._run_plan, self._together = run_plan.experiment, run_plan, together
        self._task = task or plan(self.experiment).task.load(self.experiment.data_root)
        self._strategy = run_plan.strategy(run_plan.client.settings, seed=experiment.seed)
        model = ServerContext(plan(self.experiment).client).model()
        self.tensors: Tensors = {name: value.detach() for name, value in model.state_dict().items()}
        self.done = 0

    def round(self, evaluated: bool = False) -> None:
        """Let all clients train, and aggregate; ``evaluated``: they evaluate before and after, as in a run."""
        self.tensors = self._strategy.aggregate(self._updates(evaluated))
        self.done += 1

    def accuracy(self) -> float:
        """Compute the accuracy of the tensors on each client's own test data, mean over the clients, in [0, 1]."""
        received = self._received()
        workers = map(self._client, range(self.experiment.clients))
        return fmean(worker.load_received(received, 0) or worker.accuracy("test") for worker in workers)

    def _updates(self, evaluated: bool) -> Iterator[Update]:
        received, clients = self._received(), self.experiment.clients
        for first in range(0, clients, self._together):
            partitions = range(first, min(first + self._together, clients))
            workers = [self._client(partition) for partition in partitions]
            works = [worker.round(received, 0) if evaluated else _trained(worker, received) for worker in workers]
            results = run_phases_together(workers, works)
            for partition, result in zip(partitions, results, strict=True):
                if isinstance(result, Exception):
                    raise result
                yield update_of(partition, *result)

    def _received(self) -> dict[str, Any]:
        return {name: value.cpu().numpy() for name, value in self.tensors.items()}

    def _client(self, partition: int) -> FederatedClient:
        ctx = ClientContext(plan(self.experiment).client, self._task, partition, self.done + 1, None, None)
        return self._run_plan.client_class(replace(ctx, run="direct"))


def _trained(worker: FederatedClient, received: dict[str, Any]) -> Phases[tuple[Tensors, dict[str, Any]]]:
    worker.load_received(received, 0)
    yield from worker.train_by_phases()
    return worker.build_upload(), {"num-examples": len(worker.indices("train"))}


def on(experiment: Experiment, device: torch.device) -> Experiment:
    """Return an experiment whose clients train on a device."""
    return replace(experiment, gpus_per_client=1.0 if device.type == "cuda" else 0.0)
