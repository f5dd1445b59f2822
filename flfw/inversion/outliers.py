"""Random defences that replace some entries and leave the others: found by trial calls, and a loss that bears them."""

from math import ceil, sqrt
from typing import NamedTuple, final

import torch
from torch import Tensor

from flfw.inversion.automatic import DifferentiableDefence, changed
from flfw.inversion.client_models.operator import Operator
from flfw.inversion.matching import inner, rms
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

_SIZES = (1, 2) * 4  # of the trial inputs, over a gradient's
_FAR = 0.1  # median over root mean square of the errors, below which some are outliers; noise has 0.67
_QUARTILE = 0.6745  # median of a Gaussian's magnitude, in deviations
_REPLACED = 10.0  # smallest error of an entry that counts as replaced, in typical errors
_ONE_TO_ONE = (0.92, 1.08)  # slopes of the entries that were left
_PLAUSIBLE = 10.0  # largest entry that may be true, over the largest that must be
_EXACT = 1e-3  # least unit over the size of a tensor's entries: a search needs one above 0, and it is not finer
_TINY = 1e-30


class Errors(NamedTuple):
    """Errors of a defence in one tensor.

    Attributes:
        typical: deviation of a Gaussian of the same median magnitude; 0: most entries are sent as they are.
        size: their root mean square.
        replaced: share of the entries that were replaced.
    """

    typical: Tensor
    size: Tensor
    replaced: Tensor


def errors(defence_model: DifferentiableDefence, example: Tensors) -> dict[str, Errors] | None:
    """Measure the errors of a defence with outliers in each tensor; None: it has none.

    The rule: in some tensor the errors' median magnitude is below a tenth of their root mean square, and the entries
    that are left respond one to one. So rounding most entries to 0 is not taken for outliers: it leaves no entry.

    Args:
        defence_model: the defence.
        example: a gradient of the client's network.
    """
    rng = torch_generator(0, "outliers")  # for the measurement only
    inputs = []
    for size in _SIZES:
        change = changed(example, rng)
        inputs.append({n: size * (v + change[n]) for n, v in example.items()})
    outputs = [defence_model.defended(one, rng) for one in inputs]
    measured, left = {}, []
    for name in example:
        given, sent = (torch.stack([one[name] for one in many]) for many in (inputs, outputs))
        error = (sent - given).abs()
        typical = error.median() / _QUARTILE
        replaced = error > _REPLACED * typical
        measured[name] = Errors(typical, rms(error), replaced.float().mean())
        left.append((given[~replaced], sent[~replaced]))
    far = any(float(one.typical) * _QUARTILE < _FAR * float(one.size) for one in measured.values())
    given, sent = ({"left": torch.cat(values)} for values in zip(*left, strict=True))
    low, high = _ONE_TO_ONE
    slope = float(inner(sent, given) / inner(given, given).clamp(min=_TINY))
    return measured if far and low <= slope <= high else None


@final
class AsOutliers(Operator):
    """Defence that replaces some entries: the residuals of a trial count by a likelihood with long tails.

    Entries that are too large to be true are left out. For the others the residual, in units of the typical error, is
    shrunk (`shrunk`), so that a sum of squares becomes a sum of magnitudes. An attack near the data may continue with
    `cauchy_likelihood`: it is hardly changed by a replaced entry, but has local minima far from the data.

    Args:
        measured: the errors of each tensor.
        example: a gradient of the client's network.
    """

    def __init__(self, measured: dict[str, Errors], example: Tensors) -> None:
        super().__init__({})
        self._typical = {n: one.typical for n, one in measured.items()}
        count = sum(v.numel() for v in example.values())
        overall = sum(float(one.replaced) * example[n].numel() for n, one in measured.items()) / count
        self._share = {n: max(float(one.replaced), overall) for n, one in measured.items()}
        self._largest = {n: v.abs().max() for n, v in example.items()}

    @property
    def alike(self) -> str:
        """The typical errors and the shares in words, equal for victims that may be searched for together."""
        return ", ".join(f"{name} {self._typical[name]:.2g} {share:.2g}" for name, share in self._share.items())

    def undo(self, sent: Tensors) -> Tensors:
        """Set the entries that are too large to be true to 0."""
        return {n: value * self._plausible(n, value) for n, value in sent.items()}

    def read(self, sent: Tensors) -> Tensors:
        """Read ``precision.NAME`` of the entries: one over the typical error, with a floor; 0 where left out."""
        precision = {}
        for name, value in sent.items():
            kept = self._plausible(name, value)
            unit = torch.maximum(self._typical[name], _EXACT * rms(value[kept.bool()]).nan_to_num())
            precision[f"precision.{name}"] = torch.where(unit > 0, kept / unit, 0.0)
        return precision

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Return the observation plus the trial's residual, in typical errors and shrunk."""
        return {n: value + shrunk((simulated[n] - value) * constants[f"precision.{n}"]) for n, value in sent.items()}

    @property
    def noise(self) -> float | None:
        """1: `apply` counts in typical errors."""
        return 1.0

    def _plausible(self, name: str, value: Tensor) -> Tensor:
        """Return 1 where an entry may be true, else 0.

        As many of the largest entries as may have been replaced are set aside. The next one must be true, and those
        within ten times its size may be.
        """
        mean = self._share[name] * value.numel()
        aside = ceil(mean + 3 * sqrt(mean))
        if aside >= value.numel():
            return torch.ones_like(value)
        largest = value.abs().flatten().topk(aside + 1).values[-1]
        bound = torch.where(largest > 0, largest, self._largest[name])
        return (value.abs() <= _PLAUSIBLE * bound).to(value.dtype)


def shrunk(residual: Tensor) -> Tensor:
    """Shrink residuals r so that half their square becomes sqrt(1 + r^2) - 1, which grows like |r|.

    >>> shrunk(torch.tensor([0.0, 0.75, -2400.0]))
    tensor([  0.0000,   0.7071, -69.2676])
    """
    return residual * (2 / ((1 + residual.square()).sqrt() + 1)).sqrt()


def cauchy_likelihood(simulated: Tensors, observed: Tensors) -> Tensor:
    """Compute the sum of log(1 + r^2 / 2) from residuals r that were `shrunk`: a Cauchy's tails, up to a constant.

    >>> r = torch.tensor([0.0, 2.0, -2400.0])
    >>> float(cauchy_likelihood({"w": shrunk(r)}, {"w": torch.zeros(3)})), float((1 + r**2 / 2).log().sum())
    (15.971914291381836, 15.971914291381836)
    """
    squares = [(simulated[name] - value).square() for name, value in observed.items()]
    return torch.stack([((each + each.square() / 4) / 2).log1p().sum() for each in squares]).sum()
