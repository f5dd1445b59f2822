"""Attack processes: they attack a run's recordings, one of them during training and as many as cores afterwards.

This module starts, watches, ends and restarts them. Training does not know them: they exchange files only.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import final

from flfw.audit.jobs import AttackJob, JobResult, ProbeSet
from flfw.audit.queue import Queue
from flfw.errors import InputError, RunError, require
from flfw.experiment.audit import AttackSettings

_POLL_S = 0.05
_LOOK_S = 1.0  # between two checks for new recordings; shorter would disturb training
_WRITES = 2  # of a result that cannot be read
_IDLE_DEATHS = 3  # processes in a row that died before they began a job
_MOST = 4  # processes at once
_NOT_TOLD = ("FLFW_DATA", "FLFW_TRUTH", "FLFW_STATE")  # the clients' folders, withheld from attacks

IMPORTS_S = 4.0
"""Seconds that a process takes to start: jobs that are done in this time are not worth a further one."""
Jobs = Callable[[ProbeSet], list[AttackJob]]


def require_gpu(settings: AttackSettings) -> None:
    """Refuse attacks on a GPU, or in a precision that only a GPU has, where this machine has none to give them.

    Raises:
        InputError: naming the flag.
    """
    share, precision = settings.attack_gpus, settings.attack_precision
    expected = "--expert attack_precision=float32 or bf16 without --attack-gpus, as only a GPU has TensorFloat-32"
    require(bool(share) or not precision.startswith("tf32"), expected, attack_precision=precision)
    if share:
        import torch

        require(torch.cuda.is_available(), "--attack-gpus 0 on a machine without a GPU", attack_gpus=share)


def processes_after_training(gpu: bool) -> int:
    """Return how many processes attack after training: as many as cores, at most four; on a GPU one."""
    return 1 if gpu else min(_MOST, len(os.sched_getaffinity(0)))


class AttackExecutor(ABC):
    """Executor of attack jobs, active between `begin` and `end`.

    Args:
        queue: the queue of the jobs.
        jobs: gives the jobs of a probe set whose probes are recorded.

    Attributes:
        report: is given the share of its steps that are done of the job that is waited for.
    """

    def __init__(self, queue: Queue, jobs: Jobs) -> None:
        self._queue, self._jobs = queue, jobs
        self.report: Callable[[float], None] = lambda _: None

    def begin(self) -> None:  # noqa: B027 an executor that works on request alone has nothing to do
        """Begin: probe sets may arrive from now on."""

    def end(self) -> None:  # noqa: B027
        """Stop all work, in the middle of an attack if need be."""

    def close(self) -> None:  # noqa: B027
        """Note that training is over, and that all its jobs are in the queue; controls may still be put there."""

    @abstractmethod
    def wait(self, job: AttackJob) -> JobResult:
        """Return the solution of a job in the queue.

        Raises:
            RunError: no process can do jobs.
        """


@final
class Inline(AttackExecutor):
    """Executor in this process: a job runs when its result is requested, without protection from a faulty attack."""

    def wait(self, job: AttackJob) -> JobResult:
        """Do the job now, unless it was done before."""
        from flfw.audit.attack_worker import attempt
        from flfw.inversion.compute import watched

        for _ in range(_WRITES):
            if (result := self._queue.solution(job)) is not None:
                return result
            with watched(self.report):
                attempt(job, self._queue)
        if (result := self._queue.solution(job)) is None:
            raise RunError(f"The result of {job.name} was written {_WRITES} times and cannot be read.")
        return result


@final
class AttackProcess(AttackExecutor):
    """Executor in separate processes, and a thread that watches them.

    While training is at work there is one process, afterwards as many as cores, at most four. Each is started alike, so
    that results do not depend on how many are at work.

    Args:
        queue: the queue of the jobs.
        jobs: gives the jobs of a probe set whose probes are recorded.
        concurrent: start with training, at a lower priority; else no job is requested before training is over.
        seconds: time limit of a try.
        gpu: whether the attacks have a share of a GPU, which one process uses.
    """

    def __init__(self, queue: Queue, jobs: Jobs, *, concurrent: bool, seconds: float, gpu: bool = False) -> None:
        super().__init__(queue, jobs)
        self._beside, self._seconds, self._gpu = concurrent, seconds, gpu
        self._most = processes_after_training(gpu)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stop, self._closed, self._closed_at = threading.Event(), threading.Event(), inf
        self._broken = ""
        self._begun: dict[tuple[str, float], float] = {}
        self._thread = threading.Thread(target=self._watch, name="attack processes", daemon=True)

    def begin(self) -> None:
        """Start to watch the queue."""
        self._thread.start()

    def end(self) -> None:
        """End the processes, in the middle of an attack if need be."""
        self._stop.set()
        self._thread.join()
        for process in [*self._processes]:
            self._end(process)

    def close(self) -> None:
        """Note that training is over, and that all its jobs are in the queue."""
        self._queue.close()
        self._closed_at = time.monotonic()
        self._closed.set()

    def wait(self, job: AttackJob) -> JobResult:
        """Wait for a job and return its solution."""
        while (result := self._queue.solution(job)) is None:
            if self._broken or not self._thread.is_alive():
                raise RunError(f"The attack process could not go on: {self._broken or 'its watch ended'}.")
            self.report(self._queue.share(job))
            time.sleep(_POLL_S)
        return result

    # --- the thread ---

    def _watch(self) -> None:
        requested: set[str] = set()
        looked, idle_deaths = 0.0, 0
        while not self._stop.wait(_POLL_S):
            try:
                if look := time.monotonic() - looked > _LOOK_S:
                    looked = time.monotonic()
                    if self._beside and not self._closed.is_set():
                        self._ask(requested)
                for process in [*self._processes]:
                    if (code := process.poll()) is not None:
                        self._end(process)  # and all processes that it started
                        had_work = self._give_up(process, f"crashed: its process {_ended(code)}")
                        idle_deaths = 0 if had_work else idle_deaths + (code != 0)  # 0: nothing waited; more may come
                        if idle_deaths >= _IDLE_DEATHS:
                            self._broken = f"its process {_ended(code)} ({self._last_words()})"
                            return
                self._end_what_takes_too_long()
                if (look or not self._processes) and self._wanted():
                    self._processes.append(self._begin())
            except OSError as error:
                self._broken = str(error)
                return

    def _ask(self, requested: set[str]) -> None:
        for probe_set in self._queue.probe_sets():
            if probe_set.name not in requested:
                requested.add(probe_set.name)
                with suppress(InputError):  # the request for all jobs at the end raises it
                    for job in self._jobs(probe_set):
                        self._queue.put(job)

    def _wanted(self) -> bool:
        """Return whether a further process is needed; beside training it starts early: its imports take seconds."""
        if not self._processes and self._beside and not self._closed.is_set():
            return True
        most = self._most if time.monotonic() > self._closed_at + IMPORTS_S else 1
        idle = len(self._processes) - len(self._queue.started())
        return len(self._processes) < most and len(self._queue.waiting()) > idle

    def _begin(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_TOLD}
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(p).absolute()) for p in sys.path)
        if not self._gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, "-m", "flfw.audit.attack_worker", str(self._queue.folder), str(os.getpid())]
        command += ["--nice"] if self._beside and not self._closed.is_set() else []
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self._queue.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that it can be ended with all processes of an attack
            )

    def _end_what_takes_too_long(self) -> None:
        now = time.monotonic()  # the wall clock may be changed
        begun = {(job.name, note["since"]): note["pid"] for job, note in self._queue.started()}
        self._begun = {at_work: self._begun.get(at_work, now) for at_work in begun}
        overdue = {at_work for at_work, since in self._begun.items() if now - since > self._seconds}
        for process in [one for one in self._processes if one.pid in {begun[at_work] for at_work in overdue}]:
            self._end(process)
            self._give_up(process, f"ended after {self._seconds:g} s, its budget", overdue)

    def _give_up(
        self, process: subprocess.Popen[bytes], why: str, at_work: Container[tuple[str, float]] | None = None
    ) -> bool:
        """Fail jobs of an ended process (or only those in ``at_work``), offer others again; return if it had any."""
        begun = [(job, note["since"]) for job, note in self._queue.started() if note["pid"] == process.pid]
        for job, since in begun:
            if at_work is None or (job.name, since) in at_work:
                self._queue.fail(job, why)
            else:  # begun between the check and the end
                self._queue.give_back(job)
        return bool(begun)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._processes.remove(process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def _log(self) -> Path:
        return self._queue.folder / "server.log"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
