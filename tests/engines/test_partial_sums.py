"""Sums of a branch's updates, made by the actor: the same bits as from single updates, also where some fail."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file

from flfw.engines.branches import BranchPlace, fetchable, places_of, rounded, summable, whole
from flfw.engines.client_actor import ClientActor, SimulatedApp
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.message_packing import pack_message, unpack_message
from flfw.messages.reasons import UnusableReplyError
from flfw.messages.wire import pack, unpack
from flfw.nets.net import Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.server.aggregation import Update, update_of, weighted_mean
from flfw.server.reply_reader import ReplyReader, SumReader
from tests.support.engine_runs import rows_without_times, train_by_engine

app = ClientApp()


@app.train()
def trained(message: Message, context: Context) -> Message:
    """Add a number of the client's own; some raise, some send NaN."""
    me, config = int(context.node_config["partition-id"]), message.content.config_records["config"]
    if me in config["raising"]:  # type: ignore[operator]
        raise ValueError("no data")
    received = unpack(message.content.array_records["arrays"])
    change = torch.nan if me in config["unsound"] else 0.1 * me  # type: ignore[operator]
    sent = {"w": received["w"] + change, "count": received["count"] + me}
    return Message(
        RecordDict({"arrays": pack(sent), "metrics": MetricRecord({"num-examples": me + 1, "loss": 0.5 * me})}),
        reply_to=message,
    )


FIRST = {"w": torch.linspace(-1, 1, 7), "count": torch.tensor(0)}


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    InProcessGrid(app, 1, {})  # a Message() asks for the identity of a run
    yield


def asked(partitions: Sequence[int], raising: Sequence[int] = (), unsound: Sequence[int] = ()) -> list[Message]:
    config: dict[str, Any] = {"raising": [-1, *raising], "unsound": [-1, *unsound]}
    messages = [
        Message(RecordDict({"arrays": pack(FIRST), "config": ConfigRecord(config)}), p + 1, "train") for p in partitions
    ]
    for message in messages:
        message.metadata.__dict__["_message_id"] = str(message.metadata.dst_node_id)
    return messages


def answers(messages: Sequence[Message], *, summed: bool) -> list[Message]:
    spans = whole(places_of(messages, 0)) if summed else []
    actor = ClientActor(SimulatedApp(app, 40, {}, uploads=("*",)))
    _, packed, _ = actor.answer([pack_message(message, {}) for message in messages], {}, {}, (), spans)
    return [unpack_message(parcel, {}) for parcel in packed]


def reader(*, summed: bool = True) -> ReplyReader:
    return ReplyReader(pack(FIRST), ("*",), None, counted=True, check=lambda metrics: None, summed=summed)


def combined(replies: Sequence[Message]) -> tuple[Tensors, list[tuple[int, dict, int]], list[int]]:
    """The mean of the usable replies, the numbers and bytes of each, and who failed."""
    read, updates, rows, failed = reader(), list[Update](), list[tuple[int, dict, int]](), list[int]()
    for reply in replies:
        client = reply.metadata.src_node_id - 1
        try:
            tensors, metrics, size = read(reply)
        except UnusableReplyError:
            failed.append(client)
            continue
        rows.append((client, metrics, size))
        if tensors is not None:
            updates.append(update_of(client, tensors, metrics))
    read.end()
    return weighted_mean(updates), rows, failed


@pytest.mark.parametrize(
    ("raising", "unsound"),
    [((), ()), ((7,), ()), ((0,), (23,)), ((8, 9, 10, 11, 12, 13, 14, 15), ()), ((), (22,)), ((15, 16), (19, 23))],
)
def test_sums_give_the_bits_of_single_updates(raising: tuple[int, ...], unsound: tuple[int, ...]) -> None:
    messages = asked([*range(17), 19, 22, 23, 31], raising, unsound)
    sums, singles = answers(messages, summed=True), answers(messages, summed=False)
    branches, usable = (range(8), range(8, 16), [16, 19, 22, 23], [31]), {*sent(messages)} - {*raising, *unsound}
    assert [sum("arrays" in reply.content for reply in some if reply.has_content()) for some in (sums, singles)] == [
        sum(bool(usable & {*branch}) for branch in branches) + len(unsound),
        len(messages) - len(raising),
    ]
    mean, rows, failed = combined(sums)
    expected, single_rows, single_failed = combined(singles)
    assert (rows, failed) == (single_rows, single_failed)
    assert set(failed) == {*raising, *unsound}
    assert mean["count"].dtype == torch.int64 and torch.equal(mean["count"], expected["count"])
    assert mean["w"].numpy().tobytes() == expected["w"].numpy().tobytes()


