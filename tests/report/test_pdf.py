"""The PDF of a page: printed by a real browser, or refused in one line before a run starts."""

import re
import shutil
from pathlib import Path

import pytest

import sim
from flfw.errors import RunError
from flfw.report import pdf
from flfw.report.pdf import write_pdfs
from flfw.report.report import write_report
from tests.support.reported_runs import a_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
printed = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: nothing prints")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a browser."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pdf, "_PLACES", (str(tmp_path / "chrome.exe"),))
    return tmp_path


@pytest.mark.slow
@printed
def test_pages_of_finished_runs_and_of_a_matrix_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders, matrix = [a_run(tmp_path / "a b"), a_run(tmp_path / "none", attacks=())], tmp_path / "matrix"
    for folder in folders:
        write_report(folder)
    matrix.mkdir()
    (matrix / "matrix.html").write_text("<!doctype html><title>x</title><p>Two methods.")
    assert sim.main(["--pdf", *map(str, folders), str(matrix)]) == 0
    made = [*(str(folder / "report.pdf") for folder in folders), str(matrix / "matrix.pdf")]
    assert capsys.readouterr().out.splitlines() == made
    assert (matrix / "matrix.pdf").read_bytes().startswith(b"%PDF")
    for folder in folders:
        content = (folder / "report.pdf").read_bytes()
        assert content.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", content)) >= 3
        assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pdf", "{missing}"], "Expected a folder with report.html or matrix.html behind --pdf, got {missing}."),
        (
            ["--pdf", "--matrix", "methods=a,b"],
            "Expected --pdf with one run, got it with --matrix or --seeds; print each",
        ),
        (["--pdf", "--table", "hyperfl.1"], "Expected --pdf with one run, got it with --table or --cell; print each"),
        (["--pdf", "{missing}", "--estimate"], "got --estimate and --pdf FOLDER; each does a thing of its own."),
    ],
)
def test_what_cannot_be_printed_is_refused(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "missing"
    assert sim.main([word.format(missing=here) for word in arguments]) == 2
    captured = capsys.readouterr().err
    assert message.format(missing=here) in captured and captured.count("\n") == 1


def test_without_a_browser_no_run_starts(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = nowhere / "run"
    assert sim.main(["--pdf", "--rounds", "1", "--attack", "none", "--engine", "inproc", "--out", str(out)]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("sim.py: Expected a Chromium, Chrome or Edge for --pdf, got none on PATH; install one,")
    assert captured.count("\n") == 1 and not out.exists()


def test_a_browser_that_prints_nothing_is_a_failure_with_its_last_words(nowhere: Path) -> None:
    program = nowhere / "chrome.exe"
    program.write_text("#!/bin/sh\necho first >&2\necho no fonts >&2\nexit 3\n")
    program.chmod(0o755)
    write_report(a_run(nowhere / "run"))
    with pytest.raises(RunError, match=r"printed no PDF of .*report\.html: no fonts; open the page"):
        write_pdfs([nowhere / "run"])
    assert not (nowhere / "run" / "report.pdf").exists()


@pytest.mark.slow
@printed
def test_a_run_ends_with_its_pdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--method", "fedavg", "--rounds", "1", "--clients", "2", "--local-epochs", "1", "--attack", "none"]
    assert sim.main([*arguments, "--engine", "inproc", "--out", str(tmp_path / "run"), "--pdf"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        str(tmp_path / "run" / f"report.{end}") for end in ("html", "pdf")
    ]
    assert (tmp_path / "run" / "report.pdf").read_bytes().startswith(b"%PDF")
