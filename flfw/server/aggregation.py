"""The clients' updates of a round, their weighted mean, and the moving average of the models that a server sends.

The mean's additions have a fixed order, the same on every engine: a tree over the clients' numbers. Clients 0 and 1 are
added up, and 2 and 3; then these two sums, and so on up to blocks of 8 consecutive clients, whose sums are added up by
number. Who did not send anything is left out. So a process that has all clients of a branch may send their sum in place
of their updates, and no bit of the mean changes.

The moving average is evaluated, and sent to nobody for training. After round t it is d average + (1 - d) model, with
d = min(decay, (1 + t) / (10 + t)), so early models are soon forgotten (De et al., "Unlocking High-Accuracy
Differentially Private Image Classification through Scale", arXiv 2204.13650). It is computed from the models alone: it
costs no privacy, whatever noise they have, and has less noise than the last one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nextafter
from typing import Any, final

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flfw.errors import RunError, require
from flfw.messages.wire import pack, unpack
from flfw.nets.net import Tensors

LEVELS = 3  # of a block's tree: it has two to the power of so many clients
_BLOCK = 2**15  # numbers that are added at once: their copy in float64 stays in the cache


@dataclass(frozen=True)
class Update:
    """The message of one client in one round.

    Attributes:
        partition: number of the client.
        examples: number of the client's training examples; its weight in a weighted mean.
        tensors: the uploaded tensors by name.
        metrics: the client's numbers by name, checked by `flfw.messages.replies.read_metrics`; None: not finite.
        summed: types of the uploaded tensors where ``tensors`` are their `WeightedSum` over the clients of a branch, of
            which ``partition`` is one, and ``examples`` is the sum of theirs; None: the update of one client. Only a
            method that `reduces` gets sums.
    """

    partition: int
    examples: int
    tensors: Tensors
    metrics: Mapping[str, Any] = field(default_factory=dict)
    summed: Mapping[str, torch.dtype] | None = None


def level_between(one: int, other: int) -> int:
    """Return the height at which the branches of two clients meet; one more than a block's: in no block.

    >>> level_between(4, 5), level_between(4, 7), level_between(3, 4), level_between(7, 8)
    (1, 2, 3, 4)
    """
    return min((one ^ other).bit_length(), LEVELS + 1)


def most_sums(clients: int) -> int:
    """Return how many sums are in memory at once, at most, while the updates of so many clients are added up.

    >>> [most_sums(clients) for clients in (1, 2, 3, 7, 100)]
    [1, 1, 2, 3, 4]
    """
    return min((clients + 1).bit_length() - 1, LEVELS + 1)


@final
@dataclass(frozen=True)
class WeightedSum:
    """Sum of tensors times their numbers of examples, in float64.

    Attributes:
        tensors: the sums, by name.
        kinds: types of the tensors that were added.
        examples: sum of the numbers of examples.
    """

    tensors: Tensors = field(default_factory=dict)
    kinds: Mapping[str, torch.dtype] = field(default_factory=dict)
    examples: int = 0


@dataclass(eq=False)
class _Branch:
    """Sum of the clients of one branch, of which the first and the last one are known.

    ``lent`` is true where others have the tensors, too.
    """

    first: int
    last: int
    tensors: Tensors
    kinds: dict[str, torch.dtype]
    examples: int
    alone: bool  # the update of one client
    lent: bool = False


@final
class BranchSums:
    """Sums of the branches of a tree, as far as updates have come; memory that was used is used again."""

    def __init__(self) -> None:
        self._whole: _Branch | None = None  # the blocks before
        self._branches: list[_Branch] = []  # of the present block, the largest first
        self._free: dict[str, list[Tensor]] = {}

    def add(self, update: Update) -> None:
        """Add an update, or the sum of a branch's; its tensors are left as they are."""
        client, last = update.partition, self._branches[-1] if self._branches else None
        level = level_between(last.last, client) if last and last.last < client else LEVELS + 1
        if update.summed is None and level == 1 and last and last.alone and not last.lent:
            self._add_to(last, update)
        else:
            self._join_below(level)
            self._branches.append(self._branch(update))
        self._join_complete()

    def total(self) -> WeightedSum:
        """Return the sum of all that was added; nothing may be added any more."""
        self._join_below(LEVELS + 1)
        whole = self._whole
        return WeightedSum(whole.tensors, whole.kinds, whole.examples) if whole else WeightedSum()

    def _branch(self, update: Update) -> _Branch:
        client, summed = update.partition, update.summed
        if summed is not None:
            return _Branch(client, client, dict(update.tensors), dict(summed), update.examples, False, lent=True)
        kinds = {name: value.dtype for name, value in update.tensors.items()}
        tensors = {name: self._product(name, value, update.examples) for name, value in update.tensors.items()}
        return _Branch(client, client, tensors, kinds, update.examples, True)

    def _add_to(self, branch: _Branch, update: Update) -> None:
        """Add the other client of a pair."""
        for name, value in update.tensors.items():
            if name in branch.tensors:
                _add(branch.tensors[name], value, update.examples)
            else:
                branch.tensors[name] = self._product(name, value, update.examples)
            branch.kinds[name] = value.dtype
        branch.last, branch.examples, branch.alone = update.partition, branch.examples + update.examples, False

    def _join_complete(self) -> None:
        """Join branches after which no client of their common branch can come."""
        while len(self._branches) > 1:
            before, last = self._branches[-2:]
            if (last.last + 1) % 2 ** level_between(before.last, last.first):
                return
            self._join_last()

    def _join_below(self, level: int) -> None:
        """Join the branches that meet below a level; from the end of a block on with the blocks before."""
        while len(self._branches) > 1 and level_between(self._branches[-2].last, self._branches[-1].first) < level:
            self._join_last()
        if level > LEVELS and self._branches:
            (block,) = self._branches
            self._whole, self._branches = self._joined(self._whole, block) if self._whole else block, []

    def _join_last(self) -> None:
        last = self._branches.pop()
        self._branches.append(self._joined(self._branches.pop(), last))

    def _joined(self, left: _Branch, right: _Branch) -> _Branch:
        """Add two branches up, in the memory of one of them that nobody else has."""
        sums: Tensors = {}
        for name in left.tensors | right.tensors:
            pair = [(branch.tensors[name], branch.lent) for branch in (left, right) if name in branch.tensors]
            if len(pair) == 1:
                ((value, lent),) = pair
                sums[name] = value.clone() if lent else value
                continue
            (one, one_lent), (other, other_lent) = pair
            into = self._memory(name, one.shape) if one_lent and other_lent else other if one_lent else one
            _sum(one, other, into)
            if not (one_lent or other_lent):
                self._free.setdefault(name, []).append(other)
            sums[name] = into
        kinds = left.kinds | right.kinds
        return _Branch(left.first, right.last, sums, kinds, left.examples + right.examples, alone=False)

    def _product(self, name: str, value: Tensor, weight: int) -> Tensor:
        product = self._memory(name, value.shape)
        _multiply(product, value, weight)
        return product

    def _memory(self, name: str, shape: torch.Size) -> Tensor:
        """Return a tensor for a sum, of any values."""
        free = self._free.get(name)
        return free.pop() if free and free[-1].shape == shape else torch.empty(shape, dtype=torch.float64)


