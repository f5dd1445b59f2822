"""Packages that ``flfw new`` writes: they run as they are, and nothing is written over."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from flfw.command.program import main

SMALL = "--clients 2 --rounds 1 --local-epochs 1 --images 1 --engine inproc --audit-rounds 0 --out first"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["method", "defence", "attack"])
def test_the_command_that_is_printed_runs_what_was_written(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, "my_own"]) == 0
    path, _, command, _ = capsys.readouterr().out.splitlines()
    assert "MyOwn" in Path(path).read_text() and "mylab" not in Path(path).read_text()
    python_path, _, *words = shlex.split(command)
    environment = {**os.environ, "PYTHONPATH": str(folder / python_path.removeprefix("PYTHONPATH="))}
    words += [*SMALL.split(), *["--set", "ig.iterations=20"] * ("ig" in words)]
    subprocess.run([sys.executable, "-m", "flfw", *words], check=True, env=environment)
    assert f"my_own.{kind}:MyOwn" in json.dumps(json.loads(Path("first/result.json").read_text())["config"])


def test_an_app_has_its_new_name_everywhere() -> None:
    assert main(["new", "app", "clinic"]) == 0
    texts = [path.read_text() for path in Path("clinic").rglob("*") if path.is_file()]
    assert len(texts) >= 7 and not any("quickstart" in text for text in texts)
    assert 'serverapp = "clinic.server_app:app"' in Path("clinic/pyproject.toml").read_text()
    assert Path("clinic/clinic/server_app.py").is_file()


WRONG = {
    "": "flfw new KIND NAME", "defence": "flfw new KIND NAME", "defenc mine": "did you mean defence?",
    "defence torch": "that no installed package has", "attack 3x": "small letters", "attack a/b": "small letters",
    "attack class": "small letters", "app there": "a folder that is not there yet",
}  # fmt: skip


def test_what_cannot_be_written_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("there").mkdir()
    for words, expected in WRONG.items():
        assert main(["new", *words.split()]) == 2
        error = capsys.readouterr().err
        assert expected in error and error.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["there"]
