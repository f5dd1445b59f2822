"""Command lines and their ends: each right one ends with 0, each wrong one with 2 and one line, and writes nothing."""

import importlib
import inspect
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sim
from tests.support import command_lines
from tests.support.command_lines import CommandLine
from tests.support.paths import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

MOST_S = 10.0  # of the processor: other programs may be at work
ALL = list(command_lines.rows())


def named(row: CommandLine) -> str:
    return f"{row.program} {row.line}"


def programs(*, slow: bool) -> list[Any]:
    """The programs with rows that take long, or with others."""
    names = dict.fromkeys(row.program for row in ALL if ("*" in row.marks) == slow)
    return [pytest.param(name, slow, id=name, marks=[pytest.mark.slow] if slow else []) for name in names]


PROCESSES = [
    pytest.param(row, id=named(row), marks=[] if "P" in row.marks else [pytest.mark.nightly])
    for row in ALL
    if "p" in row.marks.lower()
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return command_lines.places(tmp_path_factory.mktemp("places"))


@pytest.fixture
def places(made: dict[str, str]) -> Iterator[dict[str, str]]:
    """The places, where no program finds the run of another: each test may run alone or in another order."""
    yield made
    shutil.rmtree(Path(made["out"]).parent, ignore_errors=True)


def files(places: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Each file and folder below the places with its size and time; locks, which hold nothing, are left out."""
    stats = {entry.path: entry.stat(follow_symlinks=False) for entry in below(str(Path(places["here"]).parent))}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items() if path != places["here"]}


def below(folder: str) -> Iterator[os.DirEntry[str]]:
    """All but locks; paths of their own for the hundreds of entries would take longer than most rows."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in (".run", ".server"):
                yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from below(entry.path)


def require_end(row: CommandLine, code: object, out: str, err: str, seconds: float, places: dict[str, str]) -> None:
    words = command_lines.filled(row.words, places)
    assert code == row.code, f"{code}: {err[-2000:]}"
    if code == 0:
        assert words in out and "Traceback" not in err
    else:
        assert words in err and err.count("\n") == 1 and err.endswith("\n"), err[-2000:]
        assert not out or row.program != "sim.py", out
    assert code == 0 or seconds < MOST_S


def test_the_table_is_long_and_says_nothing_twice() -> None:
    assert len({named(row) for row in ALL}) == len(ALL) >= 250
    assert len(PROCESSES) >= 20
    assert sum(row.code == 2 for row in ALL) >= 200 and all(row.words for row in ALL if row.code == 2)


@pytest.mark.parametrize(("program", "slow"), [*programs(slow=False), *programs(slow=True)])
def test_the_command_lines_of_a_program_end_as_they_should(
    program: str,
    slow: bool,
    places: dict[str, str],
    subtests: pytest.Subtests,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(places["here"])
    main: Any = sim.main if program == "sim.py" else main_of(program)
    before = files(places)
    for row in (row for row in ALL if row.program == program and ("*" in row.marks) == slow):
        if "a machine without a GPU" in row.words and torch.cuda.is_available():
            continue
        arguments = row.arguments(places)
        with subtests.test(named(row)), monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [program, *arguments])
            began = time.process_time()
            try:
                code = main(arguments) if inspect.signature(main).parameters else main()
            except SystemExit as end:  # help, or a benchmark
                code = end.code or 0
            seconds, printed = time.process_time() - began, capsys.readouterr()
            require_end(row, code, printed.out, printed.err, seconds, places)
            assert row.code == 0 or files(places) == before
        before = files(places) if row.code == 0 else before


def main_of(program: str) -> Any:
    name = f"{program}.__main__" if (ROOT / program.replace(".", "/")).is_dir() else program
    return importlib.import_module(name).main


@pytest.mark.parametrize("row", PROCESSES)
def test_a_process_of_its_own_ends_so_too(row: CommandLine, places: dict[str, str]) -> None:
    program = [str(ROOT / "sim.py")] if row.program == "sim.py" else ["-m", row.program]
    before, began = files(places), os.times()
    done = run([*program, *row.arguments(places)], places["here"])
    now = os.times()
    seconds = now.children_user + now.children_system - began.children_user - began.children_system
    require_end(row, done.returncode, done.stdout, done.stderr, seconds, places)
    assert row.code == 0 or files(places) == before


def run(words: list[str], folder: str, *before: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=99, check=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "words", "code", "line"),
    [
        ("size=64k", ["-m", "flfw.deploy", "init", "{disk}/fed", "--clients", "40"], 2, "(No space left on device)"),
        ("ro", ["-m", "flfw.deploy", "init", "{disk}/fed"], 2, "(Read-only file system)"),
        ("size=20k", ["sim.py", *command_lines.RUN, "--attack", "none", "--out", "{disk}/run"], 1, "No space left"),
        ("ro", ["sim.py", *command_lines.RUN, "--attack", "none", "--out", "{disk}/run"], 2, "(Read-only file system)"),
        (
            "ro",
            ["-m", "flfw.comparisons.figures.figures", "{run}", "--out", "{disk}/run"],
            2,
            "(Read-only file system)",
        ),
    ],
)
def test_a_full_or_read_only_disk_is_one_line(
    options: str, words: list[str], code: int, line: str, places: dict[str, str], tmp_path: Path
) -> None:
    """A disk in memory, seen by this process alone."""
    mounted = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o {options} none {tmp_path} && exec "$@"', "sh"]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    given = [command_lines.filled(word, {**places, "disk": str(tmp_path)}) for word in words]
    left = ["sh", "-c", f'"$@"; code=$?; ls {tmp_path}; exit $code', "sh"]
    done = run([str(ROOT / given[0]), *given[1:]] if given[0] == "sim.py" else given, places["here"], *mounted, *left)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert line in done.stderr.splitlines()[-1]
    assert code == 1 or done.stdout == ""  # nothing was left there


def test_words_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """As Python hands over a byte of a shell that is no UTF-8: no result.json could hold it."""
    assert sim.main(["--dataset", "\udcff"]) == 2
    assert capsys.readouterr().err == "sim.py: Expected words in UTF-8, got '\\udcff'; see sim.py --help\n"
