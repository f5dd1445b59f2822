"""Files of a folder of recordings: their names, writing and checks.

    manifest.jsonl                          the format, then a line for each exchange
    manifest.head                           number of the lines; see `flfw.recording.manifest`
    received/SHA256.safetensors             tensors sent to clients; each content once
    round-0003/client-002-000.safetensors   tensors sent by client 2 in round 3, in the first exchange with it

Their names end in ``.gz`` where they are compressed by gzip, and in ``.compact.safetensors`` where they are compact
(`flfw.recording.compact`): a safetensors file too, from which the very bytes of the plain one can be made.

Tensor files are not synchronised to disk one by one: on a slow disk that would take longer than the training of a
round. It is not needed: the manifest has the SHA-256 of each file, which detects incomplete files, and a checkpoint's
mark waits for all files.
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
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load

from flfw.nets.net import Tensors
from flfw.recording.compact import compacted, restored

FORMAT = 1
COMPRESSIONS = ("none", "gzip", "compact")
MANIFEST = "manifest.jsonl"

_LONGEST_ADDITION = 2**16  # bytes that compression may add, with the description of a compact file
_METADATA = {"format": str(FORMAT)}

Line = dict[str, Any]
_NAME = re.compile(
    r"(?P<id>received/[0-9a-f]{64}|round-[0-9]{4,}/client-[0-9]{3,}-[0-9]{3,}(-[a-z_]+)?)(\.compact)?\.safetensors(\.gz)?"
)


class CorruptRecordingError(ValueError):
    """Error: a file of recordings cannot be used; the message names it and the reason, without a full stop."""


@dataclass(frozen=True)
class Encoded:
    """Tensors as they are stored.

    Attributes:
        data: content of the file.
        sha256: SHA-256 of the file, in hexadecimal.
        size: number of bytes after decompression.
        suffix: end of the file's name.
        plain_sha256: SHA-256 of a compact file's plain bytes; empty: the file is not compact.
    """

    data: bytes
    sha256: str
    size: int
    suffix: str
    plain_sha256: str = ""

    def entry(self, file: str) -> dict[str, Any]:
        """Return the manifest's entry of this file."""
        plain = {"plain_sha256": self.plain_sha256} if self.plain_sha256 else {}
        return {"file": file, "sha256": self.sha256, "bytes": self.size, **plain}


@dataclass(frozen=True)
class PlainTensors:
    """Tensors as the bytes of a safetensors file; the same tensors give the same bytes.

    Attributes:
        tensors: the tensors.
        data: the bytes.
    """

    tensors: Mapping[str, np.ndarray]
    data: bytes

    @classmethod
    def of(cls, tensors: Mapping[str, np.ndarray]) -> PlainTensors:
        """Encode tensors.

        Raises:
            SafetensorError: the format does not support the type of an array.
        """
        # safetensors writes entries in memory order, so each array must be contiguous.
        arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
        return cls(arrays, save(arrays, _METADATA))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def encoded(self, compression: str, received: Mapping[str, np.ndarray] | None = None) -> Encoded:
        """Return the tensors as they are stored.

        Args:
            compression: one of `COMPRESSIONS`.
            received: tensors that the sender of these had received, which a reader has as well; None: none.
        """
        size, suffix = len(self.data), ".safetensors"
        if compression == "none":
            return Encoded(self.data, self.sha256, size, suffix)
        if compression == "gzip":
            data, suffix = gzip.compress(self.data, compresslevel=1, mtime=0), ".safetensors.gz"
            return Encoded(data, hashlib.sha256(data).hexdigest(), size, suffix)
        data = compacted(self.tensors, received or {})
        return Encoded(data, hashlib.sha256(data).hexdigest(), size, ".compact.safetensors", self.sha256)


def received_file(plain: PlainTensors, compression: str) -> tuple[str, Encoded]:
    """Return name and content of the file of tensors that clients receive; the same content has the same name."""
    encoded = plain.encoded(compression)
    return f"received/{encoded.plain_sha256 or encoded.sha256}{encoded.suffix}", encoded


def exchange_id(file: str) -> str:
    """Return the id of an exchange: the name of the client's file, or any other string unchanged.

    >>> exchange_id("round-0003/client-002-000.safetensors.gz")
    'round-0003/client-002-000'
    """
    match = _NAME.fullmatch(file)
    return match["id"] if match else file


