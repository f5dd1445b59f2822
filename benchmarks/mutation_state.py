"""Mutations of what a run and a site keep on disk: checkpoints, chains, ledgers, the attacks' queue, recordings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load, save

from benchmarks.mutation_cases import Change, Files, Folder, Mutant, Subject, plain, unsealed
from benchmarks.mutation_operators import (
    Operator,
    bytes_mutant,
    json_mutant,
    lines_mutant,
    tensors_mutant,
    word_mutant,
)
from flfw.adversary.observation import Reconstruction
from flfw.audit.jobs import EASY, Exchange, Job, Ticket, solved
from flfw.audit.queue import Queue
from flfw.audit.scorer import read_truth
from flfw.client.store import ClientStore, StateMissing
from flfw.dp import site_ledger
from flfw.dp.budget import EpsilonBudget, OverBudget
from flfw.dp.site_ledger import MessageEntry
from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.messages.sharing import SharingViolation
from flfw.messages.wire import pack
from flfw.privacy.mechanism import Mechanism
from flfw.recording.client_examples import forget_after, record
from flfw.recording.reader import Recordings
from flfw.recording.retention import keep_last
from flfw.storage.asked import AskedRounds
from flfw.storage.chain import Chain
from flfw.storage.checkpoint import Checkpoints, Snapshot, require_same_data, stored_experiment
from flfw.storage.sealed import seal, with_checksum


def broken(operator: Operator) -> Change:
    """Return the change of a sealed file whose seal is left as it was."""
    return lambda name, data, rng: ({name: operator(data, rng)}, True)


def renamed(operator: Operator) -> Change:
    """Return the change of a file with its SHA-256 in its name, which is made to fit."""

    def change(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
        changed, path = operator(data, rng), Path(name)
        stem = path.stem.rpartition("-")[0]
        return {name: None, str(path.with_name(f"{stem}-{hashlib.sha256(changed).hexdigest()}{path.suffix}")): changed}, False

    return change


def resummed(operator: Operator) -> Change:
    """Return the change of a file whose last line is its SHA-256, which is made to fit."""
    return lambda name, data, rng: ({name: with_checksum(operator(data.rpartition(b"\n")[0], rng))}, False)


def missummed(operator: Operator) -> Change:
    """Return the change of a file whose last line is its SHA-256, which is left as it was."""

    def change(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
        content, _, digest = data.rpartition(b"\n")
        return {name: operator(content, rng) + b"\n" + digest}, True

    return change


def either(*changes: Change) -> Change:
    """Return a change by one of these."""
    return lambda name, data, rng: rng.choice(changes)(name, data, rng)


def metadata_mutant(data: bytes, rng: Random) -> bytes:
    """Return a safetensors file with the JSON in its metadata changed, or changed as any such file."""
    if rng.random() < 0.4:
        return tensors_mutant(data, rng)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    key = rng.choice(list(header["__metadata__"]))
    word = header["__metadata__"][key]
    changed = json_mutant(word.encode(), rng).decode(errors="replace") if word[0] in "{[" else word_mutant(word, rng)
    header["__metadata__"][key] = changed
    new = json.dumps(header).encode()
    return len(new).to_bytes(8, "little") + new + data[8 + size :]


def checkpoints(scratch: Path) -> list[Subject]:
    """Return the readers of a server's checkpoints and of a client's private tensors."""
    made = scratch / "made"
    experiment = Experiment(method="fedavg", net="linear", clients=3, attack=("none",), out=Path("/nowhere/run"))
    first = {"format": 1, "id": "0" * 32, "code": "abc", "experiment": experiment.to_run_config()}  # else it is random
    (made / "checkpoint").mkdir(parents=True)
    seal(made / "checkpoint", "experiment", ".json", json.dumps(first, indent=1).encode())
    model = {"a.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)}
    kept = Checkpoints(made, experiment)
    require_same_data(made, "0123abcd")
    for number in (0, 1):
        snapshot = Snapshot(number, pack(model), {"m": torch.ones(2)}, {0: number, 1: 0}, None, torch.zeros(3), None, model)
        kept.save(snapshot, {"rounds": [{"round": number, "loss": 0.5}], "clients": [], "probes": []})
    AskedRounds(made / "checkpoint").note(1)
    folder = Folder.of(scratch / "run", made)
    names = {name.partition("/")[2].partition("-")[0]: name for name in folder.files}
    tree, tensors = either(renamed(json_mutant), broken(bytes_mutant)), renamed(metadata_mutant)

    def resumed(place: Path) -> object:
        state = Checkpoints(place, experiment)
        require_same_data(place, "0123abcd")
        return state.last, state.history, state.id

    def fits(read: Any) -> bool:
        last, history, _ = read
        numbers = last is None or (type(last.round) is int and last.round >= 0)
        return numbers and all(isinstance(row, dict) for row in history)

    changes: dict[str, Change] = {
        names["experiment"]: broken(bytes_mutant),
        names["round"]: either(tensors, broken(tensors_mutant), broken(bytes_mutant)),
        names["data"]: either(renamed(bytes_mutant), broken(bytes_mutant)),
        "checkpoint/history.jsonl": broken(lines_mutant),
    }
    stored = folder.subject("stored_experiment", {names["experiment"]: tree}, stored_experiment)
    asked = {"checkpoint/asked.txt": unsealed(bytes_mutant)}
    return [
        folder.subject("Checkpoints", changes, resumed, fits=fits, weight=3),
        dataclasses.replace(stored, fits=lambda s: _settings_fit(s.experiment)),
        folder.subject("AskedRounds", asked, lambda p: AskedRounds(p / "checkpoint").rounds, fits=_whole_numbers),
        *_client_states(scratch),
    ]


def _settings_fit(experiment: Experiment) -> bool:
    usual = Experiment()
    return all(
        type(getattr(experiment, f.name)) is type(getattr(usual, f.name)) or f.default is None or f.type == "float"
        for f in dataclasses.fields(Experiment)
    )


def _whole_numbers(numbers: Any) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def _client_states(scratch: Path) -> list[Subject]:
    made = ClientStore(scratch / "states", "abc", 1)
    tensors = {"head.weight": torch.arange(6.0).reshape(2, 3)}
    made.save(1, tensors, 0)
    made.save(2, tensors, 1)
    folder = Folder.of(scratch / "state", scratch / "states")
    change = either(renamed(metadata_mutant), broken(tensors_mutant), broken(bytes_mutant))

    def read(place: Path) -> object:
        store = ClientStore(place, "abc", 1)
        store.allow(2)
        return store.load(2, tensors)

    def shaped(read: Any) -> bool:
        return read.keys() == tensors.keys() and all(v.shape == tensors[n].shape and v.dtype == tensors[n].dtype for n, v in read.items())

    changes = dict.fromkeys(folder.files, change)
    return [folder.subject("ClientStore", changes, read, refusals=(StateMissing, SharingViolation), fits=shaped)]


# --- chains and ledgers ---


def rechained(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
    """Change a chain of lines and make all its sums fit."""
    lines = [line for line in lines_mutant(data, rng).split(b"\n") if line]
    before, written = "0" * 64, []
    for line in lines:
        try:
            row = json.loads(line)
            line = json.dumps({**row, "before": before}).encode() if isinstance(row, dict) else line
        except (ValueError, RecursionError):
            pass
        written.append(line)
        before = hashlib.sha256(line).hexdigest()
    head = json.dumps({"lines": len(written), "sha256": before}).encode()
    return {name: b"".join(line + b"\n" for line in written), str(Path(name).with_suffix(".head")): head}, False


def _broken_chain(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
    changed = rng.choice((lines_mutant, bytes_mutant))(data, rng)
    # What stands behind the last whole line was never acknowledged, and a last line may be one ahead of the head.
    return {name: changed}, not changed.startswith(data)


def chains(scratch: Path) -> list[Subject]:
    """Return the readers of a chain of lines, and of a site's ledger, which is one."""
    with Chain(scratch / "made-chain" / "lines.jsonl").held() as held:
        for number in range(3):
            held.append({"number": number, "word": "é"})
    folder = Folder.of(scratch / "chain", scratch / "made-chain")
    changes: dict[str, Change] = {"lines.jsonl": either(rechained, _broken_chain), "lines.head": unsealed(json_mutant)}

    def both(place: Path) -> object:
        chain = Chain(place / "lines.jsonl")
        rows = chain.rows()
        with chain.held() as held:
            if held.rows != rows:
                raise AssertionError("two readings of a chain differ")
        return rows

    tables = lambda rows: all(isinstance(row, dict) for row in rows)  # noqa: E731
    return [folder.subject("Chain", changes, both, fits=tables, weight=2), *_ledgers(scratch)]


