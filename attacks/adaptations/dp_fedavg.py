"""Against dp_fedavg: clip a guess's gradient or update as the client does, and weight errors by the noise's known size.

Paper       none has this adaptation; the mechanism is that of Lowy and Razaviyayn, ICLR 2023, as in HyperFL's
            comparison. `flfw.inversion.clipped` has the mathematics.
Knows       all settings and the learning rate, and so C and the noise's deviation; not the noise.
Does        unit=example: clips the whole model's gradient of each trial example, and gives the deviation in `noise`.
            unit=client: simulates the local steps of a guess and clips their change; a client's upload has no noise.
Departures  1. several noisy steps: the effect of noise on the weights of later steps is left out: static.
"""

from typing import final

from flfw.inversion.clipped import ClippedByUnit


@final
class DPFedAvgAdaptation(ClippedByUnit):
    """Noisy steps, or a clipped update."""
