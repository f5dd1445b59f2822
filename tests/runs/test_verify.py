"""Runs and audits are repeated by ``--verify``; a changed number, plug-in or package is said."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sim
from flfw.recording.retention import purge
from flfw.runs import run
from flfw.runs.provenance import machine
from flfw.runs.verify import changed_hardware, unrepeatable
from flfw.server.checkpoint import Checkpoints
from tests.support.paths import ROOT
from tests.support.small_runs import tiny
from tests.support.trackers import Noting

FLAGS = (
    "--method fedavg --net linear --engine inproc --clients 2 --rounds 1 --local-epochs 1 --attack analytic --images 2"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert sim.main([*FLAGS.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def change(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change something in a result.json."""
    path = folder / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "verify.json").read_text())


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit_in_a_folder_inside(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copied / "result.json").read_bytes()
    assert sim.main(["--verify", str(copied)]) == 0
    printed = capsys.readouterr().out
    assert "Nothing differs in code, environment, data and hardware" in printed
    assert "The result repeats bit for bit." in printed and "not compared: seconds" in printed
    verified = told(copied / "verify-1")
    assert verified["verdict"] == "bit for bit" and verified["moved"] == [] and not any(verified["differs"].values())
    assert verified["counts"]["bit for bit"] > 150 and verified["counts"]["different"] == 0
    assert (copied / "result.json").read_bytes() == before
    assert (copied / "verify-1" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("rounds", 0, "loss"), 0.1),
        (("final", "acc_local"), 0.99),
        (("audit", 1, "psnr", "max"), 300.0),
        (("audit", 0, "share_recovered"), 0.0),
        (("config", "lr"), 0.5),
    ],
)
def test_a_changed_number_is_found(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: tuple[Any, ...], value: float
) -> None:
    def set_value(result: dict[str, Any]) -> None:
        *inner, last = place
        for key in inner:
            result = result[key]
        result[last] = value

    change(copied, set_value)
    assert sim.main(["--verify", str(copied), "--out", str(tmp_path / "again")]) == 1
    path = ".".join(map(str, place)).replace(".0", "[0]").replace(".1", "[1]")
    printed = capsys.readouterr().out
    assert f"{path}: {value}, now " in printed and "The result does not repeat." in printed
    assert "so the result was changed, or its code is not deterministic" in printed
    assert [one["path"] for one in told(tmp_path / "again")["moved"]] == [path]


