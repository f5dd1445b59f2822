"""The queue on disk between a run, which records, and the attack processes, which attack.

    r0003-target.ticket             the probes of round 3 are recorded (written by the recording side)
    ig-r0003-target.json            a job: one attack on them, with all its grants
    ig-r0003-target.started         the process at work on it, and the time of its start
    ig-r0003-target.share           the share of its steps that are done
    ig-r0003-target.solved.json     its solution; reconstructions lie beside it as safetensors
    public.safetensors              the public data, if a job grants them
    candidates-target.safetensors   the candidates of a membership game, without any mark of membership
    closed                          no more jobs will come

A job names recorded exchanges and holds every grant. A process therefore needs only the queue and the recordings:
neither truth nor data set, neither the clients' private state nor the checkpoints.

A file that changed after it was written is refused, and a changed solution is made again. Who may write to the folder
can write other files, with sums that fit.
"""

import fcntl
import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import filterfalse, product
from pathlib import Path
from typing import Any, TypedDict, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flfw.audit.jobs import AttackJob, JobResult, ProbeSet, digest, failed
from flfw.errors import InputError
from flfw.files.sealed import drop_unfinished, read_checked, with_checksum, write_atomic, write_checked
from flfw.files.typed import from_json
from flfw.nets.net import Tensors
from flfw.recording.observation import Reconstruction

PUBLIC = "public.safetensors"
_OPTIONAL = ("labels", "searched", "agreement", "unguided")  # tensors of a reconstruction beside its samples
_RETRIES = 1  # of a crash: what fails twice in the same way fails a third time, and a search may take hours
_AGAIN = "remove the queue's folder and start the audit again"


class Note(TypedDict):
    """Note of a process at work on a job: its id, the time of its start in seconds since the epoch, the job's name."""

    pid: int
    since: float
    job: str


@final
@dataclass(frozen=True)
class _Summary:
    """Numbers of a reconstruction, whose tensors lie elsewhere; a loss may be infinite or NaN."""

    matching_loss: Any
    iterations: int | None

    def with_tensors(self, tensors: Tensors, index: int) -> Reconstruction:
        """Return the reconstruction."""
        loss = self.matching_loss
        if loss is not None and not isinstance(loss, float | int):
            raise ValueError(f"a loss of {loss}")
        more = (tensors.get(f"{index}.{name}") for name in _OPTIONAL)
        return Reconstruction(tensors[str(index)], loss, self.iterations, *more)


@final
@dataclass(frozen=True)
class _StoredSolution:
    """Content of a solution's file."""

    job: str
    results: tuple[_Summary | None, ...]
    tensors: str
    stopped: str | None
    seconds: float
    tries: int
    refused: tuple[str, ...]
    present: tuple[tuple[int, tuple[bool, ...]], ...]
    shares: tuple[tuple[int, tuple[float, ...]], ...]
    scores: tuple[tuple[int, str, tuple[float | None, ...]], ...]


