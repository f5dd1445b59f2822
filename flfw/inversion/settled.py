"""What an automatic adaptation searches with: something simpler that does what the defence does, if there is such."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from flfw.inversion.automatic import Automatic, again, changed
from flfw.inversion.matching import inner
from flfw.nets.net import Tensors
from flfw.rng import torch_generator
from flfw.victims.operator import Operator
from flfw.victims.victim import VictimModel

_ONE_TO_ONE = (0.92, 1.08)  # slopes of a defence that is as good as noise
_ALIKE = 1e-3  # how far the factors of entries that are handed on may differ, over their mean
_KEPT_BACK = 0.01  # share of the entries from which on a defence is one that keeps entries back
_MEASURED = 8  # looks at a defence's errors
_EXACT = 1e-3  # deviation of a tensor that is sent without any, over its size: a search needs some, and it is not finer
_TINY = 1e-30


def settled(
    automatic: Automatic,
    victim: VictimModel,
    sent: Tensors,
    labels: Tensor | None,
    batch: int,
    rng: torch.Generator,
) -> Automatic | Operator:
    """Find out, by trying it, what a defence is, and what is best searched with.

    One that keeps entries back and hands the others on in proportion is read off what was sent: `AsSelection`. One that
    is not random, and whose own derivative tells how it responds, stands in the objective as it is. One that hands on,
    one to one, a small change and twice the size, and errs by chance or as if by chance, is as good as noise, which is
    measured rather than run through in every step: `AsNoise`. Any other that is random stands in the objective with
    the size of what is random in it, so that an attack may take likelihoods; what is left stands there as it is.

    Args:
        automatic: the defence.
        victim: of the client.
        sent: what it sent, by name.
        labels: (batch,) its labels; None: any are tried.
        batch: how many examples.
        rng: of the guess at which the defence is tried, and of the defence.
    """
    victim.check(sent)
    x = torch.rand((batch, *victim.inputs.shape), generator=rng).to(victim.inputs.mean.device)
    y = torch.zeros(batch, dtype=torch.int64, device=x.device) if labels is None else labels
    observed, constants = victim.observed(sent)
    example = {n: v.detach() for n, v in victim.gradient(x, y, victim.unknown, constants).items()}
    factor = _selects(automatic, example, rng) if _kept_back(observed) else None
    if factor is not None:
        return AsSelection(factor)
    noise = AsNoise(automatic, example)
    at = noise.sized(observed, rng)
    nature, faithful = automatic.nature(at, rng), automatic.is_faithful(at, rng)
    if nature == "fixed" and (faithful or _adds_the_same(automatic, at, rng)):
        return automatic
    low, high = _ONE_TO_ONE
    one_to_one = all(low <= float(slope(automatic, at, rng)) <= high for slope in (_response, _growth))
    if one_to_one and nature != "random":
        return noise
    return automatic if nature == "fixed" else automatic.counting(_deviations(automatic, at, rng))


def alike(found: Automatic | Operator) -> str:
    """What several victims have in common that may be searched for at once; empty: this one has deviations of its own.

    Selections and noise read what differs off each observation.
    """
    if isinstance(found, AsSelection):
        return f"selection {found.factor:.4g}" if isinstance(found.factor, float) else f"selection, {found.factor}"
    if isinstance(found, AsNoise):
        return "noise"
    return "itself" if found.noise is None else ""


Factor: TypeAlias = float | Literal["one for all", "one for each"]
"""What is sent over what goes in: always the same, or unknown, of all tensors together or of each."""


@final
class AsSelection(Operator):
    """A defence that keeps entries back: a trial counts where something was sent.

    Args:
        factor: an unknown one, as a bound has, is that with the least squares.
    """

    def __init__(self, factor: Factor) -> None:
        super().__init__({})
        self.factor = factor

    def read(self, sent: Tensors) -> Tensors:
        """``support.NAME``: 1 where an entry was sent, else 0."""
        return {f"support.{name}": (value != 0).to(value.dtype) for name, value in sent.items()}

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The trial's entries at the places of those that were sent, as they would have been."""
        there = {n: trial[n] * constants[f"support.{n}"] for n in sent}
        if self.factor == "one for each":
            return {n: v * _fitting({n: v}, {n: sent[n]}) for n, v in there.items()}
        factor = self.factor if isinstance(self.factor, float) else _fitting(there, sent)
        return {n: v * factor for n, v in there.items()}


