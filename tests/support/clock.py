"""A clock for tests of extrapolated times: it goes on only where the test says so, whatever else the machine does."""

from __future__ import annotations

from types import ModuleType

import pytest


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
