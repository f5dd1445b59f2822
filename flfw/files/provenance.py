"""Provenance of results: the hash of the code, and the environment that ran it."""

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import flfw

_PLUGINS = ("strategies", "clients", "attacks")
_SUFFIXES = (".py", ".toml", ".md")  # Flower's app bundles hold few other kinds of files


def sources() -> dict[str, Path]:
    """List the source files of an app, each by its name in the package, such as ``flfw/strategies/fedavg.py``.

    A checkout and an installed package give the same names. The papers' tables and the examples are no part of an app.
    """
    core = Path(flfw.__file__).parent
    files = {path.relative_to(core): path for path in core.rglob("*") if path.suffix in _SUFFIXES}
    files = {name: path for name, path in files.items() if name.parts[0] not in (*_PLUGINS, "papers", "examples")}
    for package in _PLUGINS:
        folder = core / package if (core / package).exists() else core.parent / package  # see flfw/__init__.py
        files |= {Path(package, path.relative_to(folder)): path for path in folder.rglob("*.py")}
    return {f"flfw/{name.as_posix()}": files[name] for name in sorted(files)}


@cache
def code_hash() -> str:
    """Compute a SHA-256 (16 hex digits) over all source files; server and clients compare it before the first round."""
    digest = hashlib.sha256()
    for name, path in sources().items():
        digest.update(name.encode())
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
