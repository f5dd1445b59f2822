"""A laboratory for privacy in federated learning on Flower.

Nothing is imported here: a client process pays for every import of every package it touches.
"""

__version__ = "0.1.0"
