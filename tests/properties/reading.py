"""What a reader may make of a changed input: refuse it in one line, read it as before, or read another valid value.

Everything else fails the test: another exception, a message of several lines, a value that is none, a broken seal that
was not noticed, a pickle, a network connection, a process, a file written elsewhere, a gigabyte, and 15 seconds.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import Any, final

import numpy as np
import torch
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from flfw.errors import InputError
from tests.properties.changes import Change, Files

_HUNG_S = 15
_MOST_BYTES = 10**9
_SHOWN = 1000  # bytes of a file, or characters of what was read, in a test's output
_FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "pickle.find_class")
_WRITES = 0o3103  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC


class Forbidden(BaseException):
    """Error of a reader that did what no changed input may make it do."""


def require_refused_or_valid(
    read: Callable[[], object],
    folder: Path | None = None,
    *,
    is_valid: Callable[[Any], bool] = lambda value: True,
    refusals: tuple[type[Exception], ...] = (InputError,),
    intact: str = "",
    breaks_a_seal: bool = False,
) -> object:
    """Read a changed input; return the value, or None if it was refused.

    Args:
        read: the reader.
        folder: the only folder that it may write to, beside the user's cache.
        is_valid: whether a value is one that the reader may return.
        refusals: errors by which it refuses, in one line.
        intact: the value before the change, as `plain` writes it.
        breaks_a_seal: whether the reader must notice the change, or read the same as before.
    """
    try:
        with _watched(folder), _limited_memory():
            value = read()
    except refusals as refusal:
        line = str(refusal)
        assert line.strip() and line.isprintable(), f"more than a line, or not a word: {line!r}"
        return None
    if (got := plain(value)) == intact:
        return value
    assert not breaks_a_seal, f"a broken seal was not noticed, and this was read: {got[:_SHOWN]}"
    assert is_valid(value), f"a value was read that is none: {got[:_SHOWN]}"
    return value


@final
class Folder:
    """Folder of files that has its first content again before each reading.

    Args:
        path: path of the folder, which is replaced.
        files: first content.
    """

    def __init__(self, path: Path, files: Mapping[str, bytes]) -> None:
        self.path, self.files = path, dict(files)

    @classmethod
    def of(cls, path: Path, source: Path) -> Folder:
        """Return a folder with the content of another one."""
        inner = {str(p.relative_to(source)): p.read_bytes() for p in sorted(source.rglob("*")) if p.is_file()}
        return cls(path, inner)

    def lay(self, changed: Files | None = None) -> Path:
        """Write the first content with some files changed; return the path."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        for name, data in {**self.files, **(changed or {})}.items():
            if data is not None:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_bytes(data)
        return self.path

    def changed(self, changes: Mapping[str, Change]) -> SearchStrategy[tuple[Files, bool]]:
        """Strategy of changed files: of one by its change, gone, or a folder in its place; and whether a seal breaks.

        Args:
            changes: how each file that is read may be changed.
        """

        def of(name: str) -> SearchStrategy[tuple[Files, bool]]:
            files: tuple[Files, ...] = ({name: None}, {name: None, f"{name}/inner": b""})
            other = st.sampled_from(files).map(lambda files: (files, False))
            change = changes[name](name, self.files[name])
            return st.integers(0, 24).flatmap(lambda number: other if number == 24 else change)

        return st.sampled_from(list(changes)).flatmap(of)


@final
class Reader:
    """A reader of the project with the folder that it reads.

    Args:
        folder: the folder, whose first content is valid.
        changes: how each file that is read may be changed.
        read: the reader.
        is_valid: whether a value is one that it may return.
        refusals: errors by which it refuses, in one line.
    """

    def __init__(
        self,
        folder: Folder,
        changes: Mapping[str, Change],
        read: Callable[[Path], object],
        is_valid: Callable[[Any], bool] = lambda value: True,
        refusals: tuple[type[Exception], ...] = (InputError,),
    ) -> None:
        self.folder, self.changes, self.read, self.is_valid, self.refusals = folder, changes, read, is_valid, refusals

    def __repr__(self) -> str:
        return f"<reader of {self.folder.path.name}>"

    @cached_property
    def intact(self) -> str:
        """What is read before a change, as `plain` writes it."""
        return plain(self.read(self.folder.lay()))

    def require_refused_or_valid(self, data: DataObject) -> object:
        """Change the folder and read it; see `require_refused_or_valid`."""
        files, breaks_a_seal = data.draw(self.folder.changed(self.changes))
        note(f"changed: { {name: content and content[:_SHOWN] for name, content in files.items()} }")
        return require_refused_or_valid(
            lambda: self.read(self.folder.lay(files)),
            self.folder.path,
            is_valid=self.is_valid,
            refusals=self.refusals,
            intact=self.intact,
            breaks_a_seal=breaks_a_seal,
        )


def plain(value: Any) -> str:
    """A value in words that are equal for equal values; tensors by their bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}{plain(vars(value))}"
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hash(value.tobytes())}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {plain(inner)}" for key, inner in sorted(value.items(), key=str)) + "}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(plain, value)))}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(plain, value))})"
    return repr(value)


def are_counts(values: Any) -> bool:
    """Whether all of these are whole numbers >= 0."""
    return all(type(value) is int and value >= 0 for value in values)


def is_text(value: Any) -> bool:
    """Whether this is text that UTF-8 can write."""
    return isinstance(value, str) and bool(value.encode() or True)


# --- what a reader may not do ---

_allowed: list[Path | None] = []  # the folder of the reader at work; a hook of the interpreter cannot be removed


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    if event in _FORBIDDEN:
        raise Forbidden(f"{event} {arguments[:2]}")
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITES and isinstance(path, str | bytes):
            _require_inside(path if isinstance(path, str) else path.decode(errors="replace"))


def _require_inside(path: str) -> None:
    places = [str(_allowed[0] or os.devnull), os.devnull, os.environ["XDG_CACHE_HOME"]]  # the user's cache, of tables
    if not path.startswith(tuple(places)) and "__pycache__" not in path:
        raise Forbidden(f"writes {path}")


def _ring(_signal: int, _frame: object) -> None:
    raise Forbidden(f"took more than {_HUNG_S} s")


@cache
def _add_hook() -> None:
    sys.addaudithook(_hook)


@contextmanager
def _watched(folder: Path | None) -> Iterator[None]:
    """Refuse network, processes, pickles and writing elsewhere to a reader, and end one that hangs."""
    _add_hook()
    before = signal.signal(signal.SIGALRM, _ring)
    signal.alarm(_HUNG_S)
    _allowed.append(folder)
    try:
        yield
    finally:
        _allowed.clear()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Let an allocation of a gigabyte beyond what is taken now be an error."""
    soft, hard = getrlimit(RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024
    setrlimit(RLIMIT_DATA, (used + _MOST_BYTES, hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_DATA, (soft, hard))
