"""DSSGD: rounds against a loop written here, what is sent and what is downloaded, and what an attacker knows."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.client.context import ClientContext
from flfw.client.site import Site
from flfw.client.store import ClientStore
from flfw.clients.dssgd import selected
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.wire import pack
from flfw.nets import Net
from flfw.plans.run_plan import plan
from flfw.rng import initialising, torch_generator
from flfw.runs import launch
from flfw.server.aggregation import Update
from flfw.strategies.dssgd import DSSGD, DSSGDSettings, SelectiveNet, offered
from tests.support.attackable import gradient
from tests.support.rounds import batches, descend


def asked(small: Experiment, *settings: str, **more: Any) -> Experiment:
    changes = {"method": "dssgd", "net": "linear", "set": settings, "lr": 0.1, **more}
    return dataclasses.replace(small, **changes)


def run(experiment: Experiment, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    launch.run_on_engine(plan(dataclasses.replace(experiment, out=folder)), Site(state=folder / "state"))
    return folder


def server(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the last checkpoint holds: the broadcast, and the server's own tensors."""
    tensors = load_file(next((folder / "checkpoint").glob("round-*.safetensors")))
    return tuple(
        {n[7 if p == "server/" else 6 :]: v for n, v in tensors.items() if n.startswith(p)}
        for p in ("model/", "server/")
    )  # type: ignore[return-value]


def kept(folder: Path, partition: int, server_round: int) -> dict[str, Tensor]:
    return load_file(next((folder / "state").glob(f"*/*/client-{partition:04d}/round-{server_round:05d}-*")))


# --- the loop: one vector of all entries, Python's own sort, torch's own optimiser ---


