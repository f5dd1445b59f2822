"""Fed-SDP's client half: SGD on the whole model, then a clipped update."""

from typing import final

from flfw.dp.client import DPClient


@final
class FedSDPClient(DPClient):
    """Client with E epochs of SGD; `flfw.dp.client` clips its update."""

    regresses = True
