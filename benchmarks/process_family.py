"""Processes of this machine: who started whom, with which words and variables."""

import contextlib
from pathlib import Path


def parents() -> dict[int, int]:
    """Return the parent of each process of this machine."""
    parent_of = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent_of[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
    return parent_of


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they started."""
    parent, family = parents(), [pid]
    for member in family:  # grows meanwhile
        family += [child for child, starter in parent.items() if starter == member]
    return family[1:]


def command_line(pid: int) -> str:
    """Return the words of a process; empty: it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def marked(variable: str, value: str) -> list[int]:
    """Return the processes that inherited an environment variable with this value."""
    pids = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{variable}={value}".encode() in (place / "environ").read_bytes().split(b"\0"):
                pids.append(int(place.name))
    return pids