def sent(messages: Sequence[Message]) -> list[int]:
    return [message.metadata.dst_node_id - 1 for message in messages]


def test_a_branch_of_which_all_fail_sends_its_failures() -> None:
    assert [reply.has_error() for reply in answers(asked([0, 1], raising=[0, 1]), summed=True)] == [True, True]


@pytest.mark.parametrize("lost", [0, 3])
def test_a_sum_without_one_of_its_replies_is_not_used(lost: int) -> None:
    replies = answers(asked(range(4)), summed=True)
    with pytest.raises(RunError, match=r"Expected all answers beside their sum, got (-1|\+3) of them"):
        combined([reply for index, reply in enumerate(replies) if index != lost])


def test_a_server_that_does_not_ask_for_sums_refuses_them() -> None:
    for reply in answers(asked(range(2)), summed=True):
        with pytest.raises(UnusableReplyError):
            reader(summed=False)(reply)


def places(clients: Sequence[int], asking: int = 1) -> list[BranchPlace | None]:
    return places_of(asked(clients), asking)


def test_large_branches_are_not_cut() -> None:
    eleven = places(range(11))
    assert [rounded(eleven, maximum, 11) for maximum in (1, 2, 3, 4, 5, 8, 11)] == [1, 4, 4, 8, 8, 8, 11]
    assert [rounded(eleven, maximum, 5) for maximum in (2, 3, 5)] == [4, 4, 4]  # no more than an actor's share
    assert rounded(eleven[4:], 2, 3) == 2  # 4 and 5
    assert rounded([None, None, None], 2, 2) == 2


def test_branches_that_are_whole_in_a_chunk() -> None:
    assert whole(places(range(10))) == [(0, 8), (8, 10)]
    assert whole(places(range(10))[:7]) == [(0, 4), (4, 6)]
    assert whole(places(range(10))[1:]) == [(1, 3), (3, 7), (7, 9)]  # 2 and 3, 4 to 7, 8 and 9
    assert whole(places([0, 5, 8, 9, 12])) == [(0, 2), (2, 5)]  # nobody else of their blocks was asked
    assert whole(places([0, 5, 8, 9, 12])[:4]) == [(0, 2), (2, 4)]
    assert whole([*places(range(2)), *places(range(2, 4), 2)]) == [(0, 2), (2, 4)]
    assert whole([place for place in places(range(4)) if place and place.number != 1]) == [(1, 3)]
    assert whole(places([3, 2, 1, 0])) == []


def test_replies_of_a_branch_are_late_together() -> None:
    assert fetchable([(0, 2)], [5.0, 7.0, 5.0], now=6.0) == [0.0, 0.0, 5.0]
    assert min(fetchable([(0, 2)], [5.0, 7.0], now=4.0)) > 7.0


ALONE = {
    "attack": {"attack": ("ig",)},
    "record": {"record": True},
    "canaries": {"canaries": 2},
    "defence": {"defence": "prune"},
    "robust": {"robust": "median"},
    "metrics": {"metrics": "none"},
    "engine": {"engine": "flwr-sim"},
    "method": {"method": "fednova"},
    "weights": {"method": "fedbn"},
}


@pytest.mark.parametrize("why", [*ALONE, ""])
def test_sums_are_off_where_single_updates_are_needed(why: str) -> None:
    more = {"method": "fedavg", "attack": ("none",), "engine": "ray", "clients": 20, **ALONE.get(why, {})}
    run_plan = plan(without_auto(Experiment(**more)))
    assert summable(run_plan.client, run_plan.engine.engine, run_plan.audit.sees_updates) is not bool(why)


