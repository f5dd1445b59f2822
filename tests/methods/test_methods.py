"""Every method: one round against a loop written here, and what all of them promise."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, leaky_relu, max_pool2d

from flfw import plugins
from flfw.client.context import ClientContext
from flfw.client.store import ClientStore
from flfw.data import feed
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.messages.sharing import SharingViolationError
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import initialising
from flfw.runs.run_notes import final_accuracies
from flfw.server.strategy import FederatedStrategy
from tests.support import rounds
from tests.support.attackable import gradient
from tests.support.engine_runs import rows_without_times, train_by_engine
from tests.support.method_rounds import (
    METHODS,
    NARROW,
    assert_equal,
    by_method,
    initial_tensors,
    make_client,
    one_round,
    plain_net,
    sizes,
    weighted,
)

NOISY = [
    name
    for name in METHODS
    if plugins.load_class(plugins.METHOD, name, FederatedStrategy).mechanism.__func__
    is not FederatedStrategy.mechanism.__func__  # type: ignore[attr-defined]
]

# Settings under which a method does nothing to what it sends.
BARE = dict.fromkeys(NOISY, ("noise_multiplier=0", "clip=1e9")) | {"dssgd": ("theta_u=1",)}

# Fed-SDP's own noise, of deviation 24 in each weight, makes scores of 1e9 out of CNN 1 and NaN in two more steps, which
# the server refuses: nothing is left to repeat.
TRAINABLE = {"fed_sdp": ("noise_multiplier=0.01",)}


# --- the loops, written with torch's own optimiser and nothing of flfw's training code ---


def train(
    net: nn.Module, experiment: Experiment, partition: int, extra: Callable[[], Tensor] | None = None
) -> nn.Module:
    optimiser = torch.optim.SGD(net.parameters(), lr=experiment.lr, momentum=0.5, weight_decay=5e-4)
    for x, y in rounds.batches(experiment, partition, "batches", experiment.local_epochs, 1):
        rounds.descend(optimiser, cross_entropy(net(x), y) + (extra() if extra else 0))
    return net


def uneven(experiment: Experiment, method: str) -> Experiment:
    """Clients of different sizes, so that a plain mean in place of the weighted one shows."""
    return dataclasses.replace(experiment, method=method, split="dirichlet", local_epochs=2, batch_size=64, lr=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_averaging_methods_equal_a_loop(small: Experiment, tmp_path: Path, method: str) -> None:
    experiment = uneven(small, method)
    assert len(set(sizes(experiment))) > 1
    nets = [train(plain_net(experiment), experiment, p) for p in range(3)]
    expected = weighted([net.state_dict() for net in nets], sizes(experiment))
    if method == "fedper":
        expected = {n: v for n, v in expected.items() if n.startswith("extractor.")}
    result, clients = one_round(experiment, tmp_path)
    assert_equal(result, expected)
    for client, net in zip(clients, nets, strict=True):
        assert_equal(client.model.state_dict(), net.state_dict())


@pytest.mark.slow
def test_fedprox_equals_a_loop(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(uneven(small, "fedprox"), set=("mu=0.5",))
    start = {n: v.clone() for n, v in plain_net(experiment).state_dict().items()}
    states = []
    for partition in range(3):
        net = plain_net(experiment)

        def proximal(net: nn.Module = net) -> Tensor:
            return 0.25 * torch.stack([((p - start[n]) ** 2).sum() for n, p in net.named_parameters()]).sum()

        states.append(train(net, experiment, partition, proximal).state_dict())
    result, _ = one_round(experiment, tmp_path)
    assert_equal(result, weighted(states, sizes(experiment)))
    without, _ = one_round(dataclasses.replace(experiment, set=("mu=0",)), tmp_path / "other")
    assert max(float((result[n] - without[n]).abs().max()) for n in result) > 1e-4


@pytest.mark.slow
def test_local_only_trains_alone_and_sends_nothing(small: Experiment, tmp_path: Path) -> None:
    experiment = uneven(small, "local_only")
    result, clients = one_round(experiment, tmp_path)
    assert result == {}
    for partition, client in enumerate(clients):
        assert_equal(client.model.state_dict(), train(plain_net(experiment), experiment, partition).state_dict())


def hyperfl_loop(experiment: Experiment, partition: int) -> dict[str, Tensor]:
    """Steps A and B of the paper with a network written out by hand, in float64; all tensors under flfw's names."""
    method, settings = plan(experiment).client.method, plan(experiment).client.settings
    with initialising(experiment.seed, "model"):
        state = method.build_model(plan(experiment).task.load(None).build_net(), settings).state_dict()
    w = {name: value.double().requires_grad_() for name, value in state.items()}
    shapes = [(16, 1, 5, 5), (16,), (32, 16, 5, 5), (32,), (128, 800), (128,)]

    def scores(x: Tensor) -> Tensor:
        h = torch.relu(w["hypernet.trunk.weight"] @ w["embedding"] + w["hypernet.trunk.bias"])
        heads = [w[f"hypernet.heads.{k}.weight"] @ h + w[f"hypernet.heads.{k}.bias"] for k in range(6)]
        t = [head.view(shape) for head, shape in zip(heads, shapes, strict=True)]
        x = max_pool2d(leaky_relu(nn.functional.conv2d(x.double(), t[0], t[1]), 0.01), 2)
        x = max_pool2d(leaky_relu(nn.functional.conv2d(x, t[2], t[3], padding=1), 0.01), 2)
        x = leaky_relu(x.flatten(1) @ t[4].T + t[5], 0.01)
        return x @ w["classifier.weight"].T + w["classifier.bias"]

    head = [w["classifier.weight"], w["classifier.bias"]]
    step_a = torch.optim.SGD(head, lr=0.1, momentum=0.5, weight_decay=5e-4)
    for x, y in rounds.batches(experiment, partition, "classifier", 1, 1):
        rounds.descend(step_a, cross_entropy(scores(x), y))
    hyper = [value for name, value in w.items() if name.startswith("hypernet.")]
    step_b = torch.optim.SGD([*hyper, w["embedding"]], lr=experiment.lr, momentum=0.5, weight_decay=5e-4)
    for x, y in rounds.batches(experiment, partition, "hypernetwork", experiment.local_epochs, 1):
        step_b.zero_grad()
        cross_entropy(scores(x), y).backward()
        nn.utils.clip_grad_norm_(hyper, 0.5)
        nn.utils.clip_grad_norm_([w["embedding"]], 0.5)
        step_b.step()
    return {name: value.detach() for name, value in w.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("step", "error"), [("low_rank", 1e-4), ("dense", 5e-3)])  # float32, which steps magnify
