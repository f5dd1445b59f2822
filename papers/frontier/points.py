"""Points of the frontier, the file that keeps them, and the table with a cell for each point."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from flfw.errors import InputError
from flfw.files.sealed import write_atomic
from flfw.files.typed import fitted, read_json
from flfw.papers.evidence.records import NOT_FINITE, in_json
from flfw.papers.frontier.trials import DATA, EPSILONS, LINES, FrontierLine
from flfw.papers.preset import Scale
from flfw.papers.published import FRONTIER as NAME
from flfw.papers.published import Cell, Table

Status = Literal["measured", "missing"]
_NUMBERS = ("epsilon", "with_tuning", "accuracy", "deviation")
T = TypeVar("T", "FrontierPoint", "Mark")


@dataclass(frozen=True)
class FrontierPoint:
    """Point of a line.

    Attributes:
        cell: its path, as for ``--cell``.
        data: the data set.
        method: the method.
        unit: the unit that it protects.
        against: the adversary.
        target: the epsilon that was asked for.
        status: whether it was measured.
        reason: why it is missing; else empty.
        epsilon: the true epsilon of a run, the largest over the seeds.
        with_tuning: the epsilon of the runs of the choice and the reported run together, the largest over the seeds.
        accuracy: mean over the seeds, on test data.
        deviation: sample standard deviation over the seeds.
        seeds: the seeds.
        chosen: the chosen settings, in words.
        tried: words and validation accuracy of all settings that were tried.
        folders: names of the runs, those of the choice first.
        code: hashes of the code that ran them.
        hardware: machines that ran them.
        date: day on which the last of them ended, as YYYY-MM-DD.
        notes: notes of the runs, among them why a number says nothing.
    """

    cell: str
    data: str
    method: str
    unit: str
    against: str
    target: float
    status: Status = "missing"
    reason: str = ""
    epsilon: float | None = None
    with_tuning: float | None = None
    accuracy: float | None = None
    deviation: float | None = None
    seeds: tuple[int, ...] = ()
    chosen: str = ""
    tried: tuple[tuple[str, float], ...] = ()
    folders: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    date: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A paper's own point.

    Attributes:
        data: the data set.
        method: the method, as the paper names it.
        unit: the unit of the paper's epsilon.
        against: the adversary of the true epsilon.
        table: the table with the accuracy.
        accuracy: as printed, a share.
        printed: epsilon as printed.
        epsilon: the true epsilon of the printed settings; inf: nothing can be claimed.
        measured: accuracy that this project measured with the printed settings; None: it was not measured.
    """

    data: str
    method: str
    unit: str
    against: str
    table: str
    accuracy: float
    printed: float
    epsilon: float
    measured: float | None = None


def write(path: Path, scale: Scale, points: Sequence[FrontierPoint], marks: Sequence[Mark]) -> None:
    """Write points and marks as JSON; infinity is the string ``inf``."""
    stored = {"scale": scale, "points": [_stored(one) for one in points], "marks": [_stored(one) for one in marks]}
    write_atomic(path, (json.dumps(stored, indent=1, allow_nan=False) + "\n").encode())


def read(path: Path) -> tuple[Scale, tuple[FrontierPoint, ...], tuple[Mark, ...]]:
    """Read the scale, points and marks that `write` wrote.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    try:
        stored = read_json(path, _StoredPoints)
        points = tuple(_read(one, FrontierPoint, path) for one in stored["points"])
        return stored["scale"], points, tuple(_read(one, Mark, path) for one in stored["marks"])
    except InputError as error:
        raise InputError(f"Expected points of the frontier in {path}, got none that can be read ({error}).") from error


class _StoredPoints(TypedDict):
    """Content of the file."""

    scale: Scale
    points: list[dict[str, Any]]
    marks: list[dict[str, Any]]


def _read(stored: dict[str, Any], kind: type[T], path: Path) -> T:
    """Return a point or a mark; numbers that are not finite are words in the file."""
    words = {name: float(stored[name]) for name in _NUMBERS if stored.get(name) in NOT_FINITE}
    return replace(fitted({**stored, **dict.fromkeys(words, 0.0)}, kind, path), **words)


def _stored(one: FrontierPoint | Mark) -> dict[str, Any]:
    return {name: in_json(value) for name, value in asdict(one).items()}


def table() -> Table:
    """Return the table with the cells of both scales."""
    epsilons = sorted({epsilon for some in EPSILONS.values() for epsilon in some})
    return Table(
        NAME,
        "Accuracy against true epsilon",
        "A table of our own, no paper's.",
        ("dataset", "method", "unit"),
        ("epsilon",),
        tuple(_cell(data, line, epsilon) for data in DATA for line in LINES for epsilon in epsilons),
        missing="no paper has these numbers",
    )


def line_of(cell: Cell) -> FrontierLine:
    """Return the line of a cell."""
    return next(line for line in LINES if (line.method, line.unit) == (cell.keys["method"], cell.keys["unit"]))


def in_scale(cell: Cell, scale: Scale) -> bool:
    """Return whether a scale has the cell's epsilon."""
    return float(cell.keys["epsilon"]) in EPSILONS[scale]


def _cell(data: str, line: FrontierLine, epsilon: float) -> Cell:
    keys = {"dataset": data, "method": line.method, "unit": line.unit, "against": line.against, "epsilon": epsilon}
    return Cell(NAME, keys, (data, line.method, line.unit), (f"{epsilon:g}",), "accuracy", "", None, lost=True)
