"""FedBN: rounds against a loop that is written here, the choice by the layers' type, and the attacker's victim."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sim
from flfw import nets
from flfw.client.store import ClientStore
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.batch_statistics import normalising_by_batch
from flfw.nets import NetCard
from flfw.plans.combinations import check_clients
from flfw.plans.run_plan import plan, without_auto
from flfw.strategies.fedbn import FedBN, FedBNSettings
from tests.support import rounds
from tests.support.method_rounds import normed

CLOSE = 1e-10  # of a change, in float64
NORMED = ("extractor.1", "classifier.1")


@pytest.fixture
def asked(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two clients of 60 digits."""
    monkeypatch.setitem(nets._CARDS, "normed", NetCard(normed))
    given: dict[str, Any] = {"net": "normed", "split": "sampled", "clients": 2, "batch_size": 20, "lr": 0.05}
    return dataclasses.replace(small, method="fedbn", set=("sampled.train=60", "weight_decay=0"), **given)


def is_private(name: str) -> bool:
    return name.rpartition(".")[0] in NORMED


@pytest.mark.parametrize("weights", ["equal", "examples"])
def test_two_rounds_equal_a_loop(asked: Experiment, tmp_path: Path, weights: str) -> None:
    asked = dataclasses.replace(asked, set=(*asked.set, f"weights={weights}"))
    with rounds.exactly():
        result = rounds.play(asked, tmp_path, 2)
        clients = [rounds.fresh(asked) for _ in range(2)]
        start = {name: value.clone() for name, value in clients[0].state_dict().items()}
        broadcast = {name: value for name, value in start.items() if not is_private(name)}
        assert result.broadcasts[0].keys() == broadcast.keys()
        for now in (1, 2):
            for partition, net in enumerate(clients):
                net.load_state_dict(broadcast, strict=False)
                sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5)
                for x, y in rounds.batches(asked, partition, "batches", 1, now):
                    rounds.descend(sgd, cross_entropy(net(x), y))
            shares = rounds.SHARES if weights == "examples" else (0.5, 0.5)
            states = [net.state_dict() for net in clients]
            broadcast = {n: sum(k * s[n] for k, s in zip(shares, states, strict=True)) for n in broadcast}  # type: ignore[misc]
            assert rounds.error(result.broadcasts[now], broadcast, start) < CLOSE
        for partition, net in enumerate(clients):
            private = {name: value for name, value in net.state_dict().items() if is_private(name)}
            kept = ClientStore(tmp_path, "test", partition).load(2)
            assert len(kept) == 10
            assert rounds.error(kept, private, start) < CLOSE
        assert float((clients[0].state_dict()["extractor.1.running_var"] - 1).abs().max()) > 0.1


def test_batchnorm_and_nothing_else_is_private(small: Experiment) -> None:
    model = rounds.fresh(dataclasses.replace(small, method="fedbn", net="resnet18"))
    shared = FedBN.shared(model, FedBNSettings())
    private = set(model.state_dict()) - set(shared.downloads)
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert layers and private == {
        f"{layer}.{name}" for layer in layers for name in model.get_submodule(layer).state_dict()
    }
    assert shared.uploads == shared.downloads


def test_a_network_without_batchnorm_is_refused(small: Experiment) -> None:
    plain = dataclasses.replace(small, method="fedbn", net="lenet")
    with pytest.raises(InputError, match=r"a network with BatchNorm for fedbn, .* got layers=none"):
        check_clients(plan(without_auto(plain)).client)


def test_an_attacker_who_guesses_right_sees_what_was_sent(asked: Experiment, tmp_path: Path) -> None:
    """It knows neither gamma and beta nor the running statistics, and searches for the former alone."""
    with rounds.exactly():
        client = rounds.client(asked, tmp_path, 0)
        for name, parameter in client.model.named_parameters():
            if is_private(name):
                parameter.data.uniform_(0.5, 1.5)  # as if they had been trained
        true = {name: value.detach().clone() for name, value in client.model.state_dict().items()}
        x, y = client.examples("train", client.indices("train")[:3])
        sent = client.gradient(x.double(), y)
        received = {name: true[name] for name in client.sharing.downloads}
        victim = FedBN.victim_model(rounds.fresh(asked), received, client.ctx.task.inputs, client.ctx.settings)
        names = {f"{layer}.{name}" for layer in NORMED for name in ("weight", "bias")}
        assert set(victim.unknown) == names and set(victim.shared) == set(sent)
        assert all(torch.equal(v, torch.full_like(v, float("weight" in n))) for n, v in victim.unknown.items())
        victim.precision = torch.float64
        right = victim.gradient(x.double(), y, {name: true[name] for name in names}, {})
        assert rounds.error(right, sent, {n: torch.zeros_like(v) for n, v in sent.items()}) < 1e-6
        wrong = victim.gradient(x.double(), y, victim.unknown, {})
        assert rounds.error(wrong, sent, {n: torch.zeros_like(v) for n, v in sent.items()}) > 1e-2


def test_the_stand_in_normalises_as_training_does() -> None:
    layer, x = nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5)
    nn.init.uniform_(layer.weight)
    stand_in = normalising_by_batch(nn.Sequential(layer)).eval()
    torch.testing.assert_close(stand_in(x), layer(x))
    one = torch.randn(1, 3, 1, 1)  # of which there is no deviation
    torch.testing.assert_close(stand_in(one), layer.weight[:, None, None] * one / (1 + layer.eps) ** 0.5)
    assert "0.running_mean" in nn.Sequential(layer).state_dict()  # the model itself is left alone


@pytest.mark.nightly  # a search through a ResNet-18
def test_it_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--method fedbn --net resnet18 --engine inproc --clients 2 --rounds 1 --attack ig --images 1"
    words += " --victim-batch 4 --split sampled"
    few = ("ig.iterations=30", "sampled.train=10")  # in fewer, a search may come no closer than its start
    flags = [*words.split(), "--audit-rounds", "0", "--set", *few, "--out", str(tmp_path / "run")]
    assert sim.main(flags) == 0, capsys.readouterr().err
    (entry,) = json.loads((tmp_path / "run" / "result.json").read_text())["audit"]
    assert (entry["attack"], entry["failures"]) == ("ig", 0)
    (hidden,) = [line for line in entry["granted"] if line.startswith("not granted: the client's private tensors")]
    assert "which are searched for as well" in hidden
    assert "that BatchNorm takes the batch's statistics in training, as it does for a guess" in entry["granted"]
