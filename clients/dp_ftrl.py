"""DP-FTRL's client half: SGD on the whole model, then a clipped update, in the rounds of its own turn alone."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from flfw.dp.client import DPClient
from flfw.errors import require
from flfw.nets import Tensors


@final
class DPFTRLClient(DPClient):
    """Client with E epochs of SGD; `flfw.dp.client` clips its update."""

    def fit_named(self, received: Mapping[str, np.ndarray], version: int) -> tuple[Tensors, dict[str, Any]]:
        """Train for one round; return the upload and the metrics.

        Raises:
            InputError: the round is another turn's. The claim rests on rounds that are far apart, so a client does not
                leave that to the server alone.
        """
        min_separation = self.ctx.method.min_separation(self.ctx.settings)
        turn = f"client {self.ctx.partition} in a round of its own turn, one in {min_separation}"
        require(
            self.ctx.round % min_separation == (self.ctx.partition + 1) % min_separation, turn, round=self.ctx.round
        )
        return super().fit_named(received, version)
