"""Table after its measurement: the text that a terminal shows, and the files that hold it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final


@final
@dataclass(frozen=True)
class MeasuredTable:
    """Table after its measurement.

    Attributes:
        text: published beside measured numbers, of the selected cells.
        files: paths of the files, each with all cells.
        complete: whether no selected cell failed, and one was measured.
    """

    text: str
    files: tuple[Path, ...]
    complete: bool
