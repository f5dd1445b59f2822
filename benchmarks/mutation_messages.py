"""Mutations of messages: what clients answer to a server, and what a server asks of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from benchmarks.mutation_cases import Folder, Mutant, Subject, plain
from benchmarks.mutation_operators import WORDS
from benchmarks.mutation_records import arrays_mutant, content_mutant, record_mutant, reply_to, scalars_mutant
from flfw import apps
from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment
from flfw.messages.factored_upload import FactoredUpload, FactorReader
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.introduction import Introduction
from flfw.messages.reasons import Declined, Unusable, in_one_line
from flfw.messages.replies import read_metrics, read_update
from flfw.messages.sharing import Border, Sharing, SharingViolation
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import forms, pack, views
from flfw.recording.grid import RecordingGrid
from flfw.recording.reader import Recordings
from flfw.resolve import Resolved, resolve
from flfw.runs.final import final_accuracies
from flfw.server.enrolment import Enrolment, Requirements
from flfw.server.faults import Tolerance
from flfw.server.history import History
from flfw.storage.provenance import code_hash


def _tensors() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    heads = {
        f"heads.{i}.{n}": torch.randn(s, generator=rng)
        for i in (0, 1)
        for n, s in (("weight", (60, 3)), ("bias", (60,)))
    }
    body = {"body.weight": torch.randn(3, 4, generator=rng), "body.bias": torch.randn(3, generator=rng)}
    return {**body, **heads, "steps": torch.tensor(7)}


class _Answering(InProcessGrid):
    """Grid whose replies are made beforehand."""

    def __init__(self, replies: Callable[[Sequence[Message]], list[Message]], nodes: int) -> None:
        super().__init__(apps.client, nodes, {})
        self._replies = replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        self.push_messages(asked)
        return self._replies(asked)


_METRICS = {"num-examples": 50, "loss": 1.5, "acc_global": 0.25, "acc_local": 0.5, "acc_validation": 0.5,
            "acc_protected": 0.5, "seconds": 0.1}  # fmt: skip


def uploads(scratch: Path) -> list[Subject]:
    """Return the readers of clients' uploads, plain and as factors, of their numbers and their reasons."""
    InProcessGrid(apps.client, 1, {})  # Flower makes messages for a run alone, which this one names
    tensors = _tensors()
    broadcast, form, everything = pack(tensors), FactoredUpload("heads.*", 0.05), ("*",)
    rng = torch.Generator().manual_seed(1)
    after = {
        n: v + 0.01 * torch.randn(v.shape, generator=rng) if v.is_floating_point() else v for n, v in tensors.items()
    }
    received = {n: v.numpy() for n, v in tensors.items()}
    parts = _factors(form, received)
    factored = pack({**{n: v for n, v in after.items() if not n.startswith("heads")}, **parts})

    def shaped(read: Any) -> bool:
        sent, metrics, _ = read
        alike = all(forms({n: v})[n] == forms(tensors)[n] and bool(torch.isfinite(v).all()) for n, v in sent.items())
        return alike and sent.keys() <= tensors.keys() and 1 <= metrics["num-examples"] <= 2**31

    def update(rng: Random) -> Mutant:
        reply = reply_to(content_mutant(pack(after), _METRICS, rng), rng)
        return Mutant(lambda: read_update(reply, everything, broadcast))

    def factors(rng: Random) -> Mutant:
        reply = reply_to(content_mutant(factored, _METRICS, rng), rng)
        return Mutant(lambda: FactorReader(form, everything, broadcast)(reply))

    def numbers(rng: Random) -> Mutant:
        rows = [reply_to(RecordDict({"metrics": record_mutant(MetricRecord, _METRICS, rng)}), rng) for _ in range(2)]

        def read() -> object:
            taken = [
                {"client": i, "round": 1, "upload_bytes": 8, **read_metrics(r, ("acc_global", "acc_local"))}
                for i, r in enumerate(rows)
            ]
            history = History()
            return history.add(1, taken, [], 8, 1.0, {}), final_accuracies(taken, history.clients, None)

        return Mutant(read)

    def reasons(rng: Random) -> Mutant:
        reason = "".join(rng.choice(WORDS).replace("\ud800", "?") for _ in range(rng.randrange(9)))
        return Mutant(lambda: in_one_line(reason))

    return [
        Subject("read_update", update, refusals=(Unusable,), fits=shaped, weight=3),
        Subject("FactorReader", factors, refusals=(Unusable,), fits=shaped, weight=3),
        Subject("read_metrics", numbers, refusals=(Unusable,)),
        Subject(
            "in_one_line", reasons, refusals=(), fits=lambda text: text.isprintable() and len(text) <= 300, weight=0.3
        ),
    ]


