"""Entry of a run's result.json on sums over its clients, from its recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from flfw.client_plan import ClientPlan
from flfw.recording.reader import Recordings
from flfw.server.central import sends_mean, sends_one_model
from flfw.sums.broadcasts import broadcast
from flfw.sums.changes import changes, first_lines, recorded_rounds
from flfw.sums.exposure import Exposure
from flfw.sums.heads import HeadSum, head_of
from flfw.sums.participation import participation, took_part
from flfw.sums.peers import peers


def sums(plan: ClientPlan, recordings: Recordings, folder: Path) -> dict[str, Any] | None:
    """Compute how much sums over clients would have hidden of a run's uploads; None: none are recorded.

    One upload is in memory at a time, and for the peer two.

    Args:
        plan: of the run's clients.
        recordings: of the run.
        folder: of the run, which says who took part in rounds that are not recorded.
    """
    numbers = recorded_rounds(recordings)
    if not numbers:
        return None
    cohorts = {number: {line["client"] for line in first_lines(recordings, number)} for number in numbers}
    known = took_part(folder)
    one_model = sends_one_model(plan.method)
    everyone = known or cohorts
    return {
        "rounds": [_of_round(plan.model, recordings, number) for number in numbers],
        "same_for_all": one_model,
        "participation": participation(everyone) | {"recorded_only": not known},
        "peer": peers(recordings, everyone, sends_mean(plan.method, plan.rounds.robust, plan.task.network.malicious)),
    }


def _of_round(model: nn.Module, recordings: Recordings, number: int) -> dict[str, Any]:
    lines, exposure = first_lines(recordings, number), Exposure()
    name = head_of(model)
    heads = HeadSum(name) if name else None
    for change in changes(recordings, number):
        exposure.add(change.tensors)
        if heads is not None:
            heads.add(change.tensors)
    return {
        "round": number,
        "clients": len(lines),
        "exposed": exposure.figures() if exposure.clients > 1 else None,
        "heads": heads.figures() if heads else None,
        "broadcast": broadcast(lines),
    }
