"""Robust means of a round's updates, which a few clients that lie cannot move far.

In place of the mean of n updates x_1 ... x_n, of which at most f are lies:

    median        of each entry: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018
    trimmed_mean  of each entry, without its f largest and f smallest values: the same
    krum          the x_i whose n - f - 2 nearest others are nearest: Blanchard et al., "Machine Learning with
                  Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017
    clipping      the mean of the changes, each scaled down to the median of their norms: Sun et al., "Can You Really
                  Backdoor Federated Learning?", 2019, where the bound is a setting

Whole numbers, such as BatchNorm's count of batches, are no part of a distance or a norm, which a count of a hundred
would outweigh: with krum and clipping, too, they are the median of each entry.

All clients count alike, since a number of examples may be a lie, too. Honest clients whose data differ look like liars
to each other: then each of these means differs from the mean also without a lie. None keeps out a lie that is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from flfw.errors import RunError
from flfw.nets.net import Tensors
from flfw.server.aggregation import Update

RobustName = Literal["none", "median", "trimmed_mean", "krum", "clipping"]


@final
@dataclass(frozen=True)
class RobustMean:
    """Rule of a robust mean.

    Attributes:
        name: the rule, other than none.
        liars: f, the largest number of clients of a round that lie, >= 0.
    """

    name: RobustName
    liars: int = 0

    @property
    def fewest(self) -> int:
        """Fewest updates of a round for which the rule holds against so many liars."""
        return 2 * self.liars + (3 if self.name == "krum" else 1)

    def __call__(self, updates: Sequence[Update], sent: Tensors) -> Update:
        """Return one update that stands for all of a round.

        Args:
            updates: the updates, in any order; all are in memory at once.
            sent: the tensors that the clients received.

        Raises:
            RunError: there are too few.
        """
        if len(updates) < self.fewest:
            need = f"Expected {self.fewest} updates or more for {self.name} with {self.liars} that lie"
            raise RunError(
                f"{need}, got {len(updates)}; lower --expert byzantine_clients or take another --expert robust."
            )
        return Update(-1, 1, _RULES[self.name]([update.tensors for update in updates], sent, self.liars))


def median(updates: Sequence[Tensors], sent: Tensors, liars: int) -> Tensors:
    """Take the median of each entry: of an even number the mean of the two in the middle."""
    half = (len(updates) - 1) // 2
    return _of_sorted(updates, lambda ranked: ranked[half : len(ranked) - half].mean(0))


def trimmed_mean(updates: Sequence[Tensors], sent: Tensors, liars: int) -> Tensors:
    """Take the mean of each entry without its largest and its smallest values, ``liars`` of each."""
    return _of_sorted(updates, lambda ranked: ranked[liars : len(ranked) - liars].mean(0))


def krum(updates: Sequence[Tensors], sent: Tensors, liars: int) -> Tensors:
    """Choose the update with the smallest sum of squared distances to its n - f - 2 nearest others."""
    distances = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in _floating(updates[0]):
        rows = [update[name].double().flatten() for update in updates]
        for i, one in enumerate(rows):
            for j in range(i):
                distances[i, j] += (one - rows[j]).square().sum()
    distances = (distances + distances.T).fill_diagonal_(torch.inf)
    scores = distances.sort(dim=1).values[:, : len(updates) - liars - 2].sum(1)
    return {**updates[int(scores.argmin())], **_counted(updates, sent, liars)}


def clipping(updates: Sequence[Tensors], sent: Tensors, liars: int) -> Tensors:
    """Take the mean of the changes after each is scaled down to the median of their norms."""
    norms = torch.stack([_norm(update, sent) for update in updates])
    ranked, half = norms.sort().values, (len(updates) - 1) // 2
    bound = ranked[half : len(updates) - half].mean()
    kept = torch.where(norms > bound, bound / norms, 1.0)
    result = {name: sent[name] for name in updates[0]} | _counted(updates, sent, liars)
    for name, first in _floating(updates[0]).items():
        changes = (
            scale * (update[name].double() - sent[name].double()) for scale, update in zip(kept, updates, strict=True)
        )
        result[name] = _typed(sent[name].double() + sum(changes) / len(updates), first)
    return result


_RULES: dict[str, Callable[[Sequence[Tensors], Tensors, int], Tensors]] = {
    "median": median, "trimmed_mean": trimmed_mean, "krum": krum, "clipping": clipping,
}  # fmt: skip


def _of_sorted(updates: Sequence[Tensors], middle: Callable[[Tensor], Tensor]) -> Tensors:
    """Apply a function to the sorted values (n, ...) of each tensor's entries."""
    result: Tensors = {}
    for name, first in updates[0].items():
        ranked = torch.stack([update[name] for update in updates]).double().sort(dim=0).values
        result[name] = _typed(middle(ranked), first)
    return result


def _floating(update: Tensors) -> Tensors:
    return {name: value for name, value in update.items() if value.is_floating_point()}


def _counted(updates: Sequence[Tensors], sent: Tensors, liars: int) -> Tensors:
    """Return the tensors of whole numbers, each entry the median of the updates'."""
    names = updates[0].keys() - _floating(updates[0]).keys()
    return median([{name: update[name] for name in names} for update in updates], sent, liars)


def _norm(update: Tensors, sent: Tensors) -> Tensor:
    changes = [value.double() - sent[name].double() for name, value in _floating(update).items()]
    return torch.stack([change.square().sum() for change in changes]).sum().sqrt()


def _typed(value: Tensor, like: Tensor) -> Tensor:
    return (value if like.dtype.is_floating_point else value.round()).to(like.dtype)
