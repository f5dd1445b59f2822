"""What the server saw: a Grid that records the messages it passes on.

It sits outside every strategy, after the clients' own checks, and is the same for every engine. Two lines in any
ServerApp turn it on: ``grid = RecordingGrid(grid, folder, wanted)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from safetensors.torch import save

from flfw.journal import Journal, Mark
from flfw.sealed import drop_unfinished, write_whole
from flfw.streaming import GridAround
from flfw.wire import unpack


class RecordingGrid(GridAround):
    """Passes everything on to another Grid; writes down the exchanges that are wanted.

    Each becomes one line of ``manifest.jsonl`` and safetensors files named by their own SHA-256, so that what many
    clients were sent is stored once.

    Args:
        grid: the Grid that does the work.
        folder: where to write; absolute, for Flower may change the working directory.
        wanted: whether a message and its reply are to be recorded.
        mark: where to go on in an earlier record; what follows it is forgotten. None: a new one.
    """

    def __init__(
        self, grid: Grid, folder: Path, wanted: Callable[[Message, Message], bool], mark: Mark | None = None
    ) -> None:
        super().__init__(grid)
        self._folder, self._wanted = folder.absolute(), wanted
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        drop_unfinished(self._folder)
        self._manifest = Journal(self._folder / "manifest.jsonl", mark)
        self._written = {line[way] for line in self._manifest.rows for way in ("sent_to_client", "sent_by_client")}

    @property
    def mark(self) -> Mark:
        """Where the record ends now."""
        return self._manifest.mark

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send, and record each reply as it passes."""
        sent = list(messages)
        replies = self._grid.send_and_receive(sent, timeout=timeout)
        return self._recorded(sent, replies)

    def _recorded(self, sent: list[Message], replies: Iterable[Message]) -> Iterator[Message]:
        for reply in replies:
            opened = [m for m in sent if m.metadata.message_id == reply.metadata.reply_to_message_id]
            if opened and reply.has_content() and self._wanted(opened[0], reply):
                self._record(opened[0], reply)
            yield reply

    def _record(self, message: Message, reply: Message) -> None:
        line = {
            "type": message.metadata.message_type,
            "group": message.metadata.group_id,
            "config": _scalars(message.content),
            "metrics": _scalars(reply.content),
            "sent_to_client": self._write(message.content),
            "sent_by_client": self._write(reply.content),
        }
        self._manifest.append(line)

    def _write(self, content: RecordDict) -> str:
        (record,) = content.array_records.values() or [ArrayRecord({})]
        data = save(unpack(record))
        name = hashlib.sha256(data).hexdigest()
        if name not in self._written:
            write_whole(self._folder / f"{name}.safetensors", data)
            self._written.add(name)
        return name


def _scalars(content: RecordDict) -> dict[str, Any]:
    records = [*content.config_records.values(), *content.metric_records.values()]
    return {key: value for record in records for key, value in record.items()}