def update_of(partition: int, tensors: Tensors | WeightedSum, metrics: Mapping[str, Any]) -> Update:
    """Return the update of a client, or that of a branch's clients, of which this one was the last."""
    if isinstance(tensors, WeightedSum):
        return Update(partition, tensors.examples, tensors.tensors, {}, tensors.kinds)
    return Update(partition, metrics.get("num-examples", 1), tensors, metrics)


@final
class ArrivingUpdates:
    """Updates of a round, read one by one as they arrive; where some may be sums, by `weighted_mean` alone."""

    def __init__(self, updates: Iterable[Update], summed: bool) -> None:
        self._updates, self._summed, self._read = updates, summed, False

    def __iter__(self) -> Iterator[Update]:
        """Hand out the updates.

        Raises:
            RunError: a sum would be taken for the update of one client, or a second reading would find none.
        """
        if self._summed:
            raise RunError('Expected reduces = "" for a method that looks at single updates, got reduces = "mean".')
        return self.revealed()

    def revealed(self) -> Iterator[Update]:
        """Return the updates, for a sum over all of them; once."""
        if self._read:
            raise RunError("Expected aggregate to read its updates once, as they arrive; list(updates) keeps them all.")
        self._read = True
        return iter(self._updates)


def weighted_mean(updates: Iterable[Update]) -> Tensors:
    """Take the mean of the clients' tensors, weighted by examples; sums in float64, results in the tensors' own type.

    Raises:
        InputError: there are tensors, and no examples.

    >>> one = Update(0, 1, {"w": torch.tensor([0.0])})
    >>> weighted_mean([one, Update(1, 3, {"w": torch.tensor([4.0])})])
    {'w': tensor([3.])}
    """
    sums = BranchSums()
    for update in updates.revealed() if isinstance(updates, ArrivingUpdates) else updates:
        sums.add(update)
    whole = sums.total()
    # Without examples the mean would be a model of NaN.
    require(whole.examples > 0 or not whole.kinds, "at least one example behind a mean", examples=whole.examples)
    return {name: _divided(whole.tensors[name], whole.examples, kind) for name, kind in whole.kinds.items()}


