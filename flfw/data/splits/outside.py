"""Split schemes of a user's own, named as ``package.module:Class``."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices
from flfw.errors import InputError
from flfw.imports import imported


class SplitScheme(ABC):
    """Scheme of a user's own: a frozen dataclass with its settings as fields, ``--set Class.field=value``."""

    @abstractmethod
    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Cut a data set.

        Args:
            dataset: the data; ``dataset.victims`` are no client's.
            clients: number of clients, >= 1.
            rng: generator of all random choices.
        """


def outside(name: str) -> type[SplitScheme]:
    """Return the class that ``package.module:Class`` names.

    Raises:
        InputError: there is no such class, or it is no concrete `SplitScheme`.
    """
    scheme = imported(name, "split")
    if not (inspect.isclass(scheme) and issubclass(scheme, SplitScheme)) or inspect.isabstract(scheme):
        raise InputError(f"Expected split={name} to be a concrete SplitScheme, got {scheme!r}.")
    return scheme


def source_of(scheme: SplitScheme) -> str:
    """Return the text of a scheme's file, so that a changed scheme is another one."""
    return Path(inspect.getfile(type(scheme))).read_text(encoding="utf-8")
