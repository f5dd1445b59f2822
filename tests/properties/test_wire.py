"""What clients answer: uploads, metrics, client infos, whole rounds, and the recorder between."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.strategies import DataObject

from flfw.engines import apps
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.messages.client_info import ClientInfo
from flfw.messages.factored_upload import FactoredUpload, FactorReader, Factors, _layers, _packed
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.reasons import UnusableReplyError, in_one_line
from flfw.messages.replies import read_metrics, read_update
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import forms, pack, views
from flfw.plans.run_plan import RunPlan, plan
from flfw.recording.grid import RecordingGrid
from flfw.recording.reader import Recordings
from flfw.runs.run_notes import final_accuracies
from flfw.server.client_directory import FailurePolicy, NodeAssignment, Requirements
from flfw.server.history import History
from tests.properties.changes import words
from tests.properties.message_changes import answer, changed_arrays, changed_content, changed_record
from tests.properties.reading import Folder, require_refused_or_valid

METRICS = {"num-examples": 50, "loss": 1.5, "acc_global": 0.25, "acc_local": 0.5, "acc_validation": 0.5,
           "acc_protected": 0.5, "seconds": 0.1}  # fmt: skip
INFO: dict[str, Any] = {"partition": 1, "code": "abc", "gpu": False, "volunteered": -1, "shape": [1, 8, 8],
                        "classes": 10, "labels": "", "trouble": ""}  # fmt: skip
FACTORS = FactoredUpload("heads.*", 0.05)


@pytest.fixture(scope="module", autouse=True)
def _a_run() -> None:
    InProcessGrid(apps.client, 1, {})  # Flower makes messages for a run alone, which this one names


def made_tensors() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"body.weight": (3, 4), "body.bias": (3,)}
    shapes |= {f"heads.{i}.{n}": s for i in (0, 1) for n, s in (("weight", (60, 3)), ("bias", (60,)))}
    return {**{n: torch.randn(s, generator=rng) for n, s in shapes.items()}, "steps": torch.tensor(7)}


TENSORS = made_tensors()


def is_update(read: Any) -> bool:
    sent, metrics, _ = read
    alike = all(forms({n: v})[n] == forms(TENSORS)[n] and bool(torch.isfinite(v).all()) for n, v in sent.items())
    return alike and sent.keys() <= TENSORS.keys() and 1 <= metrics["num-examples"] <= 2**31


@given(data=st.data())
def test_a_changed_update_is_refused_or_finite_and_in_the_forms_of_the_broadcast(data: DataObject) -> None:
    content = data.draw(changed_content(pack({n: v + 1 for n, v in TENSORS.items()}), METRICS))
    reply = data.draw(answer(content))
    require_refused_or_valid(
        lambda: read_update(reply, ("*",), pack(TENSORS)), refusals=(UnusableReplyError,), is_valid=is_update
    )


VALUES = npst.arrays(np.float32, (3, 4), elements=st.floats(width=32), fill=st.just(np.float32(0.5)))


@given(VALUES, st.one_of(st.integers(-1, 2**31 + 1), st.integers(1, 99), st.floats()))
def test_an_update_is_read_if_it_is_finite_and_its_number_of_examples_is_one(values: np.ndarray, examples: Any) -> None:
    arrays = pack({**TENSORS, "body.weight": torch.tensor(values)})
    metrics = MetricRecord({**METRICS, "num-examples": examples})
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
    got: Any = require_refused_or_valid(
        lambda: read_update(reply, ("*",), pack(TENSORS)), refusals=(UnusableReplyError,), is_valid=is_update
    )
    fits = bool(np.isfinite(values).all()) and type(examples) is int and 1 <= examples <= 2**31
    assert fits == (got is not None)
    assert got is None or np.array_equal(got[0]["body.weight"].numpy(), values)


def made_factors() -> ArrayRecord:
    """Factors of small layers, which `FactoredUpload.compress` would leave as they are."""
    received = {n: v.numpy() for n, v in TENSORS.items()}
    layers, rng = _layers(FACTORS.pattern, received), torch.Generator().manual_seed(2)
    axes, along = torch.linalg.qr(torch.randn(4, 2, generator=rng))[0], torch.randn(120, 2, generator=rng)
    parts = _packed(Factors.rounded(0.99, 0.01, axes, along), layers.digest(received))
    named = {f"{FACTORS.pattern}/{part}": value for part, value in parts.items()}
    return pack({**{n: v for n, v in TENSORS.items() if not n.startswith("heads")}, **named})


@given(data=st.data())
def test_a_changed_update_of_factors_is_so_too(data: DataObject) -> None:
    reply = data.draw(answer(data.draw(changed_content(made_factors(), METRICS))))
    reads = FactorReader(FACTORS, ("*",), pack(TENSORS))
    require_refused_or_valid(lambda: reads(reply), refusals=(UnusableReplyError,), is_valid=is_update)


def test_factors_as_they_are_sent_are_read() -> None:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = Message(RecordDict({"arrays": made_factors(), "metrics": MetricRecord(METRICS)}), reply_to=message)
    assert is_update(FactorReader(FACTORS, ("*",), pack(TENSORS))(reply))


def test_two_metrics_whose_sum_is_no_number_are_none() -> None:
    message = Message(RecordDict(), dst_node_id=1, message_type="evaluate")
    reply = Message(RecordDict({"metrics": MetricRecord({**METRICS, "acc_global": 1e308})}), reply_to=message)
    rows = [{"client": i, "round": 1, "upload_bytes": 8, **read_metrics(reply)} for i in (0, 1)]
    final = final_accuracies(rows, [], None)
    assert final["acc_global"] is None and final["acc_local"] == 0.5


@given(data=st.data())
def test_changed_metrics_are_refused_or_counted(data: DataObject) -> None:
    records = [RecordDict({"metrics": data.draw(changed_record(MetricRecord, METRICS))}) for _ in range(2)]
    replies = [data.draw(answer(record)) for record in records]

    def read() -> object:
        taken = [
            {"client": i, "round": 1, "upload_bytes": 8, **read_metrics(reply, ("acc_global", "acc_local"))}
            for i, reply in enumerate(replies)
        ]
        history = History()
        return history.add(1, taken, [], 8, 1.0, {}), final_accuracies(taken, history.clients, None)

    require_refused_or_valid(read, refusals=(UnusableReplyError,))


@given(st.one_of(st.text(), st.lists(words(), max_size=8).map("".join)))
def test_any_reason_is_one_short_line(reason: str) -> None:
    line = in_one_line(reason)
    assert line.isprintable() and len(line) <= 300


def is_info(one: Any) -> bool:
    numbers = (one.partition, one.volunteered, one.classes, *one.shape)
    plain_words = one.code.isascii() and one.labels.isascii() and one.trouble.isprintable()
    return all(type(number) is int for number in numbers) and plain_words and type(one.gpu) is bool


@given(data=st.data())
def test_a_changed_client_info_is_refused_or_one(data: DataObject) -> None:
    reply = data.draw(answer(RecordDict({"about": data.draw(changed_record(ConfigRecord, INFO))})))
    require_refused_or_valid(lambda: ClientInfo.from_message(reply), refusals=(UnusableReplyError,), is_valid=is_info)


class AnsweringGrid(InProcessGrid):
    """Grid whose replies are made beforehand."""

    def __init__(self, replies: Callable[[Sequence[Message]], list[Message]], nodes: int) -> None:
        super().__init__(apps.client, nodes, {})
        self._replies = replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        requests = list(messages)
        self.push_messages(requests)
        return self._replies(requests)


@pytest.fixture(scope="module")
def run_plan() -> RunPlan:
    return plan(
        Experiment(
            method="fedavg", net="linear", clients=3, dataset="digits", split="iid", augment="none", attack=("none",)
        )
    )


def is_model(read: Any) -> bool:
    record, row = read
    return all(bool(torch.isfinite(torch.tensor(v)).all()) for v in views(record).values()) and row["clients"] >= 1


@given(data=st.data())
def test_a_round_in_which_one_client_lies_gives_a_finite_model_or_one_line(data: DataObject, run_plan: RunPlan) -> None:
    """It changes its client info and its update, and one of them may be there twice."""
    arrays = pack(TENSORS)
    liar, twice = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    info = data.draw(changed_record(ConfigRecord, {**INFO, "partition": liar}))
    update = data.draw(changed_content(arrays, METRICS))

    def replies(messages: Sequence[Message]) -> list[Message]:
        made = []
        for i, message in enumerate(messages):
            is_query, lies = message.metadata.message_type == "query", i == liar
            if is_query:
                content = RecordDict({"about": info if lies else ConfigRecord({**INFO, "partition": i})})
            else:
                content = update if lies else RecordDict({"arrays": arrays, "metrics": MetricRecord(METRICS)})
            made.append(Message(content, reply_to=message))
        return made + made[liar : liar + twice]

    def read() -> object:
        strategy = run_plan.strategy(run_plan.client.settings, tolerance=FailurePolicy(on_failure="drop"))
        grid = AnsweringGrid(replies, 3)
        NodeAssignment(grid, strategy.client_directory, 3, 1.0, Requirements(INFO["code"], (1, 8, 8), 10)).begin()
        messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
        return strategy.aggregate_train(1, grid.send_and_receive(messages))

    require_refused_or_valid(read, refusals=(RunError,), is_valid=is_model)


@given(data=st.data())
def test_replies_in_any_order_twice_or_to_another_message_are_streamed_once(data: DataObject) -> None:
    requests = [Message(RecordDict(), dst_node_id=i, message_type="train") for i in (1, 2, 3)]
    inner = AnsweringGrid(lambda messages: [], 3)
    inner.push_messages(requests)

    def pull(ids: Iterable[str]) -> list[Message]:
        made = [Message(RecordDict(), reply_to=message) for message in requests]
        for reply in made:
            if data.draw(st.integers(0, 2)) == 2:
                other = data.draw(st.sampled_from(("", "x", "é", made[0].metadata.message_id)))
                reply.metadata.__dict__["_reply_to_message_id"] = other
        return data.draw(st.lists(st.sampled_from(made), max_size=6))

    inner.pull_messages = pull  # type: ignore[method-assign]
    streamed: Any = require_refused_or_valid(
        lambda: list(StreamingGrid(inner).send_and_receive(requests, timeout=0.0)), refusals=()
    )
    answered = [reply.metadata.reply_to_message_id for reply in streamed]
    assert len(set(answered)) == len(answered) <= 3


@given(data=st.data())
def test_a_recorder_keeps_skips_or_refuses_what_passes_it(data: DataObject, scratch: Path) -> None:
    config = {"round": 1, "client": 1, "control": "target", "slot": 0}
    folder = Folder(scratch / "tap", {})
    config_record = ConfigRecord(config)
    if data.draw(st.booleans()):
        config_record = data.draw(changed_record(ConfigRecord, config))
    group = data.draw(st.sampled_from(("1", "x", "²", "9" * 5000)))
    content = data.draw(changed_content(pack(TENSORS), {**METRICS, "client": 1}))
    sent = data.draw(st.sampled_from((pack(TENSORS), data.draw(changed_arrays(pack(TENSORS))))))

    def read() -> object:
        inner = AnsweringGrid(lambda requested: [Message(content, reply_to=message) for message in requested], 3)
        grid = RecordingGrid(inner, folder.lay() / "kept")
        requested = RecordDict({"arrays": sent, "config": config_record})
        list(grid.send_and_receive([Message(requested, dst_node_id=1, message_type="train", group_id=group)]))
        kept = Recordings(folder.path / "kept")
        kept.observations([line["id"] for line in kept.lines])
        return len(kept.lines) + len(kept.skipped) + len(kept.refused)

    require_refused_or_valid(read, folder.path, refusals=(), is_valid=range(9).__contains__)
