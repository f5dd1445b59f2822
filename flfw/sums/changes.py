"""Changes of the shared tensors that clients sent in a run, read from its recordings one upload at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from flfw.adversary.observation import Observation
from flfw.errors import InputError
from flfw.nets.net import Tensors
from flfw.recording.format import Line
from flfw.recording.reader import Recordings


@final
@dataclass(frozen=True)
class Change:
    """Change of the shared tensors in a client's upload.

    Attributes:
        client: number of the client.
        weight: number of examples that the client reported; 1 where it reports none.
        tensors: what was sent minus what was received, by name, in float64; only those with fractions.
    """

    client: int
    weight: float
    tensors: Tensors


def recorded_rounds(recordings: Recordings) -> list[int]:
    """List the rounds of which uploads are recorded, ascending."""
    return sorted({line["round"] for line in recordings.lines if line["type"] == "train"})


def first_lines(recordings: Recordings, server_round: int) -> list[Line]:
    """List the manifest's lines of a round's uploads, the first of each client, by client."""
    first: dict[int, Line] = {}
    for line in recordings.update_lines(server_round):
        first.setdefault(line["client"], line)
    return list(first.values())


def changes(recordings: Recordings, server_round: int) -> Iterator[Change]:
    """Read the changes of a round by client; one is in memory at a time, and damaged files are left out."""
    for line in first_lines(recordings, server_round):
        try:
            observation = recordings.observation(line["id"])
        except InputError:  # the file is damaged, and the report names it
            continue
        yield change_in(observation, line)


def change_in(observation: Observation, line: Line) -> Change:
    """Return the change in an upload.

    Args:
        observation: the upload.
        line: the manifest's line of it.
    """
    names = [n for n, value in observation.sent.items() if n in observation.received and value.is_floating_point()]
    moved = {name: observation.sent[name].double() - observation.received[name].double() for name in names}
    examples = line["metrics"].get("num-examples", 1)
    return Change(observation.client, float(examples) if isinstance(examples, int | float) else 1.0, moved)
