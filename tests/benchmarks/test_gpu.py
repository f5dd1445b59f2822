"""The measurements on a GPU, on the processor: what is kept, what is refused, and what the parts compute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from benchmarks import breaching_env, gpu, gpu_parts
from benchmarks.attack_victims import victims
from benchmarks.gpu_parts import Amount, apart, too_far
from tests.support.paths import ROOT

SMALL = ("agreement", "steps")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("FLFW_DATA", str(tmp_path / "none"))
    settings = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.set_num_threads(settings[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = settings[1:]


def called(monkeypatch: pytest.MonkeyPatch, *flags: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--json", *flags])
    try:
        gpu.main()
    except SystemExit as stopped:
        return stopped.code
    return 0


def on_processor(tmp_path: Path) -> Amount:
    return Amount(torch.device("cpu"), True, 8, tmp_path / "runs", 1, 1)


def test_numbers_that_are_too_far_are_computed_without_cudnn_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as stricter:
        stricter.setitem(cast(dict[str, float], gpu_parts.CLOSE), "float32_slope", -1.0)
        figures = gpu_parts.agreement(on_processor(tmp_path))
    assert figures["too_far"] == ["lenet: float32_slope"]
    assert figures["without_cudnn"].keys() == {"lenet"} and figures["apart"].keys() == {"lenet", "fedavg"}
    assert gpu_parts.agreement(on_processor(tmp_path))["without_cudnn"] == {}


def test_finished_parts_are_kept_and_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--quick", "--device", "cpu", "--out", str(tmp_path / "gpu.json"), "--only")
    assert called(monkeypatch, *flags, "steps") == 0
    first = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert first["steps"]["measured"]["device"] == "cpu" and first["steps"]["measured"]["torch"] == torch.__version__
    assert first["steps"]["figures"]["methods"]["fedavg"]["cpu_ms"] > 0
    capsys.readouterr()
    assert called(monkeypatch, *flags, *SMALL) == 0
    out, err = capsys.readouterr()
    parts = json.loads(out.splitlines()[-1])["parts"]
    assert set(parts) == set(SMALL) and parts["steps"] == first["steps"]
    assert "] agreement:" in err and "] steps:" not in err
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"] == parts
    assert called(monkeypatch, "--device", "cpu", "--out", str(tmp_path / "gpu.json")) == 2  # it is of --quick
    assert "Expected parts with quick=False" in capsys.readouterr().err


def test_a_part_that_something_was_missing_for_is_measured_again() -> None:
    parts = {"cohort": {"figures": {"missing": "no flag"}}, "steps": {"figures": {"batch": 10}}}
    assert gpu.needed(parts, ["cohort", "steps", "cell"], again=False) == ["cohort", "cell"]
    assert gpu.needed(parts, ["cohort", "steps"], again=True) == ["cohort", "steps"]


@pytest.mark.parametrize("text", ["[]", "{", '{"parts": {"steps": 1}}'])
def test_a_file_of_something_else_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gpu.json").write_text(text)
    assert called(monkeypatch, "--quick", "--device", "cpu", "--out", str(tmp_path / "gpu.json")) == 2
    assert capsys.readouterr().err.startswith("Expected parts of an earlier call in ")
    assert (tmp_path / "gpu.json").read_text() == text


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch) == 2
    assert capsys.readouterr().err.splitlines() == [
        "Expected a CUDA device, found none; `--device cpu --quick` tries the command without one."
    ]


def test_every_part_has_a_measurement() -> None:
    assert list(gpu.PARTS) == list(gpu._MEASURES)
    assert sum(part.seconds for part in gpu.PARTS.values()) <= 40 * 60


def test_differences_are_relative_to_the_norm_and_named_beyond_the_limit() -> None:
    one = {"gradient": {"w": torch.tensor([3.0, 4.0])}, "objective": {"": torch.tensor(0.5)}}
    other = {"gradient": {"w": torch.tensor([3.0, 3.0])}, "objective": {"": torch.tensor(0.75)}}
    assert apart(one, other) == {"gradient": 0.2, "objective": 0.25}
    close = {"float32_gradient": 1e-5, "float32_objective": 1e-6}
    assert too_far({"lenet": close}) == []
    assert too_far({"lenet": {**close, "float32_gradient": float("nan")}}) == ["lenet: float32_gradient"]
    assert too_far({"lenet": {**close, "float64_gradient": 1e-9}}) == ["lenet: float64_gradient"]


def test_float64_is_computed_in_float64() -> None:
    small, large = (
        gpu_parts._computed(victims("lenet", 1, batch=2).to(torch.device("cpu"), precision))
        for precision in (torch.float32, torch.float64)
    )
    assert {v.dtype for kind in large.values() for v in kind.values()} == {torch.float64}
    rounding = apart(large, small)
    assert 0 < rounding["gradient"] < 1e-5 and 0 < rounding["slope"] < 1e-3


def test_without_breaching_ours_is_measured_and_the_reason_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(breaching_env, "installed", lambda: None)
    figures = gpu_parts.attack(2, False, on_processor(tmp_path))
    assert figures["ours"] > 0 and figures["batch"] == 2 and "benchmarks.breaching_env" in figures["missing"]


def test_the_peak_is_that_of_the_work() -> None:
    """In a process of its own: one that ran other tests may have pages to spare, and then the peak is a lower bound."""
    code = "import torch; from benchmarks.gpu_parts import peak; "
    code += "print(peak(lambda: torch.ones(16_000_000), torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert 0.9 * 64e6 < int(done.stdout) < 1.5 * 64e6


@pytest.mark.slow
def test_a_cell_is_measured_and_stands_beside_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLFW_STATE", str(tmp_path / "state"))
    figures = gpu_parts.cell("", on_processor(tmp_path))
    assert figures["cell"] == "fed_cdp.5/Cancer/0.5/accuracy authors seed 0" and figures["rounds"] == 3
    assert "missing" not in figures and figures["seconds"] > 0 and 0 <= figures["value"] <= 1
