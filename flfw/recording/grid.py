"""Recorder on the server: a Grid that records the messages it forwards, for every strategy and every engine.

Two lines in any ServerApp add it; `recorded` wraps a whole ServerApp in one, whatever its style:

    from flfw.recording.grid import RecordingGrid
    grid = RecordingGrid(grid, "recordings")

`flfw.recording.reader` reads the recordings; `flfw.recording.format` describes the files.
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias, final
from zipfile import BadZipFile

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from safetensors import SafetensorError

from flfw import __version__
from flfw.errors import InputError, require
from flfw.files.sealed import Journal, JournalMark, drop_unfinished
from flfw.messages.streaming import GridWrapper
from flfw.messages.wire import views
from flfw.recording import format as file_format
from flfw.recording.manifest import HEAD, is_exchange, sealed, write_head

_XGBOOST = (b"learner", b"gradient_booster", b"tree_info")


class NoRecord(ValueError):
    """Error: a message does not have the record that an app's description names."""


@final
@dataclass(frozen=True)
class RecordMap:
    """Names under which an app's messages have the tensors of an update.

    Attributes:
        sent: array record in a client's reply; empty: the only one. Where there are several, all are recorded, and the
            record's name comes first in the tensors' names.
        received: array record in the server's message, likewise.
        types: message types that are updates of training; they are recorded as ``train``.
        prefix: start of a tensor's name that is left out, such as ``model.``.
        client: value of the message's configuration or of the reply's metrics that is the client's number.
    """

    sent: str = ""
    received: str = ""
    types: tuple[str, ...] = ("train",)
    prefix: str = ""
    client: str = "client"

    def __post_init__(self) -> None:
        require(not isinstance(self.types, str) and bool(self.types), "a tuple of message types", types=self.types)

    def type_of(self, message_type: str) -> str:
        """Return the type under which a message is recorded.

        >>> RecordMap(types=("train.fit",)).type_of("train.fit"), RecordMap(types=("train.fit",)).type_of("train")
        ('train', 'train.default')
        """
        if message_type in self.types:
            return "train"
        return "train.default" if message_type == "train" else message_type

    def arrays(self, content: RecordDict, name: str) -> dict[str, Array]:
        """Return the arrays of a message by name.

        Args:
            content: of the message.
            name: of the record, ``sent`` or ``received``.

        Raises:
            NoRecord: it has no such record, or two arrays have one name without the prefix.
        """
        records = content.array_records
        if name and name not in records:
            raise NoRecord(f"there is no array record {name} among {', '.join(records) or 'none'}")
        if name or len(records) == 1:
            (record,) = [records[name]] if name else records.values()
            named = [(key.removeprefix(self.prefix), array) for key, array in record.items()]
        else:
            named = [
                (f"{part}/{key.removeprefix(self.prefix)}", array)
                for part, record in records.items()
                for key, array in record.items()
            ]
        if len(dict(named)) < len(named):
            raise NoRecord(f"two of its arrays have one name without the prefix {self.prefix}")
        return dict(named)


def unreadable(arrays: Mapping[str, Array], error: Exception) -> str:
    """Return why arrays cannot be stored; a model of XGBoost is named."""
    if any(word in array.data[:4096] for array in arrays.values() for word in _XGBOOST):
        return "it is a model of XGBoost: trees have no gradients, and no attack here applies to them"
    return f"the arrays cannot be stored: {' '.join(str(error).split())[:200]}"


