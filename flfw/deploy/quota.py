"""Quota of a site: a file of the messages that it took, over all runs and servers, which bounds their number."""

import time
from pathlib import Path
from typing import final

from flwr.app import Message

from flfw.errors import InputError, printable
from flfw.files.chain import Chain

FILE = Path("ledger") / "answers.jsonl"
_INTRODUCTION = "query"
_SHOWN = 80  # characters of a name that a server chose


def count(path: Path) -> int:
    """Return the number of messages that were taken.

    Raises:
        InputError: the file is damaged.
    """
    return len(Chain(path, noted=True).rows())


@final
class Quota:
    """Quota of the messages that a site takes.

    A line is on disk before the message is handed to the app. So a message counts whose app was killed, and so does one
    that the server sends again. A site's introduction is not counted.

    Args:
        path: path of the file; its lines are chained.
        maximum: largest number of lines, >= 0.
    """

    def __init__(self, path: Path, maximum: float) -> None:
        self._chain, self._most = Chain(path, noted=True), maximum

    def refuses(self, message: Message) -> str | None:
        """Append a line for a message and return None; or return why it is not taken, and append nothing."""
        kind = message.metadata.message_type
        if kind.partition(".")[0] == _INTRODUCTION:
            return None
        try:
            with self._chain.held() as held:
                if len(held.rows) >= self._most:
                    return f"this site's policy lets it answer {self._most:g} messages over all runs, and it has"
                row = {"run": str(message.metadata.run_id), "kind": printable(kind)[:_SHOWN]}
                held.append({**row, "time": round(time.time(), 3)})
        except InputError:
            return "this site's policy lets nothing be answered until its damaged count of answers is restored"
        return None
