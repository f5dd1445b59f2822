"""Against dp_ftrl: clip a guess's update as the client does; the server sees it without noise.

Paper       none has this adaptation. See `flfw.inversion.clipped`.
Knows       all settings and the learning rate, and so C.
Does        simulates the local steps of a guess and clips their change to C. A client's upload has no noise.
Departures  none.
"""

from typing import final

from flfw.inversion.clipped import Clipped


@final
class DPFTRLAdaptation(Clipped):
    """Clipped update without noise."""

    @property
    def clips_examples(self) -> bool:
        """False: the update is clipped."""
        return False

    @property
    def update_deviation(self) -> float:
        """Deviation of a client's own noise: it adds none."""
        return 0.0
