"""Choice of the mechanism of an automatic adaptation: a simpler equivalent of the defence, if there is one.

Constants that a defence adds to every gradient are measured by trial calls.
"""

from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from flfw.inversion.automatic import DifferentiableDefence, again, changed
from flfw.inversion.client_models.operator import AsOffset, Operator
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.matching import inner, rms
from flfw.inversion.outliers import AsOutliers, errors
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

_ONE_TO_ONE = (0.92, 1.08)  # slopes of a defence that acts like noise
_ALIKE = 1e-3  # how far the factors of the sent entries may differ, over their mean
_KEPT_BACK = 0.01  # least share of zero entries for a defence to count as sparsifying
_MEASURED = 8  # samples of a defence's errors
_EXACT = 1e-3  # least deviation of a tensor over its size: a search needs one above 0, and it is not finer
_TINY = 1e-30
_SIZES = (0.01, -0.25, 1.0, 4.0)  # of the trial inputs, over a gradient's; the first measures, the others test
_ROUNDED = 16  # largest difference of two errors that are equal, in roundings of the numbers that were added
_VISIBLE = 0.01  # largest size of such a rounding, over the input's: a coarser test shows nothing
_LARGE = 0.5  # size of what an output has beside its constant, over the output's: below it the constant is subtracted


def added(defence_model: DifferentiableDefence, example: Tensors) -> Tensors | None:
    """Measure the constant that a defence adds, in float64; None: there is none, or not one for all trial inputs.

    The inputs differ in direction and sign, and in size by a factor of 400. The errors may differ by rounding only.
    Inputs are float64, or float32 for code that refuses these or casts them.

    Args:
        defence_model: the defence.
        example: a gradient of the client's network.
    """
    rng = torch_generator(0, "offset")  # for the measurement only
    inputs = [_moved(example, size, rng) for size in _SIZES]
    try:
        outputs = [defence_model.defended({n: v.double() for n, v in one.items()}, rng) for one in inputs]
    except (RuntimeError, TypeError, ValueError):
        outputs = [defence_model.defended(one, rng) for one in inputs]
    offset = {n: (outputs[0][n].double() - inputs[0][n].double()) for n in example}
    something = False
    for one, output in zip(inputs, outputs, strict=True):
        for name, value in one.items():
            rounding = _ROUNDED * torch.finfo(output[name].dtype).eps * (offset[name].abs() + value.double().abs())
            error = output[name].double() - value.double()
            same = (error - offset[name]).abs() <= rounding  # False for NaN
            if not bool(same.all()) or bool(rounding.square().mean() > _VISIBLE**2 * example[name].square().mean()):
                return None
            something = something or bool((offset[name].abs() > rounding).any())
    return offset if something else None


def origin(defence_model: DifferentiableDefence, at: Tensors, draws: int) -> Tensors | None:
    """Return a defence's mean output for a gradient of 0, if its other outputs differ little from it; None: they do.

    Beside a constant, the distances of an attack hardly change with the data. Differences from it are compared instead.

    Args:
        defence_model: the defence.
        at: a gradient of the client's network.
        draws: draws of the defence's randomness for a mean.
    """
    rng, zeros = torch_generator(0, "origin"), {n: torch.zeros_like(v) for n, v in at.items()}
    try:
        still, output = (_mean_output(defence_model, one, draws, rng) for one in (zeros, at))
    except (ArithmeticError, RuntimeError, ValueError):  # it refuses a gradient of 0
        return None
    beside = {n: output[n] - v for n, v in still.items()}
    return still if bool(inner(beside, beside) < _LARGE**2 * inner(output, output)) else None  # None for NaN


def _mean_output(defence_model: DifferentiableDefence, at: Tensors, draws: int, rng: torch.Generator) -> Tensors:
    samples = [defence_model.defended(at, rng) for _ in range(draws)]
    return {n: torch.stack([one[n] for one in samples]).mean(0) for n in at}


def _moved(example: Tensors, size: float, rng: torch.Generator) -> Tensors:
    """Return a changed gradient of some size; no entry of it is 0."""
    return {n: size * (example[n] + change) for n, change in changed(example, rng).items()}


