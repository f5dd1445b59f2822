"""Command lines and names of today: each is taken, or refused in one line that names the new spelling."""

import re
import shlex
from pathlib import Path

import pytest

import sim
from flfw.errors import InputError
from tests.readable.outside import HERE, WARNINGS, require_one_line, simulation

pytestmark = WARNINGS

LINES = [line for line in (HERE / "command_lines.txt").read_text().splitlines() if not line.startswith("#")]
NAMES = [name for line in (HERE / "names.txt").read_text().splitlines() if line[0] != "#" for name in line.split()]


def words(line: str) -> list[str]:
    python, program, *rest = shlex.split(line.removeprefix("! "))
    assert (python, program) == ("python", "sim.py")
    return rest


def flags(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]*", text))


def require_new_spelling(refusal: str, old: str, known: set[str]) -> None:
    """Fail unless a refusal is one line with a flag that there is, and that the old line does not have."""
    require_one_line(refusal)
    assert (flags(refusal) - flags(old)) & known, f"{old}: {refusal}"


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_today_is_parsed(line: str) -> None:
    try:
        sim.parse(words(line))
    except InputError as refusal:
        require_new_spelling(str(refusal), line, flags(simulation("--help").out))


def test_a_refusal_without_the_new_spelling_is_none() -> None:
    known = {"--rounds", "--help"}
    require_new_spelling("Expected --rounds, got --epochs; it has another name.", "sim.py --epochs 3", known)
    for wrong in ("Unrecognized options: --epochs", "Expected --round, got --epochs", "two\nlines --rounds"):
        with pytest.raises(AssertionError):
            require_new_spelling(wrong, "sim.py --epochs 3", known)
    with pytest.raises(InputError):
        sim.parse(["--epochs", "3"])


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("! ")])
def test_its_names_and_settings_are_known(line: str, tmp_path: Path) -> None:
    """They are looked up before the folder of the run is, which is refused here: nothing starts."""
    ended = simulation(*words(line), "--engine", "inproc", "--out", tmp_path)
    if "--out" not in ended.err:
        require_new_spelling(ended.err.rstrip("\n"), line, flags(simulation("--help").out))
    ended.require_refused()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_there_is_not_would_be_seen(tmp_path: Path) -> None:
    for wrong in ("--method fedavgg", "--attack igg", "--set ig.iteration=3", "--defence pruning", "--net lenett"):
        ended = simulation(*wrong.split(), "--engine", "inproc", "--out", tmp_path)
        ended.require_refused()
        assert "--out" not in ended.err


def test_what_could_be_listed_can_be_listed() -> None:
    """A name that is gone is refused with the names that there are."""
    assert len(NAMES) == 103
    renamed = {"drawn": "sampled_on_demand", "everything": "full_copy", "whole": "dataset_per_client"}
    simulation("--list", *dict.fromkeys(name for name in NAMES if name not in renamed)).require_done()
    for name in renamed.keys() & {*NAMES}:
        ended = simulation("--list", name)
        ended.require_refused()
        assert f"Expected {renamed[name]}, as it is called now; got --list {name}." in ended.err
