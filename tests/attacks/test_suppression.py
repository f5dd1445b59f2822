"""Suppression: the sum is the target's update to the last bit, where it is not, and an audit of one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.adversary.secure_aggregation import Quantiser
from flfw.adversary.sums import Protocol, isolated, pooled
from flfw.attacks.analytic import Analytic
from flfw.attacks.suppression import Suppression, SuppressionSettings
from flfw.audit.jobs import ProbeSet
from flfw.audit.reconstruction.control_runs import of_the_sum
from flfw.audit.sums import broadcast
from flfw.client.broadcast_checks import broadcast_alarms, differently_served, digest
from flfw.errors import InputError
from flfw.files.outcomes import outcome
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.net import Net, Tensors
from flfw.recording.observation import Knowledge, Observation, Vantage
from flfw.recording.reader import Recordings
from flfw.runs import run as whole
from tests.support.attackable import db, digit_inputs, digits, fresh_net, generators, gradient
from tests.support.csv_files import read_csv
from tests.support.rounds import descend
from tests.support.small_runs import tiny

SIDE = 8
PUBLIC = torch.zeros(2, 1, SIDE, SIDE)


def sent_to(client: int, received: Tensors, **settings: Any) -> Tensors:
    """What the server sends a client."""
    return received | Suppression(SuppressionSettings(**settings)).personal(client, received, PUBLIC)


def trained(received: Tensors, client: int, steps: int, decay: float = 0.0, optimiser: Any = None) -> Tensors:
    """The gradient of two digits of a client's own, or its weights after several steps on them."""
    net, inputs = fresh_net("mlp", (1, SIDE, SIDE)), digit_inputs(SIDE)
    net.load_state_dict(received)
    x, y = digits(2 * client, 2, SIDE)
    if steps == 1:
        return gradient(net, inputs, x, y)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5, weight_decay=decay)
    stepping = optimiser(net.parameters()) if optimiser else sgd
    for _ in range(steps):
        descend(stepping, cross_entropy(net(inputs.normalise(x)), y))
    return {name: value.clone() for name, value in nets.tensors(net).items()}


def messages(clients: int, steps: int, lies: bool = True, target: int = 0, **training: Any) -> list[Observation]:
    honest = {name: value.clone() for name, value in nets.tensors(fresh_net("mlp", (1, SIDE, SIDE))).items()}
    result = []
    for client in range(clients):
        received = sent_to(client, honest, target=target) if lies else honest
        sent = trained(received, client, steps, **training)
        where = (Vantage.AGGREGATE, "probe", "target", 0, client, client)
        result.append(Observation(*where, sent, received))
    return result


def read(members: list[Observation], steps: int, protocol: Protocol | None = None, target: int = 0) -> Observation:
    names = Suppression(SuppressionSettings(target=target)).alone([*members[0].sent])
    return isolated(members, target, names, steps > 1, protocol)


# --- the sum and the target's update ---


@pytest.mark.parametrize("clients", [2, 5])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_sum_is_the_target_s_update_to_the_last_bit(clients: int, steps: int) -> None:
    for target in (0, clients - 1):
        members = messages(clients, steps, target=target)
        alone = read(members, steps, target=target)
        assert [*alone.sent] == [name for name in members[0].sent if name != "classifier.bias"] and len(alone.sent) == 5
        assert alone.client == target
        for name, value in alone.sent.items():
            assert torch.equal(value, members[target].sent[name]) and bool(value.any()), name


def test_of_adam_as_well() -> None:
    members = messages(3, 3, optimiser=torch.optim.Adam)
    for name, value in read(members, 3).sent.items():
        assert torch.equal(value, members[0].sent[name])


