"""The example of the quickstart kind: an app that knows nothing of this project but the recorder's two lines."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flfw.engines import superlink
from flfw.messages.inprocess import InProcessGrid
from flfw.rng import initialising
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "quickstart"
OURS = ("flfw", "strategies", "clients", "attacks", "papers")


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The app's modules and its audit, as if one stood in its folder."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = ("quickstart.client_app", "quickstart.server_app")
    client, server = (importlib.import_module(name) for name in names)
    yield SimpleNamespace(
        client=client.app, server=server.app, audit=loaded("example_audit", EXAMPLE / "audit.py").main
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


def run_config(**changed: Any) -> dict[str, Any]:
    details = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    return details["tool"]["flwr"]["app"]["config"] | {name.replace("_", "-"): value for name, value in changed.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "images", "iterations"), [(1, 2, 150), pytest.param(20, 4, 600, marks=pytest.mark.nightly)]
)
def test_the_app_runs_is_recorded_and_audited(
    example: SimpleNamespace, tmp_path: Path, epochs: int, images: int, iterations: int
) -> None:
    clients, recordings = 2, tmp_path / "recordings"
    sizes = {"num_clients": clients, "num_server_rounds": 1, "local_epochs": epochs, "images": images}
    config = run_config(recordings=str(recordings), **sizes)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    with initialising(0, "example"):
        example.server(InProcessGrid(example.client, clients, config), context)
    folder = example.audit(recordings, tmp_path / "audit", iterations=iterations)
    (result,) = json.loads((folder / "result.json").read_text())["audit"]
    assert (result["verdict"], result["steps"], result["batch"], result["images"]) == (
        "leaks",
        epochs,
        images,
        clients * images,
    )
    assert [(control["rung"], control["passed"]) for control in result["ladder"]] == [
        ("analytic", True), ("easy", True), ("consistency", True),
    ]  # fmt: skip
    assert "data:image/png" in (folder / "report.html").read_text()


def test_but_for_two_marked_lines_the_app_knows_nothing_of_this_project() -> None:
    marked = 0
    for path in sorted((EXAMPLE / "quickstart").glob("*.py")):
        lines = path.read_text().splitlines()
        rest = [line for line in lines if "# recorder, line " not in line]
        marked += len(lines) - len(rest)
        assert [name for name in OURS for line in rest if f"{name}." in line or f"import {name}" in line] == []
    assert marked == 2
    packages = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["dependencies"]
    assert not any("flfw" in package for package in packages)


@pytest.mark.nightly
def test_flwr_run_and_the_audit_are_two_commands(tmp_path: Path) -> None:
    app, folder = tmp_path / "quickstart", tmp_path / "flower"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    folder.mkdir()
    home = {"HOME": str(tmp_path)}  # where the recordings land
    federation = "num-supernodes=4 client-resources-num-cpus=1"
    with superlink.private_superlink(folder, home) as variables:
        command = ["flwr", "run", ".", "--stream", "--federation-config", federation]
        done = subprocess.run(command, cwd=app, env=variables, capture_output=True, text=True)
    assert (tmp_path / "quickstart-recordings" / "manifest.jsonl").exists(), done.stdout + done.stderr
    environment = {**os.environ, **home, "PYTHONPATH": str(ROOT)}
    audit, run = [sys.executable, "audit.py"], done
    done = subprocess.run(audit, cwd=app, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, run.stdout + run.stderr + done.stdout + done.stderr
    *verdicts, report = done.stdout.splitlines()
    assert [line.partition(".")[0] for line in verdicts] == ["round 1: leaks", "round 2: leaks"], done.stderr
    assert Path(report).exists()
