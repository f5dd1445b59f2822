"""Data sets of the Hugging Face Hub: ``--dataset hf:NAME``, through flwr-datasets.

The first use on a machine downloads the set (the library keeps its own copy) and writes plain arrays into the user's
cache; later uses read these and import nothing heavy. If a set has several columns of labels, ``hf:NAME@COLUMN``
chooses one: ``hf:uoft-cs/cifar100@fine_label``. NAME may also be a folder on disk in a layout that the library reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flfw.data.files import cache
from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.image_files import images
from flfw.data.image_files.decoder import grey_level
from flfw.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset as Table

_PARTS = ("train_x", "train_y", "test_x", "test_y")
_HELD_OUT = ("test", "validation", "valid", "val")  # tried in this order
_MOST_CLASSES = 65_536  # a column with more values is not taken for labels
_EVERY = 5  # one row in so many is held out if a set has no such part


def hub(word: str) -> DatasetCard:
    """Return the card of the set ``NAME`` or ``NAME@COLUMN``, with images of one size and one label each.

    The official training part is for training. The test part, else the validation part, else every fifth row is for
    testing.

    Raises:
        InputError: there is no such set, no network, no such column, or the column holds something else.
    """
    name, _, column = word.partition("@")
    if not name:
        raise InputError("Expected --dataset hf:NAME, got no name; for example hf:uoft-cs/cifar10.")
    local = sorted(path for path in Path(name).rglob("*") if path.is_file()) if Path(name).is_dir() else []
    folder = cache.user_cache() / "hub" / cache.digest(word, cache.fingerprint(local), "bits")
    if not folder.exists():
        arrays, meta = _read(name, column)
        cache.publish(folder, lambda target: cache.write_arrays(target, dict(zip(_PARTS, arrays, strict=True)), meta))
    meta = json.loads((folder / "meta.json").read_text())
    shape = tuple(meta["shape"])
    return DatasetCard(
        shape=shape,
        classes=meta["classes"],
        files=dict.fromkeys([f"{part}.npy" for part in _PARTS]),
        read=lambda root, side: DatasetArrays(*cache.read_arrays(root, _PARTS)[0]),
        source=f"Hugging Face Hub, {name}, label {meta['label']}, {meta['parts']}, fingerprint {meta['fingerprint']}",
        fetch=f"the Hugging Face Hub, after removing {folder}",
        root=folder,
        net="cnn1" if shape[0] == 1 else "cnn2",
        split="iid",
    )


def _read(name: str, column: str) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Read inputs and labels of both parts, and their metadata."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr_datasets is imported
    from datasets.exceptions import DatasetsError
    from flwr_datasets import FederatedDataset

    federated = FederatedDataset(dataset=name, partitioners={}, shuffle=False)
    try:
        train = federated.load_split("train")
    except (DatasetsError, OSError, ValueError) as error:  # no such set or part, no network, unreadable files
        raise InputError(
            f"Expected a data set of the Hugging Face Hub with a part named train, got hf:{name} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:300]}); check its name, or the network."
        ) from error
    test, parts = _held_out(federated, train)
    if test is None:
        rows = np.arange(len(train))
        train, test = train.select(rows[rows % _EVERY != _EVERY - 1]), train.select(rows[_EVERY - 1 :: _EVERY])
    image, label = _columns(name, train, column)
    if bits := _bits(name, (train, test), image):
        parts += f", {2**bits - 1} of 16 bits is white"
    arrays = [array for table in (train, test) for array in _arrays(name, table, image, label, bits)]
    names = getattr(train.features[label], "names", None)
    classes = len(names) if names else int(max(arrays[1].max(), arrays[3].max())) + 1
    meta = {"shape": arrays[0].shape[1:], "classes": classes, "label": label, "names": names, "parts": parts}
    return arrays, {**meta, "fingerprint": train._fingerprint}


def _held_out(federated: Any, train: Table) -> tuple[Table | None, str]:
    for part in _HELD_OUT:
        try:
            return federated.load_split(part), f"train and {part}"
        except ValueError:  # there is no such part
            continue
    return None, f"every {_EVERY}th row of train held out"


def _columns(name: str, table: Table, requested: str) -> tuple[str, str]:
    """Return the names of the image column and the label column."""
    from datasets import ClassLabel, Image, Value

    kinds = table.features
    pictures = [column for column, kind in kinds.items() if isinstance(kind, Image)]
    labels = [column for column, kind in kinds.items() if isinstance(kind, ClassLabel)]
    labels = labels or [c for c, kind in kinds.items() if isinstance(kind, Value) and "int" in kind.dtype]
    if len(pictures) != 1:
        raise InputError(f"Expected one column of images in hf:{name}, got {len(pictures)} among {', '.join(kinds)}.")
    if requested and requested not in kinds:
        raise InputError(f"Expected a column among {', '.join(kinds)} in hf:{name}, got {requested}.")
    if not requested and len(labels) != 1:
        raise InputError(
            f"Expected one column of labels in hf:{name}, got {', '.join(labels) or 'none'}; "
            f"name one: hf:{name}@COLUMN."
        )
    return pictures[0], requested or labels[0]


def _bits(name: str, tables: Sequence[Table], column: str) -> int:
    """Return the bits, 8 to 16, that grey levels of all images together use if the first one has 16; 0: it has 8."""
    used = 0
    for table in tables:
        for row in range(len(table)):
            with _readable(name, row):
                if not images.is_deep(picture := table[row][column]):
                    return 0
                used = max(used, 8, grey_level(picture).bit_length())
    return used


def _arrays(name: str, table: Table, image: str, label: str, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, C, H, W) uint8, grey or RGB like the first one, and labels (N,) int64 of one part."""
    labels = np.asarray(table[label][:])
    if labels.dtype.kind not in "iu":
        raise InputError(f"Expected whole numbers as labels in hf:{name}, got {label} of type {labels.dtype}.")
    outside = np.flatnonzero((labels < 0) | (labels >= _MOST_CLASSES))
    if len(outside):
        raise InputError(
            f"Expected 0 <= {label} < {_MOST_CLASSES} in hf:{name}, got {labels[outside[0]]} in row {outside[0]}."
        )
    first = _pixels(name, table, image, 0, 0, bits)
    stacked = np.empty((len(labels), *first.shape), dtype=np.uint8)
    for row in range(len(labels)):
        pixels = _pixels(name, table, image, row, len(first), bits)
        if pixels.shape != first.shape:
            sizes = [f"{pixels.shape[2]}x{pixels.shape[1]}" for pixels in (first, pixels)]
            raise InputError(
                f"Expected images of one size in hf:{name}, got {sizes[0]} and, in row {row}, {sizes[1]} pixels; "
                "bring them to one size and take --dataset folder:PATH."
            )
        stacked[row] = pixels
    return stacked, labels.astype(np.int64)


def _pixels(name: str, table: Table, column: str, row: int, channels: int, bits: int) -> np.ndarray:
    """Return the pixels (C, H, W) uint8 of one row in ``channels`` channels; 0: the image's own number."""
    with _readable(name, row):
        picture = table[row][column]
        if images.is_deep(picture) != bool(bits):
            raise ValueError("grey levels of 16 bits beside images of 8: save all with 8")
        return images.array(images.plain(picture, channels or (1 if images.is_grey(picture) else 3), bits))


@contextmanager
def _readable(name: str, row: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged image can make a decoder raise anything
        reason = " ".join(str(error).split())
        raise InputError(
            f"Expected a readable image in row {row} of hf:{name}, got {type(error).__name__}: {reason}."
        ) from error