def vector(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def as_vector(tensors: dict[str, Tensor], prefix: str, net: nn.Module) -> Tensor:
    return torch.cat([tensors[f"{prefix}{name}"].flatten() for name, _ in net.named_parameters()])


def trained(net: nn.Module, start: Tensor, experiment: Experiment, server_round: int, partition: int) -> Tensor:
    nn.utils.vector_to_parameters(start.clone(), net.parameters())
    optimiser = torch.optim.SGD(net.parameters(), lr=experiment.lr, momentum=0.5, weight_decay=5e-4)
    for x, y in batches(experiment, partition, "batches", experiment.local_epochs, server_round):
        descend(optimiser, cross_entropy(net(x), y))
    return vector(net)


def largest(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


def loop(experiment: Experiment, settings: DSSGDSettings) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    """After the last round: the server's parameters, the clients' copies, the counts and the fresh entries."""
    with initialising(experiment.seed, "model"):
        net = plan(experiment).task.load(None).build_net()
    parameters = vector(net)
    copies = [parameters.clone() for _ in range(experiment.clients)]
    stat, fresh = torch.zeros_like(parameters), torch.ones_like(parameters).bool()
    up, down = round(settings.theta_u * len(stat)), round(settings.theta_d * len(stat))
    for server_round in range(1, experiment.rounds + 1):
        total, new = torch.zeros_like(parameters), torch.zeros_like(parameters)
        for partition in range(experiment.clients):
            copy = torch.where(fresh, parameters, copies[partition])
            after = trained(net, copy, experiment, server_round, partition)
            copies[partition], change = after, after - copy
            if settings.gamma:
                change = torch.tensor([min(max(c, -settings.gamma), settings.gamma) for c in change.tolist()])
            if settings.criterion == "largest":
                places = largest(change.abs().tolist(), up)
            else:
                above = [i for i, c in enumerate(change.tolist()) if abs(c) > settings.tau]
                rng = torch_generator(experiment.seed, "upload", server_round, partition)
                places = [above[i] for i in torch.randperm(len(above), generator=rng)[:up].tolist()]
            for i in places:
                total[i] += change[i]
                new[i] += bool(change[i])
        parameters = parameters + total / (experiment.clients if settings.combine == "mean" else 1)
        stat = settings.decay * stat + new
        fresh = torch.zeros_like(fresh)
        fresh[largest(stat.tolist(), down)] = True
    return parameters, copies, stat, fresh


@pytest.mark.parametrize(
    "settings",
    [
        DSSGDSettings(theta_d=0.4, theta_u=0.2),
        DSSGDSettings(theta_d=0.4, theta_u=0.2, criterion="random", tau=1e-3, decay=0.5),
        DSSGDSettings(theta_d=0.7, theta_u=0.3, gamma=2e-3, combine="mean"),
        DSSGDSettings(theta_d=1.0, theta_u=0.1),
    ],
    ids=["largest", "random", "bounded mean", "all of it"],
)
def test_rounds_equal_a_loop(small: Experiment, tmp_path: Path, settings: DSSGDSettings) -> None:
    chosen = [f"{field.name}={getattr(settings, field.name)}" for field in dataclasses.fields(settings)]
    experiment = asked(small, *chosen, rounds=3)
    parameters, copies, stat, fresh = loop(experiment, settings)
    folder = run(experiment, tmp_path / "run")
    sent, given = server(folder)
    with initialising(0, "names"):
        net = plan(experiment).task.load(None).build_net()
    torch.testing.assert_close(as_vector(given, "shared.", net), parameters, atol=1e-6, rtol=1e-5)
    assert torch.equal(as_vector(given, "stat.shared.", net), stat)
    if settings.theta_d == 1:
        assert torch.equal(as_vector(sent, "shared.", net), as_vector(given, "shared.", net))
        assert not any(name.startswith("fresh.") for name in sent)
        assert not list((folder / "state").rglob("client-*"))  # nothing is private
        return
    assert torch.equal(as_vector(sent, "fresh.", net).bool(), fresh)
    assert 0 < int(fresh.sum()) < len(fresh)
    shown = torch.where(fresh, as_vector(given, "shared.", net), 0.0)
    assert torch.equal(as_vector(sent, "shared.", net), shown)  # the others cannot be read off the message
    for partition, copy in enumerate(copies):
        torch.testing.assert_close(as_vector(kept(folder, partition, 3), "own.", net), copy, atol=1e-6, rtol=1e-5)


# --- one client ---


def client(experiment: Experiment, folder: Path, partition: int = 0, server_round: int = 1) -> Any:
    store = ClientStore(folder, "test", partition)
    ctx = ClientContext(plan(experiment).client, plan(experiment).task.load(None), partition, server_round, None, store)
    return plan(experiment).client_class(ctx)


def received(given: Any) -> dict[str, Any]:
    state = given.model.state_dict()
    return {name: state[name].numpy().copy() for name in given.download_names}


@pytest.mark.parametrize("theta_d", [1.0, 0.5])
def test_only_the_share_leaves_and_the_rest_is_as_received(small: Experiment, tmp_path: Path, theta_d: float) -> None:
    one = client(asked(small, "theta_u=0.1", f"theta_d={theta_d}"), tmp_path)
    came = received(one)
    for name in came:
        if name.startswith("fresh."):
            came[name].reshape(-1)[::2] = 0
            came["shared" + name[5:]].reshape(-1)[::2] = 0.0
    sent, _ = one.fit_named(came, version=0)
    changed = sum(int((value != torch.tensor(came[name])).sum()) for name, value in sent.items())
    assert sum(value.numel() for value in sent.values()) == 650
    assert changed == 65
    assert not any(name.startswith(("own.", "fresh.")) for name in sent)


def test_a_copy_goes_on_where_it_is_not_overwritten(small: Experiment, tmp_path: Path) -> None:
    experiment = asked(small, "theta_d=0.5")
    first = client(experiment, tmp_path)
    came = received(first)
    first.fit_named(came, version=0)
    copy = {name: value.clone() for name, value in first.model.state_dict().items() if name.startswith("own.")}
    came["fresh.classifier.weight"][:] = 0
    came["fresh.classifier.weight"][3] = 1
    came["shared.classifier.weight"][:] = 0
    came["shared.classifier.weight"][3] = 7.0
    second = client(experiment, tmp_path, server_round=2)
    second.load_received(came, version=1)
    expected = copy["own.classifier.weight"].clone()
    expected[3] = 7.0
    assert torch.equal(second.model.state_dict()["own.classifier.weight"], expected)
    x = second.examples("train", second.indices("train")[:2])[0]
    inputs = second.ctx.task.inputs.normalise(x)
    bias = torch.tensor(came["shared.classifier.bias"])  # all of it is fresh
    torch.testing.assert_close(second.model(inputs), inputs.flatten(1) @ expected.T + bias)


def test_a_killed_run_goes_on_to_the_same_numbers(small: Experiment, tmp_path: Path) -> None:
    experiment = asked(small, "theta_d=0.3", rounds=4, clients=4, sample=2)
    whole = server(run(experiment, tmp_path / "whole"))
    halved = tmp_path / "halved"

    class Killed(Exception):
        pass

    def die(self: Any, *given: Any, **more: Any) -> Any:
        if self.round == 2:
            raise Killed
        return aggregate(self, *given, **more)

    aggregate = DSSGD.aggregate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DSSGD, "aggregate", die)
        with pytest.raises(Killed):
            run(experiment, halved)
    for result, expected in zip(server(run(experiment, halved)), whole, strict=True):
        assert result.keys() == expected.keys()
        assert all(torch.equal(result[name], expected[name]) for name in expected)


# --- numbers that can be checked by hand ---


def test_largest_takes_the_first_of_equals() -> None:
    change = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[2.0], [0.5], [-2.0]])}
    result = selected(change, 0.4, "largest", 0.0, torch.Generator())
    assert result["a"].tolist() == [0.0, -2.0] and result["b"].tolist() == [[2.0], [0.0], [0.0]]


