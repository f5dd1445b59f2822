"""What a data set is here: arrays on disk, and a card that says how to read them and how it is usually used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

Augmentation = Literal["none", "flip", "crop_flip"]
"""How training images are varied: not at all, mirrored at random, or moved by up to 4 pixels and mirrored."""


class Arrays(NamedTuple):
    """The two official parts: inputs ``(N, C, H, W)`` uint8 or ``(N, d)`` float32 in [0, 1], labels ``(N,)`` int64.

    Data of several domains say with each example which one it is of: ``(N,)`` int64, its place in the card's domains.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    train_domain: np.ndarray | None = None
    test_domain: np.ndarray | None = None


@dataclass(frozen=True)
class DatasetCard:
    """How a data set is read and what it is used with by default.

    Attributes:
        shape: of one input as published, (C, H, W) in pixels or (d,) features; of images of many sizes: as the papers
            use them.
        classes: labels are 0 to ``classes - 1``.
        files: files and folders below the root -> published md5 sum, None where nobody published one.
        read: root of the files, pixels of a side or None -> arrays. Images that were published in one size come in
            that size; those of many sizes are brought to the side asked for, or to that of ``shape``.
        source: where the data come from.
        fetch: gets the missing files into a root; or says in words how they are got by hand.
        package: the installed package that ships the files; None: they lie below the data root.
        root: where the files lie whatever the data root is, for somebody's own.
        look: data root -> the card with the files that are in it, of data that are other ones on each machine and that
            no server has; None: they are the same everywhere. Raises `BadInput` where they are not of the card's kind.
        labels: a digest of what the classes are called where that was looked up; empty: it was not.
        net: default network.
        split: default scheme of ``flfw.data.splits.partition``.
        per_client: scheme -> training and test examples a client holds by default, for schemes that ask.
        mean: per channel, of inputs scaled to [0, 1]; empty: mean and std are computed from the training part.
        std: as ``mean``.
        augment: how the papers vary training images, a name of ``flfw.data.feed``.
        victims: that many first training images are kept for the audit, no client trains on them.
        test_start: image of the test part at which the dominant split's pointers start.
        domains: where the examples come from, if the set is made of several; empty: it is not.
        held_out: the domain no client holds, from which a server may distil; empty: none.
    """

    shape: tuple[int, ...]
    classes: int
    files: Mapping[str, str | None]
    read: Callable[[Path, int | None], Arrays]
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
        md5_ok: whether every file has its published md5 sum; None: none has a wrong one, but not all have one at all.
        digest: of inputs, labels and domains, the same on every machine.
        victims: training images that no client trains on, kept for the audit.
        test_start: image of the test part at which the dominant split's pointers start.
        domains: names of the domains; empty: there are none.
        train_domain: (N,) int64, place in ``domains`` of each training example; all 0 without domains.
        test_domain: as ``train_domain``.
        held_out: the domain no client holds; empty: none.
        per_client: scheme -> training and test examples a client holds by default.
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input: (C, H, W) or (d,)."""
        return self.train_x.shape[1:]

    @property
    def is_image(self) -> bool:
        """Whether inputs are images rather than rows of features."""
        return len(self.shape) == 3