def _factors(form: FactoredUpload, received: Any) -> dict[str, torch.Tensor]:
    """Return factors of small layers, which `FactoredUpload.compress` would leave as they are."""
    from flfw.messages.factored_upload import _layers, _packed
    from flfw.messages.factors import Factors

    layers, rng = _layers(form.pattern, received), torch.Generator().manual_seed(2)
    axes, along = torch.linalg.qr(torch.randn(4, 2, generator=rng))[0], torch.randn(120, 2, generator=rng)
    made = Factors.rounded(0.99, 0.01, axes, along)
    return {f"{form.pattern}/{part}": value for part, value in _packed(made, layers.digest(received)).items()}


_KNOWN: dict[str, Any] = {"partition": 1, "code": "abc", "gpu": False, "volunteered": -1, "shape": [1, 8, 8],
                          "classes": 10, "labels": "", "trouble": ""}  # fmt: skip


def answers(scratch: Path) -> list[Subject]:
    """Return the readers of introductions, of whole rounds, of streams, and of the recorder between."""
    InProcessGrid(apps.client, 1, {})
    arrays = pack(_tensors())
    experiment = Experiment(
        method="fedavg", net="linear", clients=3, dataset="digits", split="iid", augment="none", attack=("none",)
    )
    resolved = resolve(experiment)

    def introduction(rng: Random) -> Mutant:
        reply = reply_to(RecordDict({"about": record_mutant(ConfigRecord, _KNOWN, rng)}), rng)
        return Mutant(lambda: Introduction.from_message(reply))

    counted = range(9).__contains__
    return [
        Subject("Introduction", introduction, refusals=(Unusable,), fits=_introduced),
        Subject(
            "enrol, aggregate_train",
            lambda rng: _round(resolved, arrays, rng),
            refusals=(RunFailed,),
            fits=_aggregated,
        ),
        Subject("StreamingGrid", _streamed, refusals=(), fits=counted, weight=0.5),
        Subject("RecordingGrid", lambda rng: _recorded(scratch, arrays, rng), refusals=(), fits=counted),
    ]


def _round(resolved: Resolved, arrays: ArrayRecord, rng: Random) -> Mutant:
    """Make a round of three clients, of which one forges its introduction and its update."""
    strategy = resolved.method(resolved.settings, tolerance=Tolerance(on_failure="drop"))

    def replies(asked: Sequence[Message]) -> list[Message]:
        forged = rng.randrange(len(asked))
        made = []
        for i, message in enumerate(asked):
            if message.metadata.message_type == "query":
                record = {**_KNOWN, "partition": i}
                content = RecordDict(
                    {"about": record_mutant(ConfigRecord, record, rng) if i == forged else ConfigRecord(record)}
                )
            else:
                content = RecordDict({"arrays": arrays, "metrics": MetricRecord(_METRICS)})
                content = content_mutant(arrays, _METRICS, rng) if i == forged else content
            made.append(reply_to(content, rng, message) if i == forged else Message(content, reply_to=message))
        return made + rng.choice(([], made[forged:][:1]))

    def read() -> object:
        grid = _Answering(replies, 3)
        Enrolment(grid, strategy.roster, 3, 1.0, Requirements(_KNOWN["code"], (1, 8, 8), 10)).begin()
        asked = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
        return strategy.aggregate_train(1, grid.send_and_receive(asked))

    return Mutant(read)


def _aggregated(read: Any) -> bool:
    """Return whether a round gave a finite model."""
    record, row = read
    return all(bool(torch.isfinite(torch.tensor(v)).all()) for v in views(record).values()) and row["clients"] >= 1


def _streamed(rng: Random) -> Mutant:
    """Make replies that come in any order, twice, or to another message."""
    asked = [Message(RecordDict(), dst_node_id=i, message_type="train") for i in (1, 2, 3)]
    inner = _Answering(lambda messages: [], 3)
    waiting: list[Message] = []

    def pull(ids: Iterable[str]) -> list[Message]:
        made = [Message(RecordDict(), reply_to=message) for message in waiting]
        for reply in made:
            if rng.random() < 0.4:
                other = rng.choice(("", "x", "é", made[0].metadata.message_id))
                reply.metadata.__dict__["_reply_to_message_id"] = other
        rng.shuffle(made)
        return made[: rng.randrange(4)] * rng.choice((1, 2))

    def read() -> object:
        grid = StreamingGrid(inner)
        inner.push_messages(asked)
        waiting.extend(asked)
        inner.pull_messages = pull  # type: ignore[method-assign]
        return len(list(grid.send_and_receive(asked, timeout=0.0)))

    return Mutant(read)


