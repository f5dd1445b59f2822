"""Questions of a server to a site, and ways to make them other ones; `tests.support.server_lies` uses them."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from tests.support.forgery import Forged, Sent, sealed
from tests.support.lying_superlink import Work

Change: TypeAlias = "Callable[[Question], None]"


@final
@dataclass
class Question:
    """Message that a server sends, and what it says of its run.

    Attributes:
        run: number of the run.
        arrays: the tensors.
        config: the message's scalars.
        settings: the run's settings.
        app: the bundle.
        called: its hash, as the server says of the run.
        unnamed: whether the message's tree names its objects by no hashes.
        fab: its hash, as the server says with the bundle; empty: the same.
        version: its version, as the server says.
        kind: type of the message.
        records: further records of the content, or others in place of its own; None: left out.
        metadata: other metadata of the message.
        first: settings that are said the first time that the site asks; None: the same.
        top: forged object in place of the message.
        left_out: whether the message's objects do not come.
    """

    run: int
    arrays: dict[str, Array]
    config: dict[str, Any]
    settings: dict[str, Any]
    app: bytes
    called: str
    kind: str = "train"
    records: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] | None = None
    top: Forged | None = None
    left_out: bool = False
    unnamed: bool = False
    fab: str = ""
    version: str = "0.1.0"

    def work(self, node: int) -> Work:
        """Return the message to a node with all that belongs to it."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, self.run, 1
        content = {"arrays": ArrayRecord(self.arrays), "config": ConfigRecord(self.config)}
        records = {name: record for name, record in {**content, **self.records}.items() if record is not None}
        message = Message(RecordDict(records), dst_node_id=node, message_type=self.kind, group_id="1", ttl=600.0)
        for name, value in self.metadata.items():
            message.metadata.__dict__[f"_{name}"] = value
        sent = sealed(message)
        if self.top:
            message.metadata.__dict__["_message_id"] = self.top.name
            sent = Sent(message, self.top.tree, self.top.objects)
        if self.left_out:
            sent = Sent(sent.envelope, sent.tree, {})
        if self.unnamed:
            sent = Sent(sent.envelope, ObjectTree(object_id="../../x"), sent.objects)
        answers = [self.first, self.settings] if self.first is not None else [self.settings]
        return Work(sent, [self._run(settings) for settings in answers], self.app, self.fab)

    def _run(self, settings: Mapping[str, Any]) -> Run:
        empty = Run.create_empty(self.run)
        names = {"fab_id": "flfw/flfw-run", "fab_version": self.version, "fab_hash": self.called}
        return dataclasses.replace(empty, **names, override_config=dict(settings), series_id=self.run)


def setting(**changed: Any) -> Change:
    """Change settings of the run."""
    return named_setting({name.replace("_", "-"): value for name, value in changed.items()})


def named_setting(changed: Mapping[str, Any]) -> Change:
    """Change settings of any names."""
    return lambda question: question.settings.update(changed)


def without(*names: str) -> Change:
    """Leave settings out: the bundle's own then hold."""

    def change(question: Question) -> None:
        for name in names:
            del question.settings[name]

    return change


def scalar(**changed: Any) -> Change:
    """Change scalars of the message; None: leave out."""

    def change(question: Question) -> None:
        config = {**question.config, **changed}
        question.config = {name: value for name, value in config.items() if value is not None}

    return change


def tensor(name: str, make: Callable[[np.ndarray], Any]) -> Change:
    """Change a tensor of the message; a new name: one more."""

    def change(question: Question) -> None:
        like = question.arrays.get(name, next(iter(question.arrays.values()))).numpy()
        made = make(like.copy())
        question.arrays[name] = made if isinstance(made, Array) else Array(made)

    return change


def one_less(name: str) -> Change:
    """Leave a tensor out."""
    return lambda question: question.arrays.pop(name) and None


def record(**changed: Any) -> Change:
    """Change records of the content; None: leave out."""
    return lambda question: question.records.update(changed)


def kind(name: str, *more: Change) -> Change:
    """Send a message of another type."""

    def change(question: Question) -> None:
        question.kind = name
        for one in more:
            one(question)

    return change


def metadata(**changed: Any) -> Change:
    """Change what the message says of itself."""
    return lambda question: question.metadata.update(changed)


def attribute(**changed: Any) -> Change:
    """Change the question itself."""

    def change(question: Question) -> None:
        for name, value in changed.items():
            setattr(question, name, value)

    return change


def first(**changed: Any) -> Change:
    """Say other settings the first time that the site asks."""

    def change(question: Question) -> None:
        question.first = {**question.settings, **{name.replace("_", "-"): value for name, value in changed.items()}}

    return change


def then(**changed: Any) -> Change:
    """Say the run's settings the first time that the site asks, and other ones later."""

    def change(question: Question) -> None:
        question.first = dict(question.settings)
        question.settings.update({name.replace("_", "-"): value for name, value in changed.items()})

    return change