@final
class AsNoise(Operator):
    """A defence that is as good as noise: what is left of a trial, in deviations of what the defence adds.

    Args:
        automatic: the defence.
        example: a gradient of the client's network, at which its errors are measured.
    """

    def __init__(self, automatic: Automatic, example: Tensors) -> None:
        super().__init__({})
        self._automatic, self._example = automatic, example

    def sized(self, sent: Tensors, rng: torch.Generator) -> Tensors:
        """The example, each tensor scaled so that after the defence it is of the size of what was sent."""
        own = self._example
        for _ in range(3):
            found = self._automatic.defended(own, rng)
            own = {n: v * _rms(sent[n]) / _rms(found[n]).clamp(min=_TINY) for n, v in own.items()}
        return own

    def read(self, sent: Tensors) -> Tensors:
        """``precision.NAME``: one over the root mean square of a tensor's errors, however exact it is sent.

        0 of a tensor of zeros, of which nothing is known.
        """
        rng = torch_generator(0, "errors")  # of the measurement alone; the same for every observation
        at, squares = self.sized(sent, rng), dict.fromkeys(sent, torch.zeros(()))
        for _ in range(_MEASURED):
            change = changed(at, rng)
            moved = {n: v + change[n] for n, v in at.items()}
            found = self._automatic.defended(moved, rng)
            squares = {n: squares[n] + (found[n] - v).square().mean() / _MEASURED for n, v in moved.items()}
        least = {n: _EXACT * _rms(value) for n, value in sent.items()}
        deviations = {n: torch.maximum(squares[n].sqrt(), least[n]) for n in sent}
        return {f"precision.{n}": torch.where(v > 0, 1 / v, 0.0) for n, v in deviations.items()}

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """What was sent plus what is left of the trial, in deviations."""
        return {n: value + (trial[n] - value) * constants[f"precision.{n}"] for n, value in sent.items()}

    @property
    def noise(self) -> float | None:
        """1: `apply` counts in deviations."""
        return 1.0


def _kept_back(tensors: Tensors) -> bool:
    """Whether entries are missing."""
    zeros = sum(int((value == 0).sum()) for value in tensors.values())
    return zeros >= _KEPT_BACK * sum(value.numel() for value in tensors.values())


def _fitting(values: Tensors, sent: Tensors) -> Tensor:
    """The factor of some tensors that brings them nearest to what was sent."""
    return inner(values, sent) / inner(values, values).clamp(min=_TINY)


def _selects(automatic: Automatic, example: Tensors, rng: torch.Generator) -> Factor | None:
    """The factor of the entries that do not come out as 0, as some do; None: they have none in common.

    It is tried on entries of which none is 0, and again on twice as large ones.
    """
    at = {n: v + c for (n, v), c in zip(example.items(), changed(example, rng).values(), strict=True)}
    sizes = []
    for size in (1, 2):
        found = automatic.defended({n: size * v for n, v in at.items()}, rng)
        if not _kept_back(found):
            return None
        sizes.append([(found[n] / (size * v))[(found[n] != 0) & (v != 0)] for n, v in at.items()])
    if not all(_alike(several) for tensors in sizes for several in tensors):
        return None
    one, two = (torch.cat(tensors) for tensors in sizes)
    if _alike(torch.cat([one, two])):
        return float(one.mean())
    return "one for all" if _alike(one) and _alike(two) else "one for each"


def _alike(factors: Tensor) -> bool:
    """Whether they are one; also of none."""
    return not len(factors) or bool((factors - factors.mean()).abs().max() <= _ALIKE * factors.mean().abs())


def _adds_the_same(automatic: Automatic, at: Tensors, rng: torch.Generator) -> bool:
    """Whether what a defence that is not random adds does not depend on what goes in."""
    change = changed(at, rng)
    errors = []
    for moved in (at, {n: v + change[n] for n, v in at.items()}):
        found = automatic.defended(moved, rng)
        errors.append({n: found[n] - v for n, v in moved.items()})
    return all(_rms(errors[1][n] - error) <= _ALIKE * _rms(error) for n, error in errors[0].items())


def _response(automatic: Automatic, at: Tensors, rng: torch.Generator) -> Tensor:
    """How much of a small change comes out, as a mean over the entries, each tensor in units of its own change."""
    change, state = changed(at, rng), rng.get_state()
    ways = ({n: v + way * change[n] for n, v in at.items()} for way in (1, -1))
    up, down = (automatic.defended(moved, again(state)) for moved in ways)
    slopes = [((up[n] - down[n]) * c).sum() / (2 * c.square().mean()).clamp(min=_TINY) for n, c in change.items()]
    return torch.stack(slopes).sum() / sum(c.numel() for c in change.values())


def _growth(automatic: Automatic, at: Tensors, rng: torch.Generator) -> Tensor:
    """By how much twice the size comes out larger, over twice: 1 for noise and rounding, less for a bound."""
    state = rng.get_state()
    one, two = (automatic.defended({n: k * v for n, v in at.items()}, again(state)) for k in (1, 2))
    return inner({n: two[n] - one[n] for n in at}, at) / inner(at, at).clamp(min=_TINY)


def _deviations(automatic: Automatic, at: Tensors, rng: torch.Generator) -> Tensors:
    """Root mean square of what is random in each tensor, however exact it is sent."""
    several = [automatic.defended(at, rng) for _ in range(_MEASURED)]
    each = {n: torch.stack([one[n] for one in several]) for n in at}
    return {n: torch.maximum(v.var(0).mean().sqrt(), _EXACT * _rms(v)).clamp(min=_TINY) for n, v in each.items()}


def _rms(value: Tensor) -> Tensor:
    return value.square().mean().sqrt()
