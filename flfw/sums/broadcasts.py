"""Broadcasts of a run, compared by their hashes: whether all clients of a round received the same bytes."""

from __future__ import annotations

from typing import Any

from flfw.client.broadcast_checks import differently_served
from flfw.recording.format import Line


def broadcast(lines: list[Line]) -> dict[str, Any]:
    """Compare the messages that the clients of one round received.

    Args:
        lines: the manifest's lines of their uploads.

    Returns:
        The number of different contents, and the clients whose content is not the most common one; all where none is.
    """
    digests = {line["client"]: str(line["sent_to_client"]["sha256"]) for line in lines}
    return {"contents": len(set(digests.values())), "differ": differently_served(digests)}
