"""Mutations of files of data: what their readers make of damaged and made-up ones."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.mutation_cases import Change, Folder, Subject, unsealed
from benchmarks.mutation_operators import bytes_mutant, json_mutant, table_mutant
from flfw.data.files import cache, remote
from flfw.data.files.dataset import DatasetCard
from flfw.data.pictures.form import PictureForm
from flfw.data.readers import adult, at_site, cifar, folder, mnist, pixels
from flfw.data.splits import partition
from flfw.data.splits.cut import Cut

_LENGTHS = (0, 1, 2, 27, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def idx_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed idx file: its type, its number of axes, a length, or any bytes."""
    change = rng.random()
    if change < 0.5:
        at = 4 * rng.randrange(1, 1 + data[3])
        return data[:at] + rng.choice(_LENGTHS).to_bytes(4, "big") + data[at + 4 :]
    if change < 0.7:
        return (
            bytes((*data[:2], rng.choice((0, 8, 9, 11, 12, 13, 14, 255)), rng.choice((0, 1, 2, 3, 4, 255)))) + data[4:]
        )
    return bytes_mutant(data, rng)


class RunningCode:
    """Object whose pickle would run code in an unrestricted reader."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def pickle_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed pickle: another key, type, shape or length, code, or any bytes."""
    change = rng.random()
    if change < 0.4:
        return bytes_mutant(data, rng)
    entry: Any = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    odd: tuple[Any, ...] = (
        None,
        7,
        [],
        "x",
        {},
        np.zeros(3),
        [None, "x"],
        [2**70],
        np.zeros((2, 5)),
        b"x",
        1e300,
        [[0], [1]],
    )
    if change < 0.8:
        entry[rng.choice(("data", "labels"))] = rng.choice(odd)
    elif change < 0.9:
        entry = rng.choice((*odd, {"data": entry["data"]}, {"labels": [0]}))
    else:
        entry["data"] = RunningCode(rng.choice((print, eval, open, Path)), "1")
    return pickle.dumps(entry, protocol=rng.choice((2, 4)))


def npy_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed file of NumPy: its header's words and numbers, its length, or any bytes."""
    if rng.random() < 0.5:
        return bytes_mutant(data, rng)
    end = 10 + int.from_bytes(data[8:10], "little")
    words = data[10:end]
    pairs = (
        (b"<i8", b"|O"),
        (b"<i8", b"<U9"),
        (b"(", b"(9999999999,"),
        (b"(", b"(-1,"),
        (b"False", b"True"),
        (b"{", b"((("),
        (b"descr", b"x"),
        (b"<i8", b">f4"),
    )
    words = words.replace(*rng.choice(pairs), 1)
    return data[:8] + len(words).to_bytes(2, "little") + words + data[end:]


def _arrays_fit(arrays: Any) -> bool:
    counts = len(arrays.train_x) == len(arrays.train_y) and len(arrays.test_x) == len(arrays.test_y)
    whole = np.issubdtype(arrays.train_y.dtype, np.integer) and np.issubdtype(arrays.test_y.dtype, np.integer)
    finite = all(bool(np.isfinite(x).all()) for x in (arrays.train_x, arrays.test_x))
    return counts and whole and finite and arrays.train_x.dtype in (np.uint8, np.float32)


def _read(name: str, card: Callable[[Path], DatasetCard]) -> Callable[[Path], object]:
    return lambda place: pixels.read(name, card(place), place, None)


def data(scratch: Path) -> list[Subject]:
    """Return the readers of data sets' files, of a site's own data, and of the caches of both."""
    rng = np.random.default_rng(0)
    idx: dict[str, bytes] = {}
    for file in mnist.MNIST.files:
        images, count = "images" in file, 3 if "train" in file else 2
        shape = (count, 28, 28) if images else (count,)
        head = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
        idx[file] = head + rng.integers(0, 10, shape, dtype=np.uint8).tobytes()
    batch = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}, protocol=2)
    cifars = dict.fromkeys(cifar.CIFAR10.files, batch)
    person = (
        "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
        "United-States, <=50K"
    )
    adults = dict.fromkeys(
        adult.ADULT.files, f"{person}\n{person.replace('<=50K', '>50K')}\n{person}\n{person}\n".encode()
    )
    rows = {"rows.csv": b"".join(f"0.1,{i / 20},0.5,{i % 2}\n".encode() for i in range(12))}
    made = (
        ("idx", Folder(scratch / "idx", idx), _read("mnist", lambda _: mnist.MNIST), idx_mutant),
        ("cifar", Folder(scratch / "cifar", cifars), _read("cifar10", lambda _: cifar.CIFAR10), pickle_mutant),
        ("adult", Folder(scratch / "adult", adults), _read("adult", lambda _: adult.ADULT), table_mutant),
        ("rows.csv", Folder(scratch / "rows", rows), _rows, table_mutant),
        ("folder", Folder(scratch / "images", _pictures(rng)), _images, bytes_mutant),
    )
    weights = {"idx": 1.0, "cifar": 1.0, "adult": 1.0, "rows.csv": 1.5, "folder": 0.5}
    subjects = [
        place.subject(
            name, dict.fromkeys(place.files, unsealed(operator)), read, fits=_arrays_fit, weight=weights[name]
        )
        for name, place, read, operator in made
    ]
    return [*subjects, *_caches(scratch), *_archives(scratch)]


