"""Ray's start on a busy machine: it is tried once more, in one line, and no third time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flfw.client.site import Site
from flfw.engines import machine
from flfw.errors import RunFailed
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
        with pytest.raises(RunFailed, match=r"^Ray did not start: .*; try --engine inproc\.$"), enter(small):
            pass
    else:
        with enter(small):
            pass
    assert len(tries) == tried
    assert capsys.readouterr().err == (LINE if tried == 2 else "")


def enter(experiment: Experiment):
    return machine.started(experiment, Site(), 1000)
