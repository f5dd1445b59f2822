"""Robust means of a round's updates, which a few lying clients cannot move far, and the screen that refuses huge ones.

In place of the mean of n updates x_1 ... x_n, of which at most f are lies:

    median        of each entry: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018
    trimmed_mean  of each entry, without its f largest and f smallest values: the same
    krum          the x_i whose n - f - 2 nearest others are nearest: Blanchard et al., "Machine Learning with
                  Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017
    clipping      the mean of the changes, each scaled down to the median of their norms: Sun et al., "Can You Really
                  Backdoor Federated Learning?", 2019, where the bound is a setting

With krum and clipping, whole numbers such as BatchNorm's count of batches are the median of each entry: in a norm, a
count of a hundred would outweigh the rest. All clients count alike, since a number of examples may be a lie, too.
Honest clients with different data look like liars to each other, so each of these means differs from the mean also
without a lie. None keeps out a lie that is small.

The screen makes a change a failure of its client, by name, if its norm is more than ten times that of what the client
received, and more than ten, and more than a hundred times the median of the round's norms. The first bound keeps a
client with a tiny update from having the others refused. A number of examples above the client's first one is a failure
as well. Without the screen, finite values near the largest float become the next model; then honest clients compute
NaN and are blamed. It is no robust mean: if half of a round lies, so does the median. Where the server bounds each
change itself (`flfw.task.method.Method.bounds_updates`), nothing is screened: by the median a client would decide
whether the change of another one counts, and noise for one bounded change hides no second one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor

from flfw.errors import RunError
from flfw.experiment.training import RobustName
from flfw.nets.net import Tensors
from flfw.server.aggregation import Update


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
                f"{need}, got {len(updates)}; lower N of --expert robust=RULE:N or take another --expert robust."
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


_FAR, _TIMES = 10.0, 100.0
T = TypeVar("T")


def without_outliers(
    updates: Iterable[tuple[int, T]],
    compare: Callable[[int, T], tuple[float, float]],
    refuse: Callable[[int, str], None],
) -> Iterator[tuple[int, T]]:
    """Yield the updates of a round but those that are far larger than all others; large ones come last.

    An update is held in memory only if it is larger than its bound.

    Args:
        updates: each with its client, as they arrive.
        compare: function of a client and its update, for the norm of the change, and the norm >= 0 up to which it is
            passed on at once; see `change_and_bound`.
        refuse: function that is called with a client and the reason why its update is not used.
    """
    norms: list[float] = []
    held: list[tuple[int, T, float]] = []
    for client, update in updates:
        size, bound = compare(client, update)
        norms.append(size)
        if size <= bound:
            yield client, update
        else:
            held.append((client, update, size))
    middle = sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0
    for client, update, size in held:
        if size > _TIMES * middle:
            refuse(client, f"sent a change of norm {size:.3g}, over {_TIMES:g} times the round's median {middle:.3g}")
        else:
            yield client, update


def without_grown_counts(
    updates: Iterable[tuple[int, T]],
    examples: Callable[[T], int],
    earlier: Mapping[int, int],
    refuse: Callable[[int, str], None],
) -> Iterator[tuple[int, T]]:
    """Yield the updates of a round but those of clients that now count more examples than at first.

    Args:
        updates: each with its client, as they arrive.
        examples: function that gives the number of examples that an update tells.
        earlier: for each client that has answered before its first number.
        refuse: function that is called with a client and the reason why its update is not used.
    """
    for client, update in updates:
        if (now := examples(update)) > (first := earlier.get(client, now)):
            refuse(client, f"tells {now} examples, and first told {first}; a new run counts more")
        else:
            yield client, update


def change_and_bound(tensors: Tensors, sent: Tensors) -> tuple[float, float]:
    """Return the norm of the change of an update, and the norm up to which it needs no comparison with others.

    Args:
        tensors: the update.
        sent: the tensors that this client was sent.
    """
    return change(tensors, sent), bound_of(sent)


def bound_of(sent: Tensors) -> float:
    """Return the norm up to which a change from these tensors needs no comparison."""
    return _FAR * (1 + _screened_norm(sent))


def change(tensors: Tensors, sent: Tensors) -> float:
    """Return the norm of the difference of an update and the tensors that were sent; inf beyond the largest float."""
    return _screened_norm({name: value - sent[name] for name, value in tensors.items()})


def _screened_norm(tensors: Tensors) -> float:
    parts = [
        torch.linalg.vector_norm(value, dtype=torch.float64)
        for value in tensors.values()
        if value.is_floating_point() and value.numel()
    ]
    return float(torch.stack(parts).norm()) if parts else 0.0
