"""SCAFFOLD: rounds against a loop that is written here, the clients' own variates, and what an attacker computes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.client.store import ClientStore
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.wire import pack
from flfw.nets import Net, NetCard
from flfw.plans.run_plan import plan
from flfw.runs import timed_phases
from flfw.server.aggregation import Update
from flfw.strategies.scaffold import Scaffold, ScaffoldSettings
from tests.support import rounds

CLOSE = 1e-10  # of a change, in float64


def toy(shape: tuple[int, ...], classes: int) -> Net:
    """Two layers and a buffer that nothing trains."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 8), nn.Sigmoid())
    extractor.register_buffer("counted", torch.ones(2))
    return Net(extractor, nn.Linear(8, classes))


@pytest.fixture
def asked(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Two clients of unlike sizes and classes."""
    monkeypatch.setitem(nets._CARDS, "toy", NetCard(toy))
    given: dict[str, Any] = {"net": "toy", "split": "dirichlet", "clients": 2, "batch_size": 64, "lr": 0.1}
    return dataclasses.replace(small, method="scaffold", set=("weight_decay=0",), **given)


def of(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): value for name, value in tensors.items() if name.startswith(f"{part}.")}


@pytest.mark.parametrize(("option", "eta"), [("I", 1.0), ("II", 1.0), ("II", 0.5)])
def test_three_rounds_equal_a_loop(asked: Experiment, tmp_path: Path, option: str, eta: float) -> None:
    """Algorithm 1 of the paper, its lines in their order."""
    with rounds.exactly():
        experiment = dataclasses.replace(asked, set=(*asked.set, f"option={option}", f"global_lr={eta}"))
        result = rounds.play(experiment, tmp_path, 3)
        net = rounds.fresh(dataclasses.replace(experiment, method="fedavg", set=()))
        parameters = dict(net.named_parameters())
        x = {name: value.detach().clone() for name, value in parameters.items()}
        c = {name: torch.zeros_like(value) for name, value in x.items()}
        chosen = [{name: torch.zeros_like(value) for name, value in x.items()} for _ in range(2)]

        def gradient(batch: list[tuple[Tensor, Tensor]], at: dict[str, Tensor]) -> dict[str, Tensor]:
            for name, parameter in parameters.items():
                parameter.data.copy_(at[name])
            inputs, labels = (torch.cat(many) for many in zip(*batch, strict=True))
            grads = torch.autograd.grad(cross_entropy(net(inputs), labels), list(parameters.values()))
            return dict(zip(parameters, grads, strict=True))

        for now in (1, 2, 3):
            ys, renewed = [], []
            for partition, variate in enumerate(chosen):
                y, batches = dict(x), rounds.batches(experiment, partition, "batches", 1, now)
                for batch in batches:
                    g = gradient([batch], y)
                    y = {n: y[n] - 0.1 * (g[n] - variate[n] + c[n]) for n in y}
                ys.append(y)
                if option == "I":
                    renewed.append(gradient(batches, x))
                else:
                    far = 0.1 * len(batches)
                    renewed.append({n: variate[n] - c[n] + (x[n] - y[n]) / far for n in y})
            before = {f"net.{n}": v for n, v in x.items()} | {f"control.{n}": v for n, v in c.items()}
            x = {n: x[n] + eta / 2 * sum(y[n] - x[n] for y in ys) for n in x}
            c = {n: c[n] + sum(new[n] - old[n] for new, old in zip(renewed, chosen, strict=True)) / 2 for n in c}
            chosen = renewed
            expected = {f"net.{n}": v for n, v in x.items()} | {f"control.{n}": v for n, v in c.items()}
            got = {name: result.broadcasts[now][name] for name in expected}
            assert rounds.error(got, expected, before) < CLOSE
        for partition, variate in enumerate(chosen):
            kept = ClientStore(tmp_path, "test", partition).load(3)
            zeros = {f"own.{n}": torch.zeros_like(v) for n, v in variate.items()}
            assert rounds.error(kept, {f"own.{n}": v for n, v in variate.items()}, zeros) < CLOSE
        assert result.broadcasts[-1]["net.extractor.counted"].tolist() == [1.0, 1.0]


def test_a_client_that_sat_out_counts_among_all(asked: Experiment) -> None:
    """C moves by 1 / N of a change, x by 1 / |S|."""
    strategy = Scaffold(ScaffoldSettings(global_lr=2.0))
    strategy.ctx = rounds.place(dataclasses.replace(asked, clients=5))
    sent = {"net.w": torch.tensor([1.0]), "control.w": torch.tensor([10.0]), "net.buffer": torch.tensor([4])}
    changed = [(2.0, 20.0, 5), (5.0, 15.0, 7)]
    updates = [
        Update(p, 100**p, {"net.w": torch.tensor([w]), "control.w": torch.tensor([c]), "net.buffer": torch.tensor([b])})
        for p, (w, c, b) in enumerate(changed)
    ]
    result = strategy.aggregate_round(pack(sent), iter(updates), 1)
    assert {name: value.tolist() for name, value in result.items()} == {
        "net.w": [1 + 2 * (1 + 4) / 2],
        "control.w": [10 + (10 + 5) / 5],
        "net.buffer": [6],
    }


def test_the_changes_sent_add_up_to_the_clients_own_variate(asked: Experiment, tmp_path: Path) -> None:
    with rounds.exactly():
        result, total = rounds.play(asked, tmp_path, 3), {}
        for broadcast, uploads in zip(result.broadcasts, result.uploads, strict=False):
            for name, value in of(uploads[0].tensors, "control").items():
                total[name] = total.get(name, 0) + value - broadcast[f"control.{name}"]
        kept = of(ClientStore(tmp_path, "test", 0).load(3), "own")
        assert rounds.error(total, kept, {name: torch.zeros_like(value) for name, value in kept.items()}) < CLOSE


def corrected(asked: Experiment, folder: Path, option: str = "II") -> tuple[Any, dict[str, Any]]:
    """Client 0 in round 3, and what it is sent."""
    asked = dataclasses.replace(asked, set=(*asked.set, f"option={option}"))
    result = rounds.play(asked, folder, 2)
    client = rounds.client(asked, folder, 0, 3)
    received = {name: value.numpy().copy() for name, value in result.broadcasts[-1].items()}
    client.load_received(received, version=2)
    return client, received


def test_a_probe_is_the_corrected_direction_and_the_attacker_takes_c_for_c_i(asked: Experiment, tmp_path: Path) -> None:
    with rounds.exactly():
        client, received = corrected(asked, tmp_path)
        x, y = client.examples("train", client.indices("train")[:2])
        x, state = x.double(), client.model.state_dict()
        sent = client.gradient(x, y)
        moving = dict(client.model.net.named_parameters())
        gradients = torch.autograd.grad(client.loss(x, y), list(moving.values()))
        plain = {f"net.{n}": g for n, g in zip(moving, gradients, strict=True)}
        gap = {f"net.{n}": state[f"control.{n}"] - state[f"own.{n}"] for n in moving}
        zeros = {name: torch.zeros_like(value) for name, value in sent.items()}
        assert rounds.error(sent, {n: g + gap[n] for n, g in plain.items()}, zeros) < CLOSE
        known = {name: torch.tensor(value) for name, value in received.items()}
        victim = Scaffold.victim_model(rounds.fresh(asked), known, client.ctx.task.inputs, client.ctx.settings)
        assert not victim.unknown and set(victim.shared) == set(sent)
        victim.precision = torch.float64
        assert rounds.error(victim.gradient(x, y, {}, {}), plain, zeros) < 1e-6
        assert rounds.error(plain, sent, zeros) > 1e-3  # which is the attacker's error


@pytest.mark.parametrize("option", ["I", "II"])
def test_a_probe_of_steps_sends_both_sets(asked: Experiment, tmp_path: Path, option: str) -> None:
    """After one step both options say the same: the gradient at x."""
    with rounds.exactly():
        client, received = corrected(asked, tmp_path, option)
        x, y = client.examples("train", client.indices("train")[:2])
        direction = {n: v.clone() for n, v in client.gradient(x.double(), y).items()}
        state = {name: value.clone() for name, value in client.model.state_dict().items()}
        sent = client.stepped(x.double(), y, 1)
        assert set(sent) == set(received)
        before = {name: torch.tensor(value) for name, value in received.items()}
        names = direction.keys()
        expected = {n: before[n] - 0.1 * direction[n] for n in names}
        assert rounds.error({n: sent[n] for n in names}, expected, before) < CLOSE
        controls = {n: n.replace("net.", "control.", 1) for n in names}
        gap = {n: state[c] - state[n.replace("net.", "own.", 1)] for n, c in controls.items()}
        change = {
            c: before[c] + (direction[n] - gap[n]) - state[n.replace("net.", "own.", 1)] for n, c in controls.items()
        }
        assert rounds.error({c: sent[c] for c in change}, change, before) < 1e-8
        for name, value in client.private_state().items():
            assert torch.equal(value, state[name])


@pytest.mark.parametrize("chosen", [{"optimiser": "adam"}, {"momentum": 0.5}, {"global_lr": 0.0}])
def test_settings_that_the_algorithm_does_not_have_are_refused(chosen: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ScaffoldSettings(**chosen)


def test_the_estimate_of_an_audit_asks_a_client_that_received(small: Experiment, tmp_path: Path) -> None:
    few = {"net": "lenet", "attack": ("analytic",), "images": 1, "clients": 2}
    run_plan = plan(dataclasses.replace(small, method="scaffold", **few))  # type: ignore[arg-type]
    assert timed_phases.audit_phase(run_plan, tmp_path, 0.0).probes_s > 0
