"""What the properties share: a folder in memory and a finished run."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from flfw.experiment import Experiment
from flfw.runs.run import run

_MEMORY = Path("/dev/shm")  # thousands of small files, each forced to disk, would take minutes


@pytest.fixture(scope="session")
def _folders() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="flfw-properties-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def scratch(_folders: Path, request: pytest.FixtureRequest) -> Path:
    """Folder of a file's tests."""
    folder = _folders / request.path.stem
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def finished_run(_folders: Path) -> Path:
    """Folder of a run of two clients and one round with one closed form."""
    experiment = Experiment(
        method="fedavg", net="linear", clients=2, rounds=1, local_epochs=1, images=2, attack=("analytic",),
        audit_source="both", engine="inproc", out=_folders / "run",
    )  # fmt: skip
    with redirect_stderr(StringIO()):
        folder = run(experiment)
    result = _timeless(json.loads((folder / "result.json").read_text()))
    result["config"]["out"] = "/nowhere/run"
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    return folder


def _timeless(value: Any) -> Any:
    """Return a result without times, so that the same characters are changed each time."""
    if isinstance(value, dict):
        return {key: 0.5 if key.endswith("seconds") else _timeless(inner) for key, inner in value.items()}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
