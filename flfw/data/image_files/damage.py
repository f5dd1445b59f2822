"""Damaged pictures: all of a folder are named at once, or they are left out and counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flfw.errors import InputError

_NAMED = 10


def refusal(root: Path, damaged: Mapping[Path, str], private: bool = False) -> InputError:
    """Return the error for damaged pictures.

    Args:
        root: the folder.
        damaged: why each cannot be read.
        private: whether names and reasons are left out, as a server is told of the error.
    """
    count = f"{len(damaged)} that cannot be read"
    if private:
        return InputError(
            f"Expected readable images at this site, got {count}; python -m flfw.rehearse at the site names them, and "
            "--expert skip_damaged=true leaves them out."
        )
    named = "; ".join(f"{path} ({why})" for path, why in list(damaged.items())[:_NAMED])
    more = f"; and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    return InputError(
        f"Expected readable images in {root}, got {count}: {named}{more}. Get these files again, take them out, or "
        "leave them out with --expert skip_damaged=true."
    )


def in_words(lost: Mapping[str, int], files: int) -> str:
    """Return a note on the damaged pictures that were left out.

    Args:
        lost: how many of each class, by its name.
        files: number of all pictures.

    >>> in_words({"cat": 2, "dog": 1}, 90)
    'Images that cannot be read were left out: 3 of 90 (2 of cat, 1 of dog).'
    """
    each = ", ".join(f"{count} of {name}" for name, count in lost.items())
    return f"Images that cannot be read were left out: {sum(lost.values())} of {files} ({each})."
