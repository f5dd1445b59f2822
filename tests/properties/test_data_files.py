"""Files of data sets, of sites and of the cache, and downloaded archives: refused, or arrays and files that fit."""

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, DrawFn
from PIL import Image

from flfw import data as data_sets
from flfw.data.files import cache, remote
from flfw.data.files.dataset import DatasetCard
from flfw.data.image_files.images import ImageFormat
from flfw.data.readers import adult, at_site, cifar, numerals, pixels
from flfw.data.splits import partition
from flfw.data.splits.split_indices import SplitIndices
from tests.properties.changes import Change, changed_bytes, changed_json, changed_table, unsealed
from tests.properties.reading import Folder, Reader

pytestmark = pytest.mark.filterwarnings("ignore")  # decoders warn of damaged pictures

LENGTHS = (0, 1, 2, 27, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
PERSON = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K"
)


@st.composite
def changed_idx(draw: DrawFn, data: bytes) -> bytes:
    """A changed idx file: its type, its number of axes, a length, or any bytes."""
    change = draw(st.integers(0, 9))
    if change < 5:
        at = 4 * draw(st.integers(1, data[3]))
        return data[:at] + draw(st.sampled_from(LENGTHS)).to_bytes(4, "big") + data[at + 4 :]
    if change < 7:
        kind = draw(st.sampled_from((0, 8, 9, 11, 12, 13, 14, 255)))
        return bytes((*data[:2], kind, draw(st.sampled_from((0, 1, 2, 3, 4, 255))))) + data[4:]
    return draw(changed_bytes(data))


