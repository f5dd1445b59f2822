"""Agreement of a recorded update with the ones recomputed from the truth: direction, length, and the bounds of both.

One recomputation, if nothing in the training is random: the two updates may differ by a small share of their length.
Several, if something is drawn anew each time (the order of the batches, dropout, augmentation): the recorded update is
one more draw, so it has to be as near to the recomputed ones as each of these is to the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from flfw.errors import require
from flfw.nets.net import Tensors

TOLERANCE = 0.01
"""Largest length of the difference of two updates that agree, over the length of one of them."""
COARSE = 0.05
"""Largest share that rounding may change where updates can be compared: above it, it could hide a wrong description."""
TELLING = 0.75
"""Smallest required cosine at which an agreement counts: below it, too many descriptions would agree."""
LENGTHS = (0.7, 1.4)
"""Ratios between which the bounds must lie for an agreement to count, for the same reason."""
SLACK = 1.5
"""Factor of the recomputed updates' own distances: the largest of a few draws is exceeded by another one at times."""

Outcome: TypeAlias = Literal["passed", "failed", "not possible"]


@final
@dataclass(frozen=True)
class Agreement:
    """Comparison of a recorded update with the recomputed ones.

    Attributes:
        cosine: cosine of the angle between the recorded update and the mean of the recomputed ones.
        ratio: length of the recorded update over the mean length of the recomputed ones.
        tolerance: share of an update's length by which equal updates may differ: `TOLERANCE` and that of rounding.
        recomputations: number of recomputed updates.
        least_cosine: smallest cosine that agrees.
        ratios: smallest and largest ratio that agree.
        impossible: why the updates cannot be compared; empty: they can.
    """

    cosine: float
    ratio: float
    tolerance: float
    recomputations: int
    least_cosine: float
    ratios: tuple[float, float]
    impossible: str = ""

    @property
    def outcome(self) -> Outcome:
        """``not possible`` where the updates cannot be compared: that is never a pass."""
        low, high = self.ratios
        if self.impossible:
            return "not possible"
        if not (self.points and low <= self.ratio <= high):
            return "failed"
        return "passed" if self.is_telling else "not possible"

    @property
    def is_telling(self) -> bool:
        """True if the bounds are so narrow that not every description would agree."""
        low, high = self.ratios
        return self.least_cosine >= TELLING and low >= LENGTHS[0] and high <= LENGTHS[1]

    @property
    def agrees(self) -> bool:
        """True if the comparison was possible, and both numbers are within their bounds."""
        return self.outcome == "passed"

    @property
    def points(self) -> bool:
        """True if the directions agree; the lengths may not."""
        return not self.impossible and self.cosine >= self.least_cosine

    @property
    def off(self) -> float:
        """Length of the difference of the two updates, over that of the recomputed one."""
        return sqrt(max(0.0, 1 + self.ratio**2 - 2 * self.ratio * self.cosine)) if isfinite(self.ratio) else inf

    @property
    def numbers(self) -> str:
        """The two numbers in words, for a sentence."""
        ratio = f"{self.ratio:.4f}" if self.ratio < 10 else f"{self.ratio:.3g}"
        return f"cosine {self.cosine:.5f}, length ratio {ratio}"

    @property
    def sentence(self) -> str:
        """The comparison as a sentence with its numbers."""
        if self.impossible:
            return f"The recorded update cannot be compared with one recomputed from the truth: {self.impossible}."
        times = "once" if self.recomputations == 1 else f"{self.recomputations} times"
        words = "does not agree" if self.outcome == "failed" else "agrees"
        low, high = self.ratios
        vague = "" if self.is_telling else " The training is so random that this shows nothing."
        vague = "" if self.outcome == "failed" else vague
        bounds = f"a cosine of at least {self.least_cosine:.5f} and a ratio from {low:.3f} to {high:.3f}"
        return (
            f"The recorded update {words} with the one recomputed {times} from the truth: {self.numbers}; required are "
            f"{bounds}.{vague}"
        )


