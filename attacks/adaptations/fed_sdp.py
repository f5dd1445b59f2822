"""Against fed_sdp: clip a guess's update as the client does, and weight errors by the client's own noise.

Paper       none has this adaptation; the mechanism is that of Wei et al., ICDCS 2021. See `flfw.inversion.clipped`.
Knows       all settings and the learning rate, and so C and the noise's deviation; not the noise.
Does        simulates the local steps of a guess, clips the change of each layer to C, and gives the deviation in
            `noise` where each client adds its own (noised_by=client), an n-th of its variance with noise_shares=n.
Departures  none. One example's gradient, read on the client, is unprotected: no adaptation is needed.
"""

from math import sqrt
from typing import final

from flfw.inversion.clipped import Clipped


@final
class FedSDPAdaptation(Clipped):
    """Clipped update."""

    @property
    def clips_examples(self) -> bool:
        """False: the update is clipped."""
        return False

    @property
    def update_deviation(self) -> float:
        """Deviation of the client's own noise."""
        by_client, whole = self.settings["noised_by"] == "client", self.settings["noise_multiplier"] * self.bound
        return whole / sqrt(self.settings["noise_shares"]) if by_client else 0.0
