"""Progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Steps:
    """Progress of a known number of steps under one title; some may have been done before.

    >>> with Steps("probes", 1) as steps:
    ...     steps.done("client 0")
    """

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self._title, self._total, self._count = title, total, done
        self._console = Console(stderr=True, force_jupyter=False)  # plain lines in a notebook, too
        left = (TimeRemainingColumn(), TextColumn("left"))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *left)
        self._bar = Progress(*columns, console=self._console, transient=True) if sys.stderr.isatty() else None
        self._task = self._bar.add_task(title, total=total, completed=done) if self._bar else None

    def __enter__(self) -> Steps:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def part(self, share: float) -> None:
        """Show a share of the next step as done."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=self._count + share)

    def note(self, lines: Iterable[str]) -> None:
        """Print lines that stay on the screen."""
        for line in lines:
            text = f"{self._title} {self._count}/{self._total}  {line}".rstrip()
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def done(self, text: str = "") -> None:
        """Count one more finished step; its line stays on the screen."""
        self._count += 1
        self.part(0.0)
        self.note([text])


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