def write(path: Path, data: bytes) -> None:
    """Write a file for its owner only; it is surely on disk only after `bring_to_disk`."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def bring_to_disk(paths: list[Path]) -> None:
    """Force files to disk, with their folders and the folders above these."""
    folders = {path.parent for path in paths}
    for path in [*paths, *sorted(folders | {folder.parent for folder in folders})]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(folder: Path, keep: Container[str]) -> list[Path]:
    """Remove the tensor files that are not in ``keep``, and folders that become empty; other files stay.

    Args:
        folder: folder of the recordings; links in it are not followed.
        keep: names relative to that folder.

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


def read(
    folder: Path, entry: Mapping[str, Any], compression: str, received: Mapping[str, torch.Tensor] | None = None
) -> Tensors:
    """Read and check the tensors of a file; they are in the order of their names.

    Args:
        folder: folder of the recordings.
        entry: name, SHA-256 and decompressed size in bytes of the file, from the manifest.
        compression: one of `COMPRESSIONS`.
        received: tensors that the sender had received; None: it is the file of such tensors itself.

    Raises:
        CorruptRecordingError: the file differs from the written one, or its content cannot be used.
    """
    file, size = str(entry["file"]), int(entry["bytes"])
    if not _NAME.fullmatch(file) or not (folder / file).resolve().is_relative_to(folder.resolve()):
        raise CorruptRecordingError(f"{file} is no file of these recordings")
    stored = _checked(folder, entry, compression)
    if compression == "compact":
        data = _plain(file, stored, entry, _floats(received or {}))
    else:
        data = _decompressed(file, stored, size, compression)
    try:
        tensors = dict(sorted(load(data).items()))  # safetensors gives them in another order each time
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CorruptRecordingError(f"{file} is no safetensors file that can be read ({error})") from error
    written = (header.get("__metadata__") or {}).get("format")
    if written != str(FORMAT):
        raise CorruptRecordingError(f"{file} is in format {written}, not {FORMAT}")
    # A finite sum has finite terms, and is found faster; that of large finite numbers may be infinite.
    if not all(bool(value.sum().isfinite() or value.isfinite().all()) for value in tensors.values()):
        raise CorruptRecordingError(f"{file} holds NaN or infinity")
    return tensors


def _checked(folder: Path, entry: Mapping[str, Any], compression: str) -> bytes:
    file, size = str(entry["file"]), int(entry["bytes"])
    # Incompressible data grow by less than this; so a huge file is refused before it fills the memory.
    maximum = size if compression == "none" else size + size // 8 + _LONGEST_ADDITION
    try:
        if not (folder / file).is_file():
            raise CorruptRecordingError(f"{file} is not there")
        length = (folder / file).stat().st_size
        if length > maximum or (compression == "none" and length != size):
            raise CorruptRecordingError(f"{file} has {length} bytes, and was written with {size}")
        data = (folder / file).read_bytes()
    except OSError as error:
        raise CorruptRecordingError(f"{file} cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry["sha256"]:
        raise CorruptRecordingError(
            f"{file} has SHA-256 {digest[:16]}..., and was written with {str(entry['sha256'])[:16]}..."
        )
    return data


def _floats(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the tensors of the type from which others are predicted."""
    return {name: value.numpy() for name, value in tensors.items() if value.dtype == torch.float32}


def _plain(file: str, stored: bytes, entry: Mapping[str, Any], received: Mapping[str, np.ndarray]) -> bytes:
    """Return the plain bytes of a compact file, which are those that were recorded, to the bit."""
    try:
        plain = PlainTensors.of(restored(stored, int(entry["bytes"]), received))
    except ValueError as error:
        raise CorruptRecordingError(f"{file} cannot be brought back to what it was ({error})") from error
    if len(plain.data) != int(entry["bytes"]) or plain.sha256 != entry.get("plain_sha256"):
        raise CorruptRecordingError(f"{file} was brought back to other tensors than those that were written")
    return plain.data


def _decompressed(file: str, data: bytes, size: int, compression: str) -> bytes:
    if compression == "none":
        return data
    stream = zlib.decompressobj(wbits=31)
    try:
        full = stream.decompress(data, size + 1)  # the limit holds even for a file that decompresses to much more
    except zlib.error as error:
        raise CorruptRecordingError(f"{file} cannot be decompressed ({error})") from error
    if len(full) != size or not stream.eof:
        raise CorruptRecordingError(f"{file} does not decompress to the {size} bytes that were written")
    return full
