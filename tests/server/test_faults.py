"""Clients that fail, each in its own way: the line that names them, the count, and whether the run goes on."""

import dataclasses
import json
import os
import re
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from safetensors.torch import load_file

import sim
from flfw.engines import apps, federation
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.reasons import in_one_line, words_of
from flfw.messages.replies import UnusableReplyError, read_metrics, read_update
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import pack
from flfw.plans.run_plan import plan
from flfw.runs import launch
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.client_directory import ClientDirectory, Failure, FailurePolicy, NodeAssignment
from flfw.strategies.fedavg import FedAvg
from tests.support.method_rounds import initial_tensors, make_client

# A defence is the plug-in that runs last on a client; a method's client half is what makes up an upload.
CORES = len(os.sched_getaffinity(0))
FAULTY = """
    import ctypes, glob, os, time
    from typing import final
    import torch
    from flfw.client.federated_client import FederatedClient
    from flfw.task.defence import Defence
    from flfw.nets.training.optimisers import LocalTraining
    from flfw.server.aggregation import weighted_mean
    from flfw.server.strategy import FederatedStrategy


    @final
    class Raises(Defence):
        def update(self, update, rng):
            raise ValueError("the shield fell")


    class Once(Defence):
        # Only in the first round: what marks that lies beside the state.

        def update(self, update, rng):
            marker = f"{os.environ['FLFW_STATE']}-struck-{rng.initial_seed()}"
            os.makedirs(os.path.dirname(marker), exist_ok=True)
            if len(glob.glob(f"{os.environ['FLFW_STATE']}-struck-*")) < 2:
                open(marker, "w").close()
                self.strike()
            return update


    @final
    class Hangs(Once):
        def strike(self):
            time.sleep(600)


    @final
    class HangsOutsidePython(Once):
        def strike(self):
            ctypes.PyDLL(None).sleep(600)  # keeps Python's lock


    @final
    class Dies(Defence):
        def update(self, update, rng):
            os._exit(9)


    @final
    class SendsNaN(Defence):
        def update(self, update, rng):
            return {n: v * float("nan") if n == "classifier.bias" else v for n, v in update.items()}


    class Client(FederatedClient):
        def train(self):
            return {"loss": 1.0}

        def upload_tensors(self):
            sent = super().upload_tensors()
            return self.spoiled(sent) if self.ctx.partition == 1 else sent

        def spoiled(self, sent):
            return sent


    @final
    class WrongShape(Client):
        def spoiled(self, sent):
            return {**sent, "classifier.bias": sent["classifier.bias"][:-1]}


    @final
    class WrongType(Client):
        def spoiled(self, sent):
            return {**sent, "classifier.bias": sent["classifier.bias"].double()}


    @final
    class Forgets(Client):
        def spoiled(self, sent):
            return {n: v for n, v in sent.items() if n != "classifier.bias"}


    @final
    class SendsMore(Client):
        def spoiled(self, sent):
            return {**sent, "secret": torch.ones(3)}
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of faults that processes started from here can import; its name is new in each test."""
    name, source = f"faulty_{abs(hash(str(tmp_path)))}", textwrap.dedent(FAULTY)
    for client in ("WrongShape", "WrongType", "Forgets", "SendsMore"):
        source += f"\n\n@final\nclass {client}Avg(FederatedStrategy):\n    client = '{name}:{client}'\n"
        source += "    uploads = ('extractor.*', 'classifier.*')\n"
        source += "    def aggregate(self, updates):\n        return weighted_mean(updates)\n"
    source += "\n\n@final\nclass TwiceAvg(FederatedStrategy):\n    client, Settings = 'sgd', LocalTraining\n"
    source += "    downloads = uploads = ('*',)\n"
    source += "    def aggregate(self, updates):\n"
    source += "        return weighted_mean(u for u in updates if u.examples <= max(u.examples for u in updates))\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def run(folder: Path, flags: str) -> tuple[int, dict]:
    common = "--method fedavg --net lenet --clients 3 --rounds 2 --local-epochs 1 --attack none"
    code = sim.main([*common.split(), *flags.split(), "--out", str(folder)])
    result = folder / "result.json"
    return code, json.loads(result.read_text()) if result.exists() else {}


