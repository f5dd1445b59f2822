"""Processes of a federation on this machine: they outlive their parent and are known by id and start time."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from flfw.engines.machine import ALLOCATOR
from flfw.errors import RunError

_GRACE_S = 10.0
_POLL_S = 0.05
_MARK = "FLFW_PART"  # an environment variable that all processes of a program inherit


def waiting_phase(phase: str, engine: str) -> Popen[str]:
    """Start a process that imports what a phase of a run needs, and waits at its input to time it for an estimate.

    Args:
        phase: its name, of `flfw.runs.timed_phases.PHASES`.
        engine: the run's engine.
    """
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    variables |= ALLOCATOR if phase != "audit" and engine != "inproc" else {}
    command = [sys.executable, "-m", "flfw.runs.timed_phases", phase, str(time.time())]
    # A session of its own, so that it is ended with its own processes.
    return Popen(command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True, env=variables, start_new_session=True)


def start(command: Sequence[str], folder: Path, name: str, variables: Mapping[str, str]) -> int:
    """Start a program that outlives this one, unless it is running.

    Args:
        command: the program and its arguments.
        folder: folder of the program, with ``NAME.log`` and ``NAME.pid``.
        name: name of the program in that folder.
        variables: environment variables of the program.

    Returns:
        The process id.

    Raises:
        RunError: there is no such program.
    """
    running = alive(folder, name)
    if running is not None:
        return running
    _end(folder, name)  # processes that an earlier one left behind
    temporary = _clear(folder)
    temporary.mkdir(mode=0o700, exist_ok=True)
    neutral = folder / "neutral"  # modules in the working folder would be imported ahead of the app
    neutral.mkdir(exist_ok=True)
    with (folder / f"{name}.log").open("ab") as log:
        try:
            begun = subprocess.Popen(
                list(command),
                cwd=neutral,
                env={**variables, _MARK: _mark(folder, name), "TMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"Expected to start {command[0]}, got {error}.") from error
    (folder / f"{name}.pid").write_text(f"{begun.pid} {_born(begun.pid)}\n")
    return begun.pid


def alive(folder: Path, name: str) -> int | None:
    """Return the process id of a program that `start` started, if it is still running."""
    try:
        pid, born = (int(word) for word in (folder / f"{name}.pid").read_text().split())
    except (OSError, ValueError):
        return None
    return pid if _born(pid) == born != -1 else None


def changed_since_start(folder: Path, name: str, file: Path) -> bool:
    """Return whether a program that is running was started before a file was last written."""
    return alive(folder, name) is not None and file.stat().st_mtime > (folder / f"{name}.pid").stat().st_mtime


def stop(folder: Path, name: str) -> bool:
    """End a program with all processes that it started; return whether there was one.

    Raises:
        RunError: the program does not end.
    """
    pid = alive(folder, name)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while alive(folder, name) is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    _end(folder, name)
    _clear(folder)
    (folder / f"{name}.pid").unlink(missing_ok=True)
    return pid is not None


def _end(folder: Path, name: str) -> None:
    """Kill all processes with the mark of a program: Flower gives some of its processes their own session."""
    deadline = time.monotonic() + _GRACE_S
    while family := _marked(folder, name):
        if time.monotonic() > deadline:
            raise RunError(f"Expected process {family[0]} ({name}) to end, got one that does not; see {folder}.")
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _clear(folder: Path) -> Path:
    """Remove the temporary files of a program, which those of its processes that are killed leave; return the place."""
    temporary = folder / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    return temporary


def _marked(folder: Path, name: str) -> list[int]:
    """Return the ids of a program and of all its descendants."""
    sought, pids = f"{_MARK}={_mark(folder, name)}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if sought in (process / "environ").read_bytes().split(b"\0"):
                pids.append(int(process.name))
    return pids


def _mark(folder: Path, name: str) -> str:
    return str(folder.resolve() / name)


def listens(host: str, port: int) -> bool:
    """Return whether a server accepts connections at this address."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def log_size(folder: Path, name: str) -> int:
    """Return the size of a program's log in bytes, over all its starts."""
    path = folder / f"{name}.log"
    return path.stat().st_size if path.is_file() else 0


def last_line(folder: Path, name: str) -> str:
    """Return the last line of a program's log."""
    path = folder / f"{name}.log"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _born(pid: int) -> int:
    """Return the start time of a process, in clock ticks since boot; -1: it has ended or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] == "Z" else int(fields[19])
