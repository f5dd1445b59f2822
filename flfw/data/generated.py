"""Generated data sets without files: ``--dataset synthetic_images``, and ``--dataset synthetic`` of FedProx.

``synthetic_images``: class c has a mean image M_c that all clients share, and an image of class c is

    128 + 20 M_c + 45 S + 8 E

rounded and cut to bytes. S is a field of the image's own, E noise of each pixel. M_c and S are smooth fields: normal
numbers on a grid of 7 x 7 for each channel, between which is interpolated. So images differ more within a class than
classes do, and no pixel alone tells the class. A client's labels are drawn in proportions of its own, from Dir(alpha)
over the classes (Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019).

``synthetic``: Synthetic(alpha, beta) of Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
section 5.1, as in their code. A client draws u and v of N(0, 1), the weights W (10, 60) and the offsets b (10) of
N(alpha u, 1), and the means m (60) of N(beta v, 1). Its inputs are x ~ N(m, S) with a diagonal S, S_jj = j^-1.2, and
the label of x is argmax(W x + b). So alpha says how much models differ between clients, beta how much inputs do.
``synthetic:iid`` has one W and b for all, of N(0, 1), and m = 0. Departures: generators of their own make each client's
examples, all clients have equally many (``natural.train``) and not a power law's numbers, and x is stored as
1/2 + x / (2 R), float32 in [0, 1], with R six deviations of the widest feature. Mean and deviation are such that
networks get x itself.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from pathlib import Path
from typing import NoReturn, final

import numpy as np

from flfw.data.files.dataset import DatasetCard, Part, Population
from flfw.errors import InputError
from flfw.rng import numpy_generator

_NAME = "synthetic_images"
_GREY, _CLASS, _OWN, _PIXEL = 128, 20, 45, 8  # mean, and deviations of classes, images and pixels
_CONTRAST = 34  # root of the mean square of all deviations, rounded: between points of the grid they are smaller
_GRID = 7
_FORM = re.compile(r"([13])x([1-9]\d{0,3})x([1-9]\d{0,3})")
_MADE_FOR = {(1, 28, 28): "cnn1", (3, 32, 32): "cnn2"}
_SIDES = 4, 512
_MOST_CLASSES = 1000
_ALPHAS = 1e-3, 1e6
_MOST_SEED = 2**63 - 1


def within(name: str, what: str, word: str, minimum: float, maximum: float) -> float:
    """Read a number between bounds.

    Raises:
        InputError: it is none.
    """
    try:
        number = float(word)
    except ValueError:
        number = float("nan")
    if not minimum <= number <= maximum:
        raise InputError(f"Expected {minimum:g} <= {what} <= {maximum:g} in {name}, got {what}={word}.")
    return number


def whole(name: str, what: str, word: str, minimum: int = 0, maximum: int = _MOST_SEED) -> int:
    """Read a whole number between bounds.

    Raises:
        InputError: it is none.
    """
    number = int(word) if word.isascii() and word.isdecimal() and len(word) <= len(str(_MOST_SEED)) else -1
    if not minimum <= number <= maximum:
        raise InputError(f"Expected a whole number {minimum} <= {what} <= {maximum} in {name}, got {what}={word}.")
    return number


def _no_files(root: Path, side: int | None) -> NoReturn:
    """Refuse to read all examples, as there is no end of them."""
    raise InputError(f"Expected examples of a generated data set by their numbers, got a request for files in {root}.")


@final
@dataclass(frozen=True)
class SkewedImages(Population):
    """Population with images of shared classes.

    Attributes:
        size: (C, H, W) of an image.
        classes: number of classes.
        alpha: parameter of the Dirichlet distribution; a small value gives few classes a client.
        seed: seed of all that is drawn.
    """

    size: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    alpha: float = 0.5
    seed: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.size

    def labels(self, part: Part, person: int, count: int) -> np.ndarray:
        """Draw labels (count,) in the client's proportions."""
        ends = np.cumsum(self.proportions(person))
        drawn = numpy_generator(self.seed, f"synthetic labels {part}", person).random(count)
        return np.searchsorted(ends[:-1], drawn, side="right").astype(np.int64)

    def proportions(self, person: int) -> np.ndarray:
        """Draw the shares (classes,) of the classes in a client's data."""
        rng = numpy_generator(self.seed, "synthetic proportions", person)
        return rng.dirichlet(np.full(self.classes, self.alpha))

    def inputs(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate images (count, C, H, W) uint8; each has a generator of its own fields and one of its pixels."""
        labels = self.labels(part, person, count)
        fields = numpy_generator(self.seed, f"synthetic fields {part}", person)
        pixels = numpy_generator(self.seed, f"synthetic pixels {part}", person)
        own_field = _smooth(fields.standard_normal((count, self.size[0], _GRID, _GRID)), self.size)
        noise = pixels.standard_normal((count, *self.size))
        grey = _GREY + _CLASS * _means(self)[labels] + _OWN * own_field + _PIXEL * noise
        return np.rint(grey).clip(0, 255).astype(np.uint8)


@lru_cache(4)
def _means(population: SkewedImages) -> np.ndarray:
    """Draw the mean images (classes, C, H, W) of the classes, without grey and scale."""
    rng, size = numpy_generator(population.seed, "synthetic means"), population.size
    return _smooth(rng.standard_normal((population.classes, size[0], _GRID, _GRID)), size)


def _smooth(grid: np.ndarray, size: tuple[int, int, int]) -> np.ndarray:
    """Resize grids (N, C, 7, 7) linearly along both axes to (N, C, H, W); products alone, so alike everywhere."""
    for axis, length in ((2, size[1]), (3, size[2])):
        at = np.linspace(0, _GRID - 1, length)
        low = np.minimum(at.astype(int), _GRID - 2)
        share = (at - low).reshape((-1,) + (1,) * (3 - axis))
        grid = np.take(grid, low, axis) * (1 - share) + np.take(grid, low + 1, axis) * share
    return grid


def synthetic_images(word: str) -> DatasetCard:
    """Return the card of ``synthetic_images:CxHxW,CLASSES,ALPHA,SEED``, of which the last words may be left out.

    Raises:
        InputError: the word has another form.
    """
    size, *rest = word.split(",")
    form = _FORM.fullmatch(size or "1x28x28")
    if not form or len(rest) > 3:
        forms = f"{_NAME}:CxHxW,CLASSES,ALPHA,SEED with C = 1 or 3, of which the last may be left out"
        raise InputError(f"Expected {forms}, got {_NAME}:{word}; for example {_NAME}:3x32x32,10,0.5.")
    channels, height, width = (int(number) for number in form.groups())
    for side in (height, width):
        whole(_NAME, "side", str(side), *_SIDES)
    given = dict(zip(("classes", "alpha", "seed"), rest, strict=False))
    made = SkewedImages(
        (channels, height, width),
        whole(_NAME, "classes", given.get("classes", "10"), 2, _MOST_CLASSES),
        within(_NAME, "alpha", given.get("alpha", "0.5"), *_ALPHAS),
        whole(_NAME, "seed", given.get("seed", "0")),
    )
    return DatasetCard(
        shape=made.size,
        classes=made.classes,
        files={},
        read=_no_files,
        source="generated: smooth images around a mean of each class",
        licence="none needed: generated by this program",
        citation="none needed: generated by this program",
        fetch="nothing to get: it is generated",
        net=_MADE_FOR.get(made.size, "lenet"),
        split="natural",
        mean=(_GREY / 255,) * channels,
        std=(_CONTRAST / 255,) * channels,
        population=made,
    )


_FEATURES, _CLASSES = 60, 10
_DEVIATIONS = np.arange(1, _FEATURES + 1) ** -0.6  # of the features around a client's means
_MOST = 100.0
_TABLE_NAME = "synthetic"


@final
@dataclass(frozen=True)
class LogisticClients(Population):
    """Population of Synthetic(alpha, beta).

    Attributes:
        alpha: deviation of the clients' mean weights, 0 to 100.
        beta: deviation of the clients' mean inputs, 0 to 100.
        seed: seed of all that is drawn.
        iid: whether all clients have one model and the same inputs in the mean.
    """

    alpha: float = 1.0
    beta: float = 1.0
    seed: int = 0
    iid: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (_FEATURES,)

    @property
    def half_width(self) -> float:
        """Half of the range of x that [0, 1] stands for, six deviations of the first feature."""
        return 6.0 * (1.0 if self.iid else sqrt(2.0 + self.beta**2))

    def inputs(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate stored inputs (count, 60)."""
        x = _features(self, part, person, count)
        return (0.5 + x / (2 * self.half_width)).clip(0, 1).astype(np.float32)

    def labels(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate labels (count,) by the client's model."""
        weights, offsets, _ = _client(self, person)
        return np.argmax(_features(self, part, person, count) @ weights.T + offsets, axis=1).astype(np.int64)


@lru_cache(16)
def _client(population: LogisticClients, person: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw W (10, 60), b (10,) and m (60,) of a client."""
    if population.iid:
        rng = numpy_generator(population.seed, "synthetic model of all")
        return rng.standard_normal((_CLASSES, _FEATURES)), rng.standard_normal(_CLASSES), np.zeros(_FEATURES)
    rng = numpy_generator(population.seed, "synthetic client", person)
    u, v = population.alpha * rng.standard_normal(), population.beta * rng.standard_normal()
    weights, offsets = u + rng.standard_normal((_CLASSES, _FEATURES)), u + rng.standard_normal(_CLASSES)
    return weights, offsets, v + rng.standard_normal(_FEATURES)


@lru_cache(16)
def _features(population: LogisticClients, part: Part, person: int, count: int) -> np.ndarray:
    rng = numpy_generator(population.seed, f"synthetic {part}", person)
    return _client(population, person)[2] + _DEVIATIONS * rng.standard_normal((count, _FEATURES))


def synthetic(word: str) -> DatasetCard:
    """Return the card of ``synthetic``, ``synthetic:ALPHA,BETA``, ``synthetic:ALPHA,BETA,SEED`` or ``synthetic:iid``.

    Raises:
        InputError: the word has another form.
    """
    given = word.split(",") if word else []
    iid = given[:1] == ["iid"]
    if len(given) > (2 if iid else 3) or (len(given) == 1 and not iid):
        forms = f"{_TABLE_NAME}, {_TABLE_NAME}:ALPHA,BETA or {_TABLE_NAME}:iid, each perhaps with ,SEED"
        raise InputError(f"Expected {forms}, got {_TABLE_NAME}:{word}; for example {_TABLE_NAME}:0.5,0.5.")
    if iid:
        made = LogisticClients(0.0, 0.0, whole(_TABLE_NAME, "seed", given[1]) if given[1:] else 0, iid=True)
    elif given:
        alpha, beta = (within(_TABLE_NAME, *one, 0, _MOST) for one in zip(("alpha", "beta"), given[:2], strict=True))
        made = LogisticClients(alpha, beta, whole(_TABLE_NAME, "seed", given[2]) if given[2:] else 0)
    else:
        made = LogisticClients()
    return DatasetCard(
        shape=made.shape,
        classes=_CLASSES,
        files={},
        read=_no_files,
        source="generated as Synthetic(alpha, beta) of Li et al., MLSys 2020",
        licence="none needed: generated by this program",
        citation="Li, Sahu, Zaheer et al., Federated optimization in heterogeneous networks, MLSys 2020",
        fetch="nothing to get: it is generated",
        net="linear",
        split="natural",
        mean=(0.5,) * _FEATURES,
        std=(1 / (2 * made.half_width),) * _FEATURES,
        population=made,
    )