def test_random_takes_any_above_tau_and_no_more_than_there_are() -> None:
    change, rng = {"w": torch.tensor([0.1, -0.5, 0.3, 0.2, -0.4, 0.3])}, torch_generator(0, "test")
    few = [selected(change, 1 / 3, "random", 0.25, rng)["w"] for _ in range(60)]
    assert {int((value != 0).sum()) for value in few} == {2}
    assert torch.stack(few).abs().amax(0).tolist() == pytest.approx([0.0, 0.5, 0.3, 0.0, 0.4, 0.3])
    assert selected(change, 1.0, "random", 0.3, rng)["w"].tolist() == pytest.approx([0, -0.5, 0, 0, -0.4, 0])


def test_at_least_one_entry_is_sent_and_offered() -> None:
    assert selected({"w": torch.tensor([1.0, 2.0])}, 1e-6, "largest", 0.0, torch.Generator())["w"].tolist() == [0, 2]
    result = offered({"shared.w": torch.tensor([1.0, 2.0])}, {"shared.w": torch.zeros(2)}, 1e-6)
    assert result["fresh.w"].tolist() == [1, 0] and result["shared.w"].tolist() == [1, 0]


def combined(settings: DSSGDSettings, *rounds: list[list[float]]) -> tuple[DSSGD, list[float]]:
    """A server of two parameters that begins at (10, 20) and is sent these, in one round after another."""
    strategy, arrays = DSSGD(settings), {"shared.w": torch.tensor([10.0, 20.0])}
    for sent in rounds:
        updates = (Update(k, k + 1, {"shared.w": torch.tensor(v)}) for k, v in enumerate(sent))
        arrays = strategy.aggregate_round(pack(arrays), updates, 1)
    return strategy, arrays["shared.w"].tolist()


def test_changes_are_added_or_averaged_and_counted() -> None:
    first, second = [[11.0, 20.0], [12.0, 24.0]], [[13.0, 0.0], [13.0, 0.0]]
    strategy, result = combined(DSSGDSettings(), first)
    assert result == [13.0, 24.0] and strategy.state["stat.shared.w"].tolist() == [2, 1]
    strategy, result = combined(DSSGDSettings(combine="mean"), first)
    assert result == [11.5, 22.0]
    # Half is offered: in round 2 the second entry came as 0, and nobody changed either.
    strategy, result = combined(DSSGDSettings(theta_d=0.5, decay=0.5), first, second)
    assert result == [13.0, 0.0]
    assert strategy.state["shared.w"].tolist() == [13.0, 24.0] and strategy.state["stat.shared.w"].tolist() == [1, 0.5]
    strategy, result = combined(DSSGDSettings(theta_d=0.5), first, [[13.0, 5.0], [13.0, 1.0]])
    assert strategy.state["shared.w"].tolist() == [13.0, 30.0]  # a change of what it was not sent
    assert strategy.state["stat.shared.w"].tolist() == [2, 3] and result == [0.0, 30.0]