@final
class Queue:
    """Folder of a queue.

    Args:
        folder: its path; the folder is made with its first file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asking = threading.Lock()

    # --- the recording side ---

    def announce(self, probe_set: ProbeSet) -> None:
        """Announce that the probes of a probe set are recorded, as far as they ever will be."""
        self._make()
        write_checked(self.folder / f"{probe_set.name}.ticket", json.dumps(asdict(probe_set)).encode())

    def probe_sets(self) -> list[ProbeSet]:
        """Return the probe sets announced so far."""
        return [from_json(read_checked(path), ProbeSet, path, _AGAIN) for path in sorted(self.folder.glob("*.ticket"))]

    def reopen(self) -> None:
        """Forget probe sets and jobs but keep solutions: a resumed run announces and requests them again.

        Probes recorded after its last checkpoint are recorded again, and may not be read before.
        """
        self._make()
        drop_unfinished(self.folder)
        gone = [path for kind in ("*.ticket", "*.started", "*.share", "*.tries") for path in self.folder.glob(kind)]
        gone += [path for path in self.folder.glob("*.json") if not path.stem.endswith(".solved")]
        for path in (*gone, self.folder / "closed"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Note that no more jobs will come; an attack process ends when none waits."""
        (self.folder / "closed").touch()

    # --- the side that requests attacks ---

    def put(self, job: AttackJob) -> None:
        """Request an attack. The same job is not done twice; another job of its name replaces its solution."""
        path, data = self.folder / f"{job.name}.json", job.to_json()
        with self._asking:  # the thread that watches the recordings may request the same job at the same time
            self._make()
            if path.exists() and path.read_bytes() == with_checksum(data):
                return
            self._tries(job.name).unlink(missing_ok=True)
            write_checked(path, data)

    def put_public(self, samples: Tensor, labels: Tensor) -> str:
        """Write the public data for jobs that grant them, once; return the file.

        Args:
            samples: (N, ...) raw inputs in [0, 1], stored in a byte each if all are multiples of 1/255.
            labels: (N,).
        """
        path = self.folder / PUBLIC
        with self._asking:
            if not path.exists():
                self._make()
                bytes_ = (samples * 255).round_()
                whole = samples.dim() > 2 and bool(torch.equal(bytes_ / 255, samples))
                write_atomic(path, save({"samples": bytes_.byte() if whole else samples, "labels": labels}), 0o600)
        return str(path)

    def put_candidates(self, name: str, tensors: Tensors) -> str:
        """Write the candidates of a membership game; return the file."""
        path = self.folder / f"candidates-{name}.safetensors"
        with self._asking:
            self._make()
            write_atomic(path, save({key: value.contiguous() for key, value in tensors.items()}), 0o600)
        return str(path)

    def solution(self, job: AttackJob) -> JobResult | None:
        """Return the solution of a job; None while there is none."""
        if (stored := self._stored(job)) is None:
            return None
        try:
            data = self._tensors(job.name).read_bytes() if stored.tensors else b""
            if stored.tensors and hashlib.sha256(data).hexdigest() != stored.tensors:
                raise ValueError("another content than was written")
            tensors = load(data) if stored.tensors else {}
            results = tuple(one and one.with_tensors(tensors, i) for i, one in enumerate(stored.results))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            return JobResult(stored.job, (None,) * len(job.exchanges), f"its result cannot be read: {error}")
        numbers = stored.seconds, stored.tries
        inferred = stored.present, stored.shares, stored.scores
        return JobResult(stored.job, results, stored.stopped, *numbers, stored.refused, *inferred)

    # --- the attack process ---

    def waiting(self) -> list[AttackJob]:
        """Return the jobs that are neither solved nor at work: controls first, whose results an audit waits for."""
        paths = [path for path in self.folder.glob("*.json") if not path.stem.endswith(".solved")]
        paths.sort(key=lambda path: (path.stat().st_mtime, path.name))
        jobs = [job for job in map(_job, paths) if not self._started(job.name).exists()]
        return sorted(filterfalse(self._is_solved, jobs), key=lambda job: job.probe_set.control == "target")

    def take(self, pid: int) -> AttackJob | None:
        """Begin the first job that waits, which no other process then begins; None if there is none."""
        if not self.folder.exists():
            return None
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for job in self.waiting()[:1]:
                self.start(job, pid)
                return job
            return None
        finally:
            os.close(handle)

    @property
    def closed(self) -> bool:
        """True if no more jobs will come."""
        return (self.folder / "closed").exists()

    def start(self, job: AttackJob, pid: int) -> None:
        """Note the process at work on a job, and the time of its start."""
        note = {"pid": pid, "since": time.time(), "job": job.name}
        write_checked(self._started(job.name), json.dumps(note).encode())

    def started(self) -> list[tuple[AttackJob, Note]]:
        """Return the jobs at work, with the notes of `start`."""
        jobs = []
        for path in self.folder.glob("*.started"):
            try:
                job = _job(self.folder / f"{path.stem}.json")
                jobs.append((job, from_json(read_checked(path), Note, path, _AGAIN)))
            except FileNotFoundError:
                continue  # it was solved in the meantime
        return jobs

    def report(self, job: AttackJob, share: float) -> None:
        """Note which share of a job's steps is done."""
        write_atomic(self.folder / f"{job.name}.share", str(share).encode())

    def share(self, job: AttackJob) -> float:
        """Return the share of a job's steps that is done, as far as it is known."""
        with suppress(FileNotFoundError):
            return float((self.folder / f"{job.name}.share").read_text())
        return 0.0

    def give_back(self, job: AttackJob) -> None:
        """Release a job: no process is at work on it any more."""
        for name in ("started", "share"):
            (self.folder / f"{job.name}.{name}").unlink(missing_ok=True)

    def solve(self, job: AttackJob, result: JobResult) -> None:
        """Write the solution of a job."""
        given = result.reconstructions
        tensors = {str(i): f.samples for i, f in enumerate(given) if f is not None}
        for name, (i, one) in product(_OPTIONAL, enumerate(given)):
            if one is not None and (value := getattr(one, name)) is not None:
                tensors[f"{i}.{name}"] = value
        data = save(tensors) if tensors else b""
        if data:
            write_atomic(self._tensors(job.name), data, 0o600)
        summaries = [f and {"matching_loss": f.matching_loss, "iterations": f.iterations} for f in given]
        tries = self._failed_tries(job) + 1
        stored = {"results" if name == "reconstructions" else name: value for name, value in vars(result).items()}
        stored |= {"results": summaries, "job": digest(job), "tries": tries}
        stored |= {"tensors": hashlib.sha256(data).hexdigest() if data else ""}
        write_checked(self._solved(job.name), json.dumps(stored).encode())
        self.give_back(job)

    def fail(self, job: AttackJob, why: str) -> None:
        """Note a failed try, and offer the job again unless its tries are used up."""
        tries = self._failed_tries(job) + 1
        if self._is_solved(job):  # it was solved while it was given up
            self.give_back(job)
        elif tries > _RETRIES:
            self.solve(job, failed(job, why))
        else:
            write_checked(self._tries(job.name), str(tries).encode())
            self.give_back(job)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _failed_tries(self, job: AttackJob) -> int:
        path = self._tries(job.name)
        return from_json(read_checked(path), int, path, _AGAIN) if path.exists() else 0

    def _tries(self, name: str) -> Path:
        return self.folder / f"{name}.tries"

    def _is_solved(self, job: AttackJob) -> bool:
        return self._stored(job) is not None

    def _stored(self, job: AttackJob) -> _StoredSolution | None:
        """Return the content of a job's solution; None: there is none, it is another job's, or it is damaged."""
        try:
            stored = from_json(read_checked(self._solved(job.name)), _StoredSolution, self._solved(job.name))
        except (FileNotFoundError, InputError):  # a damaged one is made again
            return None
        return stored if stored.job == digest(job) and len(stored.results) == len(job.exchanges) else None

    def _tensors(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _solved(self, name: str) -> Path:
        return self.folder / f"{name}.solved.json"

    def _started(self, name: str) -> Path:
        return self.folder / f"{name}.started"


def _job(path: Path) -> AttackJob:
    """Return the job of a file, which names the files beside it."""
    job = AttackJob.from_json(read_checked(path))
    if job.name != path.stem:
        raise InputError(f"Expected the job {path.stem} in {path}, got {job.name}; {_AGAIN}.")
    return job