def scalars(content: RecordDict) -> dict[str, Any]:
    """Return all values of a message but its arrays; bytes become their length and SHA-256, for JSON."""
    records = [*content.config_records.values(), *content.metric_records.values()]
    return {key: _plain(value) for record in records for key, value in record.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"{len(value)} bytes, SHA-256 {hashlib.sha256(value).hexdigest()}"
    return [_plain(item) for item in value] if isinstance(value, list) else value


_DIGITS = 19  # of a round

# Errors of invalid arrays in NumPy's format and in safetensors.
_UNREADABLE = (ValueError, TypeError, KeyError, EOFError, MemoryError, BadZipFile, SafetensorError)


def carries_arrays(message: Message, reply: Message) -> bool:
    """Return whether a reply contains arrays; an evaluation usually does not."""
    return any(reply.content.array_records.values())


@final
class RecordingGrid(GridWrapper):
    """Grid that forwards all messages to another Grid and records the selected exchanges, each reply once.

    Args:
        grid: the Grid that sends and receives.
        folder: folder to write to; made absolute at once, since Flower may change the working directory.
        should_record: returns whether a message and its reply are recorded; called for replies without an error.
        resume_at: end of the kept part of an earlier recording; later entries are removed. None: a new one.
        overwrite: whether to remove existing recordings in the folder, instead of refusing the folder.
        compression: ``none``, ``compact``, which predicts what clients send from what they received and stores the
            rest, to the bit; or ``gzip``, which saves little on random numbers and takes much time.
        limit_bytes: largest total size of the tensor files; further exchanges are skipped. None: no limit.
        records: the names under which the app's messages have their tensors; None: see `RecordMap`.

    Raises:
        InputError: the folder holds recordings already, or other recordings than those of `resume_at`.
    """

    def __init__(
        self,
        grid: Grid,
        folder: str | Path,
        should_record: Callable[[Message, Message], bool] = carries_arrays,
        *,
        resume_at: JournalMark | None = None,
        overwrite: bool = False,
        compression: str = "none",
        limit_bytes: int | None = None,
        records: RecordMap | None = None,
    ) -> None:
        super().__init__(grid)
        require(compression in file_format.COMPRESSIONS, "compression none, gzip or compact", compression=compression)
        require(limit_bytes is None or limit_bytes > 0, "limit_bytes > 0 or None", limit_bytes=limit_bytes)
        self._folder, self._should_record = Path(folder).absolute(), should_record
        self._compression, self._limit = compression, limit_bytes
        self._records, self._lock = records or RecordMap(), threading.Lock()
        if resume_at is None and not overwrite and (self._folder / file_format.MANIFEST).exists():
            raise InputError(
                f"Expected a new folder for recordings, got {self._folder}, which holds some; choose another or "
                "remove it."
            )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        drop_unfinished(self._folder)
        self._manifest = Journal(self._folder / file_format.MANIFEST, resume_at)
        (self._folder / HEAD).unlink(missing_ok=True)  # it may count lines that are now cut off
        self._lines = self._counted = 0
        self._pushed: list[_Request] = []
        self._last: _Received | None = None
        self._not_on_disk: list[Path] = []
        self._go_on(self._manifest.rows)

    def _go_on(self, rows: list[file_format.Line]) -> None:
        self._lines = len(rows)
        if not rows:
            self._append({"format": file_format.FORMAT, "flfw": __version__})
        elif rows[0].get("format") != file_format.FORMAT:
            written = rows[0].get("format", "an older one")
            raise InputError(
                f"Expected recordings in format {file_format.FORMAT}, got {written} in {self._folder}; start a new run."
            )
        exchanges = [row for row in rows if "sent_by_client" in row]
        if broken := [row for row in exchanges if not is_exchange(row)]:
            raise InputError(f"Expected whole lines of exchanges in {self._folder}, got {broken[0]}; start a new run.")
        self._received_files = {
            row["sent_to_client"]["plain_sha256"]: row["sent_to_client"]
            for row in exchanges
            if row["compression"] == self._compression == "compact"
        }
        self._stored = {row[way]["file"] for row in exchanges for way in ("sent_to_client", "sent_by_client")}
        file_format.sweep(self._folder, self._stored)
        files = filter(Path.is_file, (self._folder / file for file in self._stored))
        self._bytes = sum(file.stat().st_size for file in files)
        self._numbers = Counter((row["round"], row["client"]) for row in exchanges)
        self._skipped = sum("skipped" in row for row in rows)

    @property
    def mark(self) -> JournalMark:
        """Present end of the recording; all of it up to here is on disk."""
        file_format.bring_to_disk([self._folder / file_format.MANIFEST, *self._not_on_disk])
        self._not_on_disk = []
        self._count()
        return self._manifest.mark

    @property
    def skipped(self) -> int:
        """Number of selected exchanges that could not be recorded; the manifest has the reasons."""
        return self._skipped

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, and record each reply."""
        messages = list(messages)
        requested = [_Request.now(message, self._records) for message in messages]
        return self._passed_on(self._grid.send_and_receive(messages, timeout=timeout), requested)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, and keep them until they are answered or have expired."""
        messages = list(messages)
        self._pushed = [request for request in self._pushed if request.until > time.time()]
        self._pushed += [_Request.now(message, self._records) for message in messages]
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to pushed messages, and record them."""
        return self._passed_on(self._grid.pull_messages(message_ids), self._pushed)

    def _passed_on(self, replies: Iterable[Message], requested: list[_Request]) -> Iterable[Message]:
        recorded = self._recorded(replies, requested)
        # A strategy may iterate over a list twice; an iterator may still wait for replies.
        return list(recorded) if isinstance(replies, Sequence) else recorded

    def _recorded(self, replies: Iterable[Message], requested: list[_Request]) -> Iterator[Message]:
        for reply in replies:
            answered = reply.metadata.reply_to_message_id
            request = next((a for a in requested if answered and a.message.metadata.message_id == answered), None)
            if request is not None:
                requested.remove(request)
                if reply.has_content() and self._should_record(request.message, reply):
                    with self._lock:  # Flower's older strategies ask each client in a thread of its own
                        self._record(request, reply)
            del request  # frees its arrays while the caller handles the reply
            yield reply
        with self._lock:
            self._count()

    def _record(self, request: _Request, reply: Message) -> None:
        metrics = scalars(reply.content)
        exchange = request.identity(metrics)
        try:
            by_client, to_client = self._records.arrays(reply.content, self._records.sent), request.tensors
        except NoRecord as error:
            self._skip(exchange, str(error))
            return
        try:
            sent = file_format.PlainTensors.of(_readable(by_client)).encoded(self._compression, _readable(to_client))
            received, new = self._received(to_client)
        except _UNREADABLE as error:
            self._skip(exchange, unreadable(by_client, error))
            return
        needed = self._bytes + len(sent.data) + (len(new.data) if new else 0)
        if self._limit is not None and needed > self._limit:
            self._skip(exchange, f"the recordings would take {needed} bytes of {self._limit}")
            return
        who = (exchange["round"], exchange["client"])
        file = f"round-{who[0]:04d}/client-{who[1]:03d}-{self._numbers[who]:03d}{sent.suffix}"
        self._numbers[who] += 1
        if new:
            self._write(received["file"], new.data)
            if new.plain_sha256:
                self._received_files[new.plain_sha256] = received
        self._write(file, sent.data)
        line = {
            **exchange,
            "group": request.message.metadata.group_id,
            "config": request.config,
            "metrics": metrics,
            "sent_to_client": received,
            "sent_by_client": sent.entry(file),
            "compression": self._compression,
        }
        self._append(line)

    def _received(self, arrays: dict[str, Array]) -> tuple[dict[str, Any], file_format.Encoded | None]:
        """Return the manifest's entry of the arrays sent to a client, and their file if it is not stored yet."""
        if self._last and self._last.is_of(arrays) and self._last.entry["file"] in self._stored:
            return self._last.entry, None
        plain, encoded = file_format.PlainTensors.of(_readable(arrays)), None
        entry = self._received_files.get(plain.sha256)
        if entry is None:
            file, encoded = file_format.received_file(plain, self._compression)
            entry = encoded.entry(file)
        self._last = _Received([(name, weakref.ref(array)) for name, array in arrays.items()], entry)
        return entry, None if entry["file"] in self._stored else encoded

    def _skip(self, exchange: dict[str, Any], reason: str) -> None:
        self._skipped += 1
        self._append({"skipped": reason, **exchange})

    def _append(self, row: file_format.Line) -> None:
        self._lines += 1
        self._manifest.append(sealed(row, self._lines))

    def _count(self) -> None:
        """Note the number of lines, if there are more than before."""
        if self._lines > self._counted:
            self._counted = self._lines
            write_head(self._folder, self._lines)

    def _write(self, file: str, data: bytes) -> None:
        file_format.write(self._folder / file, data)
        self._stored.add(file)
        self._bytes += len(data)
        self._not_on_disk.append(self._folder / file)


@dataclass(frozen=True, eq=False)
class _Request:
    """Copy of a message at the time of sending: apps reuse the records in it."""

    message: Message
    config: dict[str, Any]
    arrays: dict[str, Array] | NoRecord
    records: RecordMap

    @classmethod
    def now(cls, message: Message, records: RecordMap) -> _Request:
        arrays: dict[str, Array] | NoRecord
        try:
            arrays = records.arrays(message.content, records.received)
        except NoRecord as error:  # it matters only if its reply is to be recorded
            arrays = error
        return cls(message, scalars(message.content), arrays, records)

    @property
    def tensors(self) -> dict[str, Array]:
        """The arrays that the client received.

        Raises:
            NoRecord: the message had no such record.
        """
        if isinstance(self.arrays, NoRecord):
            raise self.arrays
        return self.arrays

    @property
    def until(self) -> float:
        """Time at which Flower drops the message, in seconds since the epoch."""
        return self.message.metadata.created_at + self.message.metadata.ttl

    def identity(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the identity of the exchange. A client is its partition if the server gives it, else its node."""
        node = self.message.metadata.dst_node_id
        group = self.message.metadata.group_id
        of_group = int(group) if group.isdecimal() and len(group) < _DIGITS else None
        rounds = (self.config.get("round"), self.config.get("server-round"), of_group)
        clients = [source.get(self.records.client) for source in (self.config, metrics)]
        return {
            "type": self.records.type_of(self.message.metadata.message_type),
            "round": next((number for number in rounds if _is_number(number)), 0),
            "client": next((number for number in clients if _is_number(number)), node),
            "node": node,
        }


@dataclass(frozen=True)
class _Received:
    """Arrays last sent to a client, by weak references; a broadcast to all clients is hashed only once."""

    arrays: list[tuple[str, weakref.ref[Array]]]
    entry: dict[str, Any]

    def is_of(self, arrays: dict[str, Array]) -> bool:
        """Return whether these are the same array objects."""
        if [name for name, _ in self.arrays] != list(arrays):
            return False
        return all(known() is array for (_, known), array in zip(self.arrays, arrays.values(), strict=True))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _readable(arrays: dict[str, Array]) -> dict[str, np.ndarray]:
    return views(ArrayRecord(arrays))


Where: TypeAlias = str | Path | Callable[[Context], str | Path]
"""A folder, or a function that takes it from the run's context."""


def recorded(app: ServerApp, folder: Where, records: RecordMap | None = None, **options: Any) -> ServerApp:
    """Wrap a ServerApp, so that each run records the messages that its Grid passes.

    It works with ``server_fn`` and with ``@app.main()``, which may follow on the wrapped app as well:

        app = recorded(ServerApp(server_fn=server_fn), "/where/recordings/go")

    Args:
        app: the app.
        folder: an absolute folder, which may begin with ~, or a function that takes it from the context; each run needs
            a new one.
        records: the names of the tensors in the app's messages; None: see `RecordMap`.
        **options: further arguments of `flfw.recording.grid.RecordingGrid`.

    Raises:
        InputError: there is no app, or the folder is not absolute.
    """
    if not isinstance(app, ServerApp):
        raise InputError(f"Expected a ServerApp of Flower, got {type(app).__name__}; wrap the app of the server.")
    if not callable(folder):
        _absolute(folder)
    known = set(signature(RecordingGrid.__init__).parameters)
    require(set(options) <= known, f"options of RecordingGrid among {', '.join(sorted(known))}", **options)
    return RecordedApp(app, folder, {"records": records, **options})


@final
class RecordedApp(ServerApp):
    """A ServerApp around another one, with a recorder in the Grid.

    Args:
        app: the app.
        folder: folder of the recordings.
        options: arguments of the recorder.
    """

    def __init__(self, app: ServerApp, folder: Where, options: dict[str, Any]) -> None:
        super().__init__()
        self._inner, self._folder, self._options = app, folder, options

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the app on a Grid that records."""
        folder = _absolute(self._folder(context) if callable(self._folder) else self._folder)
        self._inner(RecordingGrid(grid, folder, **self._options), context)

    def main(self) -> Callable[..., Any]:
        """Return the inner app's decorator of the same name."""
        return self._inner.main()

    def lifespan(self) -> Callable[..., Any]:
        """Return the inner app's decorator of the same name."""
        return self._inner.lifespan()


def _absolute(folder: str | Path) -> Path:
    path = Path(folder).expanduser()
    if not path.is_absolute():
        raise InputError(f"Expected an absolute folder, got {folder}: Flower runs a copy of the app elsewhere.")
    return path
