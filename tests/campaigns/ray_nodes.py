"""Ray cluster of several nodes on this machine, each of which can be killed and started again.

Every node is started by Ray's own commands, as on several machines: a head without cores, so that no client computes
there, and workers.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from benchmarks.process_family import command_line, marked

_MARK = "FLFW_RAY_NODE"  # an environment variable that all processes of a node inherit
_STORE = 100_000_000  # bytes
_START_S = 600.0
_STARTS = 2  # tries
# By default each node gives its workers the same ports in the same order, and nodes of one machine take them from each
# other.
_ANY_PORT = ("--min-worker-port=0", "--max-worker-port=0")
_PATIENT = """
from flfw.engines.ray_start import patience
from ray.scripts.scripts import main

with patience():
    main()
"""  # the command ``ray``, which on a busy machine would wait too short a time for its node


@final
class RayNodes:
    """Nodes of a cluster: a head, and a worker for each entry of ``workers``.

    Args:
        folder: for Ray's files; its path must be short, as it becomes part of a socket's.
        workers: cores and GPUs that each worker is told to have.
    """

    def __init__(self, folder: Path, workers: Sequence[tuple[int, int]]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder, self._workers = folder, workers

    def up(self) -> None:
        """Start those nodes that are not there."""
        if not self._alive("head"):
            head = ["--head", f"--port={self.address.rpartition(':')[2]}", "--num-cpus=0", "--num-gpus=0"]
            self._start("head", [*head, "--include-dashboard=false", f"--temp-dir={self._folder}"])
        for number, (cpus, gpus) in enumerate(self._workers):
            if not self._alive(str(number)):
                self._clear(str(number))
                flags = [f"--address={self.address}", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
                self._start(str(number), flags)

    def raylet(self, number: int) -> int | None:
        """Return the process of a worker whose end is the node's end, if it is there."""
        return self._alive(str(number))

    def processes(self, number: int) -> list[int]:
        """List all processes of a worker."""
        return marked(_MARK, self._value(str(number)))

    def kill(self, number: int) -> None:
        """Kill all processes of a worker, as a power failure does."""
        self._clear(str(number))

    def down(self) -> None:
        """End all processes of all nodes."""
        for name in ("head", *map(str, range(len(self._workers)))):
            self._clear(name)

    def _value(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _alive(self, name: str) -> int | None:
        raylets = [pid for pid in marked(_MARK, self._value(name)) if "/raylet/raylet" in command_line(pid)]
        return raylets[0] if raylets else None

    def _clear(self, name: str) -> None:
        end_all(_MARK, self._value(name))

    def _start(self, name: str, words: list[str]) -> None:
        more = {_MARK: self._value(name), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}
        always = ["--node-ip-address=127.0.0.1", f"--object-store-memory={_STORE}", "--disable-usage-stats", *_ANY_PORT]
        command = [sys.executable, "-c", _PATIENT, "start", *words, *always]
        log, code = self._folder / "log", 0
        for _ in range(_STARTS):
            with log.open("ab") as end:  # the node keeps it open, as it would keep a pipe
                done = subprocess.run(
                    command, env={**os.environ, **more}, stdout=end, stderr=end, timeout=_START_S, check=False
                )
            code = done.returncode
            if not code:
                return
            self._clear(name)
        last = (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"Expected a node of Ray, got exit code {code}: {last}")


def end_all(variable: str, value: str) -> None:
    """Kill all processes that inherited an environment variable with this value, and those that they start."""
    until = time.monotonic() + 30
    while (left := marked(variable, value)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


@contextmanager
def ray_nodes(folder: Path, workers: Sequence[tuple[int, int]]) -> Iterator[RayNodes]:
    """Start a cluster, and end all its processes at the end."""
    nodes = RayNodes(folder, workers)
    try:
        nodes.up()
        yield nodes
    finally:
        nodes.down()
