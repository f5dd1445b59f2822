"""The app through Flower's own commands: the same numbers, one-line reasons, and nothing left running."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import sim
from flfw.engines import superlink
from flfw.errors import RunError
from flfw.experiment import Experiment
from tests.support.clock import wait_for
from tests.support.engine_runs import BROKEN, rows_without_times, train_by_engine
from tests.support.paths import ROOT

pytestmark = pytest.mark.early


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable that every process started from here on inherits."""
    monkeypatch.setenv("FLFW_TEST_MARK", str(tmp_path))
    return f"FLFW_TEST_MARK={tmp_path}"


def survivors(mark: str) -> list[str]:
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                result.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return result


def on_flower(experiment: Experiment, folder: Path, **changed: object) -> dict:
    folder.mkdir()
    experiment = dataclasses.replace(experiment, out=folder)
    superlink.run_on_superlink(
        {**experiment.to_run_config(), **changed},  # type: ignore[arg-type]
        {"FLFW_STATE": str(folder / "state")},
        clients=experiment.clients,
        cpus_per_client=1,
        gpus_per_client=0,
        out=folder,
    )
    return json.loads((folder / "training.json").read_text())


@pytest.mark.nightly
def test_flower_run_equals_in_process_bit_for_bit(
    small: Experiment, tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = on_flower(small, tmp_path / "flwr")
    progress = capsys.readouterr().err.splitlines()
    assert [line[:9] for line in progress] == ["round 1/2", "round 2/2"]
    assert survivors(mark) == []
    assert rows_without_times(train_by_engine(small, tmp_path / "inproc")) == rows_without_times(there)


@pytest.mark.nightly
def test_a_client_that_raises_ends_the_command_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_flwr.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    flags = "--engine flwr --method fedavg --clients 3 --rounds 2 --local-epochs 1 --attack none --defended 1"
    assert sim.main([*flags.split(), "--defence", "broken_flwr:Broken", "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == "sim.py: client 1 failed in round 1: the shield fell\n"
    assert not (tmp_path / "run" / "result.json").exists()
    assert survivors(mark) == []


@pytest.mark.nightly
def test_a_killed_run_is_resumed_by_the_same_commands(tmp_path: Path, mark: str) -> None:
    common = ["--method", "fedper", "--clients", "3", "--rounds", "6", "--local-epochs", "1", "--attack", "none"]
    command = [sys.executable, "sim.py", *common, "--engine", "flwr", "--out", str(tmp_path / "flwr")]
    with subprocess.Popen(command, cwd=ROOT) as process:
        wait_for(lambda: any((tmp_path / "flwr" / "checkpoint").glob("round-0000[2-5]-*")), 200)
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: survivors(mark) == [])
    assert not (tmp_path / "flwr" / "training.json").exists(), "the run was over before it could be killed"
    assert sim.main(["--resume", str(tmp_path / "flwr")]) == 0
    assert sim.main([*common, "--engine", "inproc", "--out", str(tmp_path / "inproc")]) == 0
    there, here = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("flwr", "inproc"))
    assert there["provenance"]["resumed"][0]["after_round"] >= 2
    assert there["environment"]["transport"] == "Flower's own commands, simulation engine on Ray"
    for result in (there, here):
        result["rounds"] = [{k: v for k, v in row.items() if k != "seconds"} for row in result["rounds"]]
    assert there["rounds"] == here["rounds"] and there["final"] == here["final"]


@pytest.mark.slow  # it installs the app, and starts Ray
def test_the_repository_is_an_app_for_flwr_run(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    out, folder = tmp_path / "flwr", tmp_path / "flower"
    folder.mkdir()
    given = dataclasses.replace(small, out=out).to_run_config()
    assignments = " ".join(f"{key}={json.dumps(value)}" for key, value in given.items() if value != "")
    federation = f"num-supernodes={small.clients} client-resources-num-cpus=1"
    command = ["flwr", "run", ".", "--stream", "--run-config", assignments, "--federation-config", federation]
    with superlink.private_superlink(folder, {}) as variables:
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (out / "result.json").exists(), done.stdout + done.stderr
    result = json.loads((out / "result.json").read_text())
    there = {"rounds": result["rounds"], "clients": [], "final": result["final"]["per_client"]}
    here = {**train_by_engine(small, tmp_path / "inproc"), "clients": []}
    assert rows_without_times(here) == rows_without_times(there)
    assert survivors(mark) == []


@pytest.mark.nightly
def test_an_app_that_flower_refuses_is_a_failed_run(small: Experiment, tmp_path: Path, mark: str) -> None:
    with pytest.raises(RunError, match=r"^Flower did not take the app: .*pyproject\.toml.*$"):
        on_flower(small, tmp_path / "run", lr=float("nan"))
    assert survivors(mark) == []


@pytest.mark.slow
def test_a_superlink_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    monkeypatch.setattr(superlink, "_free_port", lambda: 99999)
    says = r"^Flower's SuperLink did not start: .*between 1 and 65535; try --engine ray"
    with pytest.raises(RunError, match=says), superlink.private_superlink(tmp_path, {}):
        raise AssertionError("it must not start")
    assert survivors(mark) == []


def test_a_reason_comes_from_the_server_app_and_else_from_flower(tmp_path: Path) -> None:
    status = {"status": "finished:failed", "status-details": "Simulation failed with exception: no such method\nmore"}
    log = "\x1b[91mERROR \x1b[0m:   An exception occurred !! no GPU\n\n"
    assert superlink._reason(tmp_path, status, log).startswith("no such method (Flower: finished:failed")
    assert (tmp_path / "flower.log").read_text() == log
    silent = {**status, "status-details": "Simulation failed with exception: " + superlink._APP_SAYS_NOTHING}
    assert superlink._reason(tmp_path, silent, log).startswith("ERROR :   An exception occurred !! no GPU (Flower")
    (tmp_path / "failure.txt").write_text("client 2 sent nothing\nand a traceback\n")
    assert superlink._reason(tmp_path, status, log) == "client 2 sent nothing"


@pytest.mark.slow
def test_what_the_keeper_started_ends_with_its_owner_however_that_ends(tmp_path: Path, mark: str) -> None:
    nested = "(setsid sh -c 'sleep 600 & sleep 600' &); trap '' TERM; sleep 600 & sleep 600"  # two of four are orphans
    code = (
        "import subprocess, sys, time\n"
        "command = [sys.executable, '-m', 'flfw.engines.superlink', 'sh', '-c']\n"
        f"subprocess.Popen([*command, {nested!r}], stdin=subprocess.PIPE)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}) as owner:
        wait_for(lambda: sum(line == "sleep 600 " for line in survivors(mark)) == 4)
        owner.send_signal(signal.SIGKILL)
    wait_for(lambda: survivors(mark) == [])
