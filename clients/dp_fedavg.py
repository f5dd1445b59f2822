"""DP-FedAvg's client half: E epochs of noisy steps, or of plain ones before a clipped update."""

from typing import final

from flfw.dp.client import DPClient


@final
class DPFedAvgClient(DPClient):
    """Client that trains the whole model."""

    regresses = True