def test_hyperfl_equals_a_loop(small: Experiment, tmp_path: Path, step: str, error: float) -> None:
    # A clip of 0.5 instead of 50 makes both clips act.
    settings = (*NARROW["hyperfl"], "clip=0.5", f"step={step}")
    changes = {"method": "hyperfl", "clients": 2, "batch_size": 64, "lr": 0.1, "set": settings}
    experiment = dataclasses.replace(small, **changes)
    states = [hyperfl_loop(experiment, partition) for partition in range(2)]
    expected = weighted([{n: v for n, v in s.items() if n.startswith("hypernet.")} for s in states], sizes(experiment))
    result, clients = one_round(experiment, tmp_path)
    start = {n: torch.tensor(v) for n, v in initial_tensors(experiment).items()}
    assert relative_error_of_change(result, expected, start) < error
    for client, state in zip(clients, states, strict=True):
        assert_equal({n: client.model.state_dict()[n] for n in client.private_names}, private(state), 1e-5)
    unclipped, _ = one_round(dataclasses.replace(experiment, set=NARROW["hyperfl"]), tmp_path / "other")
    assert relative_error_of_change(unclipped, expected, start) > 0.1


def private(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: v for n, v in state.items() if not n.startswith("hypernet.")}


def relative_error_of_change(result: dict[str, Tensor], expected: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """Against the size of the change: a wrong step on a hypernetwork is small against the hypernetwork."""
    wrong = sum(float(((result[n] - expected[n]) ** 2).sum()) for n in start)
    return (wrong / sum(float(((expected[n] - start[n]) ** 2).sum()) for n in start)) ** 0.5


# --- what all methods promise ---


@pytest.mark.parametrize("method", METHODS)
def test_sends_what_it_declares_and_keeps_the_rest(small: Experiment, tmp_path: Path, method: str) -> None:
    experiment = by_method(small, method)
    client = make_client(experiment, 0, tmp_path)
    sharing = client.ctx.method.shared(client.model, client.ctx.settings)
    sent, metrics = client.fit_named(initial_tensors(experiment), version=0)
    everything = set(client.model.state_dict())
    assert set(sent) == {name for name in everything if matches(name, sharing.uploads)}
    assert metrics["num-examples"] == 150 and np.isfinite(metrics["loss"])
    private = {name for name in everything if not matches(name, sharing.downloads)}
    kept = ClientStore(tmp_path, "test", 0).load(1) if client.private_state() else {}
    assert set(kept) >= private
    torch.testing.assert_close(kept, client.private_state(), rtol=0, atol=0)


@pytest.mark.slow
def test_hyperfl_sends_the_hypernetwork_and_nothing_else(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, method="hyperfl")
    client = make_client(experiment, 2, tmp_path)
    sent, _ = client.fit_named(initial_tensors(experiment), version=0)
    assert sent and all(name.startswith("hypernet.") for name in sent)
    assert set(client.gradient(torch.rand(1, 1, 28, 28), torch.tensor([3]))) == set(sent)


@pytest.mark.slow
def test_sending_the_classifier_fails(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, method="hyperfl")
    honest = plan(experiment).client_class

    class Careless(honest):  # type: ignore[misc, valid-type]
        def upload_tensors(self) -> dict[str, Tensor]:
            return {**super().upload_tensors(), "classifier.weight": self.model.state_dict()["classifier.weight"]}

    store = ClientStore(tmp_path, "test", 3)
    ctx = ClientContext(plan(experiment).client, plan(experiment).task.load(None), 2, 1, None, store)
    with pytest.raises(SharingViolationError) as refusal:
        Careless(ctx).fit(list(initial_tensors(experiment).values()), {"state_version": 0})
    assert str(refusal.value) == "client 2 would send classifier.weight, but hyperfl uploads only hypernet.*"


def test_validation_data_are_neither_trained_nor_tested_on(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, split="sampled", set=("sampled.train=100",))
    client = make_client(experiment, 1, tmp_path)
    _, metrics = client.fit_named(initial_tensors(experiment), version=0)
    task, right = plan(experiment).task.load(None), {}
    for part in ("test", "validation"):
        indices = getattr(task.split, part)[1]
        x = torch.tensor(task.dataset.test_x[indices]).float() / 255
        scores = client.model.eval()(task.inputs.normalise(x))
        right[part] = float((scores.argmax(1) == torch.tensor(task.dataset.test_y[indices])).float().mean())
    assert right["test"] != right["validation"]  # so that a mix-up would show
    assert metrics["acc_validation"] == pytest.approx(right["validation"])
    assert metrics["acc_local"] == pytest.approx(right["test"])


def test_the_final_evaluation_has_the_received_model_s_accuracy_on_validation_data(
    small: Experiment, tmp_path: Path
) -> None:
    received = initial_tensors(small)
    assert "acc_global_validation" not in make_client(small, 1, tmp_path).evaluate_named(received, version=0)
    experiment = dataclasses.replace(small, split="sampled", set=("sampled.train=100",), method="fedavg", lr=0.5)
    received = initial_tensors(experiment)
    client, rows = make_client(experiment, 1, tmp_path), []
    rows.append(client.evaluate_named(received, version=0))
    client.load_received(received, 0)
    assert rows[0]["acc_global_validation"] == client.accuracy("validation")
    assert rows[0]["acc_global_validation"] != rows[0]["acc_validation"]  # that is after the local training
    rows.append({**rows[0], "acc_global_validation": rows[0]["acc_global_validation"] + 0.2})
    final = final_accuracies(rows, [], None)
    assert final["acc_global_validation"] == pytest.approx(rows[0]["acc_global_validation"] + 0.1)
    assert final["acc_validation"] == rows[0]["acc_validation"]
    assert final_accuracies([{"acc_global": 0.5, "acc_local": 0.5}], [], None)["acc_global_validation"] is None


def test_training_sees_varied_images_and_nothing_else_does(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def record(images: torch.Tensor, how: str, rng: torch.Generator) -> torch.Tensor:
        seen.append((how, len(images)))
        return images

    monkeypatch.setattr(feed, "augment", record)
    experiment = dataclasses.replace(small, augment="crop_flip", local_epochs=2)
    make_client(experiment, 1, tmp_path).fit_named(initial_tensors(experiment), version=0)
    assert seen == [("crop_flip", 50)] * 6  # 150 examples, twice; no batch of an evaluation


def test_the_papers_data_are_varied_as_theirs(small: Experiment) -> None:
    requested = dataclasses.replace(small, net="auto", augment="auto", split="auto")
    names = ("cifar10", "cinic10", "mnist", "digit5")
    result = [without_auto(dataclasses.replace(requested, dataset=name)) for name in names]
    assert [e.augment for e in result] == ["crop_flip", "crop_flip", "none", "none"]
    assert [e.net for e in result] == ["cnn2", "cnn2", "cnn1", "lenet5"]
    assert [e.split for e in result] == ["dominant", "dominant", "dominant", "domains"]
    assert without_auto(dataclasses.replace(requested, dataset="cifar10", augment="none")).augment == "none"


@pytest.mark.parametrize("method", METHODS)
def test_numpy_client_contract(small: Experiment, tmp_path: Path, method: str) -> None:
    experiment = by_method(small, method)
    client = make_client(experiment, 1, tmp_path)
    parameters = client.get_parameters({})
    assert [p.shape for p in parameters] == [v.shape for v in initial_tensors(experiment).values()]
    arrays, examples, metrics = client.fit([p.copy() for p in parameters], {"state_version": 0})
    again, _ = make_client(experiment, 1, tmp_path / "b").fit_named(initial_tensors(experiment), version=0)
    assert examples == 150 and all(isinstance(v, int | float) for v in metrics.values())
    assert len(arrays) == len(again)
    for array, tensor in zip(arrays, again.values(), strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())
    loss, tested, result = make_client(experiment, 1, tmp_path / "c").evaluate(parameters, {"state_version": 0})
    assert tested == len(plan(experiment).task.load(None).split.test[1]) and np.isfinite(loss)
    assert 0 <= result["acc_global"] <= 1 and 0 <= result["acc_local"] <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_probe_is_the_gradient_of_what_is_shared_and_changes_nothing(
    small: Experiment, tmp_path: Path, method: str
) -> None:
    experiment = by_method(small, method, set=BARE.get(method, ()))
    client = make_client(experiment, 0, tmp_path)
    client.load_received(initial_tensors(experiment), version=0)
    before = {n: v.clone() for n, v in client.model.state_dict().items()}
    task = plan(experiment).task.load(None)
    x, y = task.examples("train", task.split.train[0][:2])
    result = client.gradient(x, y) if plan(experiment).client.method.uploads else {}
    expected = gradient(client.model, task.inputs, x, y)
    assert set(result) == {
        n for n in before if matches(n, client.ctx.method.descended(client.model, client.ctx.settings))
    }
    assert_equal(result, {n: expected[n] for n in result})
    torch.testing.assert_close(dict(client.model.state_dict()), before, rtol=0, atol=0)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("method", [name for name in NOISY if name != "dp_ftrl"])  # whose noise is the server's
def test_a_noisy_probe_repeats_and_no_other_round_or_seed_has_its_noise(
    small: Experiment, tmp_path: Path, method: str
) -> None:
    experiment = by_method(small, method)

    def probe(experiment: Experiment, server_round: int = 1) -> dict[str, Tensor]:
        client = make_client(experiment, 0, tmp_path, server_round)
        with initialising(0, "model"):  # that another seed changes nothing but the noise
            weights = client.ctx.method.build_model(client.ctx.task.build_net(), client.ctx.settings).state_dict()
        client.model.load_state_dict(weights)
        return client.gradient(*client.examples("train", plan(small).task.load(None).split.train[0][:2]))

    quiet = probe(dataclasses.replace(experiment, set=("noise_multiplier=0",)))
    one, again = probe(experiment), probe(experiment)
    others = [probe(experiment, server_round=2), probe(dataclasses.replace(experiment, seed=1))]
    for name, value in one.items():
        assert torch.equal(value, again[name])
        noise = value - quiet[name]
        assert float(noise.std()) > 0
        for other in others:
            assert float((other[name] - quiet[name] - noise).std()) > 0.5 * float(noise.std()), name
    lengths = []
    for chosen in (BARE[method], ("noise_multiplier=0", "clip=1e-4")):
        result = probe(dataclasses.replace(experiment, set=chosen))
        lengths.append(float(torch.stack([value.square().sum() for value in result.values()]).sum().sqrt()))
    assert lengths[1] < 0.1 * lengths[0]


SEEDED = ("fedavg", "fedper", "hyperfl", "fed_cdp", "scaffold")  # all others are slow


@pytest.mark.slow
@pytest.mark.parametrize("method", [m if m in SEEDED else pytest.param(m, marks=pytest.mark.nightly) for m in METHODS])
def test_a_seed_repeats_and_another_differs(small: Experiment, tmp_path: Path, method: str) -> None:
    experiment = by_method(small, method, clients=3, sample=2, set=TRAINABLE.get(method, ()))
    one, two = train_by_engine(experiment, tmp_path / "one"), train_by_engine(experiment, tmp_path / "two")
    assert rows_without_times(one) == rows_without_times(two)
    other = train_by_engine(dataclasses.replace(experiment, seed=1), tmp_path / "other")
    assert rows_without_times(one) != rows_without_times(other)
    assert all(row["loss"] is not None for training in (one, other) for row in training["clients"])  # None: not finite


@pytest.mark.slow
def test_a_client_goes_on_from_its_own_last_round(small: Experiment, tmp_path: Path) -> None:
    """With two of four clients a round, private tensors skip the rounds their client sat out."""
    experiment = dataclasses.replace(small, method="fedper", clients=4, sample=1, rounds=4)
    training = train_by_engine(experiment, tmp_path / "run")
    took_part = {row["client"]: row["round"] for row in training["clients"]}
    state = next((tmp_path / "run" / "state").iterdir())
    for client, last in took_part.items():
        versions = sorted(path.stem for path in (state / f"{client:02x}" / f"client-{client:04d}").iterdir())
        assert versions[-1].startswith(f"round-{last:05d}-")
    assert len(training["final"]) == 4


def test_strategy_alone_needs_no_enrolment() -> None:
    """Another Flower app may import a strategy by itself: nodes it never enrolled are taken in order."""
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp

    from flfw.messages.inprocess import InProcessGrid

    for method in METHODS:
        strategy = plugins.load_class(plugins.METHOD, method, FederatedStrategy)()  # type: ignore[abstract]
        grid, min_separation = InProcessGrid(ClientApp(), 3, {}), strategy.min_separation(strategy.settings)
        messages = list(strategy.configure_train(1, ArrayRecord({}), ConfigRecord({}), grid))
        assert [m.metadata.dst_node_id for m in messages] == [1, 2, 3][::min_separation]


AT_LEAST_0, AT_LEAST_1, STARTS = "{} >= 0", "{} >= 1", "start among common, independent"
OUT_OF_RANGE = {
    ("dssgd", "0 < {} <= 1"): "theta_u=nan theta_d=-0.5 decay=0",
    ("dssgd", "0 <= {} < inf"): "tau=-1 gamma=inf",
    ("dssgd", "criterion among largest, random"): "criterion=smallest",
    ("dssgd", "combine among sum, mean"): "combine=median",
    ("fedcg", AT_LEAST_0): "weight_decay=-1 gan_epochs=-1 gamma_rounds=-1 diversity=nan",
    ("fedcg", "{} > 0"): "gan_lr=0 server_lr=0",
    ("fedcg", AT_LEAST_1): "iterations=0 server_batch=0",
    ("fedcg", STARTS): "start=else",
    ("fedgen", AT_LEAST_0): "server_decay=-1 diversity=-0.1 weight_decay=-1",
    ("fedgen", AT_LEAST_1): "iterations=0",
    ("fedgen", STARTS): "start=else",
}


@pytest.mark.parametrize(("method", "form"), OUT_OF_RANGE)
def test_a_setting_out_of_range_is_refused(small: Experiment, method: str, form: str) -> None:
    for setting in OUT_OF_RANGE[method, form].split():
        with pytest.raises(InputError, match=form.format(setting.partition("=")[0])):
            plan(dataclasses.replace(small, method=method, set=(setting,)))
