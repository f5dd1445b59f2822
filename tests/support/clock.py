"""A clock that goes on only where a test says so, for extrapolated times; and waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import pytest


def wait_for(holds: Callable[[], bool], seconds: float = 240) -> None:
    """Wait until something holds, and fail where it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Clock:
    """Stands for the module `time` in modules that measure."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds

    def process_time(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    @classmethod
    def read_by(cls, patch: pytest.MonkeyPatch, *modules: ModuleType) -> Clock:
        """Put a new clock in the place of `time` in these modules."""
        clock = cls()
        for module in modules:
            patch.setattr(module, "time", clock)
        return clock
