"""What was seen, what was granted and the truth: three things in three places."""

import dataclasses
import json
import math
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flfw.audit.observation import Observation, Recordings, Truth, Vantage, key
from flfw.errors import BadInput

TRUTH = Truth(
    samples=torch.arange(8.0).view(2, 1, 2, 2) / 8, labels=torch.tensor([3, 7]), indices=torch.tensor([40, 2])
)


# --- names ---


@pytest.mark.parametrize(
    ("server_round", "rung", "slot", "name"),
    [(0, "control", 0, "r0000-control-000"), (12, "target", 7, "r0012-target-007"), (3, "easy", 45, "r0003-easy-045")],
)
def test_key_names_round_rung_and_slot(server_round: int, rung: str, slot: int, name: str) -> None:
    assert key(server_round, rung, slot) == name
    seen = Observation(Vantage.SERVER, "probe", rung, server_round, client=99, slot=slot, sent={}, received={})
    assert seen.key == name


def test_keys_sort_by_round_and_slot() -> None:
    names = [key(r, "target", s) for r in (0, 2, 10, 200) for s in (0, 9, 10, 100)]
    assert names == sorted(names) and len(set(names)) == 16


def test_an_observation_holds_no_truth_and_cannot_be_changed() -> None:
    fields = {field.name for field in dataclasses.fields(Observation)}
    assert fields == {"vantage", "source", "rung", "round", "client", "slot", "sent", "received"}
    seen = Observation(Vantage.SERVER, "probe", "target", 0, 0, 0, {}, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.slot = 1  # type: ignore[misc]


# --- truth ---


def test_truth_is_read_as_it_was_written(tmp_path: Path) -> None:
    TRUTH.write(tmp_path / "truth", "r0000-easy-000")
    read = Truth.read(tmp_path / "truth", "r0000-easy-000")
    for field in dataclasses.fields(Truth):
        before, after = getattr(TRUTH, field.name), getattr(read, field.name)
        assert torch.equal(before, after) and before.dtype == after.dtype


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_truth_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    TRUTH.write(tmp_path / "truth", "new")
    assert mode(tmp_path / "truth") == 0o700
    assert mode(tmp_path / "truth" / "new.safetensors") == 0o600
    (tmp_path / "open").mkdir(mode=0o755)  # a folder that was there already is left as it is, the file is not
    TRUTH.write(tmp_path / "open", "new")
    assert mode(tmp_path / "open" / "new.safetensors") == 0o600


def test_truth_written_again_replaces_the_old(tmp_path: Path) -> None:
    TRUTH.write(tmp_path, "same")
    dataclasses.replace(TRUTH, labels=torch.tensor([1, 1])).write(tmp_path, "same")
    assert Truth.read(tmp_path, "same").labels.tolist() == [1, 1]
    assert mode(tmp_path / "same.safetensors") == 0o600


# --- recordings ---


def record(folder: Path, rung: str, server_round: int, slot: int, client: int, value: float, model: str = "m0") -> None:
    """One exchange as the tap writes it: a line, what was sent by the client, and what it had received."""
    folder.mkdir(exist_ok=True)
    answer = f"answer-{rung}-{server_round}-{slot}"
    save_file({"w": torch.tensor([value])}, folder / f"{answer}.safetensors")
    save_file({"w": torch.tensor([float(len(model)), float(model[1:])])}, folder / f"{model}.safetensors")
    line = {
        "type": "train.probe",
        "group": str(server_round),
        "config": {"round": server_round, "rung": rung, "client": client, "slot": slot, "own_slot": 0, "batch": 1},
        "metrics": {"num-examples": 1, "partition": 99},  # what a client says of itself is not believed
        "sent_to_client": model,
        "sent_by_client": answer,
    }
    with (folder / "manifest.jsonl").open("a") as manifest:
        manifest.write(json.dumps(line) + "\n")


def test_probes_are_loaded_by_rung_and_round_in_the_order_of_their_slots(tmp_path: Path) -> None:
    for slot in (2, 0, 10, 1):  # as they arrived
        record(tmp_path, "target", 1, slot, client=slot % 3, value=float(slot))
    record(tmp_path, "target", 0, 0, client=0, value=100.0)
    record(tmp_path, "easy", 1, 0, client=0, value=200.0)
    probes = Recordings(tmp_path).probes("target", 1)
    assert [seen.slot for seen in probes] == [0, 1, 2, 10]
    assert [seen.client for seen in probes] == [0, 1, 2, 1]
    assert [seen.sent["w"].item() for seen in probes] == [0.0, 1.0, 2.0, 10.0]
    assert {(seen.vantage, seen.source, seen.rung, seen.round) for seen in probes} == {
        (Vantage.SERVER, "probe", "target", 1)
    }
    assert [seen.sent["w"].item() for seen in Recordings(tmp_path).probes("easy", 1)] == [200.0]
    assert Recordings(tmp_path).probes("control", 0) == []


def test_clients_that_received_the_same_share_it_and_others_do_not(tmp_path: Path) -> None:
    for slot, model in enumerate(("m1", "m2", "m1")):
        record(tmp_path, "target", 0, slot, client=slot, value=1.0, model=model)
    a, b, c = Recordings(tmp_path).probes("target", 0)
    assert a.received is c.received and a.received is not b.received
    assert [seen.received["w"][1].item() for seen in (a, b, c)] == [1.0, 2.0, 1.0]


def test_lines_of_ordinary_training_are_passed_over(tmp_path: Path) -> None:
    record(tmp_path, "target", 1, 0, client=0, value=1.0)
    line = {"type": "train", "config": {"round": 1, "version": 0}, "metrics": {}, "sent_to_client": "a"}
    with (tmp_path / "manifest.jsonl").open("a") as manifest:
        manifest.write(json.dumps(line) + "\n")
    assert len(Recordings(tmp_path).probes("target", 1)) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_tensors_that_are_not_finite_are_refused_in_one_line(tmp_path: Path, value: float) -> None:
    record(tmp_path, "target", 0, 0, client=0, value=0.0)
    record(tmp_path, "target", 0, 1, client=1, value=value)
    with pytest.raises(BadInput) as error:
        Recordings(tmp_path).probes("target", 0)
    assert str(error.value) == (
        f"Expected finite tensors in {tmp_path}/answer-target-0-1.safetensors, got NaN or infinity."
    )


def test_tensors_of_whole_numbers_are_loaded_too(tmp_path: Path) -> None:
    record(tmp_path, "target", 0, 0, client=0, value=0.0)
    save_file({"n": torch.tensor([3])}, tmp_path / "answer-target-0-0.safetensors")
    assert Recordings(tmp_path).probes("target", 0)[0].sent["n"].item() == 3


def test_a_folder_without_a_manifest_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as error:
        Recordings(tmp_path)
    assert str(error.value) == f"Expected recordings in {tmp_path}, found no manifest.jsonl; run with --attack."