def _ledgers(scratch: Path) -> list[Subject]:
    budget = EpsilonBudget(80.0)
    entry = MessageEntry("abc", 1, "train", "dp_fedavg", Mechanism(2.0, 3), 50, 1, ("a.*",), 0.0, Mechanism(9.0, 1), 60)
    with Chain(scratch / "made-ledger" / "m.jsonl").held() as held:
        for number in range(3):
            held.append(dataclasses.asdict(dataclasses.replace(entry, round=number)))
    folder = Folder.of(scratch / "ledger", scratch / "made-ledger")
    changes: dict[str, Change] = {"m.jsonl": either(rechained, _broken_chain), "m.head": unsealed(json_mutant)}

    def charged(place: Path) -> object:
        site_ledger.charge(place / "m.jsonl", budget, entry)
        return "charged"

    def spent(read: Any) -> bool:
        return type(read.messages) is int and read.messages >= 0 and read.epsilon >= 0 and read.runs <= read.messages

    return [
        folder.subject("site_ledger.read", changes, lambda p: site_ledger.read(p / "m.jsonl", budget), fits=spent),
        folder.subject("site_ledger.charge", changes, charged, refusals=(OverBudget,), weight=0.5),
    ]


# --- the queue ---


def queue(scratch: Path) -> list[Subject]:
    """Return the readers of the attacks' queue: its jobs, its tickets, its tries and its solutions."""
    exchanges = (Exchange("round-0000/client-000-001", 0, 0, (7,)), Exchange("round-0000/client-001-001", 1, 1, None))
    job = Job("ig", EASY, exchanges, Path("/nowhere/observations"), Experiment().to_run_config(), (1, 2, 2), 10, (0.5,), (0.25,))
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
        waiting.subject("Queue.tickets", {f"{EASY.name}.ticket": change}, lambda p: Queue(p).tickets(), fits=lambda ts: all(map(_ticket_fits, ts))),
        _noticed(done.subject("Queue.solution", sealed, solution, fits=safe, weight=2)),
        begun.subject("Queue.started", {f"{job.name}.started": change, waits: change}, lambda p: Queue(p).started(), fits=_notes_fit),
        begun.subject("Queue.fail", {f"{job.name}.tries": either(resummed(bytes_mutant), broken(bytes_mutant))}, failing),
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
    return isinstance(ticket, Ticket) and all(isinstance(w, str) for w in words) and _whole_numbers((ticket.round, ticket.batch, ticket.steps))