@pytest.mark.slow
def test_a_number_changed_within_its_interval_is_named_all_the_same(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nudge(result: dict[str, Any]) -> None:
        score = result["audit"][0]["psnr"]
        score["mean"] = (score["mean"] + score["low"]) / 2

    change(copied, nudge)
    assert sim.main(["--verify", str(copied), "--out", str(tmp_path / "again")]) == 0
    printed = capsys.readouterr().out
    assert "audit[0].psnr.mean: " in printed and "The result repeats within its intervals." in printed
    assert "so the result was changed" in printed


@pytest.mark.slow
def test_an_audit_is_repeated_from_the_same_recordings(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requested = ["--from", str(copied), "--attack", "analytic", "--audit-rounds", "1"]
    assert sim.main(requested) == 0 and (copied / "audit-1").exists()
    assert sim.main(["--verify", str(copied / "audit-1")]) == 0
    result = json.loads((copied / "verify-1" / "result.json").read_text())
    assert [entry["round"] for entry in result["audit"]] == [1] and result["provenance"]["from"] == str(copied)
    change(copied / "audit-1", lambda result: result["audit"][0]["psnr"].update(max=3.5))
    capsys.readouterr()
    assert sim.main(["--verify", str(copied / "audit-1")]) == 1
    assert "audit[0].psnr.max: 3.5, now 1" in capsys.readouterr().out


@pytest.mark.slow
def test_a_moved_audit_finds_its_run_around_it(copied: Path, tmp_path: Path) -> None:
    assert sim.main(["--from", str(copied), "--attack", "analytic", "--audit-rounds", "0"]) == 0
    moved = copied.rename(tmp_path / "moved")
    assert sim.main(["--verify", str(moved / "audit-1")]) == 0


@pytest.mark.slow
def test_other_packages_and_data_are_said_before(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = copied / "environment.txt"
    then = listed.read_text().replace("numpy==", "numpy==0.")
    listed.write_text(then)
    assert sim.main(["--verify", str(copied), "--out", str(tmp_path / "first")]) == 0
    assert "environment differs: the list of all packages was changed" in capsys.readouterr().out

    def older(result: dict[str, Any]) -> None:
        import hashlib

        session = result["provenance"]["sessions"][-1]
        session["packages"]["sha256"] = hashlib.sha256(then.encode()).hexdigest()
        session["machine"]["threads"]["torch"] = 7
        result["provenance"]["data"]["digest"] = "d"
        result["provenance"]["code"] = "c"

    change(copied, older)
    assert sim.main(["--verify", str(copied), "--out", str(tmp_path / "second")]) == 0
    printed = capsys.readouterr().out
    assert "environment differs: packages: numpy 0." in printed and "data differs: digits: digest d, now " in printed
    assert "hardware differs: threads torch: 7, now 1" in printed and "code differs: sources c, now " in printed
    assert "so the result was changed" not in printed


def test_libraries_that_a_process_has_not_loaded_make_no_other_machine() -> None:
    def result(*libraries: tuple[str, str, int]) -> dict[str, Any]:
        keys = ("internal_api", "architecture", "num_threads")
        noted = {**machine(), "blas": [dict(zip(keys, one, strict=True)) for one in libraries]}
        return {"provenance": {"sessions": [{"machine": noted}]}}

    assert changed_hardware(result()) == changed_hardware(result(("blis", "Zen", 1))) == []
    api, chip, threads = (machine()["blas"][0][key] for key in ("internal_api", "architecture", "num_threads"))
    assert changed_hardware(result((api, chip, threads), (api, "Old", 7))) == []
    (line,) = changed_hardware(result((api, "Old", 7)))
    assert line.startswith(f"{api}: Old, threads 7, now ")


SHIELD = """
from typing import final
from torch import Tensor
from flfw.task.defence import Defence
{imports}

@final
class Shield(Defence):
    def update(self, change, rng):
        return {{name: value * {factor} for name, value in change.items()}}
"""


@pytest.mark.slow
def test_a_plugin_whose_file_changed_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shield = tmp_path / "shield_o5.py"
    shield.write_text(SHIELD.format(imports="", factor="1.0"))
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = run.run(tiny(defence="shield_o5:Shield", attack=("none",), out=tmp_path / "run"))
    assert sim.main(["--verify", str(folder)]) == 0
    assert "Nothing differs" in capsys.readouterr().out
    shield.write_text(SHIELD.format(imports="# a comment", factor="1.0"))
    assert sim.main(["--verify", str(folder)]) == 0  # the process has imported it; what lies there now is another file
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"changed: defence shield_o5:Shield: {shield} has changed since"
    shield.unlink()
    sim.main(["--verify", str(folder)])
    assert capsys.readouterr().out.splitlines()[0] == f"changed: defence shield_o5:Shield: {shield} is gone"


@pytest.mark.slow
def test_a_repetition_is_handed_to_a_tracker_only_where_it_is_asked_for(tmp_path: Path) -> None:
    noting = f"{Noting.__module__}:{Noting.__name__}"
    folder = run.run(tiny(attack=("none",), out=tmp_path / "run", track=(noting,)))
    assert (folder / "calls.jsonl").exists()
    assert sim.main(["--verify", str(folder)]) == 0 and not (folder / "verify-1" / "calls.jsonl").exists()
    assert sim.main(["--verify", str(folder), "--track", noting]) == 0
    assert (folder / "verify-2" / "calls.jsonl").exists()


@pytest.mark.slow
def test_a_result_without_its_checkpoint_is_repeated_from_its_configuration(copied: Path, tmp_path: Path) -> None:
    purge(copied)
    assert not (copied / "checkpoint").exists()
    assert sim.main(["--verify", str(copied), "--out", str(tmp_path / "again")]) == 0


@pytest.mark.slow
def test_a_purge_reaches_repetitions(copied: Path) -> None:
    assert sim.main(["--verify", str(copied)]) == 0
    assert (copied / "verify-1" / "truth").exists() and (copied / "verify-1" / "observations").exists()
    assert sim.main(["--purge", str(copied)]) == 0
    assert {path.name for path in (copied / "verify-1").iterdir()} == {
        "result.json", "verify.json", "environment.txt", "rounds.csv", "clients.csv", "audit.csv", "report.html",
    }  # fmt: skip
    assert "data:image" not in (copied / "verify-1" / "report.html").read_text()


SECRET = {
    "noise_source": {"method": "fed_cdp", "set": ("noise_source=secure",)},
    "dp_gaussian.noise_source": {"defence": "prune+dp_gaussian", "set": ("dp_gaussian.noise_source=secure",)},
}  # the loss is that before the first noise of a defence has been sent


@pytest.mark.slow
@pytest.mark.parametrize(("name", "moved"), [("noise_source", 0), ("dp_gaussian.noise_source", 1)])
def test_secure_noise_is_said_to_be_nobodys_to_repeat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, moved: int
) -> None:
    folder = run.run(tiny(out=tmp_path / "run", attack=("none",), rounds=moved + 1, **SECRET[name]))
    assert sim.main(["--verify", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert f"noise differs: {name}=secure draws noise that nobody can repeat" in printed
    assert f"rounds[{moved}].loss: " in printed and "so the result was changed" not in printed


def test_noise_of_the_seed_is_not_said_to_be_secret() -> None:
    config = {"defence": "dp_gaussian", "set": ["dp_gaussian.noise_source=secure", "dp_gaussian.noise_source=seed"]}
    assert unrepeatable({"config": config}) == unrepeatable({"config": {"defence": "none", "set": []}}) == []
    assert unrepeatable({"config": {"defence": "prune", "set": ["dp_gaussian.noise_source=secure"]}}) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"defence_randomness": "secure"},
            "defence_randomness=secure: nobody can repeat what dp_gaussian drew, if anything",
        ),
        (
            {"set": ("dp_gaussian.noise_source=secure",)},
            "dp_gaussian.noise_source=secure draws noise that nobody can repeat",
        ),
    ],
)
def test_secret_draws_of_a_defence_are_said_to_be_nobodys_to_repeat(
    changes: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.run(tiny(out=tmp_path / "run", method="fedavg", defence="dp_gaussian", attack=("none",), **changes))
    assert sim.main(["--verify", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert f"noise differs: {line}\n" in printed and "The result does not repeat.\n" in printed


@pytest.mark.slow
def test_a_resumed_run_repeats_in_one_sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(attack=("none",), rounds=2, out=tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("flfw.runs.results.finish", interrupted)
        run.run(experiment)
    run.resume(experiment)
    assert len(json.loads((tmp_path / "run" / "result.json").read_text())["provenance"]["sessions"]) == 2
    assert sim.main(["--verify", str(tmp_path / "run")]) == 0


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.nightly  # torch chooses its instructions once, so this is a process of its own
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this processor has no others")
def test_other_instructions_are_said_and_move_numbers(copied: Path) -> None:
    old = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "DNNL_MAX_CPU_ISA": "SSE41"}
    command = [sys.executable, "sim.py", "--verify", str(copied)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **old}, capture_output=True, text=True, check=False)
    assert "hardware differs: torch instructions: " in done.stdout and "so the result was changed" not in done.stdout
    moved = told(copied / "verify-1")["moved"]
    assert done.returncode == int(any(one["outcome"] == "different" for one in moved))


@pytest.mark.slow
def test_what_cannot_be_repeated_is_refused_in_one_line(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(text: str, *flags: str) -> None:
        assert sim.main(list(flags)) == 2
        message = capsys.readouterr().err.strip().splitlines()
        assert len(message) == 1 and text in message[0], message

    place = str(copied)
    refused("Expected lr=0.01", "--verify", place, "--lr", "0.5")
    refused("Expected one of", "--verify", place, "--resume", place)
    refused("result.json", "--verify", str(tmp_path))
    (tmp_path / "matrix.json").touch()
    refused("name a folder in it", "--verify", str(tmp_path))
    begun = tiny(out=tmp_path / "begun")
    begun_folder = tmp_path / "begun"
    Checkpoints(begun_folder, begun)
    shutil.copy(copied / "result.json", begun_folder)
    (begun_folder / "training.json").touch()
    refused("--resume it first", "--verify", str(begun_folder))
    change(copied, lambda result: result.update(mine=float("nan")))
    refused("Expected finite numbers in", "--verify", place)
    change(copied, lambda result: result.pop("mine"))
    change(copied, lambda result: result.update(config={"method": "mine", "dataset": "own"}))
    shutil.rmtree(copied / "checkpoint")
    refused("got an audit of an app of its own", "--verify", place)
    assert not list(copied.glob("verify-*"))