IN_PROCESS = [
    ("--defence {}:Raises --defended 1", "the shield fell (ValueError in {0}.py, line 15)"),
    ("--defence {}:SendsNaN --defended 1", "sent classifier.bias with NaN or infinite values"),
    ("--method {}:WrongShapeAvg", "expected classifier.bias as float32(10,), got float32(9,)"),
    ("--method {}:WrongTypeAvg", "expected classifier.bias as float32(10,), got float64(10,)"),
    ("--method {}:ForgetsAvg", "did not send classifier.bias"),
    (
        "--method {0}:SendsMoreAvg",
        "client 1 would send secret, but {0}:SendsMoreAvg uploads only extractor.*, classifier.*",
    ),
]


@pytest.mark.parametrize(("flags", "reason"), IN_PROCESS)
def test_a_failing_client_is_dropped_by_name_and_counted(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, reason: str
) -> None:
    flags, reason = flags.format(faulty), reason.format(faulty)
    code, result = run(tmp_path / "run", f"--engine inproc --expert on_client_failure=drop:2 {flags}")
    message = capsys.readouterr()
    assert code == 0, message.err
    for row in result["rounds"]:
        assert (row["failures"], row["clients"]) == (1, 2)
        assert row["failed"] == [{"client": 1, "reason": reason}]
        assert f"round {row['round']}/2  client 1 dropped: {reason}" in message.err
    assert "Updates dropped: 2, in 2 of the rounds; failures.csv says why." in message.out
    assert (tmp_path / "run" / "failures.csv").read_text().count("\n") == 3


@pytest.mark.parametrize(("flags", "reason"), IN_PROCESS)
def test_a_failing_client_ends_the_run_by_name(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, reason: str
) -> None:
    flags, reason = flags.format(faulty), reason.format(faulty)
    code, result = run(tmp_path / "run", f"--engine inproc {flags}")
    assert (code, result) == (1, {})
    way = "; if the loss grew, lower --lr" if "NaN" in reason else ""
    assert capsys.readouterr().err == f"sim.py: client 1 failed in round 1: {reason}{way}\n"


