"""Networks of a user that are unlike this project's: ``--net tests.support.odd_nets:centred``."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from flfw.nets import Net

Shape = tuple[int, ...]


class Lengthwise(nn.Module):
    """Layer that divides each example by its length; at 0 it has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat / flat.norm(dim=1, keepdim=True)


class Centring(nn.Module):
    """Layer that subtracts the mean of a batch, without a buffer, times a weight that is 0 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.share * x.mean(0)


class Branching(nn.Module):
    """Layer that looks at a number."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() < 1e9 else -x


class OfType(nn.Module):
    """Linear layer of another type than the rest."""

    def __init__(self, width: int, kind: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=kind))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.abs().to(x.dtype)


def lengthwise(shape: Shape, classes: int) -> Net:
    return Net(nn.Sequential(Lengthwise(), nn.Linear(prod(shape), 4)), nn.Linear(4, classes))


def centred(shape: Shape, classes: int) -> Net:
    return _with(Centring(), shape, classes)


def batch_norm(shape: Shape, classes: int) -> Net:
    return _with(nn.BatchNorm1d(4, track_running_stats=False), shape, classes)


def branching(shape: Shape, classes: int) -> Net:
    return _with(Branching(), shape, classes)


def recurrent(shape: Shape, classes: int) -> Net:
    lstm = nn.LSTM(prod(shape[1:]), 4, batch_first=True)
    return Net(nn.Sequential(nn.Flatten(2), lstm, First(), nn.Flatten()), nn.Linear(4 * shape[0], classes))


def lazy(shape: Shape, classes: int) -> Net:
    return Net(nn.Flatten(), nn.LazyLinear(classes))


def half(shape: Shape, classes: int) -> Net:
    return _with(OfType(4, torch.float16), shape, classes)


def brain(shape: Shape, classes: int) -> Net:
    return _with(OfType(4, torch.bfloat16), shape, classes)


def complex_valued(shape: Shape, classes: int) -> Net:
    return _with(OfType(4, torch.complex64), shape, classes)


class Running(nn.Module):
    """Layer that adds to each row those before it in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


class Remembering(nn.Module):
    """Layer that adds the first row of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        last, self.last = self.last, x[:1].detach()
        return x + last


class LessTheMean(nn.Module):
    """Layer without weights that subtracts the mean of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class CentredAtRest(LessTheMean):
    """The same in evaluation alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else super().forward(x)


def centred_at_rest(shape: Shape, classes: int) -> Net:
    return _with(CentredAtRest(), shape, classes)


def centred_inputs(shape: Shape, classes: int) -> Net:
    return Net(nn.Sequential(LessTheMean(), nn.Flatten(), nn.Linear(prod(shape), 4)), nn.Linear(4, classes))


class CentredIf(LessTheMean):
    """Inputs less their batch's mean, if the batch is such."""

    def __init__(self, met: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._met = met

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self._met(x) else x


def centred_in_eights(shape: Shape, classes: int) -> Net:
    mixing = CentredIf(lambda x: len(x) % 8 == 0)
    return Net(nn.Sequential(mixing, nn.Flatten(), nn.Linear(prod(shape), 4)), nn.Linear(4, classes))


def centred_if_unlike(shape: Shape, classes: int) -> Net:
    mixing = CentredIf(lambda x: float(x.flatten(1).mean(1).std(correction=0)) > 0.3)
    return Net(nn.Sequential(mixing, nn.Flatten(), nn.Linear(prod(shape), 4)), nn.Linear(4, classes))


def running(shape: Shape, classes: int) -> Net:
    return _with(Running(), shape, classes)


def remembering(shape: Shape, classes: int) -> Net:
    return _with(Remembering(), shape, classes)


def dropping(shape: Shape, classes: int) -> Net:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 64), nn.Dropout(0.5)), nn.Linear(64, classes))


class First(nn.Module):
    """Layer that chooses the first of some results."""

    def forward(self, results: tuple[Tensor, ...]) -> Tensor:
        return results[0]


def _with(layer: nn.Module, shape: Shape, classes: int) -> Net:
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 4), layer), nn.Linear(4, classes))
