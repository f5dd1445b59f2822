"""Distances between a guess's simulated observation and the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from flfw.nets.net import Tensors

Distance: TypeAlias = Callable[[Tensors, Tensors], Tensor]
"""Function of a trial and an observation, two gradients by name, to a scalar; 0 where they are equal."""

_TINY = 1e-30  # keeps the gradient of a norm finite where the norm is 0, and hardly changes small gradients


def inner(a: Tensors, b: Tensors) -> Tensor:
    """Compute the inner product of two gradients, all tensors of ``b`` taken as one vector."""
    return torch.stack([(a[name] * b[name]).sum() for name in b]).sum()


def rms(value: Tensor) -> Tensor:
    """Compute the root mean square of a tensor."""
    return value.square().mean().sqrt()


def cosine_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute 1 - cos of two gradients, each as one vector; in [0, 2] (Geiping et al., NeurIPS 2020, eq. 4).

    >>> a, b = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}
    >>> float(cosine_distance(a, b)), float(cosine_distance(a, a))
    (1.0, 0.0)
    """
    norms = (inner(simulated, simulated) + _TINY).sqrt() * (inner(observed, observed) + _TINY).sqrt()
    return 1 - inner(simulated, observed) / norms


def tensorwise_cosine_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the mean over the tensors of 1 - cos; in [0, 2] (Vero et al., ICML 2023).

    >>> a = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor([3.0])}
    >>> float(tensorwise_cosine_distance(a, {"w": torch.tensor([0.0, 2.0]), "b": torch.tensor([1.0])}))
    0.5
    """
    return torch.stack([cosine_distance({name: simulated[name]}, {name: observed[name]}) for name in observed]).mean()


def squared_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the squared L2 distance of two gradients (Zhu et al., NeurIPS 2019, eq. 4).

    >>> float(squared_distance({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}))
    5.0
    """
    return torch.stack([((simulated[name] - observed[name]) ** 2).sum() for name in observed]).sum()


def mean_squared_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the mean over the tensors of the squared L2 distance in each (Li et al., CVPR 2022).

    >>> a, b = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor(3.0)}, {"w": torch.zeros(2), "b": torch.tensor(1.0)}
    >>> float(mean_squared_distance(a, b))
    2.5
    """
    return squared_distance(simulated, observed) / len(observed)


def tensor_distances(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the sum over the tensors of the L2 distance in each (Yin et al., CVPR 2021, eq. 3).

    >>> a, b = {"w": torch.tensor([1.0, 0.0]), "b": torch.tensor(3.0)}, {"w": torch.zeros(2), "b": torch.tensor(1.0)}
    >>> float(tensor_distances(a, b))
    3.0
    """
    squares = [((simulated[name] - observed[name]) ** 2).sum() for name in observed]
    return torch.stack([(square + _TINY).sqrt() for square in squares]).sum()


def relative_distance(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the squared L2 distance over the observation's squared length; independent of the gradient's scale.

    >>> float(relative_distance({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}))
    1.25
    """
    return squared_distance(simulated, observed) / (inner(observed, observed) + _TINY)


def gaussian_likelihood(std: float) -> Distance:
    """Return the negative log-likelihood of an observation with Gaussian noise, up to a constant, in nats.

    Args:
        std: standard deviation of the noise in each entry, > 0.

    >>> float(gaussian_likelihood(0.5)({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}))
    2.0
    """
    return lambda trial, observed: squared_distance(trial, observed) / (2 * std**2)