FOREIGN = """
from typing import final
from flfw.messages.reasons import UnusableReplyError
from flfw.server.aggregation import weighted_mean
from flfw.server.strategy import FederatedStrategy
from flfw.strategies.fedavg import FedAvg

class Plain(FedAvg):
    net = "mlp"

class Declared(FederatedStrategy):
    Settings, reduces, client = FedAvg.Settings, "mean", "sgd"

    def aggregate(self, updates):
        return weighted_mean(updates)

class Refusing(Declared):
    reduces = "mean"

    def check_metrics(self, metrics):
        raise UnusableReplyError("no number is good enough")

class Looking(FedAvg):
    client = "sgd"

    def aggregate(self, updates):
        return weighted_mean([one for one in updates if one.partition])

class Mixin:
    def aggregate_round(self, arrays, updates, server_round):
        return super().aggregate_round(arrays, list(updates)[:1], server_round)

class Mixed(Mixin, FedAvg):
    pass

class Needing(Declared):
    needed_metric = "loss"

class Sly(FederatedStrategy):
    Settings, reduces, client = FedAvg.Settings, "mean", "sgd"

    def aggregate(self, updates):
        return weighted_mean([one for one in updates if one.partition])
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign_sums.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "foreign_sums", raising=False)


def of_foreign(name: str) -> Experiment:
    more: dict[str, Any] = {"clients": 3, "rounds": 1, "net": "linear", "local_epochs": 1, "engine": "inproc"}
    return without_auto(Experiment(method=f"foreign_sums:{name}", attack=("none",), **more))


@pytest.mark.parametrize(
    ("name", "sums"),
    [
        ("Plain", True),
        ("Declared", True),
        ("Sly", True),
        ("Refusing", False),
        ("Looking", False),
        ("Mixed", False),
        ("Needing", False),
    ],
)
@pytest.mark.usefixtures("foreign")
def test_a_method_of_which_something_looks_at_single_updates_gets_them(name: str, sums: bool) -> None:
    run_plan = plan(of_foreign(name))
    assert run_plan.client.method.reduces == "mean"
    assert summable(run_plan.client, run_plan.engine.engine, run_plan.audit.sees_updates) is sums


@pytest.mark.usefixtures("foreign")
def test_a_method_that_refuses_numbers_is_asked_on_the_way_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no number is good enough"):
        train_by_engine(of_foreign("Refusing"), tmp_path / "run")


@pytest.mark.usefixtures("foreign")
def test_a_method_that_declares_a_mean_and_looks_at_updates_ends_its_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="for a method that looks at single updates"):
        train_by_engine(of_foreign("Sly"), tmp_path / "run")


def last_model(folder: Path) -> dict[str, bytes]:
    (last,) = (folder / "checkpoint").glob("round-*")
    return {name: value.numpy().tobytes() for name, value in load_file(last).items() if name.startswith("model/")}


@pytest.mark.nightly
@pytest.mark.early
def test_a_run_with_sums_ends_with_the_bits_of_one_without(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches are handed out whole once the time of a reply is known, after round 1."""
    monkeypatch.setattr("flfw.engines.actor_pool._CHUNK_S", inf)  # also on a slow machine
    read, sums = SumReader.read, list[int]()

    def noted(self: SumReader, reply: Message) -> Any:
        result = read(self, reply)
        sums.extend([result[0].examples] if result and result[0] else [])
        return result

    monkeypatch.setattr(SumReader, "read", noted)
    requested = dataclasses.replace(small, method="fedavg", clients=20, rounds=4, attack=("none",), net="linear")
    here = train_by_engine(requested, tmp_path / "inproc")
    assert sums == []
    there = train_by_engine(dataclasses.replace(requested, engine="ray"), tmp_path / "ray")
    assert len(sums) >= 3
    assert rows_without_times(here) == rows_without_times(there)
    assert last_model(tmp_path / "ray") == last_model(tmp_path / "inproc")