def _rows(place: Path) -> object:
    card = at_site.site("3:2", PictureForm())
    assert card.look is not None, "a site looks"
    return pixels.read("site:3:2", card.look(place), place, None)


def _images(place: Path) -> object:
    return pixels.read(f"folder:{place}", folder.folder(str(place), PictureForm()), place, None)


def _pictures(rng: np.random.Generator) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    kinds = ("png", "jpeg", "bmp", "tiff", "webp", "ppm")
    for label in ("a", "b"):
        for number, kind in enumerate(kinds):
            made = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(made, kind.upper())
            files[f"{label}/{number}.{'jpg' if kind == 'jpeg' else kind}"] = made.getvalue()
    return files


def _caches(scratch: Path) -> list[Subject]:
    """Return the readers of converted data and of splits, which lie in the user's own cache."""
    numbers = np.arange(6)
    cache.write_arrays(
        scratch / "made-cache",
        {"train_y": numbers, "test_y": numbers},
        {"mean": [0.5], "std": [0.5], "md5_ok": None, "digest": "abc"},
    )
    arrays = Folder.of(scratch / "arrays", scratch / "made-cache")
    changes: dict[str, Change] = dict.fromkeys(("train_y.npy", "test_y.npy"), unsealed(npy_mutant))
    changes["meta.json"] = unsealed(json_mutant)
    cut = Cut([numbers, numbers], [numbers, numbers], [numbers[:1]] * 2, numbers, numbers)
    partition._write(scratch / "split.npz", cut, numbers)
    splits = Folder(scratch / "split", {"split.npz": (scratch / "split.npz").read_bytes()})
    return [
        splits.subject(
            "split", {"split.npz": unsealed(bytes_mutant)}, lambda p: partition._read(p / "split.npz"), fits=_split_fits
        ),
        arrays.subject("cache", changes, lambda p: cache.read_arrays(p, ("train_y", "test_y")), fits=_cached),
    ]


def _cached(read: Any) -> bool:
    arrays, meta = read
    return all(isinstance(a, np.ndarray) and a.dtype != object for a in arrays) and isinstance(meta, dict)


def zip_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed zip archive: an entry outside the folder, or any bytes."""
    if rng.random() < 0.6:
        return bytes_mutant(data, rng)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for name in ("set/a.txt", rng.choice(_NAMES)):
            packed.writestr(name, b"words")
    return made.getvalue()


def tar_mutant(data: bytes, rng: Random) -> bytes:
    """Return a changed tar archive: an entry or a link outside the folder, a device, or any bytes."""
    if rng.random() < 0.5:
        return bytes_mutant(data, rng)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as packed:
        entry = tarfile.TarInfo(rng.choice(_NAMES))
        entry.type = rng.choice((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE))
        entry.linkname = rng.choice(_NAMES)
        packed.addfile(entry)
        packed.addfile(tarfile.TarInfo(f"{entry.name}/inner"))
    return made.getvalue()


_NAMES = (
    "../../escaped",
    "/dev/shm/escaped",
    "set/../../escaped",
    "set/a.txt",
    "C:\\x",
    "set/\x1b[2J",
    "x" * 300,
    ".",
    "é",
)


def _archives(scratch: Path) -> list[Subject]:
    """Return the readers of downloaded archives."""
    packed, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("set/a.txt"))
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("set/a.txt", b"words")
    place = Folder(scratch / "archives", {"a.tar.gz": packed.getvalue(), "a.zip": zipped.getvalue()})

    def unpacked(name: str) -> Callable[[Path], object]:
        def read(folder: Path) -> object:
            remote.unpack(folder / name, folder / "set")
            escaped = [path for path in (folder.parent / "escaped", Path("/dev/shm/escaped")) if path.exists()]
            return not escaped

        return read

    operators = {"a.tar.gz": tar_mutant, "a.zip": zip_mutant}
    return [
        place.subject(name, {name: unsealed(operator)}, unpacked(name), fits=bool, weight=0.5)
        for name, operator in operators.items()
    ]


def _split_fits(split: Any) -> bool:
    parts = [*split.train, *split.test, *split.validation, split.public]
    return all(part.dtype.kind in "iu" and part.min(initial=0) >= 0 for part in parts)
