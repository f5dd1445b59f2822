"""Gathering of evidence: runs that are cut and go on, many processes, and the code of a commit in its own worktree."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from flfw.engines.federation import Checkpoints
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.files.sealed import seal, sealed
from flfw.papers import published
from flfw.papers.evidence.records import FOLDER, digest, read
from flfw.papers.preset import Preset, ResultMetric
from flfw.runs import provenance
from flfw.server.checkpoint import locked
from research.evidence import __main__ as command
from research.evidence import gather as gathering
from research.evidence import landed
from research.evidence.gather import Gathering, TimeOver, gather
from research.evidence.items import Item, items
from tests.support.paths import ROOT

ROUNDS = 3


def tiny(seed: int) -> Item:
    """An item of some seconds: two clients on the digits."""
    (cell,) = published.table("hyperfl.1").select("hyperfl.1/FedAvg/Fashion-MNIST/20")
    run = Experiment(
        method="fedavg", net="linear", clients=2, rounds=ROUNDS, local_epochs=1, attack=("none",), seed=seed
    )
    return Item(cell, "authors", seed, 0, Preset(((run,),), ResultMetric("final.acc_global", "accuracy")))


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gathering:
    """Limits of a list of one tiny item."""
    monkeypatch.setattr(gathering, "items", lambda only: iter([tiny(0)]))
    monkeypatch.setattr(os, "nice", lambda more: more)  # of this process, which other tests need
    return Gathering(5, runs=tmp_path / "runs", folder=tmp_path / "records")


def signalled_after(number: int, done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a signal come once, when the checkpoint of a round has been written."""
    whole = Checkpoints.save

    def save(self: Checkpoints, snapshot: object, rows: object) -> None:
        whole(self, snapshot, rows)  # type: ignore[arg-type]
        if snapshot.round == done:  # type: ignore[attr-defined]
            monkeypatch.setattr(Checkpoints, "save", whole)
            signal.raise_signal(number)

    monkeypatch.setattr(Checkpoints, "save", save)


# --- one run ---


