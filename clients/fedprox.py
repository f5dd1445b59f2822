"""FedProx's client half: local SGD on the loss plus mu/2 ||w_k - w||^2, where w is this round's broadcast model."""

from typing import final

from flfw.client.gradient_client import ProximalClient


@final
class FedProxClient(ProximalClient):
    """Client with local SGD held near the broadcast model."""

    place_labels = True
    regresses = True
