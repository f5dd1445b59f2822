"""The server half of a method: strategies, cohorts, failures, aggregation, training."""

from flfw.server.strategy import FederatedStrategy

__all__ = ["FederatedStrategy"]
