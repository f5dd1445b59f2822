"""The processes of a federation on this machine: started apart from whoever starts them, known by id and birth."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flfw.errors import RunFailed

_GRACE_S = 10.0


def start(command: Sequence[str], folder: Path, name: str, variables: Mapping[str, str]) -> int:
    """Start a program that outlives this one, unless it is at work.

    Args:
        command: the program and its arguments.
        folder: its working folder, with ``NAME.log`` and ``NAME.pid``.
        name: what it is called there.
        variables: its environment.

    Returns:
        Its process id.
    """
    running = alive(folder, name)
    if running is not None:
        return running
    neutral = folder / "neutral"  # what lies in the working folder would be imported ahead of the app
    neutral.mkdir(exist_ok=True)
    with (folder / f"{name}.log").open("ab") as log:
        begun = subprocess.Popen(
            list(command),
            cwd=neutral,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(f"{begun.pid} {_born(begun.pid)}\n")
    return begun.pid


def alive(folder: Path, name: str) -> int | None:
    """The process id of a program that `start` started, if it is still that one."""
    path = folder / f"{name}.pid"
    if not path.is_file():
        return None
    pid, born = (int(word) for word in path.read_text().split())
    return pid if _born(pid) == born else None


def stop(folder: Path, name: str) -> bool:
    """End a program, and with it all that it started; whether there was one.

    Raises:
        RunFailed: it does not end.
    """
    pid = alive(folder, name)
    if pid is None:
        (folder / f"{name}.pid").unlink(missing_ok=True)
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if alive(folder, name) is None:
                with suppress(ProcessLookupError):  # what it started may be slower than itself
                    os.killpg(pid, signal.SIGKILL)
                (folder / f"{name}.pid").unlink(missing_ok=True)
                return True
            time.sleep(0.05)
    raise RunFailed(f"Expected process {pid} ({name}) to end, got one that does not; see {folder / f'{name}.log'}.")


def last_line(folder: Path, name: str) -> str:
    """The last thing a program said."""
    path = folder / f"{name}.log"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _born(pid: int) -> int:
    """When a process began, in ticks since the machine did; -1: it is not there, or has ended and nobody looked."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return -1 if about[0] == "Z" else int(about[19])
