"""Installed distributions, as a file beside the results."""

from __future__ import annotations

import hashlib
from importlib.metadata import distributions
from pathlib import Path
from typing import TypedDict

from flfw.storage.sealed import write_atomic

NAME = "environment"


class PackageList(TypedDict):
    """List of installed distributions: the file's name in the run's folder, its SHA-256, and their number."""

    file: str
    sha256: str
    count: int


def installed_packages() -> list[str]:
    """List all installed distributions as ``name==version``; of two of one name the one that is imported."""
    versions: dict[str, str] = {}
    for one in distributions():
        name = str(one.metadata["Name"] or "")
        if name:
            versions.setdefault(name.lower().replace("_", "-"), one.version)
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def write_packages(folder: Path) -> PackageList:
    """Write the list into a folder, unless it is there; another list gets another name, ``environment-2.txt``."""
    lines = installed_packages()
    text = "".join(f"{line}\n" for line in lines).encode()
    number, path = 1, folder / f"{NAME}.txt"
    while path.exists() and path.read_bytes() != text:
        number += 1
        path = folder / f"{NAME}-{number}.txt"
    if not path.exists():
        write_atomic(path, text)
    return {"file": path.name, "sha256": hashlib.sha256(text).hexdigest(), "count": len(lines)}


def read_packages(path: Path) -> dict[str, str] | None:
    """Read such a list as name -> version; None: it is not there."""
    if not path.is_file():
        return None
    lines = path.read_text(errors="replace").splitlines()
    return {name: version for name, equals, version in (line.partition("==") for line in lines) if equals}
