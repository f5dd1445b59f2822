"""The files of a folder of recordings: their names, and how each is written and checked.

    manifest.jsonl                          the format, then a line an exchange
    received/SHA256.safetensors             what clients were sent; each content once
    round-0003/client-002-000.safetensors   what client 2 sent in round 3, in the first exchange with it

Tensor files are not brought to disk one by one: on a slow disk that would take longer than a round's training. Nor need
they be: the manifest has the SHA-256 of each, so that a torn one is found out, and a checkpoint's mark waits for all.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load

from flfw.nets.net import Tensors

FORMAT = 1
COMPRESSIONS = ("none", "gzip")
MANIFEST = "manifest.jsonl"

Line = dict[str, Any]
_NAME = re.compile(r"(?P<id>received/[0-9a-f]{64}|round-[0-9]{4,}/client-[0-9]{3,}-[0-9]{3,})\.safetensors(\.gz)?")


class Damaged(ValueError):
    """A file of recordings cannot be used; the message names it and says why, without a full stop."""


@dataclass(frozen=True)
class Encoded:
    """Tensors as they are stored.

    Attributes:
        data: the file.
        sha256: of it.
        size: bytes of it once decompressed.
        suffix: what its name ends in.
    """

    data: bytes
    sha256: str
    size: int
    suffix: str


def encode(tensors: Mapping[str, np.ndarray], compression: str) -> Encoded:
    """Tensors as the bytes of a file; the same tensors give the same bytes.

    Raises:
        SafetensorError: an array is not of numbers that the format knows.
    """
    # Of an array whose entries do not lie in order, safetensors writes them in the order in which they lie.
    data = save({name: np.asarray(value, order="C") for name, value in tensors.items()}, {"format": str(FORMAT)})
    size, suffix = len(data), ".safetensors"
    if compression == "gzip":
        data, suffix = gzip.compress(data, compresslevel=1, mtime=0), ".safetensors.gz"
    return Encoded(data, hashlib.sha256(data).hexdigest(), size, suffix)


def exchange_id(file: str) -> str:
    """What an exchange is called: the name of what the client sent, or any other string as it is.

    >>> exchange_id("round-0003/client-002-000.safetensors.gz")
    'round-0003/client-002-000'
    """
    match = _NAME.fullmatch(file)
    return match["id"] if match else file


def write(path: Path, data: bytes) -> None:
    """Write a file for its owner only; it is on disk once `bring_to_disk` was called for it."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def bring_to_disk(paths: list[Path]) -> None:
    """See files, and their names in their folders and in the one above, on disk."""
    folders = {path.parent for path in paths}
    for path in [*paths, *sorted(folders | {folder.parent for folder in folders})]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(folder: Path, keep: Container[str]) -> list[Path]:
    """Remove the tensor files that ``keep`` does not name, and folders left empty; what is no recording stays.

    Args:
        folder: of the recordings; links in it are not followed.
        keep: names relative to it.

    Returns:
        The files that were removed.
    """
    gone = []
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        ours = [path for path in sorted(inner.iterdir()) if _NAME.fullmatch(f"{inner.name}/{path.name}")]
        for path in ours:
            if f"{inner.name}/{path.name}" not in keep:
                path.unlink()
                gone.append(path)
        if ours and not any(inner.iterdir()):
            inner.rmdir()
    return gone


def read(folder: Path, entry: Mapping[str, Any], compression: str) -> Tensors:
    """The tensors of a file, after every check that can be made of it.

    Args:
        folder: of the recordings.
        entry: the file's name, SHA-256 and decompressed bytes, as the manifest has them.
        compression: one of `COMPRESSIONS`.

    Raises:
        Damaged: the file is not what was written, or what was written is of no use.
    """
    file, size = str(entry["file"]), int(entry["bytes"])
    if not _NAME.fullmatch(file) or not (folder / file).resolve().is_relative_to(folder.resolve()):
        raise Damaged(f"{file} is no file of these recordings")
    data = _decompressed(file, _checked(folder, entry, compression), size, compression)
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise Damaged(f"{file} is no safetensors file that can be read ({error})") from error
    written = (header.get("__metadata__") or {}).get("format")
    if written != str(FORMAT):
        raise Damaged(f"{file} is in format {written}, not {FORMAT}")
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise Damaged(f"{file} holds NaN or infinity")
    return tensors


def _checked(folder: Path, entry: Mapping[str, Any], compression: str) -> bytes:
    file, size = str(entry["file"]), int(entry["bytes"])
    # What cannot be compressed grows by less than this; so a huge file is refused before it fills the memory.
    most = size if compression == "none" else size + size // 1000 + 1024
    try:
        if not (folder / file).is_file():
            raise Damaged(f"{file} is not there")
        length = (folder / file).stat().st_size
        if length > most or (compression == "none" and length != size):
            raise Damaged(f"{file} has {length} bytes, and was written with {size}")
        data = (folder / file).read_bytes()
    except OSError as error:
        raise Damaged(f"{file} cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry["sha256"]:
        raise Damaged(f"{file} has SHA-256 {digest[:16]}..., and was written with {str(entry['sha256'])[:16]}...")
    return data


def _decompressed(file: str, data: bytes, size: int, compression: str) -> bytes:
    if compression == "none":
        return data
    stream = zlib.decompressobj(wbits=31)
    try:
        whole = stream.decompress(data, size + 1)  # no more than that, whatever the file would unfold to
    except zlib.error as error:
        raise Damaged(f"{file} cannot be decompressed ({error})") from error
    if len(whole) != size or not stream.eof:
        raise Damaged(f"{file} does not decompress to the {size} bytes that were written")
    return whole
