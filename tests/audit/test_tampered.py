"""A malicious server's run: the changed network is built, sent and probed, its verdicts are kept from honest ones."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flfw import nets
from flfw.adversary.malicious_server import MaliciousServer
from flfw.audit.measures.noticed import noticed
from flfw.audit.verdict import Verdict, revised_if_tampered
from flfw.command.api import summary
from flfw.comparisons import matrices
from flfw.comparisons.question import Matrix
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.outcomes import LEAKS, MALICIOUS, NO_LEAK_FOUND, POSITIVE, UNDECIDED, concluded, outcome
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.streaming import GridWrapper
from flfw.messages.wire import pack, unpack
from flfw.nets.malicious_model import ImposedModule, ModelModification, imposed_names, in_front
from flfw.nets.net import Net, Tensors
from flfw.plans.run_plan import plan
from flfw.recording.reader import Recordings
from flfw.report import ranking
from flfw.runs import run as whole
from flfw.server.checkpoint import Checkpoints, stored_experiment
from tests.support.small_runs import tiny

MEASURE = "extractor.imposed.measure"
SETTINGS: dict[str, Any] = {"attack": ("imprint",), "malicious_server": "imprint", "victim_batch": 2, "image_size": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round, with probes before and after it."""
    return whole.run(tiny(tmp_path_factory.mktemp("tampered") / "run", **SETTINGS, set=("imprint.bins=64",)))


@pytest.fixture(scope="module")
def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


# --- a run ---


@pytest.mark.slow
def test_its_leaks_are_those_of_a_malicious_server_alone(result: dict[str, Any]) -> None:
    assert [entry["round"] for entry in result["audit"]] == [0, 1]
    for entry in result["audit"]:
        assert outcome(entry) == MALICIOUS and entry["cause"] == "tampered" and entry["malicious_server"] == "imprint"
        assert entry["share_recovered"] >= 0.5 and entry["share_expected"] == pytest.approx(1 - 1 / 64)
        assert "says nothing about a server that follows the protocol" in entry["reason"]
        assert [(control["rung"], control["passed"]) for control in entry["ladder"]] == [
            ("analytic", True), ("easy", True), ("consistency", True),
        ]  # fmt: skip
        assert any(line.startswith("a malicious server's change of it (imprint)") for line in entry["granted"])


@pytest.mark.nightly  # an upload is of all examples of a client
def test_theory_is_about_probes_of_one_step_alone(tmp_path: Path) -> None:
    out = whole.run(tiny(tmp_path / "run", **SETTINGS, audit_source="update", audit_rounds="1"))
    (upload,) = json.loads((out / "result.json").read_text())["audit"]
    assert upload["share_expected"] is None and outcome(upload) in (MALICIOUS, "undecided")


@pytest.mark.slow
def test_results_and_provenance_name_the_attack(result: dict[str, Any]) -> None:
    assert result["config"]["malicious_server"] == result["provenance"]["malicious_server"] == "imprint"
    assert result["notes"][0].startswith("A malicious server changed the network of this run (imprint)")
    (checked,) = [note for note in result["notes"] if "reject_suspicious_weights" in note]
    assert "would have refused messages at clients 0, 1 of 2" in checked and f"{MEASURE}.weight has 63 of 64" in checked


@pytest.mark.slow
def test_clients_build_train_and_send_the_changed_network_and_the_server_crafts_it_anew(folder: Path) -> None:
    recordings = Recordings(folder / "observations")
    before, after = (recordings.probes("target", at)[0] for at in (0, 1))
    for observation in (before, after):
        weight = observation.received[f"{MEASURE}.weight"]
        assert torch.equal(weight, weight[:1].expand_as(weight)) and weight.shape == (64, 64)
        assert torch.equal(weight, before.received[f"{MEASURE}.weight"])
    last = Checkpoints(folder, stored_experiment(folder).experiment).last
    assert last is not None  # the mean of what the clients sent, which the server does not send as it is
    trained = unpack(last.arrays)[f"{MEASURE}.weight"]
    assert trained.shape == (64, 64) and not torch.equal(trained, trained[:1].expand_as(trained))
    assert not torch.equal(before.received["classifier.weight"], after.received["classifier.weight"])
    (control,) = {tuple(sorted(o.received)) for o in recordings.probes("analytic", 0)}
    assert control == ("classifier.bias", "classifier.weight")