def test_the_classifier_s_bias_moves_at_dead_clients_by_their_labels() -> None:
    """Its gradient is softmax(bias) minus the shares of the labels, which is why its sum is left out."""
    dead = messages(2, 1)[1]
    _, y = digits(2, 2, SIDE)
    shares = torch.bincount(y, minlength=10) / 2
    torch.testing.assert_close(dead.sent["classifier.bias"], dead.received["classifier.bias"].softmax(0) - shares)
    assert not any(bool(value.any()) for name, value in dead.sent.items() if name != "classifier.bias")


@pytest.mark.parametrize("steps", [1, 4])
def test_an_honest_sum_is_not_the_target_s_update(steps: int) -> None:
    members = messages(5, steps, lies=False)
    for name, value in read(members, steps).sent.items():
        assert not torch.allclose(value, members[0].sent[name], rtol=0.1), name


def test_nor_is_one_with_weight_decay() -> None:
    members = messages(5, 4, decay=1e-2)
    wrong = [name for name, value in read(members, 4).sent.items() if not torch.equal(value, members[0].sent[name])]
    assert wrong == [
        "extractor.1.weight",
        "extractor.1.bias",
        "extractor.3.weight",
        "extractor.3.bias",
        "classifier.weight",
    ]


def test_secure_aggregation_adds_its_rounding_and_no_more_though_it_clips_the_dead_biases() -> None:
    """The dead biases of -1000 are clipped to -8, as the server knows; each of 5 clients adds a step at most."""
    members, step = messages(5, 4), 16 / 4194304
    for name, value in read(members, 4, Protocol(0)).sent.items():
        assert 0 < float((value - members[0].sent[name]).abs().max()) <= 5 * step + 1e-6, name


def test_one_digit_of_ten_clients_is_read_off_a_suppressed_sum_and_not_off_an_honest_one() -> None:
    inputs, honest = digit_inputs(SIDE), nets.tensors(fresh_net("mlp", (1, SIDE, SIDE)))
    x, _ = digits(0, 1, SIDE)

    def members(lies: bool) -> list[Observation]:
        result = []
        for client in range(10):
            net, received = fresh_net("mlp", inputs.shape), sent_to(client, honest) if lies else honest
            net.load_state_dict(received)
            sent = gradient(net, inputs, *digits(client, 1, SIDE))
            result.append(Observation(Vantage.AGGREGATE, "probe", "target", 0, client, client, sent, received))
        return result

    def nearest(observation: Observation, batch: int) -> float:
        knowledge = Knowledge(
            PlainVictim(fresh_net("mlp", inputs.shape), observation.received, ("*",), inputs), batch, None
        )
        (result,) = Analytic().run([observation], [knowledge], generators(1))
        return max(db(x, type(result)(one[None])) for one in result.samples)

    assert nearest(read(members(True), 1), 1) > 100
    assert nearest(pooled(members(False), False, None), 10) < 25


# --- networks ---


def leaky(slope: float) -> Net:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LeakyReLU(slope)), nn.Linear(3, 2))


REFUSED: list[tuple[Net, str]] = [
    (leaky(0.01), "a ReLU before the classifier, for --malicious-server suppression, got layer=LeakyReLU"),
    (Net(nn.Flatten(), nn.Linear(4, 2)), "a ReLU before the classifier"),
    (Net(nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False), nn.ReLU()), nn.Linear(3, 2)), "a layer with a bias"),
    (
        Net(
            nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2)
        ),
        "without BatchNorm",
    ),
    (Net(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))), "one linear"),
]


@pytest.mark.parametrize(("net", "line"), REFUSED, ids=["leaky", "none", "bias", "norm", "deep"])
def test_a_network_whose_dead_units_tell_something_is_refused(net: Net, line: str) -> None:
    with pytest.raises(InputError) as caught:
        Suppression().network(net)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_layers_that_keep_zeros_may_stand_behind_the_relu() -> None:
    convolution = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten())
    net = Net(convolution, nn.Linear(36, 10))
    assert Suppression().network(net) is net and Suppression().touched(net) == ["extractor.0.bias"]
    net.load_state_dict(sent_to(1, nets.tensors(net)))
    cross_entropy(net(torch.rand(2, 1, SIDE, SIDE)), torch.tensor([1, 2])).backward()
    assert [n for n, p in net.named_parameters() if p.grad is not None and bool(p.grad.any())] == ["classifier.bias"]


