"""Fully connected networks: the linear control of every audit, and the network with two hidden layers for tables."""

from __future__ import annotations

from math import prod

from torch import nn

from flfw.nets.net import Net


def linear(shape: tuple[int, ...], classes: int) -> Net:
    """Build softmax regression on the raw input; its gradient reveals the input in closed form."""
    return Net(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> Net:
    """Build two hidden layers of 64 ReLU units; Fed-CDP uses two for tabular data and does not state their widths."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return Net(extractor, nn.Linear(64, classes))
