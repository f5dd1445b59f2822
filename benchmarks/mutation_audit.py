"""Mutations of what an audit keeps on disk: the queue of attacks, recordings, truths."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.mutation_cases import Change, Folder, Mutant, Subject, unsealed
from benchmarks.mutation_operators import (
    bytes_mutant,
    json_mutant,
    lines_mutant,
    tensors_mutant,
)
from benchmarks.mutation_seals import broken, either, missummed, resealed, resummed
from benchmarks.mutation_state import whole_numbers
from flfw.adversary.observation import Reconstruction
from flfw.audit.jobs import EASY, Exchange, Job, Ticket, solved
from flfw.audit.queue import Queue
from flfw.audit.uploads import read_truth
from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.recording.client_examples import forget_after, record
from flfw.recording.reader import Recordings
from flfw.recording.retention import keep_last
from flfw.storage.sealed import with_checksum


def queue(scratch: Path) -> list[Subject]:
    """Return the readers of the attacks' queue: its jobs, its tickets, its tries and its solutions."""
    exchanges = (Exchange("round-0000/client-000-001", 0, 0, (7,)), Exchange("round-0000/client-001-001", 1, 1, None))
    job = Job(
        "ig",
        EASY,
        exchanges,
        Path("/nowhere/observations"),
        Experiment().to_run_config(),
        (1, 2, 2),
        10,
        (0.5,),
        (0.25,),
    )
    made = Queue(scratch / "made-queue")
    made.announce(EASY)
    made.put(job)
    guesses = [Reconstruction(torch.full((1, 1, 2, 2), 0.5), 0.125, 3, torch.tensor([1])), None]
    waiting = Folder.of(scratch / "queue", made.folder)
    made.solve(job, solved(job, guesses, 1.5, refused=("a file",), present=((0, (True, False)),)))
    done = Folder.of(scratch / "solved", made.folder)
    note = {"pid": 4242, "since": 1.5, "job": job.name}
    (made.folder / f"{job.name}.started").write_bytes(with_checksum(json.dumps(note).encode()))
    (made.folder / f"{job.name}.tries").write_bytes(with_checksum(b"1"))
    begun = Folder.of(scratch / "begun", made.folder)
    change: Change = either(resummed(json_mutant), missummed(json_mutant), broken(bytes_mutant))
    waits = f"{job.name}.json"

    def solution(place: Path) -> object:
        return Queue(place).solution(job)

    def safe(read: Any) -> bool:
        if read is None:
            return True
        numbers = isinstance(read.seconds, float | int) and type(read.tries) is int
        words = read.stopped is None or isinstance(read.stopped, str)
        return numbers and words and len(read.reconstructions) == 2 and all(isinstance(w, str) for w in read.refused)

    def failing(place: Path) -> object:
        Queue(place).fail(job, "crashed")
        return "failed"

    sealed = {f"{job.name}.solved.json": change, f"{job.name}.safetensors": broken(tensors_mutant)}
    return [
        waiting.subject("Queue.next", {waits: change}, lambda p: Queue(p).next(), fits=_job_fits, weight=2),
        waiting.subject(
            "Queue.tickets",
            {f"{EASY.name}.ticket": change},
            lambda p: Queue(p).tickets(),
            fits=lambda ts: all(map(_ticket_fits, ts)),
        ),
        _noticed(done.subject("Queue.solution", sealed, solution, fits=safe, weight=2)),
        begun.subject(
            "Queue.started",
            {f"{job.name}.started": change, waits: change},
            lambda p: Queue(p).started(),
            fits=_notes_fit,
        ),
        begun.subject(
            "Queue.fail", {f"{job.name}.tries": either(resummed(bytes_mutant), broken(bytes_mutant))}, failing
        ),
    ]


def _noticed(subject: Subject) -> Subject:
    """Return the subject of solutions: a broken one is as good as none, or says that it cannot be read."""

    def make(rng: Random) -> Mutant:
        mutant = subject.make(rng)

        def read() -> object:
            got: Any = mutant.read()
            if got is None or (got.stopped or "").startswith("its result cannot be read"):
                raise BadInput("Expected a solution, got none.")
            return got

        return Mutant(read, mutant.sealed)

    return dataclasses.replace(subject, make=make)