def choose_operator(
    defence_model: DifferentiableDefence,
    victim: VictimModel,
    sent: Tensors,
    labels: Tensor | None,
    batch: int,
    rng: torch.Generator,
) -> DifferentiableDefence | Operator:
    """Choose the mechanism of a search by trying the defence.

    A defence that zeroes entries and scales the others is read off the observation: `AsSelection`. What a defence adds
    to every gradient is subtracted from the observation: `AsOffset`. A defence that is not random, and whose derivative
    predicts its response, stands in the objective as it is. A defence that replaces some entries and leaves the others
    is met by a likelihood with long tails: `AsOutliers`. A defence that passes on a small change and a doubling one to
    one, with errors like chance, acts like noise. The noise is measured once instead of simulated in every step:
    `AsNoise`. Any other random defence stands in the objective with the measured size of its randomness, so that an
    attack may use likelihoods. All others stand there as they are. Where what stands in the objective is mostly a
    constant, differences from that are compared.

    Args:
        defence_model: the defence.
        victim: model of the client.
        sent: the tensors it sent, by name.
        labels: (batch,) its labels; None: class 0 is used.
        batch: number of examples.
        rng: generator of the guess for the trial, and of the defence.
    """
    victim.check(sent)
    x = torch.rand((batch, *victim.inputs.shape), generator=rng).to(victim.inputs.mean.device)
    y = torch.zeros(batch, dtype=torch.int64, device=x.device) if labels is None else labels
    observed, constants = victim.observed(sent)
    example = {n: v.detach() for n, v in victim.gradient(x, y, victim.unknown, constants).items()}
    factor = _selects(defence_model, example, rng) if _kept_back(observed) else None
    if factor is not None:
        return AsSelection(factor)
    offset = added(defence_model, example)
    if offset is not None:
        return AsOffset(offset)
    noise = AsNoise(defence_model, example)
    at = noise.sized(observed, rng)
    nature, faithful = defence_model.nature(at, rng), defence_model.is_faithful(at, rng)
    constant = origin(defence_model, example, 1 if nature == "fixed" else defence_model.draws)
    beside = defence_model if constant is None else defence_model.from_origin(constant)
    if nature == "fixed" and faithful:
        return beside
    measured = errors(defence_model, example)
    if measured is not None:
        return AsOutliers(measured, example)
    low, high = _ONE_TO_ONE
    one_to_one = all(low <= float(slope(defence_model, at, rng)) <= high for slope in (_response, _growth))
    if one_to_one and nature != "random" and constant is None:
        return noise
    return beside if nature == "fixed" else beside.counting(_deviations(beside, at, rng))


def alike(chosen: DifferentiableDefence | Operator) -> str:
    """Return a key of the victims that may be searched for together; empty: this one has its own deviations.

    Selections and noise read their differences off each observation.
    """
    if isinstance(chosen, AsSelection):
        return f"selection {chosen.factor:.4g}" if isinstance(chosen.factor, float) else f"selection, {chosen.factor}"
    if isinstance(chosen, AsNoise):
        return "noise"
    if isinstance(chosen, AsOffset):
        return "offset"
    if isinstance(chosen, AsOutliers):
        return f"outliers, {chosen.alike}"
    if not isinstance(chosen, DifferentiableDefence) or chosen.noise is not None:
        return ""
    return "itself" if chosen.origin is None else "itself, from a constant"


Factor: TypeAlias = float | Literal["one for all", "one for each"]
"""Output over input: always the same, or unknown, of all tensors together or of each."""


@final
class AsSelection(Operator):
    """Defence that zeroes entries: a trial is compared only where an entry was sent.

    Args:
        factor: output over input; an unknown factor, as of a bound, is fitted by least squares.
    """

    def __init__(self, factor: Factor) -> None:
        super().__init__({})
        self.factor = factor

    def read(self, sent: Tensors) -> Tensors:
        """Read ``support.NAME``: 1 where an entry was sent, else 0."""
        return {f"support.{name}": (value != 0).to(value.dtype) for name, value in sent.items()}

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Keep the trial's entries where an entry was sent, times the factor."""
        there = {n: simulated[n] * constants[f"support.{n}"] for n in sent}
        if self.factor == "one for each":
            return {n: v * _fitting({n: v}, {n: sent[n]}) for n, v in there.items()}
        factor = self.factor if isinstance(self.factor, float) else _fitting(there, sent)
        return {n: v * factor for n, v in there.items()}


