"""The two rungs below an audit: a check of the measurement, and a check of the attack on an undefended network."""

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
    """Run the closed form on softmax regression: it must recover the example of every usable recording.

    Args:
        probes: gradients of single examples, each with its example; more than half of ``asked`` are needed.
        asked: number of recorded probes.
        inputs: the input space.
    """
    values = []
    for seen, truth in probes:
        raw = linear_inputs(seen.sent["classifier.weight"], seen.sent["classifier.bias"], 1)
        guess = (raw.view(1, *inputs.shape) * inputs.std + inputs.mean).nan_to_num(nan=0.5)
        values.append(psnr(truth.samples[0].numpy(), guess[0].numpy()))
    all_recovered = 2 * len(values) > asked and all(value >= CONTROL_DB for value in values)
    return Rung("control", _mean(values), all_recovered)


def easy(rows: Sequence[ScoreRow], asked: int, solution: Solution) -> Rung:
    """Return the result of an attack on the fresh network; failed and missing examples count as not recovered.

    Args:
        rows: a row per attacked example.
        asked: number of rows that there should be.
        solution: the attack's solution.
    """
    share = sum(row["recovered"] for row in rows) / asked
    values = [row["db"] for row in rows if row["db"] is not None]
    stopped = solution.stopped or (None if values else "no example gave a result")
    return Rung("easy", _mean(values) if values else None, share >= EASY_SHARE, round(solution.seconds, 3), stopped)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
