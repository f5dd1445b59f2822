"""What an automatic adaptation searches with: something simpler that does what the defence does, if there is such."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from flfw.inversion.automatic import Automatic, again, changed
from flfw.inversion.matching import inner
from flfw.inversion.mechanism import Mechanism
from flfw.inversion.victim import VictimModel
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

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
) -> Automatic | Mechanism:
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
    if nature == "fixed" and faithful:
        return automatic
    low, high = _ONE_TO_ONE
    one_to_one = all(low <= float(slope(automatic, at, rng)) <= high for slope in (_response, _growth))
    if one_to_one and nature != "random":
        return noise
    return automatic if nature == "fixed" else automatic.counting(_deviations(automatic, at, rng))


@final
class AsSelection(Mechanism):
    """A defence that keeps entries back: a trial counts where something was sent.

    Args:
        factor: what is sent over what goes in, where anything is sent.
    """

    def __init__(self, factor: float) -> None:
        super().__init__({})
        self._factor = factor

    def read(self, sent: Tensors) -> Tensors:
        """``support.NAME``: the factor where an entry was sent, else 0."""
        return {f"support.{name}": self._factor * (value != 0).to(value.dtype) for name, value in sent.items()}

    def apply(self, trial: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """The trial's entries at the places of those that were sent, as they would have been."""
        return {name: trial[name] * constants[f"support.{name}"] for name in sent}


@final
class AsNoise(Mechanism):
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


def _selects(automatic: Automatic, example: Tensors, rng: torch.Generator) -> float | None:
    """The one factor with which every entry comes out that does not come out as 0, as some do; None: there is none.

    It is tried on entries of which none is 0, and again on twice as large ones, for a bound has another factor there.
    """
    at = {n: v + c for (n, v), c in zip(example.items(), changed(example, rng).values(), strict=True)}
    factors = []
    for size in (1, 2):
        found = automatic.defended({n: size * v for n, v in at.items()}, rng)
        if not _kept_back(found):
            return None
        factors += [(found[n] / (size * v))[(found[n] != 0) & (v != 0)] for n, v in at.items()]
    several = torch.cat(factors)
    if not len(several) or bool((several - several.mean()).abs().max() > _ALIKE * several.mean().abs()):
        return None
    return float(several.mean())


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