@pytest.mark.slow
def test_the_page_and_the_terminal_say_who_broke_the_rules(folder: Path, result: dict[str, Any]) -> None:
    page = (folder / "report.html").read_text()
    assert "leaks</strong> to a malicious server: attack imprint recovered" in page and "It breaks the rules" in page
    assert "It follows the rules" not in page and "Yes, it leaks" not in page
    lines = summary.lines(result)
    assert any("leaks (to a malicious server, " in line and "expected, best" in line for line in lines)
    assert not any(": leaks" in line and "to a malicious server" not in line for line in lines)


@pytest.mark.slow
def test_an_attack_of_an_honest_server_gets_no_honest_verdict_there(tmp_path: Path) -> None:
    chosen = {**SETTINGS, "attack": ("analytic",), "victim_batch": 1, "set": ("imprint.bins=8",)}
    out = whole.run(tiny(tmp_path / "run", **chosen, audit_rounds="0"))
    (entry,) = json.loads((out / "result.json").read_text())["audit"]
    assert outcome(entry) == MALICIOUS and entry["malicious_server"] == "imprint" and entry["share_expected"] is None


@pytest.mark.slow
def test_an_honest_run_is_what_it_was(tmp_path: Path) -> None:
    out = whole.run(tiny(tmp_path / "run", audit_rounds="0"))
    result = json.loads((out / "result.json").read_text())
    (entry,) = result["audit"]
    assert entry["verdict"] == "leaks" and entry["malicious_server"] is None and entry["share_expected"] is None
    assert result["provenance"]["malicious_server"] is None and not any(
        "reject_suspicious_weights" in n for n in result["notes"]
    )
    assert "It follows the rules" in (out / "report.html").read_text()
    again = tiny(tmp_path / "again", attack=("imprint",), audit_rounds="0")
    with pytest.raises(InputError, match="malicious-server=imprint with --attack imprint"):
        whole.audit_recordings(out, tiny(out, audit_rounds="0"), again)


# --- verdicts ---

HONEST = {
    "recovered": LEAKS,
    "candidates": LEAKS,
    "analytic": UNDECIDED,
    "few": UNDECIDED,
    "static": UNDECIDED,
    "nothing": NO_LEAK_FOUND,
}


def test_no_verdict_on_a_changed_network_is_one_on_the_protocol() -> None:
    for cause, word in HONEST.items():
        turned = revised_if_tampered(Verdict(word, cause, "Reason."), "imprint")
        usual = {LEAKS: MALICIOUS, UNDECIDED: outcome(concluded(word, cause, ""))}.get(word, UNDECIDED)
        assert outcome(concluded(*turned)) == (UNDECIDED if cause == "static" else usual)
        assert "nothing about a server that follows the protocol" in turned.reason
        assert cause not in ("static", "nothing") or "Reason." not in turned.reason
    assert ranking.ORDER.index(MALICIOUS) == 2 and MALICIOUS not in POSITIVE


# --- refusals ---

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"malicious_server": ""},
        "Expected malicious-server=imprint with --attack imprint, whose malicious server changes the ",
    ),
    ({"malicious_server": "ig"}, "Expected an attack whose server changes the network, got malicious_server=ig."),
    ({"malicious_server": "nobody"}, "Expected an attack among analytic, "),
    ({"method": "hyperfl", "net": "mlp"}, "for --malicious-server imprint, got method=hyperfl."),
    ({"method": "local_only"}, "for --malicious-server imprint, got method=local_only."),
    ({"canaries": 20}, "Expected canaries=0 with --malicious-server, got canaries=20."),
    ({"set": ("imprint.bins=1",)}, "Expected 2 <= bins <= 16,384, got bins=1."),
    ({"set": ("imprint.units=4",)}, "imprint.units"),
]


@pytest.mark.parametrize(("changes", "line"), REFUSED)
def test_a_run_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        whole.run(tiny(tmp_path / "run", **{**SETTINGS, **changes}))
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_matrix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected --matrix without --malicious-server, "):
        matrices.run(Matrix(methods=("fedavg",)), tiny(tmp_path / "matrix", **SETTINGS))


def test_the_settings_of_the_attack_are_accepted_without_the_attack() -> None:
    requested = Experiment.from_run_config(
        tiny(**{**SETTINGS, "attack": ("none",)}, set=("imprint.bins=8",)).to_run_config()
    )
    assert {name.rpartition("imposed.")[2] for name in imposed_names(plan(requested).client.model)} == {
        "measure.weight", "measure.bias", "back.weight", "back.bias",
    }  # fmt: skip
    assert imposed_names(plan(tiny(image_size=8)).client.model) == []


# --- parts ---


class _Factor(ImposedModule):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


