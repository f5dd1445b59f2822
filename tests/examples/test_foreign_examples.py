"""Apps in the layouts of different authors: each is recorded by one line, and audited or refused in one line."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flfw.errors import InputError
from flfw.files.outcomes import outcome
from flfw.recording.reader import Recordings
from flfw.rng import initialising
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "foreign"
NAMES = sorted(path.stem for path in (FOLDER / "apps").glob("*.py") if path.stem != "__init__")
REFUSED = {
    "sklearn_logistic": r"^Expected a network of PyTorch \(nn.Module\), got sklearn's LogisticRegression;",
    "xgboost_bytes": r"^Expected tensors of Sequential, got a model of XGBoost in \d+ bytes;",
}
LEAKING = {"pytorch_quickstart", "numpy_client", "tabular_mlp", "sends_deltas", "sends_gradients", "fedprox_baseline"}
VAGUE = {"adam_epochs"}  # its training is so random that the check shows nothing


@pytest.fixture(scope="module")
def audits() -> Iterator[ModuleType]:
    """The module with the audits, as if one stood in its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("audits")
    for name in [name for name in sys.modules if name == "audits" or name.partition(".")[0] == "apps"]:
        del sys.modules[name]


def test_every_app_has_an_audit(audits: ModuleType) -> None:
    assert sorted(audits.EXAMPLES) == NAMES and len(NAMES) >= 10 and set(REFUSED) | LEAKING | VAGUE <= set(NAMES)


def at_first(name: str) -> Any:
    """A case of CI, or of the nightly tests."""
    in_ci = name in ("numpy_client", "sends_deltas", "adam_epochs")
    return name if in_ci else pytest.param(name, marks=pytest.mark.nightly)


@pytest.mark.slow
@pytest.mark.parametrize("name", [at_first(name) for name in NAMES if name not in REFUSED])
def test_an_app_is_recorded_and_its_description_explains_what_it_sent(
    audits: ModuleType, tmp_path: Path, name: str
) -> None:
    with initialising(0, "example"):
        audits.run(name, tmp_path / "recordings")
    assert {line["client"] for line in Recordings(tmp_path / "recordings").lines} == {0, 1}
    entries = audits.examine(name, tmp_path / "recordings", tmp_path / "audit", iterations=100)
    outcomes = {check["outcome"] for entry in entries for check in entry["consistency"]}
    assert outcomes == {"not possible" if name in VAGUE else "passed"}
    verdicts = {outcome(entry) for entry in entries}
    assert ("reconstructed" in verdicts) == (name in LEAKING) and verdicts <= {
        "reconstructed",
        "undecided",
        "identified",
    }


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_network_is_refused_in_one_line(audits: ModuleType, tmp_path: Path, name: str) -> None:
    audits.run(name, tmp_path / "recordings")
    with pytest.raises(InputError, match=REFUSED[name]) as error:
        audits.examine(name, tmp_path / "recordings", tmp_path / "audit")
    assert "\n" not in str(error.value) and not (tmp_path / "audit").exists()


@pytest.mark.parametrize("name", NAMES)
def test_an_app_knows_nothing_of_this_project_but_the_recorder(name: str) -> None:
    lines = (FOLDER / "apps" / f"{name}.py").read_text().splitlines()
    ours = [line for line in lines if any(f"{top}." in line for top in ("flfw", "attacks", "clients", "strategies"))]
    assert ours == ["from flfw.recording import RecordMap, recorded"] and len(lines) <= 75
    assert sum("recorded(" in line for line in lines) == 1
