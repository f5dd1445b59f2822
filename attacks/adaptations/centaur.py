"""Against centaur: clip a guess's gradient or update as the client does, and weight errors by the noise's known size.

Paper       none has this adaptation; the mechanism is that of Shen et al., ICLR 2023, as in HyperFL's comparison.
            `flfw.inversion.clipped` has the mathematics.
Knows       all settings and the learning rate, and so C and the noise's deviation; not the noise.
Does        unit=example: clips the extractor's gradient of each trial example, and gives the deviation in `noise`.
            unit=client: simulates the local steps of a guess and clips their change; a client's upload has no noise.
Departures  1. several noisy steps: the effect of noise on the weights of later steps is left out: static.
            2. the client's head is unknown: it is searched for with the data, which makes the attack static.
"""

from typing import final

from flfw.inversion.clipped import ClippedByUnit


@final
class CentaurAdaptation(ClippedByUnit):
    """Noisy steps, or a clipped update."""
