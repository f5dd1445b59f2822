"""A data set's first load on a machine: read the published files, check and resize them, keep plain arrays."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from flfw.data import cache
from flfw.data.dataset import Arrays, DatasetCard
from flfw.errors import BadInput

_BLOCK = 1000  # images resized at a time: as floats they take four times their space


def resize(images: np.ndarray, side: int) -> np.ndarray:
    """Images (N, C, H, W) uint8 as (N, C, side, side): bilinear, antialiased, rounded to whole grey levels."""
    if images.shape[2:] == (side, side):
        return images
    resized = np.empty((*images.shape[:2], side, side), dtype=np.uint8)
    for start in range(0, len(images), _BLOCK):
        block = torch.from_numpy(images[start : start + _BLOCK]).float()
        block = F.interpolate(block, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
        resized[start : start + _BLOCK] = block.round().clamp(0, 255).byte().numpy()
    return resized


def moments(x: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of images (N, C, H, W) uint8, or per feature of rows (N, d) in [0, 1]."""
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    scale = 255.0 if x.dtype == np.uint8 else 1.0
    mean = x.mean(axis=axes, dtype=np.float64) / scale
    std = x.std(axis=axes, dtype=np.float64) / scale
    return mean.tolist(), std.tolist()


def wrong_sums(card: DatasetCard, paths: tuple[Path, ...]) -> list[str]:
    """The files whose md5 sum is not the published one."""
    wrong = []
    for path, published in zip(paths, card.files.values(), strict=True):
        with path.open("rb") as file:
            if published is not None and hashlib.file_digest(file, "md5").hexdigest() != published:
                wrong.append(path.name)
    return wrong


def _read(name: str, card: DatasetCard, paths: tuple[Path, ...]) -> Arrays:
    """The arrays of the files, of the kind the card promises."""
    try:
        arrays = card.read(paths)
    except BadInput:
        raise
    except Exception as error:  # a damaged file can make a reader raise anything
        raise BadInput(
            f"Expected readable {name} files in {paths[0].parent}, got {type(error).__name__}: "
            f"{' '.join(str(error).split())}; get them again: {card.fetch} (source: {card.source})."
        ) from error
    for part, x, y in (("train", arrays.train_x, arrays.train_y), ("test", arrays.test_x, arrays.test_y)):
        labels = set(np.unique(y).tolist())
        if x.shape != (len(y), *card.shape) or not labels <= set(range(card.classes)):
            raise BadInput(
                f"Expected {name} {part} inputs of shape {card.shape} with labels 0-{card.classes - 1}, got "
                f"{x.shape} with {len(y)} labels among {sorted(labels)[:12]}; get the files in {paths[0].parent} "
                f"again: {card.fetch} (source: {card.source})."
            )
    return arrays


def convert(name: str, card: DatasetCard, paths: tuple[Path, ...], side: int | None, target: Path) -> None:
    """Write the folder ``target``: an array each for the inputs and labels of both parts, and ``meta.json``.

    Warns (once, as this runs once) when a file is not the published one.
    """
    wrong = wrong_sums(card, paths)
    arrays = _read(name, card, paths)
    if side is not None:
        arrays = arrays._replace(train_x=resize(arrays.train_x, side), test_x=resize(arrays.test_x, side))
    mean, std = (list(card.mean), list(card.std)) if card.mean else moments(arrays.train_x)
    published = any(card.files.values())
    meta = {"mean": mean, "std": std, "md5_ok": not wrong if published else None, "files": [str(p) for p in paths]}
    cache.publish(target, lambda folder: cache.write_arrays(folder, arrays._asdict(), meta))
    if wrong:
        warnings.warn(
            f"Expected the published {name} files in {paths[0].parent}, got other md5 sums for {', '.join(wrong)}; "
            "results say md5_ok=false and may differ from published ones.",
            stacklevel=3,
        )
