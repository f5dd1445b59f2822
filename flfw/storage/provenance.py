"""Provenance of results: the hash of the code, and the environment that ran it."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import flfw

PACKAGES = ("flfw", "strategies", "clients", "attacks")


@cache
def code_hash() -> str:
    """Compute a SHA-256 (16 hex digits) over all source files; server and clients compare it before the first round."""
    root, digest = Path(flfw.__file__).parent.parent, hashlib.sha256()
    for path in sorted(p for package in PACKAGES for p in (root / package).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def requirements_hash() -> str | None:
    """Compute the SHA-256 (16 hex digits) of the pinned requirements file; None outside a checkout."""
    pinned = Path(flfw.__file__).parent.parent / "requirements.txt"
    return hashlib.sha256(pinned.read_bytes()).hexdigest()[:16] if pinned.exists() else None


def environment(transport: str) -> dict[str, Any]:
    """Return the ``environment`` entry of result.json."""
    packages = {name: installed(name) for name in ("flwr", "ray", "torch", "numpy")}
    return {"python": platform.python_version(), **packages, "transport": transport, "hardware": hardware()}


def installed(package: str) -> str | None:
    """Return the version of a package; None: it is not installed, as Ray need not be where clients run in process."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def hardware() -> str:
    """Return the processor, the number of its cores that this process may use, and the first GPU."""
    import torch

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    gpu = f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ", no GPU"
    return f"{name}, {len(os.sched_getaffinity(0))} cores{gpu}"
