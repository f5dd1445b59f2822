"""Folder for `benchmarks.gpu` on a machine with Python, PyTorch and NumPy alone: the code, and the data of its cell."""

import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flfw import data
from flfw.data.files.cache import user_cache
from flfw.errors import require
from flfw.files.sealed import write_atomic

MAX_BYTES = 60_000_000
_ROOT = Path(__file__).parent.parent
_CODE = ("flfw", "strategies", "clients", "attacks", "papers", "benchmarks")
_DATASET = "fmnist"


def pack(folder: Path, max_bytes: int = MAX_BYTES) -> int:
    """Write the folder; return its size in bytes.

    Raises:
        InputError: the folder exists, the data are not here, or all would be larger than ``max_bytes``.
    """
    require(not folder.exists(), "a folder that does not exist yet", pack=folder)
    names = data.sums(_DATASET, None)  # refuses missing files
    root = Path(os.environ.get("FLFW_DATA") or user_cache() / "data")
    packed = {f"data/{name}.gz": gzip.compress((root / name).read_bytes()) for name in names}
    code = {path: _ROOT / path for path in _code()}
    size = sum(map(len, packed.values())) + sum(path.stat().st_size for path in code.values())
    require(size <= max_bytes, f"at most {max_bytes / 1e6:g} MB of code and data", bytes=size)
    for path, source in code.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / path)
    for name, content in packed.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return size


def unpack(root: Path = _ROOT) -> None:
    """Unpack the data of a folder that `pack` wrote, and let `flfw.data` find them; elsewhere do nothing."""
    if not (root / "data").is_dir():
        return
    for file in (root / "data").rglob("*.gz"):
        if not file.with_suffix("").exists():
            write_atomic(file.with_suffix(""), gzip.decompress(file.read_bytes()))
    os.environ.setdefault("FLFW_DATA", str(root / "data"))


def _code() -> Iterator[Path]:
    """Yield the code's files, relative to the checkout. Links are left out: plug-ins may lie beside flfw/ as well."""
    for package in _CODE:
        for folder, below, files in os.walk(_ROOT / package):  # follows no link
            below[:] = [name for name in below if name != "__pycache__"]
            yield from (Path(folder, name).relative_to(_ROOT) for name in files)
