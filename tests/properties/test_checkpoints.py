"""Checkpoints, journals and private tensors: what is gone on from is what was kept, or nothing is."""

import dataclasses
import json
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.strategies import DataObject

from flfw.client.store import ClientStore, StateMissingError
from flfw.dp.releases import RequestedRounds
from flfw.experiment import Experiment
from flfw.files.sealed import seal
from flfw.messages.sharing import SharingViolationError
from flfw.messages.wire import pack
from flfw.server.checkpoint import Checkpoints, Snapshot, require_same_data, stored_experiment
from tests.properties.changes import (
    broken,
    changed_bytes,
    changed_json,
    changed_lines,
    changed_metadata,
    changed_tensors,
    either,
    renamed,
    unsealed,
)
from tests.properties.reading import Folder, Reader, are_counts, plain

EXPERIMENT = Experiment(method="fedavg", net="linear", clients=3, attack=("none",), out=Path("/nowhere/run"))
MODEL = {"a.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)}
HEAD = {"head.weight": torch.arange(6.0).reshape(2, 3)}


def snapshot(number: int, model: dict[str, torch.Tensor] = MODEL) -> Snapshot:
    return Snapshot(number, pack(model), {"m": torch.ones(2)}, {0: number, 1: 0}, None, torch.zeros(3), None, model)


def begun(folder: Path) -> Checkpoints:
    """Checkpoints of a run whose id is not random."""
    first = {"format": 2, "id": "0" * 32, "code": "abc", "experiment": EXPERIMENT.to_run_config()}
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    seal(folder / "checkpoint", "experiment", ".json", json.dumps(first, indent=1).encode())
    return Checkpoints(folder, EXPERIMENT)


def resumed(path: Path) -> object:
    state = Checkpoints(path, EXPERIMENT)
    require_same_data(path, "0123abcd")
    return state.last, state.history, state.id


def is_resumed(read: Any) -> bool:
    last, history, _ = read
    return (last is None or are_counts([last.round])) and all(isinstance(row, dict) for row in history)


def are_settings(stored: Any) -> bool:
    usual, given, kinds = Experiment(), stored.experiment, get_type_hints(Experiment)
    return all(
        type(getattr(given, f.name)) is type(getattr(usual, f.name)) or f.default is None or kinds[f.name] is float
        for f in dataclasses.fields(Experiment)
    )


def private(path: Path) -> object:
    store = ClientStore(path, "abc", 1)
    store.allow(2)
    return store.load(2, HEAD)


def are_private(read: Any) -> bool:
    return {n: (v.shape, v.dtype) for n, v in read.items()} == {n: (v.shape, v.dtype) for n, v in HEAD.items()}


@pytest.fixture(scope="module")
def readers(scratch: Path) -> dict[str, Reader]:
    kept = begun(scratch / "made")
    require_same_data(scratch / "made", "0123abcd")
    for number in (0, 1):
        kept.save(snapshot(number), {"rounds": [{"round": number, "loss": 0.5}], "clients": [], "probes": []})
    RequestedRounds(scratch / "made" / "checkpoint").note(1)
    folder = Folder.of(scratch / "run", scratch / "made")
    names = {name.partition("/")[2].partition("-")[0]: name for name in folder.files}
    changes = {
        names["experiment"]: broken(changed_bytes),
        names["round"]: either(renamed(changed_metadata), broken(changed_tensors), broken(changed_bytes)),
        names["data"]: either(renamed(changed_bytes), broken(changed_bytes)),
        "checkpoint/history.jsonl": broken(changed_lines),
    }
    store = ClientStore(scratch / "states", "abc", 1)
    store.save(1, HEAD, 0)
    store.save(2, HEAD, 1)
    states = Folder.of(scratch / "state", scratch / "states")
    change = either(renamed(changed_metadata), broken(changed_tensors), broken(changed_bytes))
    return {
        "checkpoint": Reader(folder, changes, resumed, is_resumed),
        "experiment": Reader(folder, {names["experiment"]: renamed(changed_json)}, stored_experiment, are_settings),
        "history": Reader(folder, {"checkpoint/history.jsonl": broken(changed_lines)}, resumed, is_resumed),
        "requested rounds": Reader(
            folder,
            {"checkpoint/requested_rounds.txt": unsealed(changed_bytes)},
            lambda place: RequestedRounds(place / "checkpoint").rounds,
            are_counts,
        ),
        "private tensors": Reader(
            states,
            dict.fromkeys(states.files, change),
            private,
            are_private,
            (StateMissingError, SharingViolationError),
        ),
    }


@pytest.mark.parametrize("name", ["checkpoint", "experiment", "history", "requested rounds", "private tensors"])
@given(data=st.data())
def test_what_a_run_keeps_is_noticed_when_it_was_changed_or_is_valid(
    data: DataObject, readers: dict[str, Reader], name: str
) -> None:
    readers[name].require_refused_or_valid(data)


FLOATS = npst.arrays(np.float32, npst.array_shapes(max_dims=3, max_side=3))


@given(st.integers(2, 10**6), FLOATS)
def test_a_checkpoint_is_gone_on_from_as_it_was_saved(
    readers: dict[str, Reader], number: int, value: np.ndarray
) -> None:
    place = readers["checkpoint"].folder.lay()
    saved = snapshot(number, {"a": torch.tensor(value)})
    Checkpoints(place, EXPERIMENT).save(saved, {"rounds": [{"round": number}], "clients": [], "probes": []})
    assert plain(Checkpoints(place, EXPERIMENT).last) == plain(saved)


@given(st.lists(st.integers(0, 10**6), max_size=5))
def test_requested_rounds_are_read_as_they_were_noted(readers: dict[str, Reader], rounds: list[int]) -> None:
    place = readers["requested rounds"].folder.lay({"checkpoint/requested_rounds.txt": None}) / "checkpoint"
    for one in rounds:
        RequestedRounds(place).note(one)
    assert set(RequestedRounds(place).rounds) == set(rounds)


@given(st.integers(1, 10**6), FLOATS)
def test_private_tensors_are_loaded_as_they_were_saved(
    readers: dict[str, Reader], version: int, value: np.ndarray
) -> None:
    place = readers["private tensors"].folder.lay()
    store = ClientStore(place, "def", 1)
    store.save(version, {"a": torch.tensor(value)}, 0)
    np.testing.assert_array_equal(store.load(version)["a"].numpy(), value)
