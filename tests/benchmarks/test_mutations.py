"""Changed inputs of every reader: a sample of the benchmark's cases, and that the benchmark sees what goes wrong."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks import mutations
from benchmarks.mutation_cases import CaseOutcome, Folder, Forbidden, Mutant, Subject, limited, plain, tried, unsealed
from benchmarks.mutation_operators import bytes_mutant, json_mutant, odd, tree_mutant
from flfw.errors import BadInput
from flfw.storage.sealed import read_checked, with_checksum, write_checked

EVERY = 1000


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, mutations.GroupTally]:
    scratch = tmp_path_factory.mktemp("mutations")
    shares = {name: max(4, round(EVERY * share)) for name, (_, _, share) in mutations._GROUPS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
        return {name: mutations.tally(name, number, 7, scratch) for name, number in shares.items()}


@pytest.mark.parametrize("name", mutations.PARTS)
def test_no_change_of_an_input_goes_unnoticed_or_uncaught(tallies: dict[str, mutations.GroupTally], name: str) -> None:
    counted = tallies[name]
    assert counted.is_sound, list(counted.faults.values())
    few = counted.outcomes.total() < 20
    assert few or (counted.outcomes[CaseOutcome.REFUSED] and counted.outcomes[CaseOutcome.HARMLESS])


def test_the_sample_has_a_thousand_cases_and_breaks_seals(tallies: dict[str, mutations.GroupTally]) -> None:
    assert sum(counted.outcomes.total() for counted in tallies.values()) >= EVERY * 0.99
    assert all(tallies[name].sealed for name in ("checkpoints", "chains", "queue", "recordings"))


def case(read: Callable[[], object], scratch: Path, *, sealed: bool = False, intact: str = "") -> CaseOutcome:
    subject = Subject("one", lambda rng: Mutant(read, sealed), intact, fits=lambda value: value != "bad")
    return tried(subject, Random(0), scratch).outcome


def fail(error: BaseException) -> object:
    raise error


def test_each_outcome_is_seen(tmp_path: Path) -> None:
    assert case(lambda: 1, tmp_path) is CaseOutcome.HARMLESS
    assert case(lambda: "bad", tmp_path) is CaseOutcome.SILENT
    assert case(lambda: 1, tmp_path, sealed=True, intact="1") is CaseOutcome.HARMLESS
    assert case(lambda: 2, tmp_path, sealed=True, intact="1") is CaseOutcome.SILENT
    assert case(lambda: fail(BadInput("one line")), tmp_path) is CaseOutcome.REFUSED
    assert case(lambda: fail(BadInput("")), tmp_path) is CaseOutcome.UNCAUGHT
    for error in (KeyError("x"), RecursionError(), SystemExit(3), AssertionError()):
        assert case(lambda error=error: fail(error), tmp_path) is CaseOutcome.UNCAUGHT


def test_network_memory_and_writes_elsewhere_are_seen(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    reads: list[Callable[[], object]] = [
        lambda: socket.create_connection(("127.0.0.1", 9), 1),
        lambda: (tmp_path / "out.txt").write_text("x"),
        lambda: len(np.ones(4 * 10**8)),
    ]
    with limited():
        for read in reads:
            assert case(read, tmp_path / "in") is CaseOutcome.UNCAUGHT
    assert case(lambda: (tmp_path / "in" / "a.txt").write_text("x"), tmp_path / "in") is CaseOutcome.HARMLESS
    assert not (tmp_path / "out.txt").exists() and issubclass(Forbidden, BaseException)


def test_a_reader_that_checks_no_sum_is_caught(tmp_path: Path) -> None:
    write_checked(tmp_path / "sum", b'{"a": 1}')
    folder = Folder(tmp_path / "f", {"sum": (tmp_path / "sum").read_bytes()})
    breaking = {"sum": lambda name, data, rng: ({name: json_mutant(data.partition(b"\n")[0], rng) + data[8:]}, True)}
    careful = folder.subject("careful", breaking, lambda p: read_checked(p / "sum"), refusals=(BadInput, OSError))
    careless = folder.subject("careless", breaking, lambda p: (p / "sum").read_bytes(), refusals=(OSError,))
    outcomes = {
        subject.name: {tried(subject, Random(n), tmp_path).outcome for n in range(40)}
        for subject in (careful, careless)
    }
    assert CaseOutcome.SILENT not in outcomes["careful"] and CaseOutcome.SILENT in outcomes["careless"]
    assert with_checksum(b"") in (tmp_path / "sum").read_bytes() or plain({"a": (1, None)}) == "{'a': (1, None)}"


def test_the_same_seed_gives_the_same_change() -> None:
    tree = {"a": [1, 2.5, "x"], "b": {"c": None, "d": True}}
    for number in range(200):
        first, second = (repr(tree_mutant(tree, Random(number))) for _ in range(2))
        assert first == second
        assert bytes_mutant(b"abcdef", Random(number)) == bytes_mutant(b"abcdef", Random(number))
    assert len({repr(tree_mutant(tree, Random(n))) for n in range(200)}) > 100
    assert len({repr(odd(Random(n))) for n in range(200)}) > 40
    assert unsealed(bytes_mutant)("f", b"abc", Random(1))[1] is False


def test_a_fault_is_printed_once_with_its_flags_and_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(scratch: Path) -> list[Subject]:
        return [Subject("faulty", lambda rng: Mutant(lambda: fail(KeyError("x")) if rng.random() < 0.5 else 1))]

    monkeypatch.setattr(mutations, "_GROUPS", {"chains": (broken, "faulty", 1.0)})
    monkeypatch.setattr(mutations, "PARTS", {"chains": mutations.PARTS["chains"]})
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["mutations", "--number", "50", "--only", "chains"])
    with pytest.raises(SystemExit) as stopped:
        mutations.main()
    *text, last = capsys.readouterr().out.splitlines()
    (fault,) = [line for line in text if line.startswith("uncaught: ")]
    assert stopped.value.code == 1 and "KeyError at " in fault and "--only chains --seed 0 --case " in fault
    counts = json.loads(last)["mutations"]["chains"]
    assert counts["uncaught"] + counts["harmless"] == 50 and counts["uncaught"] > 10
    again = fault.partition(": --only ")[2].split(":")[0].split()
    monkeypatch.setattr(sys, "argv", ["mutations", "--only", *again])
    with pytest.raises(SystemExit):
        mutations.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mutations"]["chains"]["uncaught"] == 1
