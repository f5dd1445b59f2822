"""Tests of whether a random defence adds normal noise, independent in each entry and message and of one size.

An attack that takes randomness for such noise leaves unused what another law gives away. Values that repeat are a
lattice, from which rounding takes the noise off; entries that stay exact, copies and sums that cancel hold the data
bare; a bounded law tells which data are possible. So the law is tried out, and not believed.

The defence acts many times on two faint messages, with equal random numbers on both. No test tells noise from what a
good generator makes of a key: whoever has the key takes such noise off. Nor is it found that one value in 2,000 is cut
off at 3.5 deviations, where the entry's own value can be read.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from flfw.nets.net import Tensors
from flfw.rng import torch_generator

Act: TypeAlias = Callable[[Tensors, torch.Generator], Tensors]
"""What a defence does to a message, with a generator."""

LEVEL = 1e-6  # share of sound defences that each test refuses
_DRAWS = 127  # prime, and so is the number of the first ones: what recurs does not fall on the same draws
_MESSAGES = 2000  # a noise that comes again is found among a million
_NUMBERS = 200_000_000  # drawn in all: fewer draws of a large network
_ENTRIES, _PAIRED = 1 << 18, 4096  # entries of a network that are tested; those among them that are paired
_FAINT = 0.1  # size of the messages in deviations of the noise
_NOT_ADDED = 0.25  # share of the change between two messages that may vary with the random numbers
_CLOSE = (0.0, *(2.0**-power for power in (24, 20, 16, 12, 8, 5)))  # in deviations; 0: equal
_SMALL = 1e-3  # deviations: distances below it are compared with one another
_MORE = 1.2  # times as many close values for equal messages as for unlike ones that rounding afterwards explains
_MORE_EQUAL = 1.5  # the same of equal distances: of a sum of two float32 noises 1.3 times as many, a float's steps
_CORRELATED = 0.75
_FEW = 32  # values of which the law cannot be judged
_MOST_ROWS, _WIDE = 512, 8.0  # rows whose covariance is looked at, and scales by which chance moves an eigenvalue


@final
@dataclass(frozen=True)
class NoiseDraws:
    """Outputs of a defence for two messages, with equal random numbers.

    Attributes:
        first: (draws, entries) outputs for the first message, by tensor.
        second: those for the second one.
        change: difference (entries,) of the messages, the second one less the first.
        shapes: of the tensors of which every entry is among them.
    """

    first: Tensors
    second: Tensors
    change: Tensors
    shapes: Mapping[str, tuple[int, ...]]


def departure_from_normal(act: Act, like: Tensors) -> str:
    """Return in words what tells the noise of a defence from independent normal noise; empty: no test does.

    Args:
        act: the defence.
        like: tensors of the shapes of a message, by name.
    """
    draws = drawn(act, like)
    return draws if isinstance(draws, str) else next(_departures(draws), "")


def drawn(act: Act, like: Tensors) -> NoiseDraws | str:
    """Let a defence act on two messages, and return the outputs; or, in words, why they are not noise on a message.

    Args:
        act: the defence.
        like: tensors of the shapes of a message, by name.
    """
    numbers = sum(value.numel() for value in like.values())
    count = max(16, min(_DRAWS, _NUMBERS // (2 * numbers)))
    rng = torch_generator(0, "messages for noise")
    unit = [{name: torch.randn(value.shape, generator=rng) for name, value in like.items()} for _ in range(2)]
    trial, again = (_outputs(act, unit[0], draws, numbers) for draws in (31, 1))
    if any(not torch.equal(value[0], again[name][0]) for name, value in trial.items()):
        return "with equal random numbers it sends something else, so that it remembers or draws elsewhere"
    if bare := [name for name, value in trial.items() if bool((value == value[0]).all(0).any())]:
        return f"in {bare[0]} some entries stay without noise"
    if _comes_again(act, unit[0], min(_MESSAGES, _NUMBERS // numbers)):
        return "whole messages come again, so that it has few noises to choose from"
    sizes = {name: _FAINT * (float(_size(value)) or 1.0) for name, value in trial.items()}
    first, second = _scaled(unit[0], sizes), _scaled(unit[1], {name: size / 2 for name, size in sizes.items()})
    chosen = _chosen(like, numbers)
    change = {name: (second[name] - first[name]).flatten()[chosen[name]] for name in like}
    shapes = {name: tuple(value.shape) for name, value in like.items() if len(chosen[name]) == value.numel()}
    return NoiseDraws(_outputs(act, first, count, numbers), _outputs(act, second, count, numbers), change, shapes)


def departure_of_residuals(noise: Tensors, resolution: Mapping[str, float] | None = None) -> str:
    """Return in words what tells the rest of messages from normal noise of the described size; empty: no test does.

    Each rest is a message less what its data give, so that nothing is drawn again and one message counts as one draw.

    Args:
        noise: (messages, ...) rests by tensor, in deviations of the described noise.
        resolution: by tensor, in deviations, the step of the numbers in which messages are sent: a lattice that reveals
            nothing. None: they have none.
    """
    return next(_in_residuals({name: value.double() for name, value in noise.items()}, resolution or {}), "")


def _in_residuals(noise: Tensors, resolution: Mapping[str, float]) -> Iterator[str]:
    for name, value in noise.items():
        flat = value.flatten(1)
        for part in (flat, *flat):
            square = float(part.square().sum())
            p = 2 * min(stats.chi2.cdf(square, part.numel()), stats.chi2.sf(square, part.numel()))
            if p < LEVEL / (1 + len(flat)):
                yield f"in {name} its deviation is {(square / part.numel()) ** 0.5:.4g} times the described one"
        step = resolution.get(name, 0.0)
        if any(repeats(each, step, folds) for each, folds in ((flat, 1), (flat.abs(), 2))):
            yield f"in {name} its values gather on a lattice, or repeat"
        if flat.numel() >= _FEW and (p := p_of_normal(flat)) < LEVEL:
            yield f"in {name} its law is not the normal one (p = {p:.1g})"
        if len(flat) > 1 and unlike_sizes(flat):
            yield f"in {name} some entries get less of it than others"
        if len(flat) > 1 and unlike_sums(flat, tuple(value.shape[1:])):
            yield f"in {name} its sums over some entries are unlike it"
        if any(follow_from_others(value.movedim(axis, 0).flatten(1)) for axis in range(1, value.dim())):
            yield f"in {name} some of its entries follow from others"
    whole, step = torch.cat([value.flatten(1) for value in noise.values()], 1), max(resolution.values(), default=0.0)
    if any(repeats(each, step, folds) for each, folds in ((whole, 1), (whole.abs(), 2))):
        yield "some of its values follow from others"
    unit, pairs = whole / whole.norm(dim=1, keepdim=True), len(whole) * (len(whole) - 1) // 2
    likeness = float((unit @ unit.T).triu(1).square().sum()) * whole.shape[1]
    if pairs and stats.chi2.sf(likeness, pairs) < LEVEL:
        yield "messages have some of it in common, or it has fewer free numbers than entries"


def follow_from_others(rows: Tensor) -> bool:
    """Return whether rows (r, n) are correlated: an eigenvalue of their covariance is beyond what chance gives.

    The bounds are those of Marchenko and Pastur, with eight of the scales of Tracy and Widom. Few values tell nothing.
    """
    r, n = rows.shape
    if not 1 < r <= min(_MOST_ROWS, n // 4):
        return False
    eigenvalues, ends = torch.linalg.eigvalsh(rows @ rows.T / n), (n**0.5 - r**0.5, n**0.5 + r**0.5)
    scales = [end / n * abs(r**-0.5 + sign * n**-0.5) ** (1 / 3) for end, sign in zip(ends, (-1, 1), strict=True)]
    low, high = ends[0] ** 2 / n - _WIDE * scales[0], ends[1] ** 2 / n + _WIDE * scales[1]
    return bool(eigenvalues[0] < low or eigenvalues[-1] > high)


def repeats(values: Tensor, resolution: float, folds: int = 1) -> bool:
    """Return whether more values lie close together than normal ones do, as on a lattice.

    Args:
        values: in deviations.
        resolution: closeness, in deviations, that shows nothing.
        folds: 2 for absolute values, which lie twice as close.
    """
    flat = values.flatten()
    ordered = flat[:: -(-len(flat) // _ENTRIES)].sort().values
    for close in (2.0**-power for power in range(20, 4, -1) if 2.0**-power >= 4 * resolution):  # finer is float32's own
        above = torch.searchsorted(ordered, ordered + close, right=True) - torch.arange(1, len(ordered) + 1)
        expected = folds * close / math.pi**0.5 * len(ordered) * (len(ordered) - 1) / 2
        if stats.poisson.sf(int(above.sum()) - 1, _MORE * expected) < LEVEL / 16:
            return True
    return False


def _chosen(like: Tensors, numbers: int) -> dict[str, Tensor]:
    """Return the places of the entries that are tested, as many of each tensor for its size, at equal distances."""
    step = max(1, -(-numbers // _ENTRIES))
    return {
        name: torch.arange(0, value.numel(), step if value.numel() > _PAIRED else 1) for name, value in like.items()
    }


def _scaled(message: Tensors, sizes: dict[str, float]) -> Tensors:
    return {name: sizes[name] * value for name, value in message.items()}


def _outputs(act: Act, message: Tensors, count: int, numbers: int) -> Tensors:
    chosen = _chosen(message, numbers)
    outputs: list[Tensors] = []
    for draw in range(count):
        sent = act({name: value.clone() for name, value in message.items()}, torch_generator(draw, "draws of noise"))
        outputs.append({name: sent[name].flatten()[places] for name, places in chosen.items()})
    return {name: torch.stack([one[name] for one in outputs]).double() for name in message}


def _comes_again(act: Act, message: Tensors, count: int) -> bool:
    """Return whether two of some messages have the same noise, as where it is drawn from a short seed."""
    seen: set[int] = set()
    for draw in range(count):
        sent = act({name: value.clone() for name, value in message.items()}, torch_generator(draw, "draws of noise"))
        seen.add(hash(b"".join(value.numpy().tobytes() for value in sent.values())))
    return len(seen) < count


def _size(outputs: Tensor) -> Tensor:
    return outputs.std(0).square().mean().sqrt()


def _departures(draws: NoiseDraws) -> Iterator[str]:
    """Yield in words what tells the noise from independent normal noise; the clearest come first."""
    random = [name for name, value in draws.first.items() if bool((value != value[0]).any())]
    if len(random) < len(draws.first):
        yield f"{next(name for name in draws.first if name not in random)} stays without noise"
    for name in random:
        yield from _of_tensor(name, draws.first[name], draws.second[name], draws.change[name])
    noise = {name: _noise(draws.first[name]) for name in random}
    yield from (
        f"in {name} its sums over some entries are unlike it"
        for name in random
        if unlike_sums(noise[name], draws.shapes.get(name, ()))
    )
    yield from _between_entries(noise)


def _of_tensor(name: str, first: Tensor, second: Tensor, change: Tensor) -> Iterator[str]:
    gap = second - first
    rounding = 4 * torch.finfo(torch.float32).eps * first.square().mean().sqrt()
    if _size(gap) > _NOT_ADDED * change.square().mean().sqrt() + rounding:
        yield f"in {name} it is not added to the message, but depends on it"
    if (share := share_of_repeats(first, second, float(_size(first)))) is not None:
        yield f"in {name} its values gather on a lattice, or repeat ({share:.2g} of the pairs)"
    if unlike_sizes(first):
        yield f"in {name} some entries get less of it than others"
    if (p := p_of_normal(_noise(first))) < LEVEL:
        yield f"in {name} its law is not the normal one (p = {p:.1g})"


def _noise(outputs: Tensor) -> Tensor:
    """Return the noise (draws, entries) of outputs for one message, in deviations."""
    count = len(outputs)
    centred = (outputs - outputs.mean(0)) * (count / (count - 1)) ** 0.5
    return centred / centred.square().mean().sqrt()


def share_of_repeats(first: Tensor, second: Tensor, size: float) -> float | None:
    """Return the share of pairs of draws that lie close together by more than chance; None: no more than that.

    So do the small distances between draws, which are whole steps of a lattice that is too fine for the draws to meet.

    Outputs for equal messages are held against outputs for unlike ones. Noise on a lattice repeats for equal messages
    alone; the rounding of what is sent, which reveals nothing, makes both repeat.

    Args:
        first: (draws, entries) outputs for a message.
        second: those for another message.
        size: deviation of the noise.
    """
    first, second = first[:, :_PAIRED], second[:, :_PAIRED]
    pairs = len(first) * (len(first) - 1) // 2 * first.shape[1]
    counts = []
    for other in (first, second):
        apart = ((other[shift:] - first[:-shift]).abs() / size for shift in range(1, len(first)))
        near = torch.cat([one[one <= _CLOSE[-1]] for one in apart])
        small = near[near < _SMALL].sort().values
        counts.append(torch.cat([_close(near), _close(small.diff())]))
    explained = [_MORE] * len(_CLOSE) + [_MORE_EQUAL] + [_MORE] * (len(_CLOSE) - 1)  # the distances follow the values
    for more, one, other in zip(explained, *(each.tolist() for each in counts), strict=True):
        if one > more * other and stats.binomtest(one, one + other, 0.5, "greater").pvalue < LEVEL:
            return one / pairs
    return None


def _close(apart: Tensor) -> Tensor:
    """Count distances up to each of `_CLOSE`."""
    bounds = torch.tensor(_CLOSE, dtype=apart.dtype)
    return torch.bucketize(apart, bounds).bincount(minlength=len(_CLOSE) + 1)[:-1].cumsum(0)


def unlike_sizes(outputs: Tensor) -> bool:
    """Return whether the variance of some entry over the draws is unlike that of its tensor."""
    count, entries = outputs.shape
    variances = outputs.var(0)
    counted = (count - 1) * variances / variances.mean()
    tails = stats.chi2.cdf(float(counted.min()), count - 1), stats.chi2.sf(float(counted.max()), count - 1)
    return bool(min(tails) < LEVEL / (2 * entries))


def unlike_sums(noise: Tensor, shape: tuple[int, ...]) -> bool:
    """Return whether sums along some axis, or over all entries, are larger or smaller than those of free entries.

    Args:
        noise: (draws, entries) of a tensor, in deviations.
        shape: of the tensor; empty: not all of its entries are here.
    """
    spread = noise.unflatten(1, shape) if shape else noise.new_empty(0)
    axes = [(axis,) for axis in range(1, spread.dim())] + [tuple(range(1, spread.dim()))]
    for over in axes if shape else []:
        count = int(np.prod([spread.shape[axis] for axis in over]))
        sums = spread.sum(over).flatten() / count**0.5
        degrees = (len(noise) - 1) / len(noise) * len(sums)
        counted = float(sums.square().sum()) * (len(noise) - 1) / len(noise)
        if count > 1 and 2 * min(stats.chi2.cdf(counted, degrees), stats.chi2.sf(counted, degrees)) < LEVEL / len(axes):
            return True
    return False


def p_of_normal(noise: Tensor) -> float:
    """Return the p-value of the normal law for numbers in deviations, by their distribution and their kurtosis.

    Both tests are at the level together.
    """
    flat = noise.flatten()
    few = flat[:: max(1, len(flat) // 500_000)].numpy()
    by_distribution = stats.kstest(few, "norm").pvalue
    return min(1.0, 2 * float(min(by_distribution, stats.kurtosistest(few).pvalue)))


def _between_entries(noise: Tensors) -> Iterator[str]:
    """Yield what entries have in common: a copy, or sums over some that cancel."""
    few = torch.cat([value[:, : max(8, _PAIRED // len(noise))] for value in noise.values()], 1)[:, :_PAIRED]
    if (largest := largest_correlation(few)) > _CORRELATED:
        yield f"some of its entries follow from others (correlation {largest:.2g})"
    for name, value in {**noise, "the message": torch.cat(list(noise.values()), 1)}.items():
        if (z := excess_of_likeness(value)) > stats.norm.isf(LEVEL / 2):
            yield f"in {name} it has fewer free numbers than entries (z = {z:.1f})"


def largest_correlation(noise: Tensor) -> float:
    """Return the largest correlation, in size, between two of the entries of (draws, entries) of noise."""
    unit = noise - noise.mean(0)
    unit = unit / unit.norm(dim=0)
    return float((unit.T @ unit).fill_diagonal_(0).abs().max())


def excess_of_likeness(noise: Tensor) -> float:
    """Return by how many deviations the messages' noise is more alike than that of free entries.

    The squared cosine of two independent normal vectors of n entries is 1/n on average. If they have r free entries
    alone, it is 1/r.

    Args:
        noise: (draws, entries) of it. Pairs of draws are subtracted, which takes their common mean off.
    """
    apart = noise[0 : len(noise) // 2 * 2 : 2] - noise[1::2]
    entries = apart.shape[1]
    if entries < 8:
        return 0.0
    unit = apart / apart.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T).fill_diagonal_(0)
    pairs = len(unit) * (len(unit) - 1) / 2
    mean = float(cosines.square().sum()) / 2 / pairs * entries
    return (mean - 1) / (2 * (entries - 1) / (entries + 2) / pairs) ** 0.5
