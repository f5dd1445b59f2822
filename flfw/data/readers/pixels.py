"""Conversion of a data set at its first load on a machine: published files, checked and resized, to cached arrays."""

import hashlib
import warnings
from pathlib import Path

import numpy as np

from flfw.data.files import cache, patients
from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import md5_of
from flfw.errors import InputError, require

_BLOCK = 1000  # images resized at a time, as floats need four times the memory


def resize(images: np.ndarray, side: int) -> np.ndarray:
    """Resize images (N, C, H, W) uint8 to (N, C, side, side): bilinear, antialiased, rounded to whole grey levels."""
    if images.shape[2:] == (side, side):
        return images
    import torch  # here, as names and files of data sets are looked up before anything is computed
    import torch.nn.functional as F

    resized = np.empty((*images.shape[:2], side, side), dtype=np.uint8)
    for start in range(0, len(images), _BLOCK):
        block = torch.from_numpy(images[start : start + _BLOCK].astype(np.float32, order="C"))
        block = F.interpolate(block, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
        resized[start : start + _BLOCK] = block.round().clamp(0, 255).byte().numpy()
    return resized


def moments(x: np.ndarray) -> tuple[list[float], list[float]]:
    """Compute mean and standard deviation per channel of images (N, C, H, W) uint8 or per feature of rows (N, d)."""
    if x.dtype == np.uint8:
        # Computed from a histogram of the levels: as floats the images would need eight times the memory.
        blocks = (x[start : start + _BLOCK].swapaxes(0, 1) for start in range(0, len(x), _BLOCK))
        counts = sum(np.stack([np.bincount(channel.ravel(), minlength=256) for channel in block]) for block in blocks)
        weights, levels = counts / np.sum(counts, axis=1, keepdims=True), np.arange(256) / 255
        mean = weights @ levels
        std = np.sqrt((weights * (levels - mean[:, None]) ** 2).sum(axis=1))
    else:
        mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    return mean.tolist(), np.where(std > 0, std, 1.0).tolist()  # a constant feature is only centred


def wrong_sums(card: DatasetCard, root: Path) -> list[str]:
    """Return the names of the files with another md5 sum than the published one."""
    published = {name: md5 for name, md5 in card.files.items() if md5 is not None}
    return [Path(name).name for name, md5 in published.items() if md5_of(root / name) != md5]


def _again(card: DatasetCard) -> str:
    how = card.fetch if isinstance(card.fetch, str) else "remove them and run again"
    return f"get them again: {how} (source: {card.source})"


def read(name: str, card: DatasetCard, root: Path, side: int | None) -> DatasetArrays:
    """Read the arrays of the files and check them against the card.

    Raises:
        InputError: a damaged file, or inputs or labels that do not match the card.
    """
    try:
        arrays = card.read(root, side)
    except InputError:
        raise
    except Exception as error:  # a damaged file can make a reader raise anything
        raise InputError(
            f"Expected readable {name} files in {root}, got {type(error).__name__}: "
            f"{' '.join(str(error).split())}; {_again(card)}."
        ) from error
    sizes = {card.shape} | ({(card.shape[0], side, side)} if side else set())
    for part in ("train", "test"):
        x, y = (np.atleast_1d(getattr(arrays, f"{part}_{axis}")) for axis in "xy")  # a damaged file may hold one number
        require({x.dtype.kind, y.dtype.kind} <= {*"buif"}, f"numbers in {name} {part}", types=(x.dtype, y.dtype))
        y = _in_one_column(y, card.classes)
        odd = ~np.isfinite(y) if card.numbers else ~np.isin(y, np.arange(card.classes))
        if y.shape != (len(x),) or x.shape[1:] not in sizes or odd.any():
            among = ", ".join(map(str, np.unique(y[odd])[:12].tolist()))
            labels = f"{'x'.join(map(str, y.shape))} labels" + (f", among them {among}" if among else "")
            raise InputError(
                f"Expected {name} {part} inputs of shape {card.shape} with labels 0-{card.classes - 1}, got "
                f"{x.shape} with {labels}; {_again(card)}."
            )
        if not len(x):
            raise InputError(f"Expected {name} {part} inputs, got none in {root}; {_again(card)}.")
        inputs, labels = _in_range(f"{name} {part}", x), y.astype(np.float32 if card.numbers else np.int64, copy=False)
        arrays = arrays._replace(**{f"{part}_x": inputs, f"{part}_y": labels})
    patients.require_apart(name, arrays.train_group, arrays.test_group, (len(arrays.train_y), len(arrays.test_y)))
    return arrays


def _in_one_column(y: np.ndarray, classes: int) -> np.ndarray:
    """Return labels (N,) of a column (N, 1) or of one-hot rows (N, classes); others as they are."""
    if classes > 1 and y.shape[1:] == (classes,) and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
        return y.argmax(1)
    return y[:, 0] if y.shape[1:] == (1,) else y


def _in_range(name: str, x: np.ndarray) -> np.ndarray:
    """Return images (N, C, H, W) as uint8, rows (N, d) as float32 in [0, 1]; another value is refused by its place."""
    images = x.ndim == 4
    if images and x.dtype == np.uint8:
        return x
    high, place = (255, "pixel") if images else (1, "column")
    if not (x.min() >= 0 and x.max() <= high):  # not a number if one of them is not
        row, *at = np.argwhere(~((x >= 0) & (x <= high)))[0].tolist()
        got = f"{x[row, *at]:g} in row {row}, {place} {', '.join(map(str, at))}"
        raise InputError(f"Expected {name} inputs from 0 to {high}, got {got}; scale them, or fill gaps.")
    levels = not images or x.dtype.kind != "f" or (x.max() > 1 and all((image % 1 == 0).all() for image in x))
    require(levels, f"{name} images of whole levels 0 to 255", type=x.dtype, lowest=x.min(), highest=x.max())
    return x.astype(np.uint8 if images else np.float32, copy=False)


def convert(name: str, card: DatasetCard, root: Path, side: int | None, target: Path) -> None:
    """Write the folder ``target``: arrays of the inputs, labels, domains and patients of both parts, and ``meta.json``.

    Warn (once, as this runs once) when a file is not the published one.

    Args:
        name: name of the data set.
        card: card of the data set.
        root: folder of its files.
        side: side in pixels to resize the images to; None: the card's.
        target: a folder that does not exist.
    """
    wrong = wrong_sums(card, root)
    arrays = read(name, card, root, side)
    if side is not None:
        arrays = arrays._replace(train_x=resize(arrays.train_x, side), test_x=resize(arrays.test_x, side))
    mean, std = (list(card.mean), list(card.std)) if card.mean else moments(arrays.train_x)
    kept = {
        **{name: array for name, array in arrays._asdict().items() if array is not None},
        "train_domain": _domains(arrays.train_domain, arrays.train_y),
        "test_domain": _domains(arrays.test_domain, arrays.test_y),
    }
    published = False if wrong else True if all(card.files.values()) else None  # None: some sums are not published
    meta = {"mean": mean, "std": std, "md5_ok": published, "root": str(root), "digest": _digest(kept)}
    meta["patients"] = arrays.train_group is not None
    cache.publish(target, lambda folder: cache.write_arrays(folder, kept, meta))
    if wrong:
        warnings.warn(
            f"Expected the published {name} files in {root}, got other md5 sums for {', '.join(wrong)}; "
            "results say md5_ok=false and may differ from published ones.",
            stacklevel=3,
        )


def _digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        total.update(repr((array.dtype.str, array.shape)).encode())
        total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _domains(domains: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    return np.zeros(len(labels), np.int64) if domains is None else domains
