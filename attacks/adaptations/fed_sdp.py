"""Against fed_sdp: clip a guess's update as the client does, and weigh errors by the client's own noise.

Paper       no paper's own; the mechanism is that of Wei et al., ICDCS 2021. See `flfw.inversion.clipped`.
Knows       all settings and the learning rate, and so C and the noise's deviation; not the noise.
Does        follows the local steps of a guess, clips the change of each layer to C, and names the deviation in `noise`
            where each client adds its own (noised_by=client).
Departures  none. One example's gradient, read on the client, is bare: there is nothing to adapt to.
"""

from __future__ import annotations

from typing import final

from flfw.inversion.clipped import Clipped


@final
class FedSDPAdaptation(Clipped):
    """A clipped update."""

    @property
    def on_steps(self) -> bool:
        """Never."""
        return False

    @property
    def update_deviation(self) -> float:
        """Of the client's own noise."""
        own = self.settings["noised_by"] == "client"
        return self.settings["noise_multiplier"] * self.settings["clip"] if own else 0.0
