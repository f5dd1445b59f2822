"""Training of Flower's quickstart for PyTorch, as a plain loop and on Flower: ``python -m benchmarks.quickstart CLIENTS
ROUNDS DEVICE`` prints client-rounds a second of Flower's FedAvg on Flower's simulation engine.

A client loads the received weights, trains an epoch with a DataLoader and ``torch.optim.SGD``, reads the loss of each
batch, and returns its weights. Nothing is evaluated. The hyper-parameters are those of `clients/sgd.py`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import local_steps
from flfw.experiment import Experiment
from flfw.nets import Tensors
from flfw.task.task import Task

EXAMPLES, BATCH, LR = 50, 10, 0.01


def experiment(method: str, clients: int, batch: int = BATCH) -> Experiment:
    """Return the experiment of an epoch on CNN 1."""
    small = Experiment(method=method, dataset="fmnist", net="cnn1", clients=clients, attack=("none",))
    return replace(small, batch_size=batch, lr=LR, local_epochs=1)


def task(clients: int) -> Task:
    """Draw the random images of `EXAMPLES` examples that each client has."""
    return local_steps.task("FMNIST", experiment("fedavg", clients), EXAMPLES, clients)


def trained(received: Tensors, work: Task, batch: int, device: torch.device) -> Tensors:
    """Train a client for an epoch; return its weights, on the processor."""
    net = work.build_net()
    net.load_state_dict(received)
    net.to(device).train()
    x, y = work.examples("train", work.split.train[0])
    loader = DataLoader(TensorDataset(work.inputs.normalise(x), y), batch_size=batch, shuffle=True)
    criterion, running = nn.CrossEntropyLoss(), 0.0
    optimiser = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.5, weight_decay=5e-4)
    for images, labels in loader:
        optimiser.zero_grad()
        loss = criterion(net(images.to(device)), labels.to(device))
        loss.backward()
        optimiser.step()
        running += loss.item()
    return {name: value.detach().cpu() for name, value in net.state_dict().items()}


def plain_round(received: Tensors, work: Task, batch: int, device: torch.device) -> Tensors:
    """Train all clients one after the other, without Flower; return the mean of their weights."""
    sent = [trained(received, work, batch, device) for _ in work.split.train]
    return {name: torch.stack([one[name] for one in sent]).mean(0) for name in received}


def flower_rate(clients: int, rounds: int, device: torch.device) -> float:
    """Measure client-rounds a second of Flower, the median over the rounds after the first."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    work, marks, client, server = task(clients), list[float](), ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        sent = trained(message.content.array_records["arrays"].to_torch_state_dict(), work, BATCH, device)
        metrics = MetricRecord({"num-examples": EXAMPLES})
        return Message(RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics}), reply_to=message)

    class Marked(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            result = super().aggregate_train(server_round, replies)
            marks.append(time.perf_counter())
            return result

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Marked(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        strategy.start(grid, ArrayRecord(work.build_net().state_dict()), num_rounds=rounds + 1)

    cores = len(os.sched_getaffinity(0))
    shares = {"num_cpus": 1, "num_gpus": 1 / cores if device.type == "cuda" else 0}
    run_simulation(server, client, clients, backend_config={"client_resources": shares})
    return clients / statistics.median(later - earlier for earlier, later in pairwise(marks))


if __name__ == "__main__":
    print(flower_rate(int(sys.argv[1]), int(sys.argv[2]), torch.device(sys.argv[3])))