def equal_mean(updates: Iterable[Update]) -> tuple[Tensors, int]:
    """Return the mean over clients with equal weights, and their number; see `weighted_mean`."""
    partitions: list[int] = []

    def alike() -> Iterator[Update]:
        for update in updates:
            partitions.append(update.partition)
            yield replace(update, examples=1)

    return weighted_mean(alike()), len(partitions)


def _multiply(product: Tensor, value: Tensor, weight: int) -> None:
    """Fill a tensor in float64 with a tensor times its weight."""
    if value.is_complex():
        raise TypeError(f"Expected real numbers, got {value.dtype}.")
    for part, more in zip(_parts(product), _parts(value), strict=True):
        part.copy_(more).mul_(weight)


def _add(total: Tensor, value: Tensor, weight: int) -> None:
    """Add a weighted tensor to a sum in float64; each entry is rounded as if all were added at once."""
    for part, more in zip(_parts(total), _parts(value.expand_as(total)), strict=True):
        part.add_(more, alpha=weight)


def _sum(one: Tensor, other: Tensor, into: Tensor) -> None:
    """Add two sums up in the memory of one of them, or in another one's."""
    for first, second, index in zip(_parts(one), _parts(other.expand_as(one)), _parts(into), strict=True):
        torch.add(first, second, out=index)


def _divided(total: Tensor, by: int, kind: torch.dtype) -> Tensor:
    """Divide a sum, and return the quotient in another type, to whole numbers rounded; no zero of it is negative."""
    result = torch.empty(total.shape, dtype=kind)
    for part, quotient in zip(_parts(total), _parts(result), strict=True):
        exact = (part / by).add_(0.0)
        quotient.copy_(exact if kind.is_floating_point else exact.round_().clamp_(*_bounds(kind)))
    return result


def _bounds(kind: torch.dtype) -> tuple[float, float]:
    """Return the least and the greatest whole number of a type that float64 has, too: others would turn around."""
    if kind == torch.bool:
        return 0.0, 1.0
    minimum, maximum = torch.iinfo(kind).min, torch.iinfo(kind).max
    return float(minimum), float(maximum) if float(maximum) <= maximum else nextafter(float(maximum), 0.0)


def _parts(value: Tensor) -> Sequence[Tensor]:
    """Return the numbers of a tensor in its own order, in parts that stay in the cache."""
    return (value,) if value.numel() <= _BLOCK else value.reshape(-1).split(_BLOCK)


@final
class MovingAverage:
    """Average of the broadcast tensors over the rounds.

    Args:
        decay: largest weight of the average so far, in (0, 1); 0: there is no average.

    Attributes:
        tensors: the average, in the tensors' own types; whole numbers are the latest. Empty: none yet.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.tensors: Tensors = {}

    def follow(self, server_round: int, arrays: ArrayRecord) -> None:
        """Take in the broadcast after a round; 0: the first broadcast."""
        if not self.decay:
            return
        model = unpack(arrays)
        if not self.tensors:
            self.tensors = model
            return
        kept = min(self.decay, (1 + server_round) / (10 + server_round))
        for name, value in model.items():
            if value.is_floating_point():
                mean = kept * self.tensors[name].double() + (1 - kept) * value.double()
                model[name] = mean.to(value.dtype)
        self.tensors = model

    def evaluated(self, last: ArrayRecord) -> ArrayRecord:
        """Return the tensors to evaluate: the average, or without one the last broadcast."""
        return pack(self.tensors) if self.tensors else last
