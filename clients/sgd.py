"""Local SGD on the whole model: the client half of every method without one of its own."""

from typing import final

from flfw.client.gradient_client import GradientClient


@final
class SGDClient(GradientClient):
    """Client with E epochs of SGD on all parameters, shared or private."""

    place_labels = True
    regresses = True