def _job_fits(job: Any) -> bool:
    if job is None:
        return True
    whole = _whole_numbers((job.classes, *job.shape, *(e.client for e in job.exchanges)))
    words = all(isinstance(w, str) for w in (job.attack, job.device, job.vantage, *job.uploads, *(e.id for e in job.exchanges)))
    return whole and words and isinstance(job.run_config, dict) and _ticket_fits(job.ticket) and isinstance(job.adaptive, bool)


def _notes_fit(started: Any) -> bool:
    return all(_job_fits(job) and isinstance(note["since"], float | int) for job, note in started)


# --- recordings ---


def recordings(scratch: Path) -> list[Subject]:
    """Return the readers of recordings and their manifests, of truths, and of what removes recordings."""
    from benchmarks.mutation_runs import recorded

    run = recorded(scratch)
    folder = Folder.of(scratch / "kept", run / "observations")
    tensors = {n: broken(tensors_mutant) for n in folder.files if not n.endswith("jsonl")}

    def relined(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
        return {name: lines_mutant(data, rng)}, False

    def everything(place: Path) -> object:
        kept = Recordings(place)
        seen = kept.observations([line["id"] for line in kept.lines])
        targets = [kept.probes("target", server_round) for server_round in (0, 1)]
        if kept.refused:
            raise BadInput(kept.refused[-1])
        return [vars(one) for one in seen if one], len(targets), kept.stored_bytes, kept.forgotten, kept.updates(1), kept.remarks([])

    def lasting(place: Path) -> object:
        keep_last(place, 1)
        return Recordings(place).forgotten

    manifest: dict[str, Change] = {"manifest.jsonl": relined}
    examples = _examples(scratch)
    truths = Folder.of(scratch / "truths", run / "truth")
    key = Path(next(iter(truths.files))).stem

    def forgotten(place: Path) -> object:
        forget_after(place, 0)
        return Recordings(place).lines

    return [
        folder.subject("Recordings", {**manifest, **tensors}, everything, fits=_seen_fit, weight=2),
        folder.subject("manifest", manifest, everything, fits=_seen_fit, weight=3),
        folder.subject("keep_last", manifest, lasting, fits=_whole_numbers),
        examples.subject("forget_after", {"client-001/manifest.jsonl": relined}, forgotten, weight=0.5),
        truths.subject("read_truth", {f"{key}.safetensors": unsealed(tensors_mutant)}, lambda p: read_truth(p, key), fits=_truth_fits),
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
    return all(_whole_numbers(row) for row in numbers) and all(isinstance(one["point"], str) for one in seen)


def _truth_fits(truth: Any) -> bool:
    if truth is None:
        return True
    count = len(truth.samples)
    whole = truth.labels.dtype == torch.int64 and truth.indices.dtype == torch.int64
    return whole and len(truth.labels) == count == len(truth.indices) and bool(torch.isfinite(truth.samples).all())
