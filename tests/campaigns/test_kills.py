"""The benchmark of killed processes: it finds the process it is to kill, and says which run differs or does not end."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.process_family import command_line, descendants, marked
from flfw.deploy.__main__ import main as deploy
from flfw.engines.layout import FederationLayout
from tests.campaigns import kills
from tests.campaigns.kills import Runs

CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_processes_are_found_below_the_one_that_started_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLFW_KILLS", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as started:
        try:
            while not (below := descendants(started.pid)):
                pass
            assert len(below) == 1 and started.pid in descendants(os.getpid()) and below[0] in descendants(os.getpid())
            assert {started.pid, *below} <= set(marked("FLFW_KILLS", str(tmp_path)))
            assert "-c" in command_line(started.pid)
        finally:
            started.communicate(b"\n")
    assert not descendants(started.pid) and not marked("FLFW_KILLS", str(tmp_path)) and not command_line(started.pid)


def result(folder: Path, loss: float) -> Path:
    """A run's numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Any] = {"rounds": [{"round": 1, "loss": loss, "seconds": random.random()}], "final": {}}
    attack = {"attack": "ig", "round": 0, "failures": 0, "attempts": random.randrange(9)}
    parts |= {"privacy": [], "audit": [attack], "notes": [], "config": {}}
    (folder / "result.json").write_text(json.dumps(parts))
    return folder


class Rehearsed:
    """Runs that end as they are told to: with a loss, or with an error."""

    def __init__(self, folder: Path, ends: list[float | Exception]) -> None:
        self.folder, self.ends, self.over = folder, ends, 0

    def whole(self) -> tuple[Path, float]:
        return result(self.folder / "whole", 0.5), 2.0

    def killed(self, out: Path, moment: float) -> bool:
        assert moment <= 2.0
        out.mkdir()
        self.over += 1
        return self.over > 1  # the first was over before

    def clear(self) -> int:
        return 0

    def finished(self, out: Path) -> str:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        result(out, end)
        return "resumed"


def test_a_run_that_differs_or_does_not_end_is_said(tmp_path: Path) -> None:
    rehearsed = Rehearsed(tmp_path, [0.5, 0.5000001, RuntimeError("it hangs"), 0.5])
    tally = kills.kills(cast(Runs, rehearsed), 4, random.Random(0))
    assert tally.equal == 2 and tally.ends == {"resumed": 3, "did not end": 1}
    differs, hangs = tally.bad
    assert differs.startswith("kill 1 at ") and differs.endswith("/result.json/rounds[0]/loss: 0.5 and 0.5000001")
    assert hangs.startswith("kill 2 at ") and hangs.endswith(": it hangs")
    assert tally.row()["moments"] == 4


@pytest.mark.slow
def test_a_run_that_fails_before_the_kill_is_no_run_that_was_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(kills.VICTIMS["attack_server"], tmp_path / "runs", None)
    monkeypatch.setattr(runs, "flags", lambda out: ["--nonsense"])
    with pytest.raises(RuntimeError, match=r"failed before the kill: sim\.py: .*--nonsense"):
        runs.killed(tmp_path / "out", 0.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_nothing_is_killed_where_the_federation_is_not_at_work(tmp_path: Path) -> None:
    """The descendants of no process are all of this machine."""
    deploy(["init", str(tmp_path / "fed")])
    runs = Runs(kills.VICTIMS["server_app"], tmp_path / "runs", FederationLayout.read(tmp_path / "fed"))
    assert runs._find(0) is None


@pytest.mark.nightly
def test_the_attack_servers_process_is_killed_and_the_run_ends_as_without(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.kills", "--json", "--moments", "2", "--only", "attack_server"],
        capture_output=True,
        text=True,
        check=False,
    )
    row = json.loads(done.stdout)["kills"]["attack_server"]
    assert done.returncode == 0 and row["equal"] == 2 and row["left"] == 0, done.stderr
