"""What a data set is here: arrays on disk, and a card that says how to read them and how it is usually used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Arrays(NamedTuple):
    """The two official parts: inputs ``(N, C, H, W)`` uint8 or ``(N, d)`` float32 in [0, 1], labels ``(N,)`` int64."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


@dataclass(frozen=True)
class DatasetCard:
    """How a data set is read and what it is used with by default.

    Attributes:
        shape: of one input as published, (C, H, W) in pixels or (d,) features.
        classes: labels are 0 to ``classes - 1``.
        files: path below the root -> published md5 sum, None where nobody published one.
        read: paths of ``files``, in their order -> arrays.
        source: where the data come from.
        fetch: what to do when the files are missing.
        package: the installed package that ships the files; None: they lie below the data root.
        net: default network.
        split: default scheme of ``flfw.data.partition``.
        per_client: training and test examples a client holds in the dominant split; None: it has no such split.
        mean: per channel, of inputs scaled to [0, 1]; empty: mean and std are computed from the training part.
        std: as ``mean``.
        victims: that many first training images are kept for the audit, no client trains on them.
        test_start: image of the test part at which the dominant split's pointers start.
    """

    shape: tuple[int, ...]
    classes: int
    files: Mapping[str, str | None]
    read: Callable[[tuple[Path, ...]], Arrays]
    source: str
    fetch: str
    package: str | None = None
    net: str = "cnn1"
    split: str = "dominant"
    per_client: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    victims: int = 0
    test_start: int = 0


@dataclass(frozen=True)
class Dataset:
    """A data set, its arrays mapped read-only from disk: processes of one machine share the pages.

    Attributes:
        name: as in ``flfw.data.names()``.
        train_x: (N, C, H, W) uint8 for images, (N, d) float32 in [0, 1] for rows.
        train_y: (N,) int64, 0 to ``classes - 1``.
        test_x: as ``train_x``.
        test_y: as ``train_y``.
        classes: number of labels.
        mean: per channel or feature, of inputs scaled to [0, 1].
        std: as ``mean``.
        source: where the data come from.
        md5_ok: whether every file has its published md5 sum; None: there is no published sum.
        victims: training images that no client trains on, kept for the audit.
        test_start: image of the test part at which the dominant split's pointers start.
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (C, H, W) or (d,)."""
        return self.train_x.shape[1:]

    @property
    def is_image(self) -> bool:
        """Whether inputs are images rather than rows of features."""
        return len(self.shape) == 3
