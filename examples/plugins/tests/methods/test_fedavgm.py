"""FedAvgM: rounds against a loop that is written here, and the velocity by hand."""

import dataclasses
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from flfw.experiment import Experiment
from flfw.messages.wire import pack
from flfw.server.aggregation import Update
from flfw.strategies.fedavgm import FedAvgM, FedAvgMSettings
from tests.support import rounds


def test_two_rounds_equal_a_loop(small: Experiment, tmp_path: Path) -> None:
    chosen = ("beta=0.5", "momentum=0.5", "weight_decay=0")
    experiment = dataclasses.replace(small, method="fedavgm", net="mlp", clients=2, batch_size=200, lr=0.05, set=chosen)
    with rounds.exactly():
        result = rounds.play(experiment, tmp_path, 2)
        net = rounds.fresh(experiment)
        w = {name: value.clone() for name, value in net.state_dict().items()}
        v = {name: torch.zeros_like(value) for name, value in w.items()}
        for now in (1, 2):
            ends = []
            for client in range(2):
                net.load_state_dict(w)
                sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
                for x, y in rounds.batches(experiment, client, "batches", 1, now):
                    sgd.zero_grad()
                    cross_entropy(net(x), y).backward()
                    sgd.step()
                ends.append({name: value.clone() for name, value in net.state_dict().items()})
            mean = rounds.mean(ends)
            v = {name: 0.5 * v[name] + w[name] - mean[name] for name in w}
            w = {name: w[name] - v[name] for name in w}
            assert rounds.error(result.broadcasts[now], w, result.broadcasts[now - 1]) < 1e-10


def test_two_rounds_by_hand() -> None:
    strategy = FedAvgM(FedAvgMSettings(beta=0.5))
    broadcast, expected = {"w": torch.tensor([1.0])}, [0.0, -1.5]  # v: 1, then 0.5 + 1
    for server_round, value in enumerate(expected, 1):
        update = Update(0, 10, {"w": broadcast["w"] - 1})
        broadcast = strategy.aggregate_round(pack(broadcast), [update], server_round)
        assert broadcast["w"].tolist() == [value]