def test_a_method_that_reads_its_updates_twice_is_told_so(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second reading would find none, and divide by nothing."""
    assert run(tmp_path / "run", f"--engine inproc --method {faulty}:TwiceAvg") == (1, {})
    line = "Expected aggregate to read its updates once, as they arrive; list(updates) keeps them all."
    assert capsys.readouterr().err == f"sim.py: {line}\n"


def test_too_few_clients_end_the_run(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--engine inproc --expert on_client_failure=drop:3 --defence {faulty}:Raises --defended 1"
    assert run(tmp_path / "run", flags) == (1, {})
    reason = f"client 1: the shield fell (ValueError in {faulty}.py, line 15)"
    line = f"Expected at least 3 clients in round 1, got 2: {reason}."
    assert capsys.readouterr().err == f"sim.py: {line}\n"


def test_a_run_never_goes_on_with_nothing(faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = f"--engine inproc --expert on_client_failure=drop --defence {faulty}:Raises"
    assert run(tmp_path / "run", flags) == (1, {})
    line = capsys.readouterr().err
    assert re.search(r"got 0: client 0: the shield fell \(.*\); client 2: the shield fell \(", line)
    assert not list((tmp_path / "run" / "checkpoint").glob("round-00001-*"))


@pytest.mark.slow
def test_the_mean_is_that_of_the_clients_that_did_not_fail(faulty: str, small: Experiment, tmp_path: Path) -> None:
    flags = (
        f"--engine inproc --net cnn1 --rounds 1 --expert on_client_failure=drop --defence {faulty}:Raises --defended 1"
    )
    assert run(tmp_path / "run", flags)[0] == 0
    updates = []
    for partition in (0, 2):
        tensors, metrics = make_client(small, partition, tmp_path).fit_named(initial_tensors(small), version=0)
        updates.append(Update(partition, metrics["num-examples"], tensors))
    (path,) = (tmp_path / "run" / "checkpoint").glob("round-00001-*")
    result = {n.removeprefix("model/"): value for n, value in load_file(path).items() if n.startswith("model/")}
    expected = weighted_mean(updates)
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[name], value) for name, value in expected.items())


# --- on Ray: what a process of its own can suffer -----------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["HangsOutsidePython", "Hangs"])
def test_on_ray_a_client_that_hangs_is_dropped_and_its_place_filled_again(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    """Two actors, and two clients that hang in round 1: were they not replaced, nobody could answer in round 2."""
    flags = f"--expert on_client_failure=drop round_deadline=25 --cpus-per-client {CORES / 2}"
    code, result = run(tmp_path / "run", f"{flags} --defence {faulty}:{fault} --defended 1,2")
    message = capsys.readouterr().err
    assert code == 0, message
    late = "did not answer within 25 s"
    assert [row["failed"] for row in result["rounds"]] == [[{"client": c, "reason": late} for c in (1, 2)], []]
    assert [row["clients"] for row in result["rounds"]] == [1, 3]
    for client in (1, 2):
        assert f"round 1/2  client {client} dropped: {late}" in message


@pytest.mark.nightly
def test_on_ray_a_client_that_dies_is_dropped_and_its_place_filled_again(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--expert on_client_failure=drop --cpus-per-client {CORES} --rounds 1"  # one actor, and it dies first
    code, result = run(tmp_path / "run", f"{flags} --defence {faulty}:Dies --defended 0")
    message = capsys.readouterr().err
    assert code == 0, message
    (row,) = result["rounds"]
    assert (row["clients"], row["failed"]) == (2, [{"client": 0, "reason": "its process died"}])
    assert "round 1/1  client 0 dropped: its process died" in message


@pytest.mark.nightly
def test_on_ray_a_client_that_dies_ends_the_run(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "run", f"--defence {faulty}:Dies --defended 1") == (1, {})
    assert capsys.readouterr().err == "sim.py: client 1 failed in round 1: its process died\n"


# --- old code -----------------------------------------------------------------------------------------------------


class OldClient(InProcessGrid):
    """The client of partition 1 was installed earlier than the server, and says less of itself."""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        details = reply.content.config_records.get("about") if reply.has_content() else None
        if details and details["partition"] == 1:
            details["code"] = "0123"
            del details["gpu"]
        return reply


class RefusingClient(InProcessGrid):
    """The site of partition 1 refuses the app, as one does whose policy accepts another."""

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type == "query" and message.metadata.dst_node_id == 2:
            error = Error(0, "this site's policy does not accept app 0123")
            reply = Message(error, reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # Flower's server answers for it
            return reply
        return super()._answer(message)


@pytest.mark.parametrize("on_failure", ["drop", "fail"])
@pytest.mark.parametrize("clients", [OldClient, RefusingClient])
def test_a_client_with_old_code_or_that_refuses_the_new_is_never_asked(
    small: Experiment, monkeypatch: pytest.MonkeyPatch, on_failure: str, clients: type[InProcessGrid]
) -> None:
    experiment = dataclasses.replace(small, on_client_failure=on_failure, attack=("analytic",), images=2)
    assert experiment.out is not None
    monkeypatch.setenv("FLFW_TRUTH", str(experiment.out / "truth"))
    grid = clients(apps.client, experiment.clients, experiment.to_run_config())
    old = f"runs other code (0123) than the server ({code_hash()}); install the same on both"
    reason = old if clients is OldClient else "this site's policy does not accept app 0123"
    if on_failure == "fail":
        with pytest.raises(RunError) as caught:
            federation.federate(grid, plan(experiment))
        assert str(caught.value) == f"client 1 failed in node assignment: {reason}"
        assert (experiment.out / "failure.txt").read_text() == f"{caught.value}\n"
        return
    federation.federate(grid, plan(experiment))
    training = json.loads((experiment.out / "training.json").read_text())
    assert [row["failed"] for row in training["rounds"]] == [[{"client": 1, "reason": reason}]] * 2
    assert [row["client"] for row in training["final"]] == [0, 2]
    assert training["final_failed"] == [{"client": 1, "reason": reason}]
    assert {(f["round"], f["client"], f["reason"]) for f in training["probes"]} == {(0, 1, reason), (2, 1, reason)}


def test_of_several_that_refuse_it_is_not_known_who_said_what(small: Experiment) -> None:
    class Two(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            node = message.metadata.dst_node_id
            return Message(Error(0, f"no {node}"), reply_to=message) if node > 1 else super()._answer(message)

    directory, grid = ClientDirectory(FailurePolicy("drop")), Two(apps.client, 3, small.to_run_config())
    assert [answer.partition for answer in NodeAssignment(grid, directory, 3, wait=10).begin()] == [0]
    assert directory.excluded == {1: "no 2; no 3", 2: "no 2; no 3"}
    assert sorted(directory.nodes) == [0, 1, 2]  # a cohort is drawn from all


def test_where_the_dead_are_not_replaced_a_death_ends_the_run(question: Message) -> None:
    """Flower's own commands: the engine would hand the dead one's place every other client, and drop them all."""
    strategy = FedAvg(tolerance=FailurePolicy("drop", replaces_the_dead=False))
    strategy.client_directory.nodes = {0: 7}
    died = Message(Error(2, "<class 'ray.exceptions.ActorDiedError'>:<'The actor died'>"), reply_to=question)
    with pytest.raises(RunError, match=r"^client 0 failed in round 1: its process died$"):
        list(strategy.client_directory.receive([question], [died], "round 1", read_metrics, []))


def failures(
    question: Message, reply: Message, tolerance: FailurePolicy, take: Callable[[Message], object]
) -> list[Failure]:
    """What is said of client 0, whose reply is of no use."""
    directory, failed = FedAvg(tolerance=tolerance).client_directory, []
    directory.nodes = {0: 7}
    assert not list(directory.receive([question], [reply], "round 1", take, failed))
    return failed


@pytest.mark.parametrize(("after", "reason"), [(19.0, "its process died"), (21.0, "did not answer within 20 s")])
def test_a_client_that_ends_itself_after_its_deadline_is_late_and_not_dead(
    question: Message, after: float, reason: str
) -> None:
    """A site ends a hung process a second after the deadline; a slow server may hear of it before it stops waiting."""
    died = Message(Error(2, "its process died"), reply_to=question)
    died.metadata.created_at = question.metadata.created_at + after
    assert failures(question, died, FailurePolicy("drop", deadline=20.0), read_metrics) == [Failure(0, reason)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("\x1b[2J\nall is well", "sent ?[2J?all is well, which is not to be uploaded"),
        ("x" * 10**6, f"sent {'x' * 80}, which is not to be uploaded"),
    ],
)
def test_a_name_that_a_client_chose_is_a_short_line(question: Message, name: str, line: str) -> None:
    reply = Message(answer({name: torch.ones(1)}, {"num-examples": 1}), reply_to=question)

    def take(reply: Message) -> object:
        return read_update(reply, ("*",), ArrayRecord())

    assert failures(question, reply, FailurePolicy("drop"), take) == [Failure(0, line)]


def test_a_reason_that_a_client_chose_is_no_formula_of_a_spreadsheet() -> None:
    assert in_one_line("=cmd|' /C calc'!A0") == "'=cmd|' /C calc'!A0"
    assert in_one_line("-" * 500) == "'" + "-" * 299


def test_two_nodes_with_one_partition_are_refused(small: Experiment) -> None:
    grid = InProcessGrid(apps.client, 4, small.to_run_config())
    for node, partition in enumerate((0, 0, 1, 2), start=1):
        grid._contexts[node].node_config["partition-id"] = partition
    with pytest.raises(RunError, match=r"Expected partitions 0 to 2, got \[0, 0, 1, 2\] from 4 nodes"):
        NodeAssignment(StreamingGrid(grid), FedAvg().client_directory, 3, wait=10).begin()


def test_the_final_evaluation_asks_as_many_at_once_as_a_round(small: Experiment) -> None:
    requested: list[int] = []

    class Counting(InProcessGrid):
        def push_messages(self, messages):  # type: ignore[no-untyped-def]
            kept = list(messages)
            requested.append(len([m for m in kept if m.metadata.message_type == "evaluate"]))
            return super().push_messages(kept)

    experiment = dataclasses.replace(small, clients=5, sample=2, rounds=1, net="lenet")
    federation.federate(Counting(apps.client, 5, experiment.to_run_config()), plan(experiment))
    assert [n for n in requested if n] == [2, 2, 1]


@pytest.mark.slow
def test_a_probe_that_nobody_can_use_is_a_failure_and_is_not_recorded(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--attack analytic --images 3 --audit-rounds 0 --expert on_client_failure=drop --net linear --rounds 1"
    code, result = run(tmp_path / "run", f"--engine inproc {flags} --defence {faulty}:SendsNaN --defended 1")
    message = capsys.readouterr()
    assert code == 0, message.err
    reason = "sent classifier.bias with NaN or infinite values"
    assert f"round 0/1  probe of client 1: {reason}" in message.err
    assert "Probes without a usable answer: 1; failures.csv says why." in result["notes"]
    defended, others = result["audit"]
    assert (defended["images"], defended["failures"], defended["verdict"]) == (1, 1, "undecided")
    assert (others["images"], others["failures"]) == (2, 0)
    assert f"\n0,probe,1,{reason}\n" in (tmp_path / "run" / "failures.csv").read_text()


def test_a_message_of_another_version_is_refused_by_the_client(small: Experiment) -> None:
    grid = StreamingGrid(InProcessGrid(apps.client, 1, small.to_run_config()))
    config = ConfigRecord({"code": "0123", "experiment": "x", "round": 1, "state_version": 0, "deadline": 60.0})
    content = RecordDict({"arrays": ArrayRecord({}), "config": config})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
    assert "runs other code" in reply.error.reason and "than the server (0123)" in reply.error.reason


# --- deadlines in process -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_process_a_late_answer_is_a_failure_and_the_next_clients_are_not_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = apps.FederatedClient.fit_named
    requested = []

    def slow(self, received, version):  # type: ignore[no-untyped-def]
        requested.append((self.ctx.round, self.ctx.partition))
        if self.ctx.partition == 1:
            time.sleep(1.5)
        return real(self, received, version)

    monkeypatch.setattr(apps.FederatedClient, "fit_named", slow)
    code, result = run(tmp_path / "run", "--engine inproc --expert on_client_failure=drop round_deadline=1.4")
    assert code == 0, capsys.readouterr().err
    late = "did not answer within 1.4 s"
    assert result["rounds"][0]["failed"] == [{"client": 1, "reason": late}, {"client": 2, "reason": late}]
    assert requested == [(1, 0), (1, 1), (2, 0), (2, 1)]


# --- the parts ----------------------------------------------------------------------------------------------------


BROADCAST = pack({"w": torch.zeros(2)})


@pytest.fixture
def question() -> Message:
    """What the replies below answer; Flower lets nobody write a message outside a run."""
    InProcessGrid(apps.client, 1, {})
    return Message(RecordDict(), dst_node_id=7, message_type="train")


def answer(tensors: dict[str, torch.Tensor] | None, metrics: dict | None) -> RecordDict:
    content = RecordDict()
    if tensors is not None:
        content["arrays"] = pack(tensors)
    if metrics is not None:
        content["metrics"] = MetricRecord(metrics)
    return content


def test_a_usable_reply_is_taken_apart(question: Message) -> None:
    content = answer({"w": torch.ones(2)}, {"num-examples": 5, "loss": float("nan")})
    tensors, metrics, size = read_update(Message(content, reply_to=question), ("w",), BROADCAST)
    assert torch.equal(tensors["w"], torch.ones(2))
    assert metrics == {"num-examples": 5, "loss": None}  # JSON has no NaN
    assert size == len(pack({"w": torch.ones(2)})["w"].data)


FIVE = {"num-examples": 5}


@pytest.mark.parametrize(
    ("tensors", "metrics", "reason"),
    [
        ({"w": torch.ones(2)}, {}, "expected 1 <= num-examples <= 2147483648, got None"),
        ({"w": torch.ones(2)}, {"num-examples": 0}, "expected 1 <= num-examples <= 2147483648, got 0"),
        ({"w": torch.ones(2)}, {"num-examples": 1.5}, "expected 1 <= num-examples <= 2147483648, got 1.5"),
        ({"w": torch.ones(2), "v": torch.ones(1)}, FIVE, "sent v, which is not to be uploaded"),
        ({}, FIVE, "did not send w"),
        ({"w": torch.ones(3)}, FIVE, "expected w as float32(2,), got float32(3,)"),
        ({"w": torch.ones(2, dtype=torch.float64)}, FIVE, "expected w as float32(2,), got float64(2,)"),
        ({"w": torch.tensor([1.0, float("nan")])}, FIVE, "sent w with NaN or infinite values"),
        ({"w": torch.tensor([1.0, float("-inf")])}, FIVE, "sent w with NaN or infinite values"),
        ({"w": torch.ones(2)}, None, "sent no metrics"),
        (None, FIVE, "expected one record of arrays, got none"),
        ({"w": torch.ones(9999)}, FIVE, "sent 40124 bytes of w, of which there are 136"),
        ({"w": torch.ones(2)}, {**FIVE, "client": 3}, "sent a metric client=3, which is not its to send"),
        ({"w": torch.ones(2)}, {**FIVE, "loss": [1.0, 2.0]}, "sent a metric loss=[1.0, 2.0], which is not its to send"),
        (
            {"w": torch.ones(2)},
            {"num-examples": 2**62},
            "expected 1 <= num-examples <= 2147483648, got 4611686018427387904",
        ),
        ({"w": torch.ones(2)}, {**FIVE, "=HYPERLINK(1)": 1.0}, "sent a metric =HYPERLINK(1)=1.0, which is not its to"),
        ({"w": torch.ones(2)}, {**FIVE, "\x1b[2Jloss": 1.0}, "sent a metric ?[2Jloss=1.0, which is not its to send"),
        ({"w": torch.ones(2)}, {**FIVE, "x" * 70: 1.0}, f"sent a metric {'x' * 70}=1.0, which is not its to send"),
        ({"w": torch.ones(2)}, {f"m{n}": 1.0 for n in range(101)}, "sent 101 metrics, of which 100 are the most"),
    ],
)
def test_what_cannot_be_used_is_said(
    question: Message, tensors: dict[str, torch.Tensor] | None, metrics: dict | None, reason: str
) -> None:
    with pytest.raises(UnusableReplyError) as caught:
        read_update(Message(answer(tensors, metrics), reply_to=question), ("w",), BROADCAST)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("record", ["tensor", "record"])
def test_a_name_that_a_client_made_up_is_shown_in_one_short_line(question: Message, record: str) -> None:
    name = "\x1b[2J\n=cmd()" + "x" * 9999
    content = answer({"w": torch.ones(2), name: torch.ones(1)}, FIVE)
    if record == "record":
        content[name] = content.pop("arrays")
    with pytest.raises(UnusableReplyError, match=re.escape("?[2J?=cmd()xxx")) as caught:
        read_update(Message(content, reply_to=question), ("w",), BROADCAST)
    assert len(str(caught.value)) <= 300 and str(caught.value).isprintable()


HUGE = b"(2,), }" + 7 * b" ", b"(2" + 7 * b"0" + b",), }"


@pytest.mark.parametrize(
    "change", [lambda data: data.replace(*HUGE), lambda data: b"\x80\x04."], ids=["huge", "pickle"]
)
def test_bytes_that_are_no_array_are_not_made_one(question: Message, change: Callable[[bytes], bytes]) -> None:
    content = answer({"w": torch.ones(2)}, FIVE)
    array = content.array_records["arrays"]["w"]
    array.data = change(array.data)
    with pytest.raises(UnusableReplyError, match="sent arrays that cannot be read"):
        read_update(Message(content, reply_to=question), ("w",), BROADCAST)


def test_a_final_evaluation_without_its_numbers_is_a_failure(question: Message) -> None:
    content = answer(None, {"acc_global": 0.5, "acc_local": float("nan")})
    with pytest.raises(UnusableReplyError, match=r"^sent no acc_local$"):
        read_metrics(Message(content, reply_to=question), ("acc_global", "acc_local"))


def test_a_name_that_no_model_has_is_refused_though_the_pattern_allows_it(question: Message) -> None:
    """FedAvg uploads everything, ``*``: of the model, and not what a client makes up."""
    content = answer({"w": torch.ones(2), "evil": torch.ones(1)}, FIVE)
    with pytest.raises(UnusableReplyError, match=r"^sent evil, which is not to be uploaded$"):
        read_update(Message(content, reply_to=question), FedAvg.uploads, BROADCAST)


def test_an_error_is_said_in_the_clients_own_words(question: Message) -> None:
    with pytest.raises(UnusableReplyError, match=r"^boom$"):
        read_update(Message(Error(2, "boom"), reply_to=question), ("w",), BROADCAST)


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (None, "no reason given"),
        ("", "no reason given"),
        ("one\ntwo\n", "two"),
        ("\x1b[2J\x07gone", "?[2J?gone"),
        ("x" * 20_000_000, "x" * 300),
        ("<class 'ValueError'>:<'the shield fell'>", "the shield fell"),
        ("<class 'a.B'>:<'Expected 'x'\n in 'y'>' here, got <'z'>'>", "in 'y'>' here, got <'z'>"),
        (
            "<class 'x.ClientAppException'>:<'\nException ValueError occurred. Message: the shield fell'>",
            "the shield fell",
        ),
        (
            "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly\nbefore finishing'>",
            "its process died",
        ),
    ],
)
def test_flowers_wrapping_is_taken_off(message: str | None, heard: str) -> None:
    assert in_one_line(message) == heard


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("w"), "'w' (KeyError in test_faults.py, line N)"),
        (ValueError("first\n  second"), "first second (ValueError in test_faults.py, line N)"),
        (AssertionError(), "(AssertionError in test_faults.py, line N)"),
        (ValueError("x" * 999), "x" * 200 + " (ValueError in test_faults.py, line N)"),
        (Unspeakable(), "(Unspeakable in test_faults.py, line N)"),
        (InputError("Expected a, got b."), "Expected a, got b."),
    ],
)
def test_an_exception_of_somebodys_code_is_told_with_its_place(error: Exception, said: str) -> None:
    """The place is the last one outside of packages: a tensor's own code raises for what a plug-in gave it."""
    with pytest.raises(type(error)) as caught:
        raise error
    assert re.sub(r"line \d+", "line N", words_of(caught.value)) == said


def test_an_exception_of_a_package_is_told_with_the_line_that_called_it() -> None:
    with pytest.raises(np.linalg.LinAlgError) as caught:
        np.linalg.inv(np.zeros((2, 2)))
    assert words_of(caught.value).startswith("Singular matrix (LinAlgError in test_faults.py, line ")
    assert words_of(ValueError("never raised")) == "never raised (ValueError)"


def test_a_dead_nodes_error_is_known_by_the_message_it_answers() -> None:
    """Flower gives the error of a SuperNode that died another source."""
    InProcessGrid(apps.client, 1, {})
    strategy = FedAvg(tolerance=FailurePolicy("drop"))
    strategy.client_directory.nodes = {0: 70, 1: 71}
    messages = [strategy.create_message(p, BROADCAST, "train", 1) for p in (0, 1)]
    for i, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"m{i}"
    error = Message(Error(1, "node unavailable"), reply_to=messages[1])
    error.metadata.__dict__["_src_node_id"] = 1
    failed: list[Failure] = []
    assert not list(strategy.client_directory.receive(messages, [error], "round 1", read_metrics, failed))
    assert [str(f) for f in failed] == ["client 1: node unavailable", "client 0: did not answer within 3600 s"]


def test_an_engine_that_stops_ends_the_server() -> None:
    stopped = threading.Event()
    grid = launch.StoppableGrid(InProcessGrid(apps.client, 2, {}), stopped)
    assert list(grid.get_node_ids()) == [1, 2]
    stopped.set()
    with pytest.raises(RunError, match="The engine stopped before the run was over"):
        grid.get_node_ids()
    with pytest.raises(RunError):
        grid.pull_messages([])


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (
            {"on_client_failure": "fail:0"},
            "Expected on-client-failure=fail or drop, with :N from 1 to 10, the clients of a round, "
            "got on_client_failure=fail:0.",
        ),
        (
            {"on_client_failure": "fail:4", "sample": 3},
            "Expected on-client-failure=fail or drop, with :N from 1 to 3, the clients of a round, "
            "got on_client_failure=fail:4.",
        ),
        ({"round_deadline": 0.0}, "Expected 0 < round-deadline < inf, got round_deadline=0.0."),
    ],
)
def test_a_tolerance_that_makes_no_sense_is_refused(changed: dict, line: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(**changed)
    assert str(caught.value) == line