@pytest.mark.slow
def test_at_the_end_of_the_time_a_run_stops_and_the_next_call_goes_on_with_it(
    limits: Gathering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signalled_after(signal.SIGALRM, 1, monkeypatch)
    before = signal.getsignal(signal.SIGALRM)
    with monkeypatch.context() as earlier:
        earlier.setattr(provenance, "code_hash", lambda: "code of an earlier commit")
        assert gather(limits) == 0 and read(limits.folder) == []
    assert signal.getsignal(signal.SIGALRM) is before
    assert "interrupted, goes on at the next call" in capsys.readouterr().err
    assert gather(limits) == 1
    assert "begun anew" not in capsys.readouterr().err
    (run,) = (limits.runs / "cells").iterdir()
    result = json.loads((run / "result.json").read_text())
    assert [one["after_round"] for one in result["provenance"]["resumed"]] == [1]
    assert gather(limits) == 0  # nothing is left to do
    (record,) = read(limits.folder)
    assert record.code == ("code of an earlier commit", code_hash())
    at_once = replace(limits, runs=tmp_path / "others", folder=tmp_path / "at once")
    assert gather(at_once) == 1
    assert [one.value for one in read(at_once.folder)] == [record.value] and 0 < float(record.value) <= 100


def test_the_alarm_comes_at_the_end_of_the_time_and_leaves_others_timers() -> None:
    signal.setitimer(signal.ITIMER_REAL, 200.0)
    began = time.monotonic()
    with pytest.raises(TimeOver), gathering._until(began + 0.05):
        while time.monotonic() < began + 100:
            pass
    assert time.monotonic() < began + 100
    assert 100 < signal.setitimer(signal.ITIMER_REAL, 0.0)[0] <= 200


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_ends_the_command_in_one_line(
    number: str, code: int, word: str, limits: Gathering, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    signalled_after(signal.Signals[number], 1, monkeypatch)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        assert command.main(["--runs", str(limits.runs), "--folder", str(limits.folder)]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    error = capsys.readouterr().err
    assert error.endswith(f"next call\npython -m research.evidence: {word}\n") and "Traceback" not in error
    assert gather(limits) == 1  # nothing was damaged


def test_a_slow_machine_ends_no_run(limits: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    hours_later = SimpleNamespace(time=lambda: time.time() + 7200)  # when a client has computed its answer
    monkeypatch.setattr("flfw.messages.inprocess.time", hours_later)
    assert gather(replace(limits, minutes=1)) == 1


@pytest.mark.slow
def test_a_cut_run_of_other_settings_names_is_begun_anew(
    limits: Gathering, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signalled_after(signal.SIGALRM, 1, monkeypatch)
    gather(limits)
    (run,) = (limits.runs / "cells").iterdir()
    ((_, path),) = sealed(run / "checkpoint", "experiment")
    stored = json.loads(path.read_text())
    stored["experiment"]["rounds-of-old"] = stored["experiment"].pop("rounds")
    path.unlink()
    seal(path.parent, "experiment", ".json", json.dumps(stored).encode())
    assert gather(limits) == 1 and "begun anew: Expected the settings of this version" in capsys.readouterr().err


# --- several ---


def test_what_another_process_measures_is_left_to_it(limits: Gathering) -> None:
    limits.runs.mkdir()
    with locked(limits.runs / f".{digest(tiny(0).run)}.lock"):
        assert gather(limits) == 0
    assert not (limits.runs / "cells").exists()


def test_a_run_that_breaks_does_not_end_the_list(
    limits: Gathering, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []

    def measure(item: Item, given: Gathering, ends: float) -> bool:
        begun.append(item.seed)
        if item.seed == 0:
            raise RuntimeError("no memory")
        return True

    monkeypatch.setattr(gathering, "items", lambda only: map(tiny, range(2)))
    monkeypatch.setattr(gathering, "measure", measure)
    assert gather(limits) == 1 and begun == [0, 1]
    assert "RuntimeError: no memory" in capsys.readouterr().err


def test_records_of_the_landed_code_count_as_well(limits: Gathering, tmp_path: Path) -> None:
    assert gather(limits) == 1
    other = replace(limits, folder=tmp_path / "migrated", known=limits.folder)
    assert gather(other) == 0 and gather(replace(other, known=None)) == 1


@pytest.mark.nightly  # two processes that import all
def test_two_cores_measure_two_cells_each_in_its_process(tmp_path: Path) -> None:
    for one in read(FOLDER):
        if one.cell == "fed_cdp.5/Cancer/0.5/accuracy" and one.seed:
            one.write(tmp_path / "records")
    folders = ["--runs", str(tmp_path / "runs"), "--folder", str(tmp_path / "records")]
    words = [sys.executable, "-m", "research.evidence", "--only", "fed_cdp.5/Cancer/0.5", "--cores", "2", *folders]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    events = [line.partition(": ")[2] for line in done.stderr.splitlines() if "accuracy" in line]
    events = [line.partition(" after")[0] for line in events if not line[0].isdigit()]
    assert events == ["begins", "begins", "recorded", "recorded"] and len(read(tmp_path / "records")) == 6


@pytest.mark.nightly  # a full run, twice begun
def test_a_cell_at_full_scale_is_cut_by_the_clock_and_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "items", lambda only: islice(items(only), 1))  # of several seeds
    limits = Gathering(0.05, runs=tmp_path / "runs", folder=tmp_path / "records", only="fed_cdp.5/Cancer/0.5")
    assert gather(limits) == 0
    assert gather(replace(limits, minutes=8)) == 1 and gather(replace(limits, minutes=8)) == 0
    (first,) = read(limits.folder)
    assert first.cell == "fed_cdp.5/Cancer/0.5/accuracy" and 0 < float(first.value) <= 1
    assert first.settings["rounds"] == 3


# --- the code of a commit ---


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """Git in a small repository with two commits, of which the first has the branch ``first``."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*text: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *who, "-C", str(folder), *text], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (folder / "code.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    git("branch", "first")
    (folder / "code.py").write_text("2\n")
    git("commit", "-qam", "two")
    return git


def test_a_commits_code_lies_in_a_worktree_that_is_used_again(git: Callable[..., str], tmp_path: Path) -> None:
    checkout, place = tmp_path / "checkout", tmp_path / "place"
    (checkout / "code.py").write_text("being changed\n")
    code = landed.worktree("main", checkout, place)
    assert code == place / git("rev-parse", "main") and (code / "code.py").read_text() == "2\n"
    made = (code / "code.py").stat().st_ino
    assert landed.worktree("HEAD", checkout, place) == code and (code / "code.py").stat().st_ino == made
    assert landed.worktree("first", checkout, place) == place / git("rev-parse", "first")
    assert (code / "code.py").exists()  # this process uses it
    assert (checkout / "code.py").read_text() == "being changed\n"


def test_worktrees_that_no_process_uses_are_removed(git: Callable[..., str], tmp_path: Path) -> None:
    checkout, place = tmp_path / "checkout", tmp_path / "place"
    (place / "runs").mkdir(parents=True)
    other = "from pathlib import Path; from research.evidence.landed import worktree; worktree('first', *map(Path, %r))"
    subprocess.run([sys.executable, "-c", other % [str(checkout), str(place)]], cwd=ROOT, check=True)
    first = place / git("rev-parse", "first")
    assert first.exists()
    assert landed.worktree("main", checkout, place).exists() and not first.exists() and (place / "runs").exists()


def test_unknown_commits_and_changed_worktrees_are_refused(git: Callable[..., str], tmp_path: Path) -> None:
    checkout, place = tmp_path / "checkout", tmp_path / "place"
    for commit in ("nobody", "--help"):
        with pytest.raises(InputError, match=f"Expected a commit of .*, got COMMIT={commit}; give a branch"):
            landed.worktree(commit, checkout, place)
    code = landed.worktree("main", checkout, place)
    (code / "code.py").write_text("3\n")
    with pytest.raises(InputError, match=r"Expected the files of commit .*, got others; remove that folder"):
        landed.worktree("main", checkout, place)
    (code / "code.py").write_text("2\n")
    (code / "more.py").write_text("")
    with pytest.raises(InputError, match="got others"):
        landed.worktree("main", checkout, place)
    other = place / git("rev-parse", "first")
    other.mkdir()  # it is in the way
    with pytest.raises(InputError, match="got others"):
        landed.worktree("first", checkout, place)


def test_the_worktrees_code_comes_before_the_checkouts(tmp_path: Path) -> None:
    code = tmp_path / "code"
    for package in ("flfw", "papers"):
        (code / package).mkdir(parents=True)
        (code / package / "__init__.py").touch()
    words = [sys.executable, "-c", "import os, flfw, papers; print(flfw.__file__, papers.__file__, os.environ['X'])"]
    given = {**os.environ, "X": "kept", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=landed.environment(code, given), capture_output=True, text=True)
    assert done.stdout.split() == [str(code / "flfw/__init__.py"), str(code / "papers/__init__.py"), "kept"], (
        done.stderr
    )
    assert landed.environment(code, {})["OMP_NUM_THREADS"] == "1"


def test_other_code_than_the_worktrees_is_refused(
    limits: Gathering, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ["--runs", str(limits.runs), "--folder", str(limits.folder)]
    assert command.main(["--code", str(tmp_path), *folders]) == 2
    assert not limits.runs.exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"Expected the code of {tmp_path}, got flfw={ROOT}" in error


@pytest.mark.nightly  # a clone of the whole checkout
def test_a_broken_checkout_does_not_matter(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--local", str(ROOT), str(clone)], check=True, capture_output=True)
    (clone / "papers" / "evidence" / "gather.py").write_text("half a li")
    (clone / "papers" / "evidence" / "fed_cdp.5" / "Cancer.0.accuracy.ours.seed0.json").unlink()
    environment = {**os.environ, "PYTHONPATH": str(clone), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ["-m", "research.evidence.landed", "HEAD", "--only", "fed_cdp.5/Cancer/0/", "--list"]
    done = subprocess.run([sys.executable, *words], cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("recorded") for line in lines) == 5  # of the checkout's records
    assert [line.split()[-4:] for line in lines if line.startswith("missing")] == [
        ["fed_cdp.5/Cancer/0/accuracy", "ours", "seed", "0"]
    ]
