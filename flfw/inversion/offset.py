"""Constants that a defence adds to every gradient: measured by trial calls."""

from __future__ import annotations

import torch

from flfw.inversion.automatic import DifferentiableDefence, changed
from flfw.inversion.matching import inner
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

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
    change = changed(example, rng)
    return {n: size * (v + change[n]) for n, v in example.items()}
