"""ClientApp whose messages say what the client does: for tests of a grid, importable in every process."""

import ctypes
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flfw.messages.wire import pack, unpack

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    config, partition = message.content.config_records["config"], int(context.node_config["partition-id"])  # type: ignore
    if partition in config["among"]:  # type: ignore[operator]
        DEEDS[str(config["deed"])](str(config["folder"]), partition)
    number = float(partition)
    sent = {name: value + number for name, value in unpack(message.content.array_records["arrays"]).items()}
    message.content.array_records["arrays"].clear()  # nobody else sees it
    metrics = MetricRecord({"partition": partition, "pid": os.getpid(), "num-examples": 1, "seen": seen(context)})
    return Message(RecordDict({"arrays": pack(sent), "metrics": metrics}), reply_to=message)


@app.query()
def describe(message: Message, context: Context) -> Message:
    known = {"partition": context.node_config["partition-id"], "of": context.node_config["num-partitions"]}
    return Message(RecordDict({"about": ConfigRecord({**known, **context.run_config})}), reply_to=message)


def seen(context: Context) -> int:
    """Count a client's messages in its state, and keep its arrays there."""
    before = context.state.metric_records.get("seen", MetricRecord({"messages": 0}))["messages"]
    context.state["seen"] = MetricRecord({"messages": int(before) + 1})  # type: ignore[arg-type]
    if "kept" in context.state:
        assert torch.equal(unpack(context.state.array_records["kept"])["x"], torch.ones(3000))
    context.state["kept"] = ArrayRecord({"x": pack({"x": torch.ones(3000)})["x"]})
    return int(before) + 1  # type: ignore[arg-type]


def sizes(replies: Iterable[Message]) -> list[int]:
    """How many messages were answered together with each reply; 1: it was alone."""
    records = [reply.content.metric_records for reply in replies]
    return [int(one["batch"]["size"]) if "batch" in one else 1 for one in records]  # type: ignore[arg-type]


def first_time(folder: str, partition: int) -> bool:
    mark = Path(folder) / f"struck-{partition}"
    if mark.exists():
        return False
    mark.touch()
    return True


def raises(folder: str, partition: int) -> None:
    raise ValueError(f"client {partition} cannot")


def dies(folder: str, partition: int) -> None:
    (Path(folder) / f"died-{partition}-{time.monotonic_ns()}").touch()
    os._exit(9)


def dies_once(folder: str, partition: int) -> None:
    if first_time(folder, partition):
        os._exit(9)


def hangs(folder: str, partition: int) -> None:
    if first_time(folder, partition):
        ctypes.PyDLL(None).sleep(600)  # keeps Python's lock


def sleeps(folder: str, partition: int) -> None:
    time.sleep(4)


DEEDS = {"adds": lambda folder, partition: None, "raises": raises, "dies": dies, "dies_once": dies_once}
DEEDS |= {"hangs": hangs, "sleeps": sleeps}


def together(messages: Sequence[tuple[Message, Context]]) -> list[Message | Exception]:
    """Answer the messages of a batch one after the other; each reply tells of how many there are."""
    answers: list[Message | Exception] = []
    for message, context in messages:
        try:
            answers.append(app(message, context))
            answers[-1].content["batch"] = MetricRecord({"size": len(messages)})  # type: ignore[union-attr]
        except ValueError as error:
            answers.append(error)
    return answers
