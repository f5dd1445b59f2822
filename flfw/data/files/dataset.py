"""Data set records: arrays on disk, and a card with the reader and the default settings of a data set.

A population has persons whose examples follow from a seed and their number, made when they are asked for. Nothing is
stored, so that a million persons need no memory. A data set shows a population as arrays of which no row
exists before it is read: example k of person p is row ``p * STRIDE + k`` of the part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast, final, overload

import numpy as np

from flfw.data.files.columns import TableSchema
from flfw.errors import abridged

Part: TypeAlias = Literal["train", "test"]

STRIDE = 2**20
"""Most examples of a person in a part."""
PERSONS = 2**31
"""Most clients. Persons with higher numbers are nobody's: the tests that all have in common are of these."""
COMMON = 1000
"""Persons that are no client, with one test example each."""
_MOST_CLASSES = 12  # of which the examples are counted in a sentence
_KEPT = 16  # persons that were asked for last, whose examples are kept: a client asks for its own several times


class Population(ABC):
    """Persons with examples of their own.

    The first examples of a person are the same, however many are asked for.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @abstractmethod
    def inputs(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate the first ``count`` inputs of a person: (count, C, H, W) uint8, or (count, d) float32 in [0, 1]."""

    @abstractmethod
    def labels(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate the first ``count`` labels of a person, (count,) int64."""


@final
class GeneratedColumn:
    """Inputs or labels of a part, as an array whose rows are generated when they are read.

    Args:
        generate: function that makes the first rows of a person: ``generate(person, count)``.
        like: (0, ...) array with the type and the shape of the rows.
    """

    def __init__(self, generate: Callable[[int, int], np.ndarray], like: np.ndarray) -> None:
        self.dtype, self._row = like.dtype, like.shape[1:]
        self._generate = generate
        self._block = lru_cache(_KEPT)(generate)
        self._common = np.zeros(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array, of which most rows are never made."""
        return len(self), *self._row

    def __len__(self) -> int:
        return (PERSONS + COMMON) * STRIDE

    @overload
    def __getitem__(self, indices: np.ndarray | slice) -> np.ndarray: ...

    @overload
    def __getitem__(self, indices: int | np.integer) -> np.ndarray: ...

    def __getitem__(self, indices: np.ndarray | slice | int | np.integer) -> np.ndarray:
        if isinstance(indices, int | np.integer):
            return self[np.array([indices])][0]
        chosen = np.arange(*indices.indices(len(self))) if isinstance(indices, slice) else np.asarray(indices, np.int64)
        if not len(chosen):
            return np.zeros((0, *self._row), self.dtype)
        if not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"Expected rows 0 to {len(self) - 1}, got {chosen.min()} to {chosen.max()}.")
        order = np.argsort(chosen, kind="stable")
        persons, rows = np.divmod(chosen[order], STRIDE)
        taken = np.empty((len(chosen), *self._row), self.dtype)
        starts = np.flatnonzero(np.diff(persons, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
            if (person := int(persons[start])) >= PERSONS:  # the rest are of such persons, with one example each
                taken[order[start:]] = self._of_nobody()[persons[start:] - PERSONS]
                break
            mine = self._block(person, 1 << int(rows[end - 1]).bit_length())
            taken[order[start:end]] = mine[rows[start:end]]
        return taken

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        """Refuse to make all rows, which fit no memory."""
        raise MemoryError(f"Expected rows by their numbers, got a copy of all {len(self)} generated ones.")

    def _of_nobody(self) -> np.ndarray:
        if not len(self._common):
            self._common = np.concatenate([self._generate(PERSONS + one, 1) for one in range(COMMON)])
        return self._common


def columns(
    population: Population, part: Part, resize: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, resized, and labels of a part; in place of arrays, as far as rows are read by their numbers."""
    like = resize(population.inputs(part, 0, 1))[:0]
    inputs = GeneratedColumn(lambda person, count: resize(population.inputs(part, person, count)), like)
    labels = GeneratedColumn(lambda person, count: population.labels(part, person, count), np.zeros(0, np.int64))
    return cast(np.ndarray, inputs), cast(np.ndarray, labels)


Augmentation = Literal["none", "flip", "crop_flip"]
"""How training images are varied: not at all, mirrored at random, or moved by up to 4 pixels and mirrored."""


class DatasetArrays(NamedTuple):
    """The two official parts: inputs ``(N, C, H, W)`` uint8 or ``(N, d)`` float32 in [0, 1], labels ``(N,)`` int64.

    Labels of a regression are float32, standardised with the card's constants.

    Data of several domains have a domain for each example: ``(N,)`` int64, its place in the card's domains. Data whose
    patients are known have a number >= 0 of a patient for each example, ``(N,)`` int64; none is in both parts.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    train_domain: np.ndarray | None = None
    test_domain: np.ndarray | None = None
    train_group: np.ndarray | None = None
    test_group: np.ndarray | None = None


def counted(arrays: DatasetArrays, classes: Sequence[str]) -> str:
    """Return a sentence on the examples of both parts, and of each class; no class: of a regression."""
    sentence = f"Examples: {len(arrays.train_y):,} for training and {len(arrays.test_y):,} for tests"
    if classes:
        times = np.bincount(np.concatenate([arrays.train_y, arrays.test_y]), minlength=len(classes)).tolist()
        each = [f"{name} {count:,}" for name, count in zip(classes, times, strict=True)]
        sentence += f"; by class: {abridged(each, _MOST_CLASSES, ' classes')}"
    return f"{sentence}."


@dataclass(frozen=True)
class DatasetCard:
    """Card of a data set: its files, its reader and its default settings.

    Attributes:
        shape: shape of one published input, (C, H, W) in pixels or (d,) features; for images of many sizes: the
            shape that the papers use.
        classes: number of classes; labels are 0 to ``classes - 1``.
        files: files and folders below the root -> published md5 sum, None if none is published.
        read: root of the files, side in pixels or None -> arrays. Images published in one size keep that size; images
            of many sizes are resized to the given side, or to that of ``shape``.
        source: origin of the data.
        licence: terms on which the publishers give the data, or that they state none; empty: not known here.
        citation: work that publications are to cite; empty: not known here.
        fetch: function that downloads the missing files into a root; or instructions to get them by hand.
        package: installed package that ships the files; None: they are below the data root.
        root: fixed folder of a user's own files, whatever the data root is.
        look: data root -> the card with the files in it, for data that differ between machines and that no server
            has; None: the data are the same everywhere. Raises `InputError` if the files do not match the card.
        labels: digest of the class names if they were read; empty: they were not.
        net: default network.
        split: default scheme of ``flfw.data.splits.partition``.
        per_client: scheme -> default numbers of training and test examples of a client, for schemes that need them.
        mean: mean per channel of inputs scaled to [0, 1]; empty: mean and std are computed from the training part.
        std: standard deviation per channel, as ``mean``.
        augment: the papers' augmentation of training images, a name of ``flfw.data.feed``.
        victims: number of first training images kept for the audit; no client trains on them.
        test_start: image of the test part at which the dominant split's pointers start.
        domains: names of the domains of a set with several; empty: it has none.
        vocabulary: number of tokens of text, whose inputs are rows of them, token k of V as k / (V - 1); 0: no text.
        held_out: the domain that no client holds and that a server may distil from; empty: none.
        population: clients from whom all examples are generated on demand; None: they are in files.
        notes: arrays that were read, or None before -> sentences on how; None: there is nothing to say.
        columns: plan of a table, which says what the features of a row are; None: it is not known.
        numbers: whether labels are numbers, those of a regression, of one "class".
    """

    shape: tuple[int, ...]
    classes: int
    files: Mapping[str, str | None]
    read: Callable[[Path, int | None], DatasetArrays]
    source: str
    fetch: Callable[[Path], None] | str
    package: str | None = None
    root: Path | None = None
    look: Callable[[Path], DatasetCard] | None = None
    labels: str = ""
    net: str = "cnn1"
    split: str = "dominant"
    per_client: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: Augmentation = "none"
    victims: int = 0
    test_start: int = 0
    domains: tuple[str, ...] = ()
    held_out: str = ""
    vocabulary: int = 0
    population: Population | None = None
    licence: str = ""
    citation: str = ""
    notes: Callable[[DatasetArrays | None], tuple[str, ...]] | None = None
    columns: TableSchema | None = None
    numbers: bool = False


@dataclass(frozen=True)
class Dataset:
    """Data set, its arrays mapped read-only from disk: processes of one machine share the pages. Or it is generated.

    Attributes:
        name: name as in ``flfw.data.names()``.
        train_x: (N, C, H, W) uint8 for images, (N, d) float32 in [0, 1] for rows. Of generated data a
            `GeneratedColumn`, of which only rows can be read, by their numbers.
        train_y: (N,) int64, 0 to ``classes - 1``; likewise.
        test_x: as ``train_x``.
        test_y: as ``train_y``.
        classes: number of labels.
        mean: mean per channel or feature of inputs scaled to [0, 1].
        std: standard deviation, as ``mean``.
        source: origin of the data.
        md5_ok: whether every file has its published md5 sum; None: no sum is wrong, but some are not published.
        digest: digest of inputs, labels and domains, the same on every machine.
        victims: training images that no client trains on, kept for the audit.
        test_start: image of the test part at which the dominant split's pointers start.
        domains: names of the domains; empty: there are none.
        train_domain: (N,) int64, index into ``domains`` of each training example; all 0 without domains.
        test_domain: as ``train_domain``.
        held_out: the domain that no client holds; empty: none.
        per_client: scheme -> default numbers of training and test examples of a client.
        vocabulary: number of tokens of text, as on the card; 0: no text.
        train_group: (N,) int64, number of the patient of each training example; None: patients are not known.
        test_group: as ``train_group``; no patient is in both parts.
        notes: sentences on how the examples were read.
        columns: plan of a table, as on the card. Labels of a regression are float32, standardised, of one "class".
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    md5_ok: bool | None
    victims: range = range(0)
    test_start: int = 0
    domains: tuple[str, ...] = ()
    train_domain: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    test_domain: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    held_out: str = ""
    per_client: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    digest: str = ""
    vocabulary: int = 0
    train_group: np.ndarray | None = None
    test_group: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    columns: TableSchema | None = None

    @property
    def is_regression(self) -> bool:
        """True where labels are numbers, not classes."""
        return self.train_y.dtype.kind == "f"

    def kinds(self, labels: np.ndarray) -> np.ndarray:
        """Return the class (N,) int64 of each label (N,); of a regression the band of the target, in its place."""
        number = self.columns.number if self.columns else None
        return number.bands(labels) if number else np.asarray(labels)

    @property
    def kind_count(self) -> int:
        """Number of classes; of a regression that of the target's bands."""
        number = self.columns.number if self.columns else None
        return len(number.cuts) + 1 if number else self.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: (C, H, W) or (d,)."""
        return self.train_x.shape[1:]

    @property
    def is_image(self) -> bool:
        """True for images, False for rows of features."""
        return len(self.shape) == 3

    @property
    def is_generated(self) -> bool:
        """True where each client's examples are generated when they are asked for."""
        return isinstance(self.train_x, GeneratedColumn)

    @property
    def common_tests(self) -> np.ndarray:
        """Indices of the whole official test part; of generated data, of its examples that are no client's."""
        return (PERSONS + np.arange(COMMON)) * STRIDE if self.is_generated else np.arange(len(self.test_y))
