"""Fed-SDP's client half: SGD on the whole model, then a clipped update."""

from __future__ import annotations

from typing import final

from flfw.noisy_client import NoisyClient


@final
class FedSDPClient(NoisyClient):
    """E epochs of SGD; `flfw.noisy_client` clips what leaves."""
