"""The queue on disk between a run, which records, and the attack server, which attacks.

    r0003-target.ticket             the probes of round 3 are recorded (written by whoever records)
    ig-r0003-target.json            a job: one attack on them, with all that its attacker is granted
    ig-r0003-target.started         who is at work on it, since when, and for which time
    ig-r0003-target.solved.json     what came of it; reconstructions lie beside it as safetensors
    public.safetensors              the public data, if a job grants them
    closed                          nothing more will come

A job names recorded exchanges and holds every grant, so that a process that is handed the queue and the recordings
needs nothing else: neither truth nor data set, neither the clients' private state nor the checkpoints.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from flfw.adversary.observation import Reconstruction
from flfw.audit.jobs import Job, Solution, Ticket, digest, failed
from flfw.storage.sealed import drop_unfinished, write_whole

PUBLIC = "public.safetensors"


@final
class Queue:
    """The folder of a queue.

    Args:
        folder: made when something is first put into it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asking = threading.Lock()

    # --- whoever records ---

    def announce(self, ticket: Ticket) -> None:
        """The probes of a ticket are recorded, as far as they ever will be."""
        self._make()
        write_whole(self.folder / f"{ticket.name}.ticket", json.dumps(asdict(ticket)).encode(), 0o600)

    def tickets(self) -> list[Ticket]:
        """What has been announced so far."""
        return [Ticket(**json.loads(path.read_bytes())) for path in sorted(self.folder.glob("*.ticket"))]

    def reopen(self) -> None:
        """Forget what was announced and asked for, not what was solved: a run that goes on does so anew.

        What was recorded after its last checkpoint is recorded again, and may not be looked for before.
        """
        self._make()
        drop_unfinished(self.folder)
        gone = [path for kind in ("*.ticket", "*.started", "*.tries") for path in self.folder.glob(kind)]
        gone += [path for path in self.folder.glob("*.json") if not path.stem.endswith(".solved")]
        for path in (*gone, self.folder / "closed"):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing more will come; the attack server ends when the jobs that there are have been done."""
        (self.folder / "closed").touch()

    # --- whoever asks for attacks ---

    def put(self, job: Job) -> None:
        """Ask for an attack. The same job is not done twice; another one of its name replaces what came of it."""
        path, data = self.folder / f"{job.name}.json", job.to_json()
        with self._asking:  # the thread that watches the recordings may ask for the same at the same time
            self._make()
            if path.exists() and path.read_bytes() == data:
                return
            self._tries(job.name).unlink(missing_ok=True)
            write_whole(path, data, 0o600)

    def put_public(self, samples: Tensor, labels: Tensor) -> str:
        """Write down the public data for jobs that grant them, once; returns the file.

        Args:
            samples: (N, ...) raw inputs in [0, 1], which take a byte each where they are steps of 1/255.
            labels: (N,).
        """
        path = self.folder / PUBLIC
        with self._asking:
            if not path.exists():
                self._make()
                bytes_ = (samples * 255).round_()
                whole = samples.dim() > 2 and bool(torch.equal(bytes_ / 255, samples))
                write_whole(path, save({"samples": bytes_.byte() if whole else samples, "labels": labels}), 0o600)
        return str(path)

    def solution(self, job: Job) -> Solution | None:
        """What came of a job; None while nothing has."""
        if not self._is_solved(job):
            return None
        path = self._solved(job.name)
        about = json.loads(path.read_bytes())
        try:
            tensors = load_file(path.with_suffix("").with_suffix(".safetensors")) if any(about["found"]) else {}
            found = [
                None if f is None else Reconstruction(tensors[str(i)], **f, labels=tensors.get(f"{i}.labels"))
                for i, f in enumerate(about["found"])
            ]
        except (OSError, SafetensorError, KeyError) as error:
            return Solution(about["job"], (None,) * len(job.exchanges), f"its result cannot be read: {error}")
        present = tuple((client, tuple(held)) for client, held in about["present"])
        return Solution(**{**about, "found": tuple(found), "refused": tuple(about["refused"]), "present": present})

    # --- the attack server ---

    def next(self) -> Job | None:
        """A job that nobody has solved or is at work on, the earliest first."""
        paths = sorted((p for p in self.folder.glob("*.json") if not p.stem.endswith(".solved")), key=_age)
        for path in paths:
            job = Job.from_json(path.read_bytes())
            if not self._started(job.name).exists() and not self._is_solved(job):
                return job
        return None

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return (self.folder / "closed").exists()

    def start(self, job: Job, pid: int) -> None:
        """Note who is at work on a job, and since when."""
        about = {"pid": pid, "since": time.time(), "job": job.name}
        write_whole(self._started(job.name), json.dumps(about).encode(), 0o600)

    def started(self) -> list[tuple[Job, dict[str, Any]]]:
        """Jobs at work, with what `start` noted."""
        found = []
        for path in self.folder.glob("*.started"):
            job = self.folder / f"{path.stem}.json"
            try:
                found.append((Job.from_json(job.read_bytes()), json.loads(path.read_bytes())))
            except FileNotFoundError:
                continue  # it was solved in this moment
        return found

    def give_back(self, job: Job) -> None:
        """Nobody is at work on a job any more."""
        self._started(job.name).unlink(missing_ok=True)

    def solve(self, job: Job, solution: Solution) -> None:
        """Write down what came of a job."""
        tensors = {str(i): f.samples for i, f in enumerate(solution.found) if f is not None}
        tensors |= {f"{i}.labels": f.labels for i, f in enumerate(solution.found) if f and f.labels is not None}
        if tensors:
            write_whole(self.folder / f"{job.name}.safetensors", save(tensors), 0o600)
        found = [f and {"matching_loss": f.matching_loss, "iterations": f.iterations} for f in solution.found]
        tries = self._failed_tries(job) + 1
        about = {**vars(solution), "found": found, "job": digest(job), "tries": tries}
        write_whole(self._solved(job.name), json.dumps(about).encode(), 0o600)
        self.give_back(job)

    def fail(self, job: Job, why: str) -> None:
        """A try was in vain: note it, and offer the job again unless there have been enough."""
        tries = self._failed_tries(job) + 1
        if self._is_solved(job):  # in the moment in which it was given up
            self.give_back(job)
        elif tries > int(job.run_config["attack-retries"]):
            self.solve(job, failed(job, why))
        else:
            write_whole(self._tries(job.name), str(tries).encode(), 0o600)
            self.give_back(job)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _failed_tries(self, job: Job) -> int:
        path = self._tries(job.name)
        return int(path.read_text()) if path.exists() else 0

    def _tries(self, name: str) -> Path:
        return self.folder / f"{name}.tries"

    def _is_solved(self, job: Job) -> bool:
        path = self._solved(job.name)
        return path.exists() and json.loads(path.read_bytes())["job"] == digest(job)

    def _solved(self, name: str) -> Path:
        return self.folder / f"{name}.solved.json"

    def _started(self, name: str) -> Path:
        return self.folder / f"{name}.started"


def _age(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name
