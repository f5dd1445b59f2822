"""The flags, the progress and the report that all benchmarks share."""

import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import attacks, breaching_env, deploy, gpu, output
from benchmarks.output import MARK, BenchmarkPart, BenchmarkRun
from flfw import data
from research.measurements import batch_parity, flow_prior, hyperfl_upload, parity, spear
from tests.campaigns import same_results
from tests.support.paths import ROOT

SOURCES = sorted((ROOT / "benchmarks").glob("*.py"))
NAMES = [path.stem for path in SOURCES if "def main() -> None:" in path.read_text()]
PARTS = {
    "a": BenchmarkPart("the first", 50, 5),
    "b": BenchmarkPart("the second", 100, 0),
    "c": BenchmarkPart("the third", 10, 1),
}


class Stopped(Exception):
    """Raised where the measuring would begin."""


@pytest.fixture(params=NAMES)
def benchmark(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"benchmarks.{request.param}")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def called(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, *flags])
    with pytest.raises(SystemExit) as stopped:
        benchmark.main()
    return stopped.value.code


def run(*, only: list[str] | None = None, quick: bool = False, gate: BenchmarkPart | None = None) -> BenchmarkRun:
    return BenchmarkRun(Namespace(only=only, quick=quick, json=False), PARTS, gate)


# --- every benchmark ---


def test_there_are_benchmarks() -> None:
    assert {"attacks", "deploy", "dp", "fedcg", "memory"} <= set(NAMES) and "breaching_side" not in NAMES


def test_every_benchmark_has_the_flags_and_names_its_parts(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    assert called(benchmark, monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--json", "--quick", "--only NAME"))
    assert f"parts: {', '.join(benchmark.PARTS)}" in text


def test_an_unknown_part_is_refused_in_one_line(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(benchmark, monkeypatch, "--only", "nonsense") == 2
    text = capsys.readouterr()
    assert text.err == f"Expected --only among {', '.join(benchmark.PARTS)}, got nonsense.\n" and not text.out


def test_it_says_on_stderr_what_it_will_do_before_it_begins(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begin = BenchmarkRun.begin

    def stopping(self: BenchmarkRun, text: str) -> None:
        begin(self, text)
        raise Stopped

    monkeypatch.setattr(BenchmarkRun, "begin", stopping)
    monkeypatch.setenv("FLFW_DATA", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # attacks changes it
    monkeypatch.setattr(breaching_env, "required", lambda: tmp_path)
    if hasattr(benchmark, "pictures"):
        monkeypatch.setattr(benchmark, "pictures", lambda *_: (None, None, "as if they were there"))
    if benchmark in (flow_prior, hyperfl_upload, spear):
        monkeypatch.setattr(data, "load", lambda *_: None)
    others = {same_results: ["--against", str(ROOT)], gpu: ["--device", "cpu", "--out", str(tmp_path / "gpu.json")]}
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, "--quick", "--json", *others.get(benchmark, [])])
    with pytest.raises(Stopped):
        benchmark.main()
    text = capsys.readouterr()
    first, *plan, last = text.err.splitlines()
    assert not text.out and first.startswith("about ") and first.endswith(f"two cores of 2026 ({MARK}):")
    quick = [name for name, part in benchmark.PARTS.items() if part.quick]
    assert [line.split(":")[0] for line in plan if not line.startswith("first:")] == quick
    assert last.startswith("[0 s] ")


def test_a_quick_run_is_to_take_less_than_a_minute(benchmark: ModuleType) -> None:
    parts = [*benchmark.PARTS.values(), *([benchmark.GATE] if hasattr(benchmark, "GATE") else [])]
    assert 0 < sum(part.quick for part in parts) < 60
    assert all(part.seconds >= part.quick and part.description for part in parts)


@pytest.mark.parametrize("benchmark_name", ["attacks", "parity", "batch_parity"])
def test_without_the_other_framework_they_are_refused_in_one_line_and_install_nothing(
    benchmark_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(breaching_env, "_uv", lambda *_: pytest.fail("it installs"))
    named = {"attacks": attacks, "parity": parity, "batch_parity": batch_parity}
    assert called(named[benchmark_name], monkeypatch, "--quick") == 2
    text = capsys.readouterr()
    assert text.err.count("\n") == 1 and "python -m benchmarks.breaching_env" in text.err and not text.out
    assert not list(tmp_path.iterdir())


def test_figures_without_their_parts_are_left_out() -> None:
    row = {"round_s": 3.0, "besides_s": 2.0}
    assert deploy.compared({"fedcg": row}) == {}
    assert deploy.compared({"fedavg": row}) == {"met": True}
    both = deploy.compared({"fedavg": row, "stock": {"round_s": 9.0}, "floor": {"round_s": 1.0}})
    assert both == {"over_floor_s": {"fedavg": 2.0, "stock": 8.0, "floor": 0.0}, "stock_over_ours": 3.0, "met": True}
    assert attacks.compared(["bf16", "crossover"]) == {} and set(attacks.compared(["psnr"])) == {"lenet_8"}
    assert attacks.lines({"bf16": {"lenet": 1.0}}) == ["bf16: {'lenet': 1.0}"]


# --- what they share ---


def test_parts_come_in_the_benchmark_s_order_and_each_begins_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = run(only=["c", "a", "c"], gate=BenchmarkPart("both sides compared", 20, 2))
    chosen.begin_gate()
    assert list(chosen.parts("b", "a")) == ["a"] and list(chosen.parts("c")) == ["c"] and chosen.names == ["a", "c"]
    text = capsys.readouterr()
    assert not text.out and text.err.splitlines() == [
        "about 80 s on two cores of 2026:",
        "first: both sides compared, about 20 s",
        "a: the first, about 50 s",
        "c: the third, about 10 s",
        "[0 s] both sides compared",
        "[0 s] a: the first",
        "[0 s] c: the third",
    ]


def test_long_times_are_in_minutes() -> None:
    assert run().plan()[0] == "about 3 min on two cores of 2026:"


def test_quick_leaves_long_parts_out_unless_they_are_named() -> None:
    assert run(quick=True).names == ["a", "c"] and run(quick=True, only=["b"]).names == ["b"]
    assert run(quick=True).amount(9, 1) == 1 and run().amount(9, 1) == 9 and run(quick=True).amount(9, 1, 0) == 0


def test_the_report_s_last_line_is_json_that_says_what_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    run(quick=True).report({"figure": 1}, ["a line", "another"])
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == [f"a line  ({MARK})", f"another  ({MARK})"]
    report = json.loads(last)
    assert report["figure"] == 1 and report["quick"] is True and report["only"] == ["a", "c"]
    run(only=["a", "b", "c"]).report({}, [])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["only"] == ["a", "b", "c"]
    whole = run()
    whole.report({}, ["a line"])
    *lines, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert lines == ["a line"] and report["quick"] is False and "only" not in report
    whole.asked.json = True
    whole.report({}, ["a line"])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_refusal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        output.refuse("Expected 1, got 2.")
    assert stopped.value.code == 2 and capsys.readouterr().err == "Expected 1, got 2.\n"
