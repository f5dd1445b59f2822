"""What was seen, what was granted and the truth: three things in three places."""

import dataclasses
import re
import stat
from pathlib import Path

import pytest
import torch

from flfw.recording.observation import Observation, Truth, Vantage, key
from tests.support.paths import ROOT

TRUTH = Truth(
    samples=torch.arange(8.0).view(2, 1, 2, 2) / 8, labels=torch.tensor([3, 7]), indices=torch.tensor([40, 2])
)


# --- names ---


@pytest.mark.parametrize(
    ("server_round", "control", "slot", "name"),
    [(0, "analytic", 0, "r0000-analytic-000"), (2, "target", 7, "r0002-target-007"), (3, "easy", 45, "r0003-easy-045")],
)
def test_key_names_round_control_and_slot(server_round: int, control: str, slot: int, name: str) -> None:
    assert key(server_round, control, slot) == name
    observation = Observation(
        Vantage.SERVER, "probe", control, server_round, client=99, slot=slot, sent={}, received={}
    )
    assert observation.key == name


def test_keys_sort_by_round_and_slot() -> None:
    names = [key(r, "target", s) for r in (0, 2, 10, 200) for s in (0, 9, 10, 100)]
    assert names == sorted(names) and len(set(names)) == 16


def test_a_point_of_a_curve_is_filed_under_its_own_name() -> None:
    observation = Observation(
        Vantage.SERVER, "probe", "target", 3, client=1, slot=2, sent={}, received={}, point="batch-16"
    )
    assert observation.key == key(3, "batch-16", 2) == "r0003-batch-16-002"


def test_an_observation_holds_no_truth_and_cannot_be_changed() -> None:
    fields = {field.name for field in dataclasses.fields(Observation)}
    assert fields == {"vantage", "source", "control", "round", "client", "slot", "sent", "received", "point"}
    observation = Observation(Vantage.SERVER, "probe", "target", 0, 0, 0, {}, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        observation.slot = 1  # type: ignore[misc]


# --- truth ---


def test_only_the_trusted_side_opens_the_truth() -> None:
    root = ROOT
    sources = [
        path for package in ("flfw", "attacks", "strategies", "clients") for path in (root / package).rglob("*.py")
    ]
    opens = {str(path.relative_to(root)) for path in sources if "Truth.read(" in path.read_text()}
    assert opens == {"flfw/audit/uploads.py"}
    asks = {str(path.relative_to(root)) for path in sources if "read_truth(" in path.read_text()}
    # The job planner grants labels, the audit checks the control, a control recomputes the message.
    controls = ("reconstruction/control_runs", "reconstruction/reconstruction_audit")
    assert asks == {f"flfw/audit/{name}.py" for name in ("uploads", "job_planner", *controls)}
    scored = {str(path.relative_to(root)) for path in sources if re.search(r"\bopened\(", path.read_text())}
    assert scored == {f"flfw/audit/{name}.py" for name in ("uploads", "reconstruction/scorer")}


def test_truth_is_read_as_it_was_written(tmp_path: Path) -> None:
    TRUTH.write(tmp_path / "truth", "r0000-easy-000")
    read = Truth.read(tmp_path / "truth", "r0000-easy-000")
    for field in dataclasses.fields(Truth):
        before, after = getattr(TRUTH, field.name), getattr(read, field.name)
        assert before is after is None or (torch.equal(before, after) and before.dtype == after.dtype)


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
