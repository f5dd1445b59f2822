"""A leading ``~`` that no shell has replaced, as in ``--out=~/run`` and in a notebook, is the home folder."""

from pathlib import Path

import pytest

from flfw.command.api.arguments import folder_of
from flfw.command.arguments import parse
from flfw.experiment import Experiment


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_flags_with_a_path(home: Path) -> None:
    command = parse(["--out=~/run", "--data-root", "~/data", "--resume=~/a", "--compare", "~/a", "b"])
    assert (command.experiment.out, command.experiment.data_root) == (home / "run", home / "data")
    assert (command.resume, command.compare) == (home / "a", (home / "a", Path("b")))


def test_fields_and_results_from_python(home: Path) -> None:
    assert Experiment(out="~/run", data_root=Path("~")).out == home / "run"  # type: ignore[arg-type]
    assert Experiment(data_root=Path("~")).data_root == home
    assert folder_of("~/run") == home / "run" and folder_of("~run") == Path("~run").absolute()
