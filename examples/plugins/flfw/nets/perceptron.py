"""A perceptron with one hidden layer."""

from math import prod

from torch import nn

from flfw.nets.net import Net


def perceptron(shape: tuple[int, ...], classes: int) -> Net:
    """Build one hidden layer of 128 sigmoid units."""
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 128), nn.Sigmoid()), nn.Linear(128, classes))
