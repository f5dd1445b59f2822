"""Help: in groups that have every flag once, for 80 columns, with examples that are right."""

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from flfw.command import help as pages
from flfw.command.arguments import parse
from flfw.command.flags import GROUPS, TASKS, flags, grouped
from flfw.command.program import main
from flfw.command.subcommands import SUBCOMMANDS, translated
from flfw.files.exit_code import exit_code
from tests.support.paths import ROOT


def printed(capsys: pytest.CaptureFixture[str], *text: str) -> str:
    assert main(text) == 0
    return capsys.readouterr().out


def test_each_flag_is_in_one_group_or_a_task() -> None:
    times = Counter(flag.name for _, common, others in grouped() for flag in [*common, *others])
    assert {name for name in flags() if name not in TASKS} == {name for name in times if name not in TASKS}
    assert set(times.values()) == {1} and all(flag.words for flag in flags().values())


@pytest.mark.slow
def test_flags_are_those_that_the_parser_takes() -> None:
    whole = pages.of_subcommand("run", SUBCOMMANDS["run"], ["--help-all"], "flfw run")
    for name, flag in flags().items():
        assert f"--{name}" in whole
        value = {"": [], "KEY=VALUE": ["ema=0.5"], "INT": ["7"], "FLOAT": ["0.5"], "WORD": ["w"], "PATH": ["p"]}.get(
            flag.form
        )
        line = [f"--{name}", *([flag.choices[0]] if value is None else value)]
        try:
            parse(line)
        except ValueError as error:  # refused by its value, not as unknown
            assert "Unrecognized" not in str(error) and "Error parsing" not in str(error)


@pytest.mark.parametrize("name", SUBCOMMANDS)
@pytest.mark.parametrize("requested", ["--help", "--help-all"])
def test_a_page_fits_80_columns(name: str, requested: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, name, requested)
    assert max(map(len, text.splitlines())) <= 80 and text.startswith(f"usage: flfw {name}")
    assert "example: " in text


def test_the_short_page_is_shorter_than_the_long_one_and_begins_with_what_to_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short, whole = printed(capsys, "run", "--help"), printed(capsys, "run", "--help-all")
    assert len(short.splitlines()) < 0.8 * len(whole.splitlines())
    titles = [line.removesuffix(":") for line in short.splitlines() if line[:1].isupper() and line.endswith(":")]
    assert titles[: len(GROUPS)] == [group.title for group in GROUPS]
    assert short.index("--method") < short.index("--rounds") < short.index("--dataset") < short.index("--attack ")


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.title)
def test_the_example_of_a_group_is_a_right_command_line(group) -> None:
    parse(shlex.split(group.example.partition("    ")[0]))


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_example_of_a_subcommand_is_a_right_command_line(name: str) -> None:
    one = SUBCOMMANDS[name]
    words = translated(name, shlex.split(one.example))
    assert parse(words) and words[:1] == ([f"--{one.flag}"] if one.flag else ["--method"])


def test_a_table_without_a_name_starts_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == main(["table", "--scale", "quick"]) == 2
    assert "Expected flfw table TABLE or flfw table --cell CELL, got neither" in capsys.readouterr().err


@pytest.mark.parametrize("requested", ["--help", "--help-all"])
def test_a_rehearsal_has_flags_of_its_own_and_begins_with_other_values(
    requested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "rehearse", requested)
    assert max(map(len, text.splitlines())) <= 80 and text.startswith("usage: flfw rehearse")
    assert "--max-steps INT" in text and "--policy PATH" in text
    assert "  --clients INT           Clients in all. [1]" in text
    assert "  --clients INT           Clients in all. [10]" in printed(capsys, "run", requested)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["sim.py", "--help-all"], ["-m", "flfw", "list", "fedavg"]])
def test_whoever_stops_reading_sees_no_traceback(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 128 + signal.SIGPIPE)
    process.stderr.close()


def test_output_that_nobody_reads_is_dropped_without_another_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        before = set(Path("/proc/self/fd").iterdir())
        assert exit_code("flfw", lambda: print("words") or 0) == 128 + signal.SIGPIPE
        assert set(Path("/proc/self/fd").iterdir()) == before
        monkeypatch.undo()