def test_pooling_may_stand_before_the_relu_and_without_a_bias_in_the_classifier_nothing_moves() -> None:
    extractor = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
    net = Net(extractor, nn.Linear(36, 10, bias=False))
    assert Suppression().network(net) is net
    net.load_state_dict(sent_to(1, nets.tensors(net)))
    cross_entropy(net(torch.rand(2, 1, SIDE, SIDE)), torch.tensor([1, 2])).backward()
    assert not any(p.grad is None or bool(p.grad.any()) for p in net.parameters())


def test_a_leaky_unit_lets_a_hundredth_of_the_gradient_through() -> None:
    """Why such networks are refused: its output is also not zero, but -1000 times the slope."""
    net = leaky(0.01)
    net.load_state_dict(sent_to(1, nets.tensors(net)))
    cross_entropy(net(torch.rand(1, 1, 2, 2)), torch.tensor([1])).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in net.parameters())


# --- what clients notice ---


def test_clients_notice_dead_units_and_different_hashes_but_not_a_smaller_bias() -> None:
    honest = nets.tensors(fresh_net("mlp", (1, SIDE, SIDE)))
    arrays = [{name: value.numpy() for name, value in sent_to(client, honest).items()} for client in range(4)]
    assert broadcast_alarms(arrays[0]) == []
    words = "extractor.3.weight has 64 of 64 units kept off by their biases"
    assert broadcast_alarms(arrays[1]) == [words]
    assert differently_served({client: digest(one) for client, one in enumerate(arrays)}) == [0]
    mild = sent_to(1, honest, bias=-2.0)
    assert broadcast_alarms({name: value.numpy() for name, value in mild.items()}) == []
    sent = trained(mild, 1, 1)  # the limit of the check: these digits bring no unit above 2
    assert not any(bool(value.any()) for name, value in sent.items() if name != "classifier.bias")


# --- an audit ---

