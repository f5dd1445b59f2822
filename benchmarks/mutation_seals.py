"""Changes of sealed files: the seal is left as it was, or made to fit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

from benchmarks.mutation_cases import Change, Files
from benchmarks.mutation_operators import (
    Operator,
    json_mutant,
    lines_mutant,
    tensors_mutant,
    word_mutant,
)
from flfw.recording.manifest import HEAD, sealed
from flfw.storage.sealed import with_checksum


def broken(operator: Operator) -> Change:
    """Return the change of a sealed file whose seal is left as it was."""
    return lambda name, data, rng: ({name: operator(data, rng)}, True)


def renamed(operator: Operator) -> Change:
    """Return the change of a file with its SHA-256 in its name, which is made to fit."""

    def change(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
        changed, path = operator(data, rng), Path(name)
        stem = path.stem.rpartition("-")[0]
        return {
            name: None,
            str(path.with_name(f"{stem}-{hashlib.sha256(changed).hexdigest()}{path.suffix}")): changed,
        }, False

    return change


def resummed(operator: Operator) -> Change:
    """Return the change of a file whose last line is its SHA-256, which is made to fit."""
    return lambda name, data, rng: ({name: with_checksum(operator(data.rpartition(b"\n")[0], rng))}, False)


def missummed(operator: Operator) -> Change:
    """Return the change of a file whose last line is its SHA-256, which is left as it was."""

    def change(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
        content, _, digest = data.rpartition(b"\n")
        return {name: operator(content, rng) + b"\n" + digest}, True

    return change


def resealed(name: str, data: bytes, rng: Random) -> tuple[Files, bool]:
    """Return a manifest with a changed line, whose seals and head are made to fit."""
    lines: list[bytes] = []
    for number, line in enumerate(lines_mutant(data, rng).split(b"\n"), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            line = json.dumps(sealed(row, number)).encode()
        lines.append(line)
    head = json.dumps({"lines": len(lines) - 1}).encode()
    return {name: b"\n".join(lines), str(Path(name).with_name(HEAD)): with_checksum(head)}, False


def either(*changes: Change) -> Change:
    """Return a change by one of these."""
    return lambda name, data, rng: rng.choice(changes)(name, data, rng)


def metadata_mutant(data: bytes, rng: Random) -> bytes:
    """Return a safetensors file with the JSON in its metadata changed, or changed as any such file."""
    if rng.random() < 0.4:
        return tensors_mutant(data, rng)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    key = rng.choice(list(header["__metadata__"]))
    word = header["__metadata__"][key]
    changed = json_mutant(word.encode(), rng).decode(errors="replace") if word[0] in "{[" else word_mutant(word, rng)
    header["__metadata__"][key] = changed
    new = json.dumps(header).encode()
    return len(new).to_bytes(8, "little") + new + data[8 + size :]
