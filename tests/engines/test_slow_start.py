"""Ray's start on a busy machine: it is tried once more, in one line, and no third time."""

import signal
import subprocess
from collections.abc import Callable

import pytest
from ray._private import services

from flfw.client.site import Site
from flfw.engines import ray_start
from flfw.errors import RunError
from flfw.experiment import Experiment

LINE = "flfw: Ray timed out during its start; it is started once more.\n"
SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


def failing(times: int, error: Exception) -> tuple[Callable[..., None], list[int]]:
    """A start that fails so often, and how often it was tried."""
    tries: list[int] = []

    def start(**_: object) -> None:
        tries.append(1)
        if len(tries) <= times:
            raise error

    return start, tries


@pytest.mark.parametrize(
    ("times", "error", "tried", "failed"),
    [(1, Exception(SLOW), 2, False), (2, Exception(SLOW), 2, True), (1, RuntimeError("no room"), 1, True)],
)
def test_a_start_that_timed_out_is_tried_once_more(
    times: int,
    error: Exception,
    tried: int,
    failed: bool,
    small: Experiment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start, tries = failing(times, error)
    monkeypatch.setattr("ray.init", start)
    if failed:
        with pytest.raises(RunError, match=r"^Ray did not start: .*; try --engine inproc\.$"), enter(small):
            pass
    else:
        with enter(small):
            pass
    assert len(tries) == tried
    assert capsys.readouterr().err == (LINE if tried == 2 else "")


@pytest.mark.slow
def test_the_second_try_looks_longer_for_its_node(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own limit is fixed in its code: a look-up that fails when it is over ends the start."""
    lookups: list[int] = []

    def get_node(*_: object) -> dict:
        lookups.append(1)
        if len(lookups) < 4:
            raise RuntimeError("not there yet")
        return {"labels": {}}

    def start(**_: object) -> None:
        try:
            services.get_node("address", "node")
        except RuntimeError as error:
            raise Exception(SLOW) from error

    monkeypatch.setattr("ray.init", start)
    monkeypatch.setattr(services, "get_node", get_node)
    with enter(small):
        pass
    assert len(lookups) == 4
    assert services.get_node is get_node, "later starts are as before"


def test_what_a_start_that_failed_has_started_is_ended(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = subprocess.Popen(["sleep", "600"])
    started: list[subprocess.Popen[bytes]] = []

    def start(**_: object) -> None:
        started.append(subprocess.Popen(["sleep", "600"]))
        if len(started) == 1:
            raise Exception(SLOW)

    monkeypatch.setattr("ray.init", start)
    try:
        with enter(small):
            assert started[0].wait(20) == -signal.SIGKILL
            assert (started[1].poll(), earlier.poll()) == (None, None)
    finally:
        for process in (earlier, *started):
            process.kill()
            process.wait()


def enter(experiment: Experiment):
    return ray_start.started(experiment.ray_address, Site(), lambda: 1000)
