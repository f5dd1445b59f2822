"""Client half of a method, and the machine on which it runs."""

from flfw.client.federated_client import FederatedClient

__all__ = ["FederatedClient"]