ASKED: dict[str, Any] = {
    "net": "mlp", "clients": 5, "images": 10, "image_size": 8, "vantage": ("aggregate",), "sum_size": 5,
    "malicious_server": "suppression", "audit_rounds": "0,1",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = ("weight_decay=0", "suppression.target=3")
    out = tmp_path_factory.mktemp("suppression") / "run"
    return whole.run(tiny(out, **ASKED, curve=("sum_size=1", "steps=3"), set=chosen))


@pytest.mark.slow
def test_an_audit_reads_the_target_off_every_sum_that_it_is_in(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    audited = {(e["round"], e["sum_size"], e["steps"]): e for e in result["audit"]}
    assert {*audited} == {(at, *size) for at in (0, 1) for size in ((1, 1), (5, 1), (5, 3))}
    for entry in audited.values():
        assert (outcome(entry), entry["share_recovered"]) == ("to a malicious server", 1.0)
        assert (entry["images"], entry["batch"], entry["vantage"]) == (2, 1, "aggregate")  # one in each turn
        assert any("the update of client 3 alone" in line for line in entry["granted"])
    (consistent,) = [control for control in audited[1, 5, 1]["ladder"] if control["rung"] == "consistency"]
    assert consistent["passed"]
    rows = read_csv(folder / "audit.csv", rung="target")
    assert {row["client"] for row in rows} == {"3"} and {row["probe_slot"] for row in rows} == {"3", "8"}
    assert sorted(row["sum_size"] for row in rows) == ["1"] * 4 + ["5"] * 8


@pytest.mark.slow
def test_a_run_says_what_was_done_and_who_would_have_noticed(folder: Path) -> None:
    notes = json.loads((folder / "result.json").read_text())["notes"]
    assert notes[0].startswith("A malicious server sent clients different numbers (suppression)")
    zeros = "All clients but client 3 sent zeros in all tensors but classifier.bias: sums are its update there."
    assert zeros in notes
    (checked,) = [note for note in notes if "reject_suspicious_weights" in note]
    assert "would have refused messages at clients 0, 1, 2, 4 of 5" in checked
    assert "By comparing hashes client 3 would have noticed other numbers than the rest, in round 1." in notes
    lines = Recordings(folder / "observations").probe_lines("target", 0, point="target")
    assert broadcast(lines[:5]) == {"contents": 2, "differ": [3]}


@pytest.mark.slow
def test_training_is_that_of_an_honest_server(folder: Path, tmp_path: Path) -> None:
    honest = {**ASKED, "malicious_server": "", "audit_rounds": "0"}
    out = whole.run(tiny(tmp_path / "run", **honest, set=("weight_decay=0",)))
    one, other = (json.loads((place / "result.json").read_text()) for place in (folder, out))
    for field in ("acc_global", "acc_local"):
        assert one["final"][field] == other["final"][field]
    (entry,) = other["audit"]
    assert entry["share_recovered"] < 1.0 and (entry["batch"], entry["images"]) == (5, 10)


@pytest.mark.slow
def test_noise_of_the_other_clients_is_measured(tmp_path: Path) -> None:
    out = whole.run(tiny(tmp_path / "run", **{**ASKED, "audit_rounds": "0"}, defence="dp_gaussian"))
    notes = json.loads((out / "result.json").read_text())["notes"]
    (measured,) = [note for note in notes if note.startswith("Clients beside client 0 sent up to ")]
    assert measured.endswith("in all tensors but classifier.bias: no sum is its update alone.")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"vantage": ("server", "aggregate")}, "Expected --vantage aggregate alone with --malicious-server suppression"),
    ({"attack": ("suppression",)}, "attacks that read what clients send; beside --malicious-server, as of suppression"),
    ({"attack": ("label_distribution",)}, "reconstruct examples from one client's message"),
    ({"set": ("suppression.target=5",)}, "Expected client 5 in a sum of each size"),
    ({"set": ("suppression.target=4",), "sum_size": 2}, "Expected client 4 in a sum of each size"),
    ({"set": ("suppression.bias=1",)}, "Expected -inf < bias < 0, got bias=1.0"),
    ({"victim_steps": 2}, "Expected weight_decay=0 with --malicious-server suppression and several local steps"),
    ({"curve": ("steps=1,5",)}, "got weight_decay=0.0005"),
    (
        {"net": "cnn1", "image_size": 28},
        "a ReLU before the classifier, for --malicious-server suppression, got layer=LeakyReLU",
    ),
    ({"method": "hyperfl"}, "for --malicious-server suppression, got method=hyperfl"),
]


@pytest.mark.parametrize(("changes", "line"), BAD)
def test_a_run_that_isolates_nobody_is_refused(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        whole.run(tiny(tmp_path / "run", **{**ASKED, **changes}))
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_rounding_explains_more_of_an_isolated_sum_than_of_a_mean() -> None:
    """Each of 4 clients rounds 9 numbers of a gradient of length 3: by half a step at most, in the sum of all."""
    half = Quantiser().step / 2
    observation = Observation(
        Vantage.SERVER, "gradient", "target", 0, 0, 0, {"w": torch.ones(9)}, {"w": torch.zeros(9)}
    )
    usual = ProbeSet("target", 0, "", 1, 1, "target")
    args: Any = SimpleNamespace(probe_set=usual.in_sums(4, "", isolated=0))
    assert of_the_sum(observation.sent, observation, False, args) == pytest.approx(half * (9 * 4) ** 0.5 / 3)
    args.probe_set = usual.in_sums(4, "")
    assert of_the_sum(observation.sent, observation, False, args) == pytest.approx(half * (9 / 4) ** 0.5 / 3)
