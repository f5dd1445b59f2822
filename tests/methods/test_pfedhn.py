"""pFedHN and pFedHN-PC: rounds against a loop that is written here, numbers by hand, and who is sent what."""

import dataclasses
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.client.federated_client import FederatedClient
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack, unpack, views
from flfw.nets import Net, NetCard
from flfw.plans.run_plan import plan
from flfw.recording.reader import Recordings
from flfw.rng import initialising
from flfw.runs import run
from flfw.server.aggregation import Update
from flfw.server.client_directory import ClientDirectory, FailurePolicy
from flfw.server.hypernetwork import HypernetworkServer, ServerHypernetworkTraining
from tests.support import rounds
from tests.support.engine_runs import train_by_engine
from tests.support.planned import checked
from tests.support.resumed_runs import assert_same, cut_short

CLOSE = 1e-10  # of a change, in float64
EMBEDDINGS = "embeddings.weight"


def toy(shape: tuple[int, ...], classes: int) -> Net:
    """Two small layers."""
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 4), nn.Sigmoid()), nn.Linear(4, classes))


@pytest.fixture
def asked(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Three clients of unlike sizes on a small network."""
    monkeypatch.setitem(nets._CARDS, "toy", NetCard(toy))
    given: dict[str, Any] = {"net": "toy", "split": "dirichlet", "batch_size": 64, "lr": 0.5}
    return dataclasses.replace(small, method="pfedhn", set=("hidden=6", "layers=1"), **given)


def having(experiment: Experiment, *settings: str, **changes: Any) -> Experiment:
    return dataclasses.replace(experiment, set=(*experiment.set, *settings), **changes)


# --- the loop: torch's own modules, optimisers and backward passes ---


class Loop:
    """Algorithm 1 of the paper for cohorts of several clients."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.asked = experiment, plan(experiment).client.settings
        self.private = experiment.method == "pfedhn_pc"
        net = rounds.fresh(dataclasses.replace(experiment, method="fedavg", set=()))
        assert isinstance(net, Net)
        self.net, n = net, experiment.clients
        named = [(name, p) for name, p in net.named_parameters() if not self.private or name.startswith("extractor.")]
        self.shapes = {name: p.shape for name, p in named}
        with initialising(experiment.seed, "hypernetwork"):
            self.v = nn.Embedding(n, self.asked.embedding or int(1 + n / 4))
            self.mlp = nn.Sequential(nn.Linear(self.v.embedding_dim, 6), nn.ReLU(), nn.Linear(6, 6))
            self.heads = [nn.Linear(6, prod(shape)) for shape in self.shapes.values()]
        self.weights = [*self.mlp.parameters(), *(p for head in self.heads for p in head.parameters())]
        requested, rate = self.asked, self.asked.embedding_lr or self.asked.server_lr
        groups = [{"params": self.weights}, {"params": [self.v.weight], "lr": rate}]
        kinds: dict[str, Any] = {"momentum": requested.server_momentum, "weight_decay": requested.server_decay}
        self.sgd = torch.optim.SGD(groups, lr=requested.server_lr, **kinds)
        self.rates = [group["lr"] for group in self.sgd.param_groups]
        self.classifiers = [{k: p.detach().clone() for k, p in net.classifier.named_parameters()} for _ in range(n)]
        self.velocities: dict[int, Any] = {}

    def generated(self, client: int) -> dict[str, Tensor]:
        z = self.mlp(self.v(torch.tensor(client)))
        each = zip(self.shapes.items(), self.heads, strict=True)
        return {name: head(z).view(shape) for (name, shape), head in each}

    def trained(self, client: int, theta: dict[str, Tensor], now: int) -> dict[str, Tensor]:
        model, parameters = self.net, dict(self.net.named_parameters())
        for name, value in theta.items():
            parameters[name].data.copy_(value)
        moved = [parameters[name] for name in self.shapes]
        kinds: dict[str, Any] = {"momentum": 0.5, "weight_decay": 5e-4}
        body, head = torch.optim.SGD(moved, lr=self.experiment.lr, **kinds), None
        if self.private:
            for name, p in model.classifier.named_parameters():
                p.data.copy_(self.classifiers[client][name])
            head = torch.optim.SGD(model.classifier.parameters(), lr=self.experiment.lr, **kinds)
            if client in self.velocities:
                head.load_state_dict(self.velocities[client])
        for x, y in rounds.batches(self.experiment, client, "batches", self.experiment.local_epochs, now):
            model.zero_grad()
            cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(moved, self.asked.clip)
            body.step()
            if head:
                head.step()
        if head:
            self.velocities[client] = head.state_dict()
            self.classifiers[client] = {k: p.detach().clone() for k, p in model.classifier.named_parameters()}
        return {name: parameters[name].detach().clone() for name in self.shapes}

    def round(self, now: int, cohort: Sequence[int]) -> None:
        thetas = {i: {n: v.detach() for n, v in self.generated(i).items()} for i in cohort}
        after = {i: self.trained(i, thetas[i], now) for i in cohort}
        together = self.asked.server_step == "mean"
        for group in [cohort] if together else [[i] for i in cohort]:
            factor = len(cohort) if together and self.asked.lr_scale == "clients" else 1
            self.sgd.zero_grad()
            for i in group:  # the gradient of <h(v_i), delta_i>, with delta_i held fixed
                products = [(v * (thetas[i][n] - after[i][n])).sum() for n, v in self.generated(i).items()]
                (torch.stack(products).sum() / len(group)).backward()
            nn.utils.clip_grad_norm_([*self.weights, self.v.weight], self.asked.server_clip)
            for chosen, rate in zip(self.sgd.param_groups, self.rates, strict=True):
                chosen["lr"] = factor * rate
            self.sgd.step()

    @property
    def parameters(self) -> dict[str, Tensor]:
        names = {EMBEDDINGS: self.v.weight} | {f"trunk.{n}": p for n, p in self.mlp.named_parameters()}
        names |= {f"heads.{k}.{n}": p for k, head in enumerate(self.heads) for n, p in head.named_parameters()}
        return {name: p.detach().clone() for name, p in names.items()}

    @property
    def server_velocities(self) -> dict[str, Tensor]:
        named = zip(self.parameters, [self.v.weight, *self.weights], strict=True)
        return {f"velocity/{name}": self.sgd.state[p]["momentum_buffer"].clone() for name, p in named}


def server(experiment: Experiment) -> HypernetworkServer:
    cls, settings = plan(experiment).strategy, plan(experiment).client.settings
    strategy = cls(settings, seed=experiment.seed)
    assert isinstance(strategy, HypernetworkServer)
    strategy.ctx = rounds.place(experiment)
    return strategy


def first(experiment: Experiment) -> dict[str, Tensor]:
    state, downloads = rounds.fresh(experiment).state_dict(), plan(experiment).client.method.downloads
    return {name: value.clone() for name, value in state.items() if matches(name, downloads)}


def play(experiment: Experiment, folder: Path, *cohorts: Sequence[int]) -> tuple[Any, dict[int, FederatedClient]]:
    """Run rounds with these clients; return the server and each client as it was last."""
    strategy, arrays, clients = server(experiment), pack(first(experiment)), {}
    last: dict[int, int] = {}
    for now, cohort in enumerate(cohorts, 1):
        updates = []
        for i in cohort:
            clients[i] = rounds.client(experiment, folder, i, now)
            sent, metrics = clients[i].fit_named(views(strategy.arrays_for(i, arrays)), last.get(i, 0))
            updates.append(Update(i, metrics["num-examples"], {n: v.clone() for n, v in sent.items()}))
            last[i] = now
        strategy.aggregate_round(arrays, iter(updates), now)
    return strategy, clients


CASES = {
    "mean": (),
    "mean, unscaled": ("lr_scale=none", "embedding_lr=0.2"),
    "mean, clipped": ("server_clip=0.01", "clip=0.05"),
    "sequential": ("server_step=sequential",),
    "sequential, clipped": ("server_step=sequential", "server_clip=0.01", "embedding_lr=0.2"),
    "without momentum": ("server_momentum=0", "embedding=3"),
}


@pytest.mark.parametrize("method", ["pfedhn", "pfedhn_pc"])
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_three_rounds_equal_a_loop(asked: Experiment, tmp_path: Path, method: str, settings: tuple[str, ...]) -> None:
    """The second round is without client 1, whose embedding moves all the same."""
    with rounds.exactly():
        experiment = having(asked, *settings, method=method)
        loop, cohorts = Loop(experiment), ([0, 1, 2], [0, 2], [0, 1, 2])
        before = loop.parameters
        strategy, clients = play(experiment, tmp_path, *cohorts)
        for now, cohort in enumerate(cohorts, 1):
            loop.round(now, cohort)
        expected = loop.parameters
        assert rounds.error(strategy.parameters(), expected, before) < CLOSE
        assert all(float((expected[name] - before[name]).abs().max()) > 0 for name in expected)
        if strategy.settings.server_momentum:
            zeros = {name: torch.zeros_like(value) for name, value in loop.server_velocities.items()}
            assert rounds.error({n: strategy.state[n] for n in zeros}, loop.server_velocities, zeros) < CLOSE
        assert len(strategy.state) == len(expected) * (2 if strategy.settings.server_momentum else 1)
        for i, client in clients.items() if method == "pfedhn_pc" else ():
            kept = {name.removeprefix("classifier."): client.model.state_dict()[name] for name in client.private_names}
            assert rounds.error(kept, loop.classifiers[i], Loop(experiment).classifiers[i]) < CLOSE


# --- numbers that can be checked by hand ---


def test_the_product_with_delta_is_the_gradient_of_half_the_squared_distance(asked: Experiment) -> None:
    with rounds.exactly():
        strategy = server(asked)
        parameters = {name: value.clone().requires_grad_() for name, value in strategy.parameters().items()}
        theta = {name: value[0] for name, value in strategy.hypernet(parameters, [1]).items()}
        after = {name: torch.randn_like(value) for name, value in theta.items()}
        half = torch.stack([(value - after[name]).square().sum() / 2 for name, value in theta.items()]).sum()
        expected = torch.autograd.grad(half, list(parameters.values()))
        delta = {name: value.detach() - after[name] for name, value in theta.items()}
        result = strategy.gradient(parameters, {1: delta})
        torch.testing.assert_close(list(result.values()), list(expected), rtol=1e-12, atol=1e-12)
        assert not result[EMBEDDINGS][[0, 2]].any() and result[EMBEDDINGS][1].any()


def test_a_client_alone_with_one_step_is_sgd_on_the_hypernetwork(asked: Experiment, tmp_path: Path) -> None:
    """One local step of all examples has delta = lr dL/dtheta, so that phi moves along lr dL/dphi: the chain rule."""
    with rounds.exactly():
        plain = ("weight_decay=0", "server_decay=0", "server_momentum=0", "server_lr=0.1")
        experiment = having(asked, *plain, clients=1, batch_size=10_000)
        strategy = server(experiment)
        start = {name: value.clone().requires_grad_() for name, value in strategy.parameters().items()}
        theta = {name: value[0] for name, value in strategy.hypernet(start, [0]).items()}
        net = rounds.fresh(dataclasses.replace(experiment, method="fedavg", set=()))
        (x, y), *rest = rounds.batches(experiment, 0, "batches", 1, 1)
        assert not rest
        loss = cross_entropy(torch.func.functional_call(net, theta, (x,)), y)
        gradients = torch.autograd.grad(loss, list(start.values()))
        expected = {n: v.detach() - 0.1 * 0.5 * g for (n, v), g in zip(start.items(), gradients, strict=True)}
        result, _ = play(experiment, tmp_path, [0])
        assert rounds.error(result.parameters(), expected, {n: v.detach() for n, v in start.items()}) < CLOSE


def test_both_steps_agree_for_one_client_and_differ_for_two(asked: Experiment, tmp_path: Path) -> None:
    def after(step: str, *cohorts: Sequence[int]) -> dict[str, Tensor]:
        folder = tmp_path / f"{step}-{len(cohorts[0])}"
        return play(having(asked, f"server_step={step}"), folder, *cohorts)[0].state

    one, other = after("mean", [1], [2]), after("sequential", [1], [2])
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    one, other = after("mean", [0, 1]), after("sequential", [0, 1])
    assert any(not torch.equal(one[name], other[name]) for name in one)


def moved(asked: Experiment, *settings: str) -> tuple[Tensor, Tensor]:
    """The embedding of client 2 before and after two steps, in the first of which alone it took part."""
    strategy = server(having(asked, *settings))
    before = strategy.parameters()[EMBEDDINGS][2].clone()
    zeros = {n: torch.zeros(v.shape) for n, v in first(asked).items()}
    for group in ({2: zeros}, {0: zeros}):  # a delta of 0: nothing but decay and momentum moves anything
        strategy.descend([group])
    return before, strategy.parameters()[EMBEDDINGS][2]


def test_embeddings_of_clients_that_are_not_asked_decay_and_coast(asked: Experiment) -> None:
    before, after = moved(asked, "server_lr=0.5", "server_decay=0.1", "server_momentum=0")
    torch.testing.assert_close(after, 0.95 * 0.95 * before)
    before, after = moved(asked, "server_lr=0.5", "server_decay=0.1", "server_momentum=0.8")
    # velocity 0.1 v, then 0.8 * 0.1 v + 0.1 * 0.95 v = 0.175 v
    torch.testing.assert_close(after, (1 - 0.05 - 0.0875) * before)
    before, after = moved(asked, "server_decay=0")
    assert torch.equal(before, after)
    before, after = moved(asked, "embedding_lr=0.5", "server_decay=0.1", "server_momentum=0")
    torch.testing.assert_close(after, 0.95 * 0.95 * before)


def test_the_mean_counts_clients_and_scales_its_step_by_their_number(asked: Experiment) -> None:
    def after(*settings: str) -> Tensor:
        strategy = server(having(asked, "server_lr=0.1", "server_decay=0", "server_momentum=0", *settings))
        arrays, updates = pack(first(asked)), []
        bias = strategy.parameters()["heads.3.bias"].clone()
        for i, examples in ((0, 10), (1, 1000)):  # client 1 counts no more for its many examples
            sent = unpack(strategy.arrays_for(i, arrays))
            sent["classifier.bias"] = sent["classifier.bias"] + (1 + 2 * i)
            updates.append(Update(i, examples, sent))
        strategy.aggregate_round(arrays, iter(updates), 1)
        return strategy.parameters()["heads.3.bias"] - bias

    ones = torch.ones(10)
    torch.testing.assert_close(after(), 0.1 * 2 * (1 + 3) / 2 * ones)
    torch.testing.assert_close(after("lr_scale=none"), 0.1 * (1 + 3) / 2 * ones)
    torch.testing.assert_close(after("server_step=sequential"), 0.1 * (1 + 3) * ones)


def test_the_length_of_an_embedding_follows_the_number_of_clients(asked: Experiment) -> None:
    for clients, length in ((3, 1), (4, 2), (20, 6), (100, 26)):
        assert server(having(asked, clients=clients)).parameters()[EMBEDDINGS].shape == (clients, length)
    assert server(having(asked, "embedding=5")).parameters()[EMBEDDINGS].shape == (3, 5)


# --- who is sent what ---


def test_each_client_is_sent_its_own_network_and_nobody_the_broadcast(asked: Experiment) -> None:
    strategy, arrays = server(asked), pack(first(asked))
    sent = [unpack(strategy.arrays_for(i, arrays)) for i in range(3)]
    assert all(one.keys() == first(asked).keys() for one in sent)
    for one, other in ((sent[0], sent[1]), (sent[1], sent[2]), (sent[2], first(asked))):
        assert all(one[name].shape == other[name].shape and not torch.equal(one[name], other[name]) for name in one)
    again = server(asked)
    assert all(torch.equal(value, unpack(again.arrays_for(1, arrays))[name]) for name, value in sent[1].items())


def test_the_head_of_pc_never_leaves_and_its_momentum_lasts(asked: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(asked, method="pfedhn_pc")
    strategy, clients = play(experiment, tmp_path, [0, 1], [0, 1])
    assert all(name.startswith("extractor.") for name in unpack(strategy.arrays_for(0, pack(first(experiment)))))
    for i, client in clients.items():
        assert all(name.startswith("extractor.") for name in client.upload_tensors())
        x, y = client.stored(client.indices("train")[:1])
        assert all(name.startswith("extractor.") for name in client.gradient(x, y))
        kept = load_file(next(tmp_path.glob(f"test/*/client-{i:04d}/round-00002-*")))
        velocity = {f"head/velocity/classifier.{name}" for name in ("weight", "bias")}
        assert kept.keys() == {"classifier.weight", "classifier.bias", *velocity}
        third = rounds.client(experiment, tmp_path, i, 3)
        third.load_received(views(strategy.arrays_for(i, pack(first(experiment)))), version=2)
        memory = {name: value for name, value in third.private_state().items() if name in velocity}
        assert all(bool(value.any()) and torch.equal(value, kept[name]) for name, value in memory.items())
        assert memory.keys() == velocity


def test_clients_of_pfedhn_keep_nothing(asked: Experiment, tmp_path: Path) -> None:
    _, clients = play(asked, tmp_path, [0, 1])
    assert not any(client.private_state() for client in clients.values()) and not list(tmp_path.iterdir())


def test_an_audit_sees_what_each_client_was_sent(asked: Experiment, tmp_path: Path) -> None:
    experiment = having(asked, attack=("idlg",), images=3, audit_rounds="0,last")
    train_by_engine(experiment, tmp_path / "run")
    recordings = Recordings(tmp_path / "run" / "observations")
    for control, different in (("easy", 1), ("analytic", 1), ("target", 6)):
        lines = [line for line in recordings.lines if line.get("config", {}).get("control") == control]
        assert len({line["sent_to_client"]["sha256"] for line in lines}) == different
    strategy = server(experiment)
    for line in recordings.probe_lines("target", 0, point=experiment.points[0].name):
        (observation,) = recordings.observations([line["id"]])
        assert observation is not None
        sent = unpack(strategy.arrays_for(line["client"], pack(first(experiment))))
        assert all(torch.equal(value, observation.received[name]) for name, value in sent.items())


def test_an_attacker_of_pfedhn_computes_the_gradient_that_a_client_sends(asked: Experiment, tmp_path: Path) -> None:
    strategy, one = server(asked), rounds.client(asked, tmp_path, 1)
    received = views(strategy.arrays_for(1, pack(first(asked))))
    one.load_received(received, version=0)
    x, y = one.stored(one.indices("train")[:1])
    sent, known = one.gradient(x, y), {name: torch.tensor(value) for name, value in received.items()}
    model, cls = rounds.fresh(asked, 7), plan(asked).client.method
    victim = cls.victim_model(model, known, one.ctx.task.inputs, one.ctx.settings)
    assert not victim.unknown
    torch.testing.assert_close(victim.gradient(x, y, {}, victim.observed(sent)[1]), sent)
    steps = cls.local_steps(one.ctx.settings, 0.5, 3)
    assert steps is not None and (steps.clip, steps.momentum) == (50.0, 0.5)
    private = plan(dataclasses.replace(asked, method="pfedhn_pc")).client
    assert private.method.local_steps(private.settings, 0.5, 3) is None  # the head's momentum is the client's alone


def test_a_change_on_real_sites_is_measured_from_what_that_client_was_sent(asked: Experiment, tmp_path: Path) -> None:
    """Client 0's network is far from the others' and from the broadcast, and it changes little; client 2 lies."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    strategy, arrays = server(having(asked, federation=tmp_path / "fed")), pack(first(asked))
    strategy.client_directory = ClientDirectory(FailurePolicy(on_failure="drop"))
    strategy.client_directory.nodes = {i: i + 1 for i in range(3)}
    strategy.parameters()[EMBEDDINGS][0] *= 1e6
    replies, grid = [], InProcessGrid(ClientApp(), 3, {})
    for i, message in enumerate(strategy.configure_train(1, arrays, ConfigRecord({}), grid)):
        message.metadata.__dict__["_message_id"] = str(i)  # which Flower gives when it is sent
        sent = unpack(message.content.array_records["arrays"])
        assert all(torch.equal(value, strategy.sent_to(i)[name]) for name, value in sent.items())
        answer = {name: value + (0.1, 0.1, 1e9)[i] for name, value in sent.items()}
        content = RecordDict({"arrays": pack(answer), "metrics": MetricRecord({"num-examples": 10, "loss": 1.0})})
        replies.append(Message(content, reply_to=message))
    strategy.aggregate_train(1, replies)
    assert [row["client"] for row in strategy.history.clients] == [0, 1]
    (failure,) = strategy.history.rounds[0]["failed"]
    assert failure["client"] == 2 and failure["reason"].startswith("sent a change of norm ")


# --- runs ---


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("pfedhn", marks=pytest.mark.nightly), "pfedhn_pc"])
def test_a_run_that_was_cut_short_goes_on_to_the_same_bits(asked: Experiment, tmp_path: Path, method: str) -> None:
    experiment = having(asked, method=method, clients=4, sample=2, rounds=4, attack=("idlg",), images=2)
    full = run.run(dataclasses.replace(experiment, out=tmp_path / "whole"))
    halved = cut_short(dataclasses.replace(experiment, out=tmp_path / "halved"), after_round=2)
    run.resume(dataclasses.replace(experiment, out=halved))
    assert_same(full, halved)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"ema": 0.9},
            r"Expected --expert ema=0 for method=pfedhn, which sends a model of its own to each client, got ema=0\.9",
        ),
        ({"robust": "median"}, r"Expected a method whose server takes the mean of updates with --expert robust=median"),
        ({"canaries": 2}, r"Expected a method that sends the whole model to every client"),
        ({"net": "resnet18"}, r"for a hypernetwork to generate, got the running statistics extractor\.\S+running_mean"),
        (
            {"split": "sampled_on_demand", "clients": 10**6},
            r"Expected a model of at most .* GB, this machine's memory, got .* GB",
        ),
        ({"set": ("hidden=2000000000",)}, r"Expected a model of at most .* GB, this machine's memory, got .* GB"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    small: Experiment, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        run.check(dataclasses.replace(small, **{"method": "pfedhn", **changes}))


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("clip=0", "Expected clip > 0, got clip=0.0"),
        ("server_lr=inf", "Expected 0 < server_lr < inf, got server_lr=inf"),
        ("server_momentum=1", "Expected 0 <= server_momentum < 1, got server_momentum=1.0"),
        ("server_decay=-1", "Expected 0 <= server_decay < inf, got server_decay=-1.0"),
        ("server_clip=nan", "Expected server_clip > 0, got server_clip=nan"),
        ("embedding_lr=-1", "Expected 0 <= embedding_lr < inf, got embedding_lr=-1.0"),
        ("embedding=-1", "Expected embedding >= 0, got embedding=-1"),
        ("hidden=0", "Expected hidden >= 1, got hidden=0"),
        ("layers=-1", "Expected layers >= 0, got layers=-1"),  # without any, the embedding goes straight to the heads
        ("server_step=both", "server_step among mean, sequential"),
        ("lr_scale=m", "lr_scale among clients, none"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_in_one_line(small: Experiment, setting: str, complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        checked(plan(dataclasses.replace(small, method="pfedhn", set=(setting,))))
    assert complaint in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_hypernetwork_may_have_no_hidden_layers(small: Experiment) -> None:
    """The embedding then goes straight to the heads."""
    checked(plan(dataclasses.replace(small, method="pfedhn", set=("layers=0",))))


def test_a_network_without_an_extractor_has_nothing_to_generate_for_pc(small: Experiment) -> None:
    with pytest.raises(InputError, match=r"^Expected a network with extractor\.\* to share, got net=linear without"):
        checked(plan(dataclasses.replace(small, method="pfedhn_pc", net="linear")))


def test_hyper_parameters_are_those_of_the_comparison() -> None:
    chosen = ServerHypernetworkTraining()
    assert (chosen.server_momentum, chosen.server_decay, chosen.server_clip) == (0.9, 1e-3, 50.0)
    assert (chosen.momentum, chosen.weight_decay, chosen.clip) == (0.5, 5e-4, 50.0)
