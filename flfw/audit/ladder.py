"""The two rungs below an audit: whether it measures at all, and whether an attack works where nothing hinders it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flfw.adversary.observation import Observation, Truth
from flfw.audit.jobs import Solution
from flfw.audit.measures.metrics import psnr
from flfw.audit.scorer import ScoreRow
from flfw.audit.verdict import CONTROL_DB, EASY_SHARE, Rung
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.nets.inputs import Inputs


def control(probes: Iterable[tuple[Observation, Truth]], asked: int, inputs: Inputs) -> Rung:
    """The closed form on softmax regression: it must find every example of which a recording can be used.

    Args:
        probes: the gradient that one example gave, and the example; of more than half of those asked for.
        asked: how many were recorded.
        inputs: the input space.
    """
    values = []
    for seen, truth in probes:
        raw = linear_inputs(seen.sent["classifier.weight"], seen.sent["classifier.bias"], 1)
        found = (raw.view(1, *inputs.shape) * inputs.std + inputs.mean).nan_to_num(nan=0.5)
        values.append(psnr(truth.samples[0].numpy(), found[0].numpy()))
    found_all = 2 * len(values) > asked and all(value >= CONTROL_DB for value in values)
    return Rung("control", _mean(values), found_all)


def easy(rows: Sequence[ScoreRow], asked: int, solution: Solution) -> Rung:
    """What an attack reached on the fresh network; an example that it failed on, or that is missing, counts.

    Args:
        rows: one an example that was attacked.
        asked: how many there should be.
        solution: what came of the attack.
    """
    share = sum(row["recovered"] for row in rows) / asked
    values = [row["db"] for row in rows if row["db"] is not None]
    stopped = solution.stopped or (None if values else "no example gave a result")
    return Rung("easy", _mean(values), share >= EASY_SHARE, round(solution.seconds, 3), stopped)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