def test_a_network_with_buffers_is_refused_by_their_names() -> None:
    with pytest.raises(InputError, match=r"without buffers, got buffers=extractor\.0\.running_mean"):
        DSSGD.build_model(Net(nn.Sequential(nn.BatchNorm1d(2)), nn.Linear(2, 2)), DSSGDSettings())


# --- what an attacker sees and computes ---


def probed(small: Experiment, folder: Path, *settings: str) -> tuple[Any, Tensor, Tensor, dict[str, Tensor]]:
    one = client(asked(small, *settings), folder)
    x, y = one.examples("train", one.indices("train")[:1])
    gradients = gradient(one.model, one.ctx.task.inputs, x, y)
    return one, x, y, {n: v for n, v in gradients.items() if n.startswith("shared.")}


def test_a_probe_is_the_chosen_and_bounded_entries_of_a_step(small: Experiment, tmp_path: Path) -> None:
    one, x, y, gradient = probed(small, tmp_path, "theta_u=0.01", "gamma=0.001")
    result, flat = one.gradient(x, y), torch.cat([g.flatten() for g in gradient.values()])
    sent = torch.cat([result[name].flatten() for name in gradient])
    bounded = flat.clamp(-0.01, 0.01)  # lr is 0.1
    indices = largest(bounded.abs().tolist(), round(0.01 * len(flat)))
    expected = torch.zeros_like(flat)
    expected[indices] = bounded[indices]
    torch.testing.assert_close(sent, expected)
    assert float(flat.abs().max()) > 0.02  # so that the bound acts


@pytest.mark.parametrize("theta_d", [1.0, 0.5])
def test_the_victim_gives_what_was_sent_for_the_true_data(small: Experiment, tmp_path: Path, theta_d: float) -> None:
    settings = ("theta_u=0.2", "gamma=0.002", f"theta_d={theta_d}")
    one, x, y, _ = probed(small, tmp_path, *settings)
    came = received(one)
    if theta_d < 1:
        came["fresh.classifier.weight"][:, ::2] = 0
        came["shared.classifier.weight"][:, ::2] = 0
    one.load_received(came, version=0)
    sent, known = one.gradient(x, y), {name: torch.tensor(value) for name, value in came.items()}
    with initialising(1, "attacker"):
        model = DSSGD.build_model(one.ctx.task.build_net(), one.ctx.settings)
    victim = DSSGD.victim_model(model, known, one.ctx.task.inputs, one.ctx.settings)
    assert set(victim.unknown) == {name for name in one.model.state_dict() if name.startswith("own.")}
    observed, constants = victim.observed(sent)
    right = {name: value for name, value in one.model.state_dict().items() if name.startswith("own.")}
    torch.testing.assert_close(victim.gradient(x, y, right, constants), observed)
    if theta_d < 1:  # a wrong guess of what was not downloaded gives something else
        wrong = victim.gradient(x, y, victim.unknown, constants)
        assert max(float((wrong[n] - observed[n]).abs().max()) for n in observed) > 1e-3


def test_the_model_is_the_received_where_fresh_and_else_the_own() -> None:
    with initialising(0, "test"):
        model = SelectiveNet(Net(nn.Sequential(), nn.Linear(2, 1, bias=False)), full=False, bounded=False)
    with torch.no_grad():
        model.get_parameter("shared.classifier.weight")[:] = torch.tensor([[2.0, 0.0]])
        model.get_parameter("own.classifier.weight")[:] = torch.tensor([[5.0, 3.0]])
        model.get_buffer("fresh.classifier.weight")[0, 1] = 0
    x = torch.tensor([[1.0, 10.0]])
    assert model(x).item() == 32.0
    given = [model.get_parameter(f"{part}.classifier.weight") for part in ("shared", "own")]
    shared, chosen = torch.autograd.grad(model(x).sum(), given)
    assert shared.tolist() == [[1.0, 10.0]] and chosen.tolist() == [[0.0, 10.0]]
