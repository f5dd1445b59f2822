"""The attack process: attacks that crash, hang or fail once, and ends that leave nothing behind."""

import ctypes
import dataclasses
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw.adversary.attack import Attack
from flfw.audit.attack_process import AttackProcess
from flfw.audit.jobs import EASY, AttackJob, JobResult
from flfw.audit.queue import Queue
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.recording.observation import Knowledge, Observation
from tests.support.csv_files import read_csv
from tests.support.small_runs import ByGuess, tiny

# What a server process need not import to find the attacks here is imported where it is used: it counts as their time.

# --- attacks that a server process finds here as tests.audit.test_attack_process:Class ---


class _Misbehaving(ByGuess):
    """Does something before it guesses grey."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        self.first()
        return torch.full(knowledge.model.inputs.shape, 0.5)

    def first(self) -> None:
        """What a subclass is about."""


class Grey(_Misbehaving):
    pass


class Raises(_Misbehaving):
    def first(self) -> None:
        informed = [name for name in ("FLFW_DATA", "FLFW_TRUTH", "FLFW_STATE") if name in os.environ]
        raise ArithmeticError(f"told {informed} in {Path.cwd().name}\nand more")


class FailsOnce(_Misbehaving):
    def first(self) -> None:
        before = Path("failed-once")
        if not before.exists():
            before.touch()
            raise ValueError("not yet")


class Stuck(_Misbehaving):
    def first(self) -> None:
        subprocess.run(["sleep", "60"], check=True)  # as an attack that has helpers of its own


class Endless(Stuck):
    pass


class Exits(_Misbehaving):
    def first(self) -> None:
        os._exit(3)


class Quits(_Misbehaving):
    def first(self) -> None:
        raise SystemExit(4)


class KillsItself(_Misbehaving):
    def first(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Segfaults(_Misbehaving):
    def first(self) -> None:
        ctypes.string_at(0)


# --- runs, jobs and servers ---


CRASHED = r"crashed: told \[\] in queue and more \(ArithmeticError in test_attack_process\.py, line \d+\)"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    from flfw.runs import run as whole

    experiment = tiny(tmp_path_factory.mktemp("recorded") / "run", audit_rounds="0")
    return whole.run(experiment), experiment


JobOf = Callable[..., AttackJob]


@pytest.fixture
def job_of(recorded: tuple[Path, Experiment], tmp_path: Path) -> JobOf:
    """The job of an attack on the easy control of what was recorded."""
    from flfw.audit.auditor import Auditor
    from flfw.runs import run as whole

    folder, experiment = recorded

    def job(attack: type[Attack] | str) -> AttackJob:
        name = attack if isinstance(attack, str) else f"{__name__}:{attack.__name__}"
        run_plan, task, _ = whole.check(dataclasses.replace(experiment, attack=(name,)), new=False)
        (results,) = Auditor(run_plan.client, run_plan.audit, task, folder, tmp_path).jobs(EASY)
        return results

    return job


@contextmanager
def serving(queue: Queue, *, seconds: float = 600, beside: bool = False) -> Iterator[Any]:
    from flfw.audit.attack_process import AttackProcess

    server = AttackProcess(queue, lambda _: [], concurrent=beside, seconds=seconds)
    queue.reopen()  # as the auditor does
    server.begin()
    try:
        yield server
    finally:
        server.end()
        until(lambda: not workers(queue.folder) + at_work_in(queue.folder), 10)  # killed is not yet gone


def at_work_in(folder: Path) -> list[int]:
    """The processes whose working directory this is: those that attack, and what they started."""
    results = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone, or somebody else's
            if (process / "cwd").readlink() == folder:
                results.append(int(process.name))
    return results


def workers(folder: Path) -> list[int]:
    """The processes that work on a queue, dead ones that nobody has waited for left out."""
    results = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            dead = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if b"flfw.audit.attack_worker" in words and str(folder).encode() in words and not dead:
                results.append(int(process.name))
    return results


def until(holds: Callable[[], Any], seconds: float = 60) -> Any:
    """What a condition gives as soon as it holds."""
    end = time.monotonic() + seconds
    while not (results := holds()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return results


def guessed(result: JobResult) -> bool:
    return result.stopped is None and all(results is not None for results in result.reconstructions)


# --- one server, and what it bears ---


@pytest.mark.slow
def test_a_server_bears_what_attacks_do(job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test, for each process takes seconds to start: two of them do here."""
    (tmp_path / "homemade.py").write_text(f"from {__name__} import Grey\n\nclass Own(Grey):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in a notebook: the folder that one is in
    importlib.invalidate_caches()
    monkeypatch.setenv("FLFW_TRUTH", "/nowhere")
    queue = Queue(tmp_path / "queue")
    jobs = [job_of(attack) for attack in (FailsOnce, Raises, "homemade:Own", Stuck, Grey)]
    with serving(queue, seconds=4) as server:

        def solve(job: AttackJob) -> JobResult:
            queue.put(job)
            return server.wait(job)

        failing, raising = map(solve, jobs[:2])
        assert guessed(failing) and failing.tries == 2
        assert re.fullmatch(CRASHED, raising.stopped or "") and raising.tries == 2
        assert raising.reconstructions == (None, None)
        (first,) = workers(queue.folder)  # which has gone on
        chosen, stuck, grey = map(solve, jobs[2:])
        assert guessed(chosen)
        assert (stuck.stopped, stuck.tries) == ("ended after 4 s, its budget", 2)
        assert guessed(grey)
        (second,) = workers(queue.folder)
        assert second != first

        queue.put(endless := job_of(Endless))
        until(lambda: len(at_work_in(queue.folder)) == 2)
    assert queue.solution(endless) is None  # its end was not waited for, and `serving` saw that nothing is left behind


@pytest.mark.slow
def test_a_server_that_cannot_live_is_given_up(job_of: JobOf, tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    with serving(queue, beside=True) as server:
        job = job_of(Grey)
        queue.put(job)
        for _ in range(3):  # before it can begin the job
            (pid,) = until(lambda: workers(queue.folder))
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in workers(queue.folder))
        with pytest.raises(RunError, match=r"could not go on: its process was killed by signal 9"):
            server.wait(job)


@pytest.mark.nightly
def test_a_server_that_dies_while_idle_is_started_again(job_of: JobOf, tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    with serving(queue, beside=True) as server:
        for _ in range(2):
            (pid,) = until(lambda: workers(queue.folder))
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: pid not in workers(queue.folder))
        job = job_of(Grey)
        queue.put(job)
        assert guessed(server.wait(job))


@pytest.mark.nightly
def test_attacks_that_end_their_process_fail_and_the_others_go_on(job_of: JobOf, tmp_path: Path) -> None:
    ends = {
        Exits: "ended with exit code 3",
        Quits: "ended with exit code 4",
        KillsItself: "was killed by signal 9",
        Segfaults: "was killed by signal 11",
    }
    queue = Queue(tmp_path / "queue")
    jobs = {cls: job_of(cls) for cls in (*ends, Grey)}
    with serving(queue) as server:
        for job in jobs.values():
            queue.put(job)
        for cls, how in ends.items():
            result = server.wait(jobs[cls])
            assert (result.stopped, result.tries) == (f"crashed: its process {how}", 2), cls
        assert guessed(server.wait(jobs[Grey]))


@pytest.mark.slow
def test_cores_that_training_leaves_are_used(job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    queue = Queue(tmp_path / "queue")
    stuck, grey, endless = map(job_of, (Stuck, Grey, Endless))

    def busy() -> dict[str, int]:
        return {job.attack: note["pid"] for job, note in queue.started()}

    with serving(queue, beside=True) as server:
        for job in (stuck, grey):
            queue.put(job)
        until(busy)
        time.sleep(2)
        assert len(workers(queue.folder)) == 1 and queue.solution(grey) is None  # while training has the other core
        server.close()
        assert guessed(server.wait(grey))
        first = until(lambda: busy() if busy().keys() == {stuck.attack} else None)
        queue.put(endless)
        second = until(lambda: busy().get(endless.attack))
        os.kill(first[stuck.attack], signal.SIGKILL)
        until(lambda: busy().get(stuck.attack, second) not in (second, first[stuck.attack]))  # another one tries again
        assert busy()[endless.attack] == second


@pytest.mark.nightly
def test_a_process_ends_when_its_queue_is_closed_and_empty(job_of: JobOf, tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    with serving(queue, beside=True) as server:
        until(lambda: workers(queue.folder))
        queue.put(job_of(Grey))
        server.close()
        assert guessed(server.wait(job_of(Grey)))
        until(lambda: not workers(queue.folder), 30)
        time.sleep(0.5)
        assert workers(queue.folder) == []  # nor is another one started


# --- the end of whoever started it ---

_PARENT = """
import sys, time
from pathlib import Path
from flfw.audit.queue import Queue
from flfw.audit.attack_process import AttackProcess
queue = Queue(Path(sys.argv[1]))
queue.reopen()
AttackProcess(queue, lambda _: [], concurrent=True, seconds=600).begin()
time.sleep(600)
"""


@contextmanager
def parent(queue: Queue) -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts a server, and is killed before it can end it."""
    process = subprocess.Popen([sys.executable, "-c", _PARENT, str(queue.folder)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in workers(queue.folder):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["while it starts", "while it is idle", "while it attacks"])
def test_a_server_ends_with_whoever_started_it(when: str, job_of: JobOf, tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    job = job_of(Stuck)
    with parent(queue) as process:
        (pid,) = until(lambda: workers(queue.folder))
        if when == "while it attacks":
            queue.put(job)
            assert until(queue.started)[0][1]["pid"] == pid
            until(lambda: len(at_work_in(queue.folder)) == 2)
        elif when == "while it is idle":
            until(lambda: "libtorch" in Path(f"/proc/{pid}/maps").read_text())
            time.sleep(8)
        process.kill()
        process.wait()
        until(lambda: not workers(queue.folder) + at_work_in(queue.folder), 30)


# --- whole runs ---


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def numbers(folder: Path) -> dict[str, Any]:
    """What training came to, without the seconds it took."""
    results = result(folder)
    return {"rounds": [_timeless(row) for row in results["rounds"]], "final": results["final"]}


def audit(folder: Path) -> list[dict[str, Any]]:
    """Entries of the audit, without the seconds they took."""
    entries = result(folder)["audit"]
    for entry in entries:
        entry["ladder"] = [_timeless(control) for control in entry["ladder"]]
    return [_timeless(entry) for entry in entries]


def _timeless(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if not key.endswith("seconds")}


def rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of the audit; whole numbers may be written as 1.0 where another row has none."""
    return [{name: _number(value) for name, value in row.items()} for row in read_csv(folder / "audit.csv")]


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


@pytest.mark.slow
def test_the_queue_is_removed_when_no_process_can_write_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flfw.runs import run as whole

    events: list[str] = []

    def ended(server: AttackProcess, end: Any = AttackProcess.end) -> None:
        end(server)
        events.append("ended")

    def removed(folder: Path, remove: Any = shutil.rmtree, **how: Any) -> None:
        events.extend(["removed"] * (Path(folder).name == "queue"))
        remove(folder, **how)

    experiment = tiny(tmp_path / "run", audit_rounds="0", attack_process="concurrent")
    monkeypatch.setattr(AttackProcess, "end", ended)
    monkeypatch.setattr(shutil, "rmtree", removed)
    folder = whole.run(experiment)
    stored = whole.stored(folder)
    again = whole.audit_recordings(folder, stored, dataclasses.replace(stored, out=tmp_path / "again"))
    assert events == ["ended", "removed"] * 2
    assert not (folder / "queue").exists() and not (again / "queue").exists()


@pytest.mark.slow
def test_a_crashed_attack_is_reported_and_the_run_is_none_the_worse(
    recorded: tuple[Path, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sim

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process
    crashing = f"{__name__}:Raises"
    words = "--method fedavg --net linear --clients 2 --rounds 1 --local-epochs 1 --images 2 --audit-rounds 0"
    words += f" --engine inproc --expert attack_process=concurrent --attack {crashing} analytic"
    assert sim.main([*words.split(), "--out", str(tmp_path / "run")]) == 0
    crashed, analytic = audit(tmp_path / "run")
    assert (crashed["attack"], crashed["verdict"], crashed["failures"]) == (crashing, "undecided", 2)
    assert re.fullmatch(CRASHED, crashed["failure_reason"]) and crashed["attempts"] == 2
    assert (
        crashed["failure_reason"] in crashed["reason"] and crashed["psnr"] is None and crashed["share_recovered"] == 0
    )
    assert any(crashed["failure_reason"] in note for note in result(tmp_path / "run")["notes"])
    assert analytic == audit(recorded[0])[0]
    ours = [row for row in rows(tmp_path / "run") if row["attack"] == "analytic"]
    assert ours == rows(recorded[0]) and {row["rung"] for row in ours} == {"easy", "target"}
    assert numbers(tmp_path / "run") == numbers(recorded[0])
    assert not (tmp_path / "run" / "queue").exists()


@pytest.mark.nightly
def test_where_attacks_run_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flfw.runs import run as whole

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process
    changes: dict[str, Any] = {"attack": ("ig", "analytic"), "set": ("ig.iterations=20",), "audit_rounds": "0,1"}
    changes |= {"net": "mlp", "rounds": 2, "curve": ("batch=2",)}
    runs = {
        where: whole.run(tiny(tmp_path / where, attack_process=where, **changes))
        for where in ("inline", "concurrent", "after")
    }
    unaudited = whole.run(tiny(tmp_path / "none", **{**changes, "attack": ("none",), "set": ()}))
    for folder in runs.values():
        assert numbers(folder) == numbers(unaudited)
        assert audit(folder) == audit(runs["inline"]) and rows(folder) == rows(runs["inline"])
    assert len(audit(runs["inline"])) == 8  # two attacks at two rounds, each of one example and of two
