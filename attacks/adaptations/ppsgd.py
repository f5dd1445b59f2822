"""Against ppsgd: clip a guess's gradient or update as the client does, and weigh errors by the noise's known size.

Paper       no paper's own; the mechanism is that of Bietti et al., ICML 2022, as HyperFL's comparison has it.
            `flfw.inversion.clipped` has the mathematics.
Knows       all settings and the learning rate, and so C and the noise's deviation; not the noise.
Does        unit=example: clips the extractor's gradient of each trial example, and names the deviation in `noise`.
            unit=client: follows the local steps of a guess and clips their change; what a client sends bears no noise.
Departures  1. several steps with noise leave out that it moves the weights of later steps: static.
            2. the client's head is not known: it is searched for with the data, which makes the attack static.
"""

from __future__ import annotations

from typing import final

from flfw.inversion.clipped import ClippedByUnit


@final
class PPSGDAdaptation(ClippedByUnit):
    """Noisy steps, or a clipped update."""
