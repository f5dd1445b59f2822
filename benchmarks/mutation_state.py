"""Mutations of what a run and a site keep on disk: checkpoints, chains, ledgers, the attacks' queue, recordings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.mutation_cases import Change, Files, Folder, Subject, unsealed
from benchmarks.mutation_operators import (
    bytes_mutant,
    json_mutant,
    lines_mutant,
    tensors_mutant,
)
from benchmarks.mutation_seals import broken, either, metadata_mutant, renamed
from flfw.client.store import ClientStore, StateMissing
from flfw.dp import site_ledger
from flfw.dp.budget import EpsilonBudget, OverBudget
from flfw.dp.site_ledger import MessageEntry
from flfw.experiment import Experiment
from flfw.messages.sharing import SharingViolation
from flfw.messages.wire import pack
from flfw.privacy.mechanism import Mechanism
from flfw.storage.asked import AskedRounds
from flfw.storage.chain import Chain
from flfw.storage.checkpoint import Checkpoints, Snapshot, require_same_data, stored_experiment
from flfw.storage.sealed import seal


def checkpoints(scratch: Path) -> list[Subject]:
    """Return the readers of a server's checkpoints and of a client's private tensors."""
    made = scratch / "made"
    experiment = Experiment(method="fedavg", net="linear", clients=3, attack=("none",), out=Path("/nowhere/run"))
    first = {"format": 2, "id": "0" * 32, "code": "abc", "experiment": experiment.to_run_config()}  # else it is random
    (made / "checkpoint").mkdir(parents=True)
    seal(made / "checkpoint", "experiment", ".json", json.dumps(first, indent=1).encode())
    model = {"a.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)}
    kept = Checkpoints(made, experiment)
    require_same_data(made, "0123abcd")
    for number in (0, 1):
        snapshot = Snapshot(
            number, pack(model), {"m": torch.ones(2)}, {0: number, 1: 0}, None, torch.zeros(3), None, model
        )
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
        folder.subject("AskedRounds", asked, lambda p: AskedRounds(p / "checkpoint").rounds, fits=whole_numbers),
        *_client_states(scratch),
    ]


def _settings_fit(experiment: Experiment) -> bool:
    usual = Experiment()
    return all(
        type(getattr(experiment, f.name)) is type(getattr(usual, f.name)) or f.default is None or f.type == "float"
        for f in dataclasses.fields(Experiment)
    )


def whole_numbers(numbers: Any) -> bool:
    """Return whether all of these are whole numbers >= 0."""
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
        return read.keys() == tensors.keys() and all(
            v.shape == tensors[n].shape and v.dtype == tensors[n].dtype for n, v in read.items()
        )

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


# --- recordings ---