def _recorded(scratch: Path, arrays: ArrayRecord, rng: Random) -> Mutant:
    """Make a message and an answer between which a recorder stands."""
    folder = Folder(scratch / "tap", {})
    config = {"round": 1, "client": 1, "rung": "target", "slot": 0}

    def replies(asked: Sequence[Message]) -> list[Message]:
        return [reply_to(content_mutant(arrays, {**_METRICS, "client": 1}, rng), rng, message) for message in asked]

    def read() -> object:
        grid = RecordingGrid(_Answering(replies, 3), folder.lay() / "kept")
        changed = record_mutant(ConfigRecord, config, rng) if rng.random() < 0.3 else ConfigRecord(config)
        content = RecordDict({"arrays": arrays, "config": changed})
        group = rng.choice(("1", "x", "²", "9" * 5000))
        list(grid.send_and_receive([Message(content, dst_node_id=1, message_type="train", group_id=group)]))
        kept = Recordings(scratch / "tap" / "kept")
        kept.observations([line["id"] for line in kept.lines])
        return len(kept.lines) + len(kept.skipped) + len(kept.refused)

    return Mutant(read)


def _introduced(one: Any) -> bool:
    numbers = (one.partition, one.volunteered, one.classes, *one.shape)
    words = one.code.isascii() and one.labels.isascii() and one.trouble.isprintable()
    return all(type(number) is int for number in numbers) and words and type(one.gpu) is bool


@dataclass(frozen=True)
class _Asking:
    """A server's question to a client that trains nothing."""

    arrays: ArrayRecord
    config: dict[str, Any]
    run_config: dict[str, Any]

    def message(self, rng: Random | None, kind: str) -> tuple[Message, Context]:
        """Build the question with one of its parts changed; None: as it is."""
        part = rng.choice(("arrays", "config", "config", "records", "run")) if rng else ""
        rng = rng or Random(0)
        arrays = arrays_mutant(self.arrays, rng) if part == "arrays" else self.arrays
        config = record_mutant(ConfigRecord, self.config, rng) if part == "config" else ConfigRecord(self.config)
        records: dict[str, Any] = {"arrays": arrays, "config": config}
        if part == "records":
            name = rng.choice(list(records))
            records = {n: v for n, v in records.items() if n != name or rng.random() < 0.3} | {
                rng.choice(("more", "config")): config
            }
        run = scalars_mutant(self.run_config, rng) if part == "run" else self.run_config
        node = {"partition-id": 1, "num-partitions": 3, "in-process": True}
        content = RecordDict() if kind == "query" else RecordDict(records)
        message = Message(content, dst_node_id=1, message_type=kind)
        return message, Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run)


def questions(scratch: Path) -> list[Subject]:
    """Return the readers of a server's messages: the border's check, the question, and the run's configuration."""
    InProcessGrid(apps.client, 1, {})
    experiment = Experiment(method="fedavg", net="linear", clients=3, dataset="digits", split="iid", augment="none",
                            attack=("none",), metrics="none")  # fmt: skip
    resolved = resolve(experiment)
    state = resolved.build_model().state_dict()
    config = {"round": 1, "client": 1, "version": 0, "deadline": 600.0, "experiment": "abc", "code": code_hash()}
    asked = _Asking(pack(state), config, experiment.to_run_config())
    border = Border(1, "fedavg", Sharing(("*",), ("*",)), forms(state))

    def whole(kind: str) -> str:
        message, context = asked.message(None, kind)
        return plain(_what(apps.client(message, context)))

    def entering(rng: Random) -> Mutant:
        record = arrays_mutant(asked.arrays, rng)
        return Mutant(lambda: border.enter(views(record)))

    def asking(kind: str) -> Callable[[Random], Mutant]:
        def make(rng: Random) -> Mutant:
            message, context = asked.message(rng, kind)
            return Mutant(lambda: _what(apps.client(message, context)))

        return make

    refusals = (BadInput, SharingViolation, ValueError)
    at_work = (BadInput, SharingViolation, RunFailed, Declined)
    return [
        Subject("Border", entering, plain(None), refusals, weight=2),
        Subject("evaluate", asking("evaluate"), whole("evaluate"), at_work),
        Subject("query", asking("query"), whole("query"), refusals=(BadInput,), weight=0.3),
    ]


def _what(answer: Message) -> object:
    records = answer.content
    if records.config_records:
        return len(records.config_records)
    return dict(records["arrays"]), dict(records["metrics"])  # type: ignore[call-overload]