def agreement(recorded: Tensors, recomputed: Sequence[Tensors], rounding: float = 0.0) -> Agreement:
    """Compare a recorded update with the ones recomputed from the truth.

    With one recomputation, the difference of the two may be `TOLERANCE` plus ``rounding`` of its length t: then the
    ratio is within 1 - t and 1 + t, and the cosine is at least 1 - t * t / 2.

    With several, each of them is compared with the mean of the others in the same way. The recorded update may have a
    distance 1 - cosine from their mean of `SLACK` times the largest of theirs, and a ratio that lies half of their
    range outside of it; the bounds for one recomputation are added. An error that changes the update less than the
    draws do is not seen; where the bounds are so wide that they say little (`TELLING`, `LENGTHS`), an update within
    them is no pass, while one outside of them fails.

    Args:
        recorded: the recorded change of the parameters, or their gradient.
        recomputed: the same from the truth, from independent draws; only tensors in all of them are compared.
        rounding: relative error of the recorded update that rounding explains, as `resolution` estimates it.

    Raises:
        InputError: nothing was recomputed, or no tensor is in all of them.
    """
    require(len(recomputed) >= 1, "at least one recomputed update", recomputed=len(recomputed))
    names = [name for name in recorded if all(name in other for other in recomputed)]
    require(bool(names), "a tensor in both updates", recorded=", ".join(recorded))
    products = _products(recorded, recomputed, names)
    tolerance = TOLERANCE + rounding
    others = list(range(1, len(recomputed) + 1))
    cosine, ratio = _compared(products, 0, others)
    minimum, low, high = 1 - tolerance**2 / 2, 1 - tolerance, 1 + tolerance
    impossible = _impossible(products, rounding)
    if len(others) > 1 and not impossible:
        each = [_compared(products, i, [j for j in others if j != i]) for i in others]
        cosines, ratios = ([pair[k] for pair in each] for k in (0, 1))
        half = (max(ratios) - min(ratios)) / 2
        minimum -= SLACK * (1 - min(cosines))
        low, high = low + min(ratios) - 1 - half, high + max(ratios) - 1 + half
    return Agreement(cosine, ratio, tolerance, len(recomputed), minimum, (low, high), impossible)


def resolution(
    sent: Tensors,
    received: Tensors,
    names: Iterable[str],
    steps: int = 1,
    types: Mapping[str, torch.dtype] | None = None,
) -> float:
    """Estimate the relative error of a change that was sent as weights, from the rounding of the weights.

    Weights of size w are rounded to w times half a unit in the last place of their type, after every step; so a change
    of size c has a relative error of about the unit times w / c, and of the square root of the steps times as much if
    these were rounded independently.

    Args:
        sent: the weights after training.
        received: the weights before it.
        names: the tensors that are compared; those that were not sent or not received are left out.
        steps: number of steps.
        types: the types in which they were sent; by default their present ones.
    """
    errors = length = 0.0
    for name in names:
        if name in sent and name in received and sent[name].is_floating_point():
            unit = torch.finfo((types or {}).get(name, sent[name].dtype)).eps / 2
            errors += unit**2 * _square(sent[name])
            length += _square(sent[name].detach().double() - received[name].detach().double())
    return sqrt(steps * errors / length) if length else inf


def _products(recorded: Tensors, recomputed: Sequence[Tensors], names: Sequence[str]) -> Tensor:
    """Compute all inner products of the updates; the recorded one is the first."""
    products = torch.zeros(len(recomputed) + 1, len(recomputed) + 1, dtype=torch.float64)
    for name in names:
        flat = torch.stack([tensors[name].detach().double().flatten() for tensors in (recorded, *recomputed)])
        products += flat @ flat.T
    return products


def _compared(products: Tensor, one: int, others: Sequence[int]) -> tuple[float, float]:
    """Compute the cosine of an update with the mean of others, and its length over their mean length."""
    length = float(products[one, one].sqrt())
    summed = float(products[others][:, others].sum().clamp(min=0.0).sqrt())
    mean = float(products.diagonal()[others].sqrt().mean())
    cosine = float(products[one, others].sum()) / (length * summed) if length * summed else 0.0
    return min(1.0, cosine), length / mean if mean else inf


def _impossible(products: Tensor, rounding: float) -> str:
    lengths = products.diagonal().sqrt()
    if not bool(torch.isfinite(lengths).all()):
        return "one of them is not finite"
    if not bool(lengths[0]) and not bool(lengths[1:].any()):
        return "both are zero"
    if rounding > COARSE:
        share = "the whole" if rounding >= 1 else f"{rounding:.0%}"
        return f"rounding alone may change {share} of it, and at most {COARSE:.0%} can be left to rounding"
    return ""


def _square(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().sum())
