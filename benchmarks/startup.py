"""What starting costs: ``python -m benchmarks.startup [--json]``.

Runs ``sim.py --help`` and the main job (``sim.py`` without flags) as a user would, and watches the processes' memory
from outside. An actor's resident memory counts the pages it has touched of Ray's object store, which all actors and
the driver share; ``*_own`` leaves them out. The last line of the output is one JSON object.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import output

_ROOT = Path(__file__).parent.parent
_GOALS = {"help_s": 1.0, "run_s": 300.0, "actor_gib": 1.25, "driver_gib": 2.0}
_KIB_PER_GIB = 1024**2


class Watch(threading.Thread):
    """Samples a process and Ray's client actors below it until stopped.

    Args:
        pid: of the driver.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._over = pid, threading.Event()
        self.peaks = {"actor": 0, "actor_own": 0, "driver": 0, "driver_own": 0}

    def run(self) -> None:
        """Sample five times a second."""
        while not self._over.wait(0.2):
            self._sample("driver", self._pid)
            for pid in actors_below(self._pid):
                self._sample("actor", pid)

    def stop(self) -> None:
        """End the sampling."""
        self._over.set()
        self.join()

    def _sample(self, kind: str, pid: int) -> None:
        whole, shared = _resident(pid)
        self.peaks[kind] = max(self.peaks[kind], whole)
        self.peaks[f"{kind}_own"] = max(self.peaks[f"{kind}_own"], whole - shared)


def own_memory(pid: int) -> int:
    """A process's resident memory in KiB, without what it shares with others; 0 if it is gone."""
    whole, shared = _resident(pid)
    return whole - shared


def actors_below(pid: int) -> list[int]:
    """Ray's client actors that descend from a process."""
    parents: dict[int, int] = {}
    actors = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (entry / "cmdline").read_text().startswith("ray::ClientApp"):
                actors.append(int(entry.name))
    return [actor for actor in actors if pid in _ancestors(actor, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found


def _resident(pid: int) -> tuple[int, int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    size = {name: int(kib) for name, kib in re.findall(r"^(VmRSS|RssShmem):\s+(\d+) kB", text, re.MULTILINE)}
    return size.get("VmRSS", 0), size.get("RssShmem", 0)


def measure(arguments: list[str]) -> dict[str, object]:
    """Time and peak memory of the main job, with further flags if any; three timings of ``--help``, the median."""
    helps = []
    for _ in range(3):
        started = time.monotonic()
        subprocess.run([sys.executable, "sim.py", "--help"], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
        helps.append(time.monotonic() - started)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        command = [sys.executable, "sim.py", "--out", f"{folder}/run", *arguments]
        process = subprocess.Popen(command, cwd=_ROOT, stdout=sys.stderr)
        watch = Watch(process.pid)
        watch.start()
        code = process.wait()
        seconds = time.monotonic() - started
        watch.stop()
    if code:
        sys.exit(f"sim.py ended with exit code {code}; nothing was measured")
    memory = {f"{name}_gib": round(kib / _KIB_PER_GIB, 3) for name, kib in watch.peaks.items()}
    found = {"help_s": round(sorted(helps)[1], 3), "run_s": round(seconds, 1), **memory}
    return {**found, "goal": _GOALS, "met": {k: found[k] <= goal for k, goal in _GOALS.items()}}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("flags", nargs="*", help="further flags of sim.py, after --")
    chosen = flags.parse_args()
    load_before = os.getloadavg()[0]
    found = {**measure(chosen.flags), "load_before": load_before}
    lines = [f"{name:12} {found[name]:>8}   goal <= {goal}" for name, goal in _GOALS.items()]
    output.say(found, lines, only_json=chosen.json)


if __name__ == "__main__":
    main()
