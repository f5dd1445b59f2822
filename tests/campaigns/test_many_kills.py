"""The benchmark of many kills in one run: it counts what it killed, and every run ends as in process."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.many_kills import KilledRuns
from tests.campaigns.ray_nodes import RayNodes


def test_only_what_is_there_is_killed_and_counted(tmp_path: Path) -> None:
    """Without a node there is nothing but the program, whatever is drawn."""
    runs = KilledRuns("", RayNodes(tmp_path, []), tmp_path, random.Random(1), 1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        draws = 0
        while not runs.series.kills:
            assert program.poll() is None
            runs._kill(program.pid)
            draws += 1
        assert program.wait(20) == -signal.SIGKILL
    assert runs.series.row()["kills"] == {"sim.py": 1} and draws > 1


@pytest.mark.nightly
@pytest.mark.early
@pytest.mark.timeout(1800)
def test_runs_on_a_cluster_end_as_in_process_whatever_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.many_kills", "--json", "--kills", "4", "--only", "sums"],
        capture_output=True,
        text=True,
        check=False,
    )
    row = json.loads(done.stdout)["many_kills"]["sums"]
    assert done.returncode == 0 and row["equal"] >= 1 and sum(row["kills"].values()) >= 4, done.stderr
