"""Fully connected networks: the linear control of every audit, and the two-hidden-layer net for tabular data."""

from __future__ import annotations

from math import prod

from torch import nn

from flfw.nets.net import Net


def linear(shape: tuple[int, ...], classes: int) -> Net:
    """Softmax regression on the raw input, whose gradient gives the input away in closed form."""
    return Net(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int) -> Net:
    """Two hidden layers of 64 ReLU units; Fed-CDP uses two for tabular data and does not state their widths."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return Net(extractor, nn.Linear(64, classes))
