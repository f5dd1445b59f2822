"""Against dp_fedavg: clip a guess's gradient or update as the client does, and weigh errors by the noise's known size.

Paper       no paper's own; the mechanism is that of Lowy and Razaviyayn, ICLR 2023, as HyperFL's comparison has it.
            `flfw.inversion.clipped` has the mathematics.
Knows       all settings and the learning rate, and so C and the noise's deviation; not the noise.
Does        unit=example: clips the whole model's gradient of each trial example, and names the deviation in `noise`.
            unit=client: follows the local steps of a guess and clips their change; what a client sends bears no noise.
Departures  1. several steps with noise leave out that it moves the weights of later steps: static.
"""

from __future__ import annotations

from typing import final

from flfw.inversion.clipped import ClippedByUnit


@final
class DPFedAvgAdaptation(ClippedByUnit):
    """Noisy steps, or a clipped update."""