class _Doubles(ModelModification):
    def __init__(self) -> None:
        self.crafting = 0

    def network(self, net: Net) -> Net:
        return in_front(net, _Factor())

    def crafted(self, tensors: Tensors, public: torch.Tensor) -> Tensors:
        self.crafting += 1
        return {name: value * len(public) for name, value in tensors.items() if name.endswith("factor")}


class _Kept(GridWrapper):
    """Keeps the messages that would be sent."""

    def __init__(self) -> None:
        super().__init__(InProcessGrid.__new__(InProcessGrid))
        self.sent: list[Message] = []

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        self.sent += list(messages)
        return []


def test_messages_are_overwritten_once_for_a_record_that_clients_share() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    kept, doubles = _Kept(), _Doubles()
    grid = MaliciousServer(kept, doubles, torch.zeros(2, 3))
    net = doubles.network(nets.build("linear", (1, 4, 4), 10))
    record = pack(nets.tensors(net))
    messages = [
        Message(RecordDict({"arrays": record, "config": ConfigRecord({"client": i})}), i + 1, "train") for i in range(3)
    ]
    messages.append(Message(RecordDict({"config": ConfigRecord()}), 4, "query"))
    assert list(grid.send_and_receive(messages)) == []
    for message in kept.sent[:3]:
        arrays: ArrayRecord = message.content.array_records["arrays"]
        assert list(arrays) == list(record) and unpack(arrays)["extractor.imposed.factor"].tolist() == [2.0]
        assert arrays["classifier.weight"] == record["classifier.weight"]
    assert doubles.crafting == 1 and unpack(record)["extractor.imposed.factor"].tolist() == [1.0]


class _Numbers(_Doubles):
    """Sends each client its number as well."""

    def personal(self, client: int, tensors: Tensors, public: torch.Tensor) -> Tensors:
        return {name: torch.full_like(value, client) for name, value in tensors.items() if name == "classifier.bias"}


def test_a_client_is_sent_what_is_for_it_alone_beside_what_is_for_all() -> None:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    kept, numbers = _Kept(), _Numbers()
    net = numbers.network_for(nets.build("linear", (1, 4, 4), 10), 3)
    record = pack(nets.tensors(net))
    grid = MaliciousServer(kept, numbers, torch.zeros(2, 3))
    order = (2, 0, 1)
    messages = [
        Message(RecordDict({"arrays": record, "config": ConfigRecord({"client": i})}), 9, "train") for i in order
    ]
    assert list(grid.send_and_receive(messages)) == []
    for client, message in zip(order, kept.sent, strict=True):
        tensors = unpack(message.content.array_records["arrays"])
        assert list(tensors) == list(record) and tensors["classifier.bias"].tolist() == [client] * 10
        assert tensors["extractor.imposed.factor"].tolist() == [2.0]
    assert numbers.crafting == 1


def test_who_would_notice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 has its own numbers in a round, with two parallel rows too many; messages of controls do not count."""
    rng = torch.Generator().manual_seed(0)
    sound = torch.randn(8, 8, generator=rng)
    crafted, folder = sound[:1].expand(8, 8), Path("nowhere")

    def line(client: int, sha256: str, control: str = "target") -> dict[str, Any]:
        sent = {"sha256": sha256}
        where = {"round": 3, "type": "train.probe", "place": "", "compression": "none", "config": {"control": control}}
        return {"client": client, "sent_to_client": sent, **where}

    def read(path: Path, entry: dict[str, str], compression: str) -> Tensors:
        return {"w": crafted if entry["sha256"] == "b" else sound}

    monkeypatch.setattr("flfw.audit.measures.noticed.read", read)
    lines = [line(0, "a"), line(1, "b"), line(2, "a"), line(0, "b", "easy")]
    recordings: Any = SimpleNamespace(lines=lines, folder=folder)
    check, every = (
        "A site's check of the broadcast (reject_suspicious_weights) would have refused",
        "of 3 whose messages were recorded",
    )
    alarms = "w has 7 of 8 rows parallel to another; w has 7 of 8 columns parallel to another"
    refused = f"{check} messages at client 1 {every} ({alarms})."
    assert noticed(recordings, one_model=False) == [refused]
    compared = "By comparing hashes client 1 would have noticed other numbers than the rest, in round 3."
    assert noticed(recordings, one_model=True) == [refused, compared]
    honest: Any = SimpleNamespace(lines=lines[::2], folder=folder)
    assert noticed(honest, one_model=True) == [f"{check} no message, at no client {every.replace('3', '2')}."]
