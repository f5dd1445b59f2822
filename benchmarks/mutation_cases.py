"""Cases of the benchmark of mutations: a changed input for one reader, and what the reader made of it."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from random import Random
from resource import RLIMIT_DATA, getrlimit, setrlimit
from types import FrameType
from typing import Any, TypeAlias, final

import numpy as np
import torch

from flfw.errors import BadInput

Files: TypeAlias = Mapping[str, bytes | None]
"""Contents by names below a folder; None: there is no such file."""
Change: TypeAlias = Callable[[str, bytes, Random], tuple[Files, bool]]
"""Function of a file's name and content: the changed files, and whether a seal is left that no longer fits."""

_SLOW_S, _HUNG_S = 1.0, 15
_LARGEST = 10**9  # bytes that a case may take
_FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec")
_ROOT = str(Path(__file__).resolve().parents[1])


@final
class CaseOutcome(Enum):
    """CaseOutcome of a case."""

    REFUSED = "refused"
    HARMLESS = "harmless"
    SILENT = "silent"
    UNCAUGHT = "uncaught"


class Forbidden(BaseException):
    """Error: a reader of changed input went to the network, started a process, or wrote elsewhere."""


@final
@dataclasses.dataclass(frozen=True)
class Mutant:
    """A changed input.

    Attributes:
        read: function that reads it.
        sealed: whether it breaks a seal, so that the reader must notice it, or read the same as before.
    """

    read: Callable[[], object]
    sealed: bool = False


@final
@dataclasses.dataclass(frozen=True)
class Subject:
    """A reader of the project and its input.

    Attributes:
        name: name of the reader.
        make: function that changes the input.
        intact: what is read of the unchanged input, as `plain` writes it.
        refusals: errors by which the reader refuses, in one line.
        fits: whether a value that was read is a valid one.
        weight: share of the group's cases, relative to the others.
    """

    name: str
    make: Callable[[Random], Mutant]
    intact: str = ""
    refusals: tuple[type[Exception], ...] = (BadInput,)
    fits: Callable[[Any], bool] = lambda value: True
    weight: float = 1.0


@final
@dataclasses.dataclass(frozen=True)
class CaseResult:
    """Result of a case.

    Attributes:
        outcome: see `CaseOutcome`.
        seconds: time that the reader took, of the processor or, where it waited long, of the clock.
        sealed: whether the case broke a seal.
        error: for one that was not caught its type, and the place in this project that raised it last.
        text: message of the error, or the value that was read silently.
    """

    outcome: CaseOutcome
    seconds: float
    sealed: bool = False
    error: tuple[str, str] = ("", "")
    text: str = ""


@final
class Folder:
    """Folder of files that is brought back to its first content before each case.

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

    def subject(self, name: str, changes: Mapping[str, Change], read: Callable[[Path], object], **more: Any) -> Subject:
        """Return the subject of a reader of this folder.

        Args:
            name: name of the reader.
            changes: how each file that is read is changed.
            read: the reader.
            **more: further attributes of the subject.
        """

        def make(rng: Random) -> Mutant:
            chosen = rng.choice(list(changes))
            changed, sealed = changes[chosen](chosen, self.files[chosen], rng)
            if rng.random() < 0.02:
                changed, sealed = {chosen: None}, False  # the file is gone
            elif rng.random() < 0.01:
                changed, sealed = {chosen: None, f"{chosen}/inner": b""}, False  # a folder in its place
            return Mutant(lambda: read(self.lay(changed)), sealed)

        return Subject(name, make, plain(read(self.lay())), **more)


def unsealed(operator: Callable[[bytes, Random], bytes]) -> Change:
    """Return the change of a file without a seal."""
    return lambda name, data, rng: ({name: operator(data, rng)}, False)


def plain(value: Any) -> str:
    """Return a value in words that are equal for equal values; tensors by their bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}{plain(vars(value))}"
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hash(value.tobytes())}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {plain(inner)}" for key, inner in sorted(value.items(), key=str)) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"({', '.join(map(plain, value))})"
    return repr(value)


def tried(subject: Subject, rng: Random, scratch: Path) -> CaseResult:
    """Make a case, let the reader read it, and return the result."""
    mutant = subject.make(rng)
    value, error, text = None, None, ""
    clock, used = time.monotonic(), time.process_time()
    try:
        with _watched(scratch):
            value = mutant.read()
    except subject.refusals as refusal:
        text = str(refusal)
        error = None if text.isprintable() and text.strip() else refusal  # more than a line, or not a word
        if error is None:
            seconds = _seconds(clock, used)
            return CaseResult(CaseOutcome.REFUSED, seconds, mutant.sealed, text=text)
    except (Exception, SystemExit, Forbidden) as caught:
        error, text = caught, str(caught)
    seconds = _seconds(clock, used)
    if error is not None:
        return CaseResult(CaseOutcome.UNCAUGHT, seconds, mutant.sealed, (type(error).__name__, _place(error)), text)
    same = (read := plain(value)) == subject.intact
    good = same or (not mutant.sealed and _fits(subject, value))
    return CaseResult(
        CaseOutcome.HARMLESS if good else CaseOutcome.SILENT, seconds, mutant.sealed, ("", ""), "" if good else read
    )


def _fits(subject: Subject, value: object) -> bool:
    try:
        return bool(subject.fits(value))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):  # a value of a strange form
        return False


def is_slow(result: CaseResult) -> bool:
    """Return whether a case took too long."""
    return result.seconds > _SLOW_S


@contextmanager
def limited() -> Iterator[None]:
    """Let no case take much memory: an allocation beyond the limit is an error."""
    soft, hard = getrlimit(RLIMIT_DATA)
    words = Path("/proc/self/status").read_text().partition("VmData:")[2].split()
    setrlimit(RLIMIT_DATA, (int(words[0]) * 1024 + _LARGEST, hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_DATA, (soft, hard))


_scratch: list[Path] = []  # of the case at work; a hook of the interpreter cannot be removed


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _scratch or (event not in _FORBIDDEN and event != "open"):
        return
    if event in _FORBIDDEN:
        raise Forbidden(f"{event} {arguments[:2]}")
    path, _, flags = arguments
    writes = isinstance(flags, int) and flags & 0o3103  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
    if writes and isinstance(path, str | bytes):
        place = path if isinstance(path, str) else path.decode(errors="replace")
        if not place.startswith((str(_scratch[0]), "/dev/null")) and "__pycache__" not in place:
            raise Forbidden(f"writes {place}")


def _ring(_signal: int, _frame: FrameType | None) -> None:
    raise Forbidden(f"took more than {_HUNG_S} s")


@cache
def _add_hook() -> None:
    sys.addaudithook(_hook)


@contextmanager
def _watched(scratch: Path) -> Iterator[None]:
    """Refuse network, processes and writing elsewhere to a reader, and end one that hangs."""
    _add_hook()
    before = signal.signal(signal.SIGALRM, _ring)
    signal.alarm(_HUNG_S)
    _scratch.append(scratch)
    try:
        yield
    finally:
        _scratch.clear()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _seconds(clock: float, used: float) -> float:
    waited = time.monotonic() - clock
    return waited if waited > 5 else time.process_time() - used  # other processes share the machine


def _place(error: BaseException) -> str:
    """Return file and line of the last frame in this project, but for the benchmark's own."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f.filename.startswith(_ROOT) and "/benchmarks/" not in f.filename]
    last = (inside or frames)[-1]
    return f"{Path(last.filename).relative_to(_ROOT) if inside else last.filename}:{last.lineno}"
