"""Isolation of one client in sums: what all other clients really sent, where a malicious server wanted zeros."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from flfw.adversary.observation import Observation
from flfw.nets.malicious_model import ModelModification
from flfw.recording.reader import Recordings


def isolation(recordings: Recordings, tampering: ModelModification) -> list[str]:
    """Return a sentence on the messages of the isolated client and of all others; none where nobody is isolated.

    It is for the report: the attacker sees sums, and cannot tell.

    Args:
        recordings: recordings of a run with probes of the target.
        tampering: its server's.
    """
    client = tampering.isolates
    if client is None:
        return []
    largest: dict[tuple[int, str], dict[bool, float]] = defaultdict(dict)
    left_out: list[str] = []
    for line in recordings.lines:
        if line["type"] != "train.probe" or line["config"].get("rung") != "target":
            continue
        (observation,) = recordings.observations([line["id"]])
        if observation is None:
            continue
        names = tampering.alone([*observation.sent])
        left_out = [name for name in observation.sent if name not in names]
        lengths, isolated = largest[observation.round, observation.point], observation.client == client
        length = _length(observation, names, int(line["config"].get("steps", 1)) > 1)
        lengths[isolated] = max(lengths.get(isolated, 0.0), length)
    shares = [at[False] / at[True] for at in largest.values() if False in at and at.get(True)]
    if not shares:
        return [f"No message of client {client} was recorded beside others', so that no sum isolates it."]
    beside = f" but {', '.join(left_out)}" if left_out else ""
    if not max(shares):
        return [f"All clients but client {client} sent zeros in all tensors{beside}: sums are its update there."]
    share = f"{max(shares):.2g} of the length of client {client}'s update"
    return [f"Clients beside client {client} sent up to {share} in all tensors{beside}: no sum is its update alone."]


def _length(observation: Observation, names: Sequence[str], weights: bool) -> float:
    """Return the length of a gradient, or of the change of weights, in some tensors."""
    sent = (observation.sent[name].double() - (observation.received[name].double() if weights else 0) for name in names)
    return sum(float(change.square().sum()) for change in sent) ** 0.5
