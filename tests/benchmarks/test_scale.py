"""What the benchmark of messages compares before any time counts."""

import math
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.scale import apart
from benchmarks.scale_apps import MARKS, dense
from flfw import nets


def test_aggregates_differ_by_their_largest_difference() -> None:
    one = {"w": np.array([1.0, 4.0]), "b": np.array([0.5])}
    assert apart(one, {"w": np.array([1.0, 4.0]), "b": np.array([0.5])}) == 0
    assert apart(one, {"w": np.array([1.0, 3.0]), "b": np.array([0.5])}) == 0.25  # of the largest number
    assert apart(one, {"w": np.array([1.0, 4.0]), "b": np.array([0.75])}) == 0.25  # of 1 at least
    assert math.isinf(apart(one, {"w": one["w"]}))
    assert math.isinf(apart(one, {**one, "b": np.array([0.5, 0.5])}))


def test_networks_are_of_the_sizes_that_are_said() -> None:
    assert abs(nets.numel(dense((1, 28, 28), 10, 117_000).state_dict()) - 117_000) < 800
    assert abs(nets.numel(dense((1, 28, 28), 10, 14_900_000).state_dict()) - 14_900_000) < 800


@pytest.mark.slow
def test_the_processors_seconds_of_other_processes_are_counted() -> None:
    work = (
        "import time\nend = time.process_time() + .3\nwhile time.process_time() < end: pass\nprint(flush=True)\ninput()"
    )
    MARKS.seconds.clear()
    MARKS.note()
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        MARKS.note()
        other.communicate(b"\n")
    before, after = MARKS.seconds
    assert 0.25 < after - before < 3
