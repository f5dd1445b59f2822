"""Federated averaging of a small network on the digits."""