@final
class AsNoise(Operator):
    """Defence that acts like noise: the residual of a trial counts in deviations of the defence's error.

    Args:
        defence_model: the defence.
        example: a gradient of the client's network, at which its errors are measured.
    """

    def __init__(self, defence_model: DifferentiableDefence, example: Tensors) -> None:
        super().__init__({})
        self._automatic, self._example = defence_model, example

    def sized(self, sent: Tensors, rng: torch.Generator) -> Tensors:
        """Scale each tensor of the example so that its defended size equals that of the observation."""
        gradient = self._example
        for _ in range(3):
            defended = self._automatic.defended(gradient, rng)
            gradient = {n: v * rms(sent[n]) / rms(defended[n]).clamp(min=_TINY) for n, v in gradient.items()}
        return gradient

    def read(self, sent: Tensors) -> Tensors:
        """Measure ``precision.NAME``: one over the root mean square of a tensor's errors, with a floor.

        It is 0 for a tensor of zeros, which gives no information.
        """
        rng = torch_generator(0, "errors")  # for the measurement only; the same for every observation
        at, squares = self.sized(sent, rng), dict.fromkeys(sent, torch.zeros(()))
        for _ in range(_MEASURED):
            change = changed(at, rng)
            moved = {n: v + change[n] for n, v in at.items()}
            defended = self._automatic.defended(moved, rng)
            squares = {n: squares[n] + (defended[n] - v).square().mean() / _MEASURED for n, v in moved.items()}
        least = {n: _EXACT * rms(value) for n, value in sent.items()}
        stds = {n: torch.maximum(squares[n].sqrt(), least[n]) for n in sent}
        return {f"precision.{n}": torch.where(v > 0, 1 / v, 0.0) for n, v in stds.items()}

    def apply(self, simulated: Tensors, sent: Tensors, constants: Tensors) -> Tensors:
        """Return the observation plus the trial's residual, in deviations."""
        return {n: value + (simulated[n] - value) * constants[f"precision.{n}"] for n, value in sent.items()}

    @property
    def noise(self) -> float | None:
        """1: `apply` counts in deviations."""
        return 1.0


def _kept_back(tensors: Tensors) -> bool:
    """Return whether entries were zeroed."""
    zeros = sum(int((value == 0).sum()) for value in tensors.values())
    return zeros >= _KEPT_BACK * sum(value.numel() for value in tensors.values())


def _fitting(values: Tensors, sent: Tensors) -> Tensor:
    """Compute the factor that brings tensors nearest to the observation."""
    return inner(values, sent) / inner(values, values).clamp(min=_TINY)


def _selects(defence_model: DifferentiableDefence, example: Tensors, rng: torch.Generator) -> Factor | None:
    """Return the factor of the entries that do not become 0; None: no entry becomes 0, or the factors differ.

    The test uses entries that are not 0, and then entries twice as large.
    """
    at = {n: v + c for (n, v), c in zip(example.items(), changed(example, rng).values(), strict=True)}
    sizes = []
    for size in (1, 2):
        defended = defence_model.defended({n: size * v for n, v in at.items()}, rng)
        if not _kept_back(defended):
            return None
        sizes.append([(defended[n] / (size * v))[(defended[n] != 0) & (v != 0)] for n, v in at.items()])
    if not all(_alike(factors) for tensors in sizes for factors in tensors):
        return None
    one, two = (torch.cat(tensors) for tensors in sizes)
    if _alike(torch.cat([one, two])):
        return float(one.mean())
    return "one for all" if _alike(one) and _alike(two) else "one for each"


def _alike(factors: Tensor) -> bool:
    """Return whether all factors are equal; True for none."""
    return not len(factors) or bool((factors - factors.mean()).abs().max() <= _ALIKE * factors.mean().abs())


def _response(defence_model: DifferentiableDefence, at: Tensors, rng: torch.Generator) -> Tensor:
    """Compute the mean share of a small change that comes out, each tensor in units of its own change."""
    change, state = changed(at, rng), rng.get_state()
    ways = ({n: v + way * change[n] for n, v in at.items()} for way in (1, -1))
    up, down = (defence_model.defended(moved, again(state)) for moved in ways)
    slopes = [((up[n] - down[n]) * c).sum() / (2 * c.square().mean()).clamp(min=_TINY) for n, c in change.items()]
    return torch.stack(slopes).sum() / sum(c.numel() for c in change.values())


def _growth(defence_model: DifferentiableDefence, at: Tensors, rng: torch.Generator) -> Tensor:
    """Compute the growth of the output for a doubled input: 1 for noise and rounding, less for a bound."""
    state = rng.get_state()
    one, two = (defence_model.defended({n: k * v for n, v in at.items()}, again(state)) for k in (1, 2))
    return inner({n: two[n] - one[n] for n in at}, at) / inner(at, at).clamp(min=_TINY)


def _deviations(defence_model: DifferentiableDefence, at: Tensors, rng: torch.Generator) -> Tensors:
    """Compute the root mean square of the randomness in each tensor, with a floor."""
    samples = [defence_model.defended(at, rng) for _ in range(_MEASURED)]
    samples = [defence_model.undoing.undo(one) for one in samples] if defence_model.undoing else samples
    each = {n: torch.stack([one[n] for one in samples]) for n in at}
    return {n: torch.maximum(v.var(0).mean().sqrt(), _EXACT * rms(v)).clamp(min=_TINY) for n, v in each.items()}
