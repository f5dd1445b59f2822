"""Rounds that a server has asked its clients for: each is on disk before the first message leaves.

A killed server asks for its last round again, and its clients answer with other noise. Every such time is a release of
its own, for which a claim must pay, however the round ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from flfw.errors import InputError

_DIGITS = 9  # of a round


@final
class RequestedRounds:
    """Record of the rounds that were asked for: a number a line, only ever added to.

    Args:
        folder: folder of the run's checkpoints.
        name: name of the file.

    Attributes:
        rounds: the numbers, in their order. A line that a kill has cut short counts as the round of the line before,
            or as round 1: it was begun before anything was sent, but nothing tells that nothing was.

    Raises:
        InputError: another line is no number.
    """

    def __init__(self, folder: Path, name: str = "asked.txt") -> None:
        self._path = folder / name
        whole, _, cut = self._text().rpartition("\n")
        self.rounds = [self._number(line) for line in whole.split("\n")] if whole else []
        if cut:
            self.rounds.append(self.rounds[-1] if self.rounds else 1)
            self._write("\n".join(map(str, self.rounds)) + "\n", os.O_TRUNC)

    def _text(self) -> str:
        try:
            return self._path.read_bytes().decode("ascii", "replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(f"Expected {self._path}, got none that can be read ({error.strerror}).") from error

    def _number(self, line: str) -> int:
        if not (line.isdecimal() and len(line) <= _DIGITS):
            raise InputError(
                f"Expected a round in each line of {self._path}, got {line[:80]}: it is damaged; restore it."
            )
        return int(line)

    def note(self, server_round: int) -> int:
        """Add a round, on disk when this returns; return how often it was asked for before."""
        before = self.rounds.count(server_round)
        self._write(f"{server_round}\n", os.O_APPEND)
        self.rounds.append(server_round)
        return before

    @property
    def again(self) -> int:
        """Number of times that a round was asked for again."""
        return len(self.rounds) - len(set(self.rounds))

    def _write(self, text: str, how: int) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | how, 0o600)
        try:
            os.write(file, text.encode())
            os.fsync(file)
        finally:
            os.close(file)
