"""The server half of a method: Flower's Strategy with what every method here needs.

A method subclasses `FederatedStrategy`, declares what is shared and says how uploads are combined. Sampling, the
mapping from Flower's random node ids to partitions, byte counts and histories are here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import nn

from flfw.errors import RunFailed
from flfw.inversion.victim import PlainVictim, VictimModel
from flfw.nets import Net, Tensors
from flfw.rng import numpy_generator
from flfw.wire import nbytes, pack, shared, unpack

_WAIT_FOR_NODES_S = 120.0


@dataclass(frozen=True)
class NoSettings:
    """The hyper-parameters of a plug-in that has none."""


@dataclass(frozen=True)
class Update:
    """What one client sent in one round.

    Attributes:
        partition: the client.
        examples: how many training examples stand behind it; the weight in a weighted mean.
        tensors: the uploaded tensors by name.
    """

    partition: int
    examples: int
    tensors: Tensors


@dataclass
class History:
    """What happened, a row a round and a row a client and round; the columns of rounds.csv and clients.csv."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)


class FederatedStrategy(Strategy, ABC):
    """Base of the methods; a real Flower strategy, usable alone in another Flower app.

    Subclasses set the class attributes and write `aggregate`; some also override `build_model`, `message_for` and
    `victim_model`.

    Args:
        settings: the method's hyper-parameters, an instance of ``Settings``.
        sample: clients drawn in each round; 0: all.
        seed: seed of the draw.
    """

    Settings: ClassVar[type] = NoSettings
    downloads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors the server sends. All others are the client's own and are kept between rounds."""
    uploads: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the tensors a client may send."""
    client: ClassVar[str] = ""
    """The client half, if its name is neither the method's nor `sgd`."""

    def __init__(self, settings: Any = None, *, sample: int = 0, seed: int = 0) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.sample, self.seed = sample, seed
        self.nodes: dict[int, int] = {}
        self.last_round: dict[int, int] = {}
        self.history = History()
        self._sent: dict[int, tuple[float, int]] = {}

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> nn.Module:
        """The model whose named tensors `downloads` and `uploads` speak of; by default the network itself."""
        return net

    @classmethod
    def victim_model(cls, model: nn.Module, received: Tensors, inputs: Any) -> VictimModel:
        """What an attacker who holds ``received`` can compute of a client's gradient; see `VictimModel`."""
        return PlainVictim(model, known=received, shared=cls.uploads, inputs=inputs)

    @abstractmethod
    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """The next broadcast tensors from the clients' uploads, which come one at a time, ordered by partition."""

    def message_for(self, partition: int, arrays: ArrayRecord) -> ArrayRecord:
        """What one client is sent; by default everybody is sent the same."""
        return arrays

    def enrol(self, grid: Grid, clients: int) -> list[dict[str, Any]]:
        """Wait for all nodes and ask each which partition it holds: Flower's node ids are new in every run.

        Returns:
            What each node said of itself, by partition.

        Raises:
            RunFailed: fewer nodes than clients after two minutes, or two nodes with one partition.
        """
        deadline = time.monotonic() + _WAIT_FOR_NODES_S
        while len(ids := list(grid.get_node_ids())) < clients:
            if time.monotonic() > deadline:
                raise RunFailed(f"Expected {clients} clients, got {len(ids)} after {_WAIT_FOR_NODES_S:.0f} s.")
            time.sleep(0.1)
        replies = grid.send_and_receive(
            [Message(RecordDict(), dst_node_id=node, message_type="query") for node in ids], timeout=_WAIT_FOR_NODES_S
        )
        about = []
        for reply in replies:
            raise_if_failed(reply, "enrolment", self.nodes)
            answer: dict[str, Any] = dict(reply.content.config_records["about"])
            self.nodes[int(answer["partition"])] = reply.metadata.src_node_id
            about.append(answer)
        if sorted(self.nodes) != list(range(clients)):
            raise RunFailed(f"Expected partitions 0 to {clients - 1}, got {sorted(self.nodes)}.")
        return sorted(about, key=lambda answer: answer["partition"])

    def cohort(self, server_round: int) -> list[int]:
        """The partitions that take part in a round, ascending."""
        everyone = sorted(self.nodes)
        if not self.sample or self.sample >= len(everyone):
            return everyone
        drawn = numpy_generator(self.seed, "cohort", server_round).choice(everyone, self.sample, replace=False)
        return sorted(int(p) for p in drawn)

    def ask(
        self, partition: int, arrays: ArrayRecord, kind: str, server_round: int, extra: Mapping[str, Any] | None = None
    ) -> Message:
        """A message to one client: the arrays, the round, and which version of its private state to go on from."""
        config = {"round": server_round, "version": self.last_round.get(partition, 0), **(extra or {})}
        content = RecordDict({"arrays": self.message_for(partition, arrays), "config": ConfigRecord(config)})
        return Message(content, dst_node_id=self.nodes[partition], message_type=kind, group_id=str(server_round))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One train message for each client of the cohort."""
        if not self.nodes:  # used alone in another app, whose clients were never asked for their partitions
            self.nodes = dict(enumerate(sorted(grid.get_node_ids())))
        messages = [self.ask(p, arrays, "train", server_round, config) for p in self.cohort(server_round)]
        self._sent[server_round] = (time.monotonic(), sum(nbytes(m.content.array_records["arrays"]) for m in messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies, ordered by partition so that sums repeat (an iterator must come in that order)."""
        rows: list[dict[str, Any]] = []
        updates = self._updates(server_round, replies, rows)
        arrays = pack(self.aggregate(updates))
        for _ in updates:  # a method that combines nothing need not look at what came
            pass
        if not rows:
            raise RunFailed(f"Expected replies in round {server_round}, got none.")
        started, down = self._sent.pop(server_round)
        row = self._record(server_round, rows, down, time.monotonic() - started)
        return arrays, MetricRecord({k: v for k, v in row.items() if isinstance(v, int | float)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nobody: clients evaluate within the train message, which saves sending everything twice."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to combine; see `configure_evaluate`."""
        return None

    def evaluate_all(self, grid: Grid, arrays: ArrayRecord, last: int) -> list[dict[str, Any]]:
        """One evaluation of every client with the last aggregate: its metrics, ordered by partition."""
        messages = [self.ask(p, arrays, "evaluate", last + 1) for p in sorted(self.nodes)]
        rows = []
        for partition, reply in self._replies(grid.send_and_receive(messages), "the final evaluation"):
            rows.append({"client": partition, **_metrics(reply)})
        return rows

    def summary(self) -> None:
        """Flower's hook for logging the configuration; the run's own files hold it."""

    def _replies(self, replies: Iterable[Message], when: str) -> Iterator[tuple[int, Message]]:
        partition_of = {node: partition for partition, node in self.nodes.items()}
        if isinstance(replies, Sequence):
            replies = sorted(replies, key=lambda reply: partition_of.get(reply.metadata.src_node_id, -1))
        for reply in replies:
            raise_if_failed(reply, when, self.nodes)
            yield partition_of[reply.metadata.src_node_id], reply

    def _updates(self, server_round: int, replies: Iterable[Message], rows: list[dict[str, Any]]) -> Iterator[Update]:
        """Take the replies apart one by one; what they say about themselves is added to ``rows``."""
        for partition, reply in self._replies(replies, f"round {server_round}"):
            record = reply.content.array_records["arrays"]
            row = {"round": server_round, "client": partition, **_metrics(reply), "upload_bytes": nbytes(record)}
            rows.append(row)
            self.last_round[partition] = server_round
            yield Update(partition, int(row["num-examples"]), unpack(record))

    def _record(self, server_round: int, rows: list[dict[str, Any]], down: int, seconds: float) -> dict[str, Any]:
        self.history.clients += rows
        standard = ("loss", "acc_global", "acc_local")
        row: dict[str, Any] = {"round": server_round, **{key: _mean(rows, key) for key in standard}}
        row |= {"clients": len(rows), "failures": 0, "upload_bytes": sum(r["upload_bytes"] for r in rows)}
        row |= {"download_bytes": down, "seconds": round(seconds, 3)}
        known = {*standard, "round", "client", "upload_bytes", "num-examples", "seconds"}
        row["extra"] = {key: _mean(rows, key) for key in rows[0] if key not in known}
        self.history.rounds.append(row)
        return row


def weighted_mean(updates: Iterable[Update]) -> Tensors:
    """The mean of the clients' tensors, weighted by their examples; sums in float64, results in the tensors' own type.

    >>> one = Update(0, 1, {"w": torch.tensor([0.0])})
    >>> weighted_mean([one, Update(1, 3, {"w": torch.tensor([4.0])})])
    {'w': tensor([3.])}
    """
    sums: Tensors = {}
    kinds: dict[str, torch.dtype] = {}
    total = 0
    for update in updates:
        total += update.examples
        for name, value in update.tensors.items():
            kinds[name] = value.dtype
            sums.setdefault(name, torch.zeros(value.shape, dtype=torch.float64)).add_(value, alpha=update.examples)
    return {
        name: (value / total if kinds[name].is_floating_point else (value / total).round()).to(kinds[name])
        for name, value in sums.items()
    }


def raise_if_failed(reply: Message, when: str, nodes: Mapping[int, int]) -> None:
    """Raise `RunFailed` naming the client and its own words, if the reply is an error."""
    if reply.has_error():
        who = next((f"client {p}" for p, node in nodes.items() if node == reply.metadata.src_node_id), "a client")
        raise RunFailed(f"{who} failed in {when}: {_in_one_line(reply.error.reason)}")


def _in_one_line(reason: str | None) -> str:
    """What the client said, without what Flower's engine wraps around it."""
    said = (reason or "no reason given").rpartition("occurred. Message: ")[2].removesuffix("'>")
    return [line.strip() for line in said.splitlines() if line.strip()][-1]


def _metrics(reply: Message) -> dict[str, Any]:
    return dict(reply.content.metric_records["metrics"])


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return sum(values) / len(values) if values else None


def broadcast(model: nn.Module, patterns: Sequence[str]) -> ArrayRecord:
    """The tensors of a fresh model that the server sends first."""
    return pack(shared({k: v.detach() for k, v in model.state_dict().items()}, patterns))
