"""FedSplit: rounds against a loop, with torch's own optimisers, that last or start afresh."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

import sim
from flfw.client.store import ClientStore
from flfw.experiment import Experiment
from flfw.nets import Net
from flfw.strategies.fedgen import FedGenSettings
from flfw.strategies.fedsplit import FedSplitSettings
from tests.support import rounds

CLOSE = 1e-10  # of a change, in float64


@pytest.mark.slow
def test_the_defaults_learn(tmp_path: Path) -> None:
    """With SGD the sigmoids of lenet5 named the most frequent class (0.28) after any number of rounds."""
    assert FedGenSettings().optimiser == FedSplitSettings().optimiser == "adam"
    run = [
        "--method",
        "fedsplit",
        "--rounds",
        "4",
        "--attack",
        "none",
        "--engine",
        "inproc",
        "--out",
        f"{tmp_path}/run",
    ]
    assert sim.main(run) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["final"]["acc_local"] > 0.5


def asked(small: Experiment, *settings: str) -> Experiment:
    few = ("sampled.train=30", "weight_decay=1e-4", *settings)
    given = {"net": "lenet5", "split": "sampled", "clients": 2, "batch_size": 20, "lr": 3e-3}
    return dataclasses.replace(small, method="fedsplit", set=few, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_two_rounds_equal_a_loop(small: Experiment, tmp_path: Path, optimiser: str, lasting: bool) -> None:
    def made(net: Net) -> torch.optim.Optimizer:
        if optimiser == "adam":
            return torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)
        return torch.optim.SGD(net.parameters(), lr=3e-3, momentum=0.5, weight_decay=1e-4)

    with rounds.exactly():
        experiment = asked(small, f"optimiser={optimiser}", f"lasting={str(lasting).lower()}")
        result = rounds.play(experiment, tmp_path, 2)
        nets = [rounds.fresh(experiment) for _ in range(2)]
        optimisers = [made(net) for net in nets]  # type: ignore[arg-type]
        first, broadcast = nets[0].state_dict(), result.broadcasts[0]
        start = {name: value.clone() for name, value in first.items()}
        assert set(broadcast) == {name for name in start if name.startswith("classifier.")}
        for now in (1, 2):
            for partition, net in enumerate(nets):
                net.load_state_dict(broadcast, strict=False)
                if not lasting:
                    optimisers[partition] = made(net)  # type: ignore[arg-type]
                for x, y in rounds.batches(experiment, partition, "batches", 1, now):
                    rounds.descend(optimisers[partition], cross_entropy(net(x), y))
            sent = [{name: net.state_dict()[name].clone() for name in broadcast} for net in nets]
            broadcast = rounds.mean(sent)
            assert rounds.error(result.broadcasts[now], broadcast, start) < CLOSE
        for net, client in zip(nets, result.clients, strict=True):
            assert rounds.error(client.model.state_dict(), dict(net.state_dict()), start) < CLOSE


@pytest.mark.parametrize(("lasting", "kept"), [("true", {"extractor", "optimiser"}), ("false", {"extractor"})])
def test_a_client_keeps_its_extractor_and_what_lasts(
    small: Experiment, tmp_path: Path, lasting: str, kept: set[str]
) -> None:
    result = rounds.play(asked(small, "optimiser=adam", f"lasting={lasting}"), tmp_path, 2)
    stored = ClientStore(tmp_path, "test", 1).load(2)
    assert {name.partition(".")[0].partition("/")[0] for name in stored} == kept
    assert {float(v) for n, v in stored.items() if n.startswith("optimiser/steps/")} == (
        {4} if lasting == "true" else set()
    )
    assert all(name.startswith("classifier.") for tensors in result.broadcasts for name in tensors)