def _ticket_fits(ticket: Any) -> bool:
    words = (ticket.rung, ticket.curve, ticket.point)
    return (
        isinstance(ticket, Ticket)
        and all(isinstance(w, str) for w in words)
        and whole_numbers((ticket.round, ticket.batch, ticket.steps))
    )


def _job_fits(job: Any) -> bool:
    if job is None:
        return True
    whole = whole_numbers((job.classes, *job.shape, *(e.client for e in job.exchanges)))
    words = all(
        isinstance(w, str) for w in (job.attack, job.device, job.vantage, *job.uploads, *(e.id for e in job.exchanges))
    )
    return (
        whole
        and words
        and isinstance(job.run_config, dict)
        and _ticket_fits(job.ticket)
        and isinstance(job.adaptive, bool)
    )


def _notes_fit(started: Any) -> bool:
    return all(_job_fits(job) and isinstance(note["since"], float | int) for job, note in started)


def recordings(scratch: Path) -> list[Subject]:
    """Return the readers of recordings and their manifests, of truths, and of the removal of recordings."""
    from benchmarks.mutation_runs import recorded

    run = recorded(scratch)
    folder = Folder.of(scratch / "kept", run / "observations")
    tensors = {n: broken(tensors_mutant) for n in folder.files if n.endswith("safetensors")}

    def everything(place: Path) -> object:
        kept = Recordings(place)
        seen = kept.observations([line["id"] for line in kept.lines])
        targets = [kept.probes("target", server_round) for server_round in (0, 1)]
        if kept.refused:
            raise BadInput(kept.refused[-1])
        return (
            [vars(one) for one in seen if one],
            len(targets),
            kept.stored_bytes,
            kept.forgotten,
            kept.updates(1),
            kept.remarks([]),
        )

    def lasting(place: Path) -> object:
        keep_last(place, 1)
        return Recordings(place).forgotten

    relined = either(broken(lines_mutant), resealed)
    manifest: dict[str, Change] = {"manifest.jsonl": relined, "manifest.head": missummed(json_mutant)}
    # It is meant to remove what is damaged, and says nothing of it.
    removed: dict[str, Change] = {"manifest.jsonl": either(unsealed(lines_mutant), resealed)}
    examples = _examples(scratch)
    truths = Folder.of(scratch / "truths", run / "truth")
    key = Path(next(iter(truths.files))).stem

    def forgotten(place: Path) -> object:
        forget_after(place, 0)
        return Recordings(place).lines

    return [
        folder.subject("Recordings", {**manifest, **tensors}, everything, fits=_seen_fit, weight=2),
        folder.subject("manifest", manifest, everything, fits=_seen_fit, weight=3),
        folder.subject("keep_last", removed, lasting, fits=whole_numbers),
        examples.subject("forget_after", {"client-001/manifest.jsonl": relined}, forgotten, weight=0.5),
        truths.subject(
            "read_truth",
            {f"{key}.safetensors": unsealed(tensors_mutant)},
            lambda p: read_truth(p, key),
            fits=_truth_fits,
        ),
    ]


def _examples(scratch: Path) -> Folder:
    received, gradient = {"a.weight": torch.ones(2, 3).numpy()}, {"a.weight": torch.zeros(2, 3)}
    for server_round in (0, 1):
        config = {"round": server_round, "own_slot": 0, "rung": "target", "slot": 0}
        record(scratch / "made-examples", 1, config, received, gradient)
    return Folder.of(scratch / "examples", scratch / "made-examples")


def _seen_fit(read: Any) -> bool:
    seen, *_ = read
    numbers = [(one["round"], one["client"], one["slot"]) for one in seen]
    return all(whole_numbers(row) for row in numbers) and all(isinstance(one["point"], str) for one in seen)


def _truth_fits(truth: Any) -> bool:
    if truth is None:
        return True
    count = len(truth.samples)
    whole = truth.labels.dtype == torch.int64 and truth.indices.dtype == torch.int64
    return whole and len(truth.labels) == count == len(truth.indices) and bool(torch.isfinite(truth.samples).all())
