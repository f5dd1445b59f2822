"""Sittings of a run: each start and each resumption has an entry with its command, time, code and machine.

A run that is cut short leaves the entry of its sitting without an end. The entries lie beside the checkpoint, and
result.json has them all.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import flfw
from flfw.formats.result_file import SittingFields, read_model
from flfw.provenance.external_plugins import OutsideCode
from flfw.provenance.machine import machine
from flfw.provenance.packages import write_packages
from flfw.provenance.revision import revision
from flfw.storage.provenance import code_hash, requirements_hash
from flfw.storage.sealed import sealed, write_atomic

_FILE = "sittings.json"
_ROUND = "round-"
_SECRET, _HIDDEN = re.compile("token|password|secret|key", re.IGNORECASE), "HIDDEN"


def describe_session(folder: Path, outside: Sequence[OutsideCode]) -> dict[str, Any]:
    """Describe the sitting that begins now, and write the list of packages into the folder.

    Args:
        folder: the folder of the results.
        outside: the code of plug-ins from outside.
    """
    return {
        "command": shown(sys.orig_argv),
        "folder": str(Path.cwd()),
        "started_at": now(),
        "ended_at": None,
        "code": code_hash(),
        "lock": requirements_hash(),
        "git": revision(Path(flfw.__file__)),
        "external_plugins": list(outside),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": write_packages(folder),
        "machine": machine(),
    }


def shown(words: Sequence[str]) -> str:
    """Format a command as for a shell, without the values of flags of secrets, as Flower's own processes have.

    >>> shown(["python", "sim.py", "--out", "my runs"])
    "python sim.py --out 'my runs'"
    >>> shown(["flwr-serverapp", "--token", "d41d", "--plugin-key=x"])
    'flwr-serverapp --token HIDDEN --plugin-key=HIDDEN'
    """
    kept: list[str] = []
    secret = False
    for word in words:
        flag, equals, _ = word.partition("=")
        named = bool(_SECRET.search(flag)) and flag.startswith("-")
        kept.append(
            _HIDDEN if secret and not word.startswith("-") else f"{flag}={_HIDDEN}" if named and equals else word
        )
        secret = named and not equals
    return shlex.join(kept)


def now() -> str:
    """Return date, time and zone as ISO 8601 has them, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def begin(folder: Path, outside: Sequence[OutsideCode]) -> None:
    """Add the entry of a sitting to a run's; its lock is held.

    Args:
        folder: folder of the run.
        outside: the code of plug-ins from outside.

    Raises:
        InputError: the file of earlier entries is damaged.
    """
    rounds = [int(stem.removeprefix(_ROUND)) for stem, _ in sealed(folder / "checkpoint", f"{_ROUND}*")]
    entry = {"after_round": max(rounds, default=None), **describe_session(folder, outside)}
    _write(folder, [*_read(folder), entry])


def end(folder: Path) -> list[dict[str, Any]]:
    """Note that the present sitting ends; return the entries of all. None began: there are none."""
    entries = _read(folder)
    if entries:
        entries[-1]["ended_at"] = now()
        _write(folder, entries)
    return entries


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / "checkpoint" / _FILE
    return read_model(path, list[SittingFields], "restore it") if path.exists() else []


def _write(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    write_atomic(folder / "checkpoint" / _FILE, json.dumps(entries, indent=1).encode(), 0o600)
