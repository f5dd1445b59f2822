"""The client half of a method and the machine it works on."""

from flfw.client.federated_client import FederatedClient

__all__ = ["FederatedClient"]
