"""Populations: persons whose examples follow from a seed and their number, made when they are asked for.

Nothing is stored, so that a million persons need no memory. A data set shows a population as arrays of which no row
exists before it is read: example k of person p is row ``p * STRIDE + k`` of the part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, TypeAlias, cast, final, overload

import numpy as np

Part: TypeAlias = Literal["train", "test"]

STRIDE = 2**20
"""Most examples of a person in a part."""
PERSONS = 2**31
"""Most clients. Persons with higher numbers are nobody's: the tests that all have in common are of these."""
COMMON = 1000
"""Persons that are no client, with one test example each."""
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


def common_tests() -> np.ndarray:
    """Return the rows of the test part that belong to no client."""
    return (PERSONS + np.arange(COMMON)) * STRIDE