class RunningCode:
    """Object whose pickle would run code in an unrestricted reader."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __reduce__(self) -> Any:
        return self._function, ("1",)


ODD: tuple[Any, ...] = (
    None, 7, [], "x", {}, np.zeros(3), [None, "x"], [2**70], np.zeros((2, 5)), b"x", 1e300, [[0], [1]],
)  # fmt: skip


@st.composite
def changed_pickle(draw: DrawFn, data: bytes) -> bytes:
    """A changed pickle: another key, type, shape or length, code, or any bytes."""
    change = draw(st.integers(0, 9))
    if change < 4:
        return draw(changed_bytes(data))
    entry: Any = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    if change < 7:
        entry[draw(st.sampled_from(("data", "labels")))] = draw(st.sampled_from(ODD))
    elif change == 7:
        entry = draw(st.sampled_from((*ODD, {"data": entry["data"]}, {"labels": [0]})))
    else:
        entry["data"] = RunningCode(draw(st.sampled_from((print, eval, open, Path))))
    return pickle.dumps(entry, protocol=draw(st.sampled_from((2, 4))))


HEADERS = (
    (b"<i8", b"|O"), (b"<i8", b"<U9"), (b"(", b"(9999999999,"), (b"(", b"(-1,"), (b"False", b"True"),
    (b"{", b"((("), (b"descr", b"x"), (b"<i8", b">f4"),
)  # fmt: skip


@st.composite
def changed_npy(draw: DrawFn, data: bytes) -> bytes:
    """A changed file of NumPy: its header, its length, or any bytes."""
    if draw(st.booleans()):
        return draw(changed_bytes(data))
    end = 10 + int.from_bytes(data[8:10], "little")
    header = data[10:end].replace(*draw(st.sampled_from(HEADERS)), 1)
    return data[:8] + len(header).to_bytes(2, "little") + header + data[end:]


# --- data sets ---


def are_arrays(arrays: Any) -> bool:
    counts = len(arrays.train_x) == len(arrays.train_y) and len(arrays.test_x) == len(arrays.test_y)
    whole = np.issubdtype(arrays.train_y.dtype, np.integer) and np.issubdtype(arrays.test_y.dtype, np.integer)
    finite = all(bool(np.isfinite(x).all()) for x in (arrays.train_x, arrays.test_x))
    return counts and whole and finite and arrays.train_x.dtype in (np.uint8, np.float32)


def reading(name: str, card: Callable[[Path], DatasetCard]) -> Callable[[Path], object]:
    return lambda place: pixels.read(name, card(place), place, None)


def looked_at(path: Path) -> DatasetCard:
    card = at_site.site("3:2", ImageFormat())
    assert card.look is not None, "a site looks"
    return card.look(path)


def of_table(prefix: str, name: str) -> Callable[[Path], object]:
    return lambda place: data_sets.load(f"{prefix}{place}/{name}")


def idx_files(rng: np.random.Generator) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name in numerals.MNIST.files:
        count = 3 if "train" in name else 2
        shape = (count, 28, 28) if "images" in name else (count,)
        head = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
        files[name] = head + rng.integers(0, 10, shape, dtype=np.uint8).tobytes()
    return files


def pictures(rng: np.random.Generator) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for label in ("a", "b"):
        for number, kind in enumerate(("png", "jpeg", "bmp", "tiff", "webp", "ppm")):
            made = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(made, kind.upper())
            files[f"{label}/{number}.{'jpg' if kind == 'jpeg' else kind}"] = made.getvalue()
    return files


def parquet() -> bytes:
    made = io.BytesIO()
    numbers = [i / 20 for i in range(12)]
    pd.DataFrame({"a": [0.1] * 12, "b": numbers, "c": [0.5] * 12, "y": [i % 2 for i in range(12)]}).to_parquet(made)
    return made.getvalue()


@pytest.fixture(scope="module")
def sets(scratch: Path) -> dict[str, Reader]:
    rng = np.random.default_rng(0)
    batch = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}, protocol=2)
    people = f"{PERSON}\n{PERSON.replace('<=50K', '>50K')}\n{PERSON}\n{PERSON}\n".encode()
    rows = b"".join(f"0.1,{i / 20},0.5,{i % 2}\n".encode() for i in range(12))
    patients = b"age,ward,seen,died\n" + b"".join(
        f"{20 + i},{'AB'[i % 2]},2024-01-{i + 1:02d},{('no', 'yes')[i % 3 // 2]}\n".encode() for i in range(12)
    )
    readers: dict[str, tuple[dict[str, bytes], Any, Callable[[Path], object]]] = {
        "idx": (idx_files(rng), changed_idx, reading("mnist", lambda _: numerals.MNIST)),
        "cifar": (
            dict.fromkeys(cifar.CIFAR10.files, batch),
            changed_pickle,
            reading("cifar10", lambda _: cifar.CIFAR10),
        ),
        "adult": (dict.fromkeys(adult.ADULT.files, people), changed_table, reading("adult", lambda _: adult.ADULT)),
        "csv": ({"rows.csv": rows}, changed_table, reading("site:3:2", looked_at)),
        "parquet": ({"rows.parquet": parquet()}, changed_bytes, of_table("parquet:", "rows.parquet@y")),
        "table": ({"t.csv": patients}, changed_table, of_table("csv:", "t.csv@died")),
        "pictures": (
            pictures(rng),
            changed_bytes,
            lambda place: pixels.read(f"folder:{place}", at_site.folder(str(place), ImageFormat()), place, None),
        ),
    }
    return {
        name: Reader(Folder(scratch / name, files), dict.fromkeys(files, unsealed(operator)), read, are_arrays)
        for name, (files, operator, read) in readers.items()
    }


@pytest.mark.parametrize("name", ["idx", "cifar", "adult", "csv", "parquet", "table", "pictures"])
@given(data=st.data())
def test_a_changed_data_set_is_refused_or_one(data: DataObject, sets: dict[str, Reader], name: str) -> None:
    sets[name].require_refused_or_valid(data)


# --- the cache and archives ---


def are_cached(read: Any) -> bool:
    arrays, meta = read
    return all(isinstance(a, np.ndarray) and a.dtype != object for a in arrays) and isinstance(meta, dict)


def is_split(split: Any) -> bool:
    parts = [*split.train, *split.test, *split.validation, split.public]
    return all(part.dtype.kind in "iu" and part.min(initial=0) >= 0 for part in parts)


NAMES = (
    "../../escaped", "/dev/shm/escaped", "set/../../escaped", "set/a.txt", "C:\\x", "set/\x1b[2J", "x" * 300, ".", "é",
)  # fmt: skip


@st.composite
def changed_zip(draw: DrawFn, data: bytes) -> bytes:
    """A changed zip archive: an entry outside the folder, or any bytes."""
    if draw(st.booleans()):
        return draw(changed_bytes(data))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for name in {"set/a.txt", draw(st.sampled_from(NAMES))}:
            packed.writestr(name, b"words")
    return made.getvalue()


@st.composite
def changed_tar(draw: DrawFn, data: bytes) -> bytes:
    """A changed tar archive: an entry or a link outside the folder, a device, or any bytes."""
    if draw(st.booleans()):
        return draw(changed_bytes(data))
    made = io.BytesIO()
    kinds = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE)
    with tarfile.open(fileobj=made, mode="w:gz") as packed:
        entry = tarfile.TarInfo(draw(st.sampled_from(NAMES)))
        entry.type, entry.linkname = draw(st.sampled_from(kinds)), draw(st.sampled_from(NAMES))
        packed.addfile(entry)
        packed.addfile(tarfile.TarInfo(f"{entry.name}/inner"))
    return made.getvalue()


def unpacking(name: str) -> Callable[[Path], object]:
    def read(location: Path) -> object:
        remote.unpack(location / name, location / "set")
        return not any(path.exists() for path in (location.parent / "escaped", Path("/dev/shm/escaped")))

    return read


@pytest.fixture(scope="module")
def others(scratch: Path) -> dict[str, Reader]:
    numbers = np.arange(6)
    meta = {"mean": [0.5], "std": [0.5], "md5_ok": None, "digest": "abc"}
    cache.write_arrays(scratch / "made-cache", {"train_y": numbers, "test_y": numbers}, meta)
    arrays: dict[str, Change] = dict.fromkeys(("train_y.npy", "test_y.npy"), unsealed(changed_npy))
    cut = SplitIndices([numbers, numbers], [numbers, numbers], [numbers[:1]] * 2, numbers, numbers)
    partition._write(scratch / "split.npz", cut, numbers)
    packed, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("set/a.txt"))
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("set/a.txt", b"words")
    archives = Folder(scratch / "archives", {"a.tar.gz": packed.getvalue(), "a.zip": zipped.getvalue()})
    return {
        "cache": Reader(
            Folder.of(scratch / "arrays", scratch / "made-cache"),
            {**arrays, "meta.json": unsealed(changed_json)},
            lambda place: cache.read_arrays(place, ("train_y", "test_y")),
            are_cached,
        ),
        "split": Reader(
            Folder(scratch / "split", {"split.npz": (scratch / "split.npz").read_bytes()}),
            {"split.npz": unsealed(changed_bytes)},
            lambda place: cache.read_damaged(place / "split.npz", partial(partition._stored, place / "split.npz")),
            is_split,
        ),
        "tar": Reader(archives, {"a.tar.gz": unsealed(changed_tar)}, unpacking("a.tar.gz"), bool),
        "zip": Reader(archives, {"a.zip": unsealed(changed_zip)}, unpacking("a.zip"), bool),
    }


@pytest.mark.parametrize("name", ["cache", "split", "tar", "zip"])
@given(data=st.data())
def test_a_changed_file_of_the_cache_or_of_a_download_is_refused_or_fits(
    data: DataObject, others: dict[str, Reader], name: str
) -> None:
    others[name].require_refused_or_valid(data)
