"""Cost of starting: ``python -m benchmarks.startup [--json] [--quick] [--only help run] [-- FLAGS of sim.py]``.

- help: the seconds of ``sim.py --help``, the median of three.
- run: the seconds and the peak memory of the main job (``sim.py`` without flags) as a user would run it. Memory is read
  from outside. An actor's resident memory counts its touched pages of Ray's object store, which all actors and the
  driver share; ``*_own`` leaves them out.

The last line of the output is one JSON object.
"""

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
_SMALL = ["--rounds", "1", "--clients", "2", "--local-epochs", "1", "--attack", "none"]
_KIB_PER_GIB = 1024**2
_ACTORS = ("ray::ClientActor", "ray::ClientAppActor")  # this project's and Flower's
PARTS = {
    "help": output.BenchmarkPart("sim.py --help, three times", 3, 3),
    "run": output.BenchmarkPart("sim.py, its memory watched from outside", 320, 20),
}


class Watch(threading.Thread):
    """Thread that samples a process and Ray's client actors below it until stopped.

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
    """Return a process's private resident memory in KiB; 0 if the process is gone."""
    whole, shared = _resident(pid)
    return whole - shared


def actors_below(pid: int) -> list[int]:
    """Return Ray's client actors that descend from a process."""
    parents: dict[int, int] = {}
    actors = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (entry / "cmdline").read_text().startswith(_ACTORS):
                actors.append(int(entry.name))
    return [actor for actor in actors if pid in _ancestors(actor, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    ancestors = set()
    while pid in parents and pid not in ancestors:
        ancestors.add(pid)
        pid = parents[pid]
    return ancestors


def _resident(pid: int) -> tuple[int, int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    size = {name: int(kib) for name, kib in re.findall(r"^(VmRSS|RssShmem):\s+(\d+) kB", text, re.MULTILINE)}
    return size.get("VmRSS", 0), size.get("RssShmem", 0)


def help_seconds() -> float:
    """Measure the seconds of ``sim.py --help``: the median of three."""
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        subprocess.run([sys.executable, "sim.py", "--help"], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.monotonic() - started)
    return round(sorted(seconds)[1], 3)


def main_job(arguments: list[str]) -> dict[str, float]:
    """Measure the seconds and the peak memory of the main job, with further flags if any."""
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
    return {"run_s": round(seconds, 1), **memory}


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument("flags", nargs="*", help="further flags of sim.py, after -- (quick: a job of one small round)")
    run = output.start(flags, PARTS)
    load_before, results = os.getloadavg()[0], {}
    for _ in run.parts("help"):
        results["help_s"] = help_seconds()
    for _ in run.parts("run"):
        results |= main_job(run.asked.flags or (_SMALL if run.asked.quick else []))
    goals = {name: goal for name, goal in _GOALS.items() if name in results}
    lines = [f"{name:12} {results[name]:>8}   goal <= {goal}" for name, goal in goals.items()]
    met = {name: results[name] <= goal for name, goal in goals.items()}
    run.report({**results, "goal": goals, "met": met, "load_before": load_before}, lines)


if __name__ == "__main__":
    main()
