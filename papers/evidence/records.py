"""Records of evidence: small JSON files, one for a finished cell, variant and seed."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.earlier_names import renames, settings_of_today
from flfw.files.sealed import write_atomic
from flfw.files.typed import read_json
from flfw.papers import cells
from flfw.plans.run_plan import without_auto

NOT_FINITE = ("inf", "-inf", "nan")
_WORD = re.compile(r"\w+")

FOLDER = Path(__file__).resolve().parent
"""Folder with a folder of records for each table."""


@dataclass(frozen=True)
class Record:
    """Numbers of one finished run at full scale, with the settings and circumstances that produced them.

    Attributes:
        cell: path of the published cell.
        variant: ``authors`` or ``ours``; cells where both are one have ``authors``.
        seed: the seed.
        choice: number of the setting among those that the paper chose from.
        value: the figure that is compared, in the paper's unit.
        also: the figures beside it.
        chosen_by: the figure by which a choice is made; None: there is one choice.
        settings: the run's settings that are not at their default.
        digest: of all settings that decide numbers; the name of the run's folder ends in it.
        code: hashes of the code that ran it, in order.
        hardware: the machine.
        date: the day on which it ended, as YYYY-MM-DD.
        seconds: run time of its rounds.
        notes: notes of the run on its data and failures.
    """

    cell: str
    variant: str
    seed: int
    choice: int
    value: float | str
    also: Mapping[str, float | str]
    chosen_by: float | None
    settings: Mapping[str, Any]
    digest: str
    code: tuple[str, ...]
    hardware: str
    date: str
    seconds: float
    notes: tuple[str, ...]

    def write(self, folder: Path = FOLDER) -> Path:
        """Write the record and return its file."""
        path = file_of(folder, self.cell, self.variant, self.seed, self.choice)
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = {**asdict(self), "value": in_json(self.value), "also": {k: in_json(v) for k, v in self.also.items()}}
        write_atomic(path, (json.dumps(stored, indent=1, allow_nan=False) + "\n").encode())
        return path


def file_of(folder: Path, cell: str, variant: str, seed: int, choice: int) -> Path:
    """Return the file of a record: TABLE/ROW.COLUMN...VARIANT.SEED.json."""
    table, _, rest = cell.partition("/")
    words = "".join(c if c.isalnum() or c in "-_." else "_" for c in rest.replace("/", "."))
    chosen = f".choice{choice}" if choice else ""
    return folder / table / f"{words}.{variant}{chosen}.seed{seed}.json"


def digest(experiment: Experiment) -> str:
    """Return the digest of the settings that decide a run's numbers."""
    return cells.folder_name(without_auto(experiment)).rpartition("-")[2]


def read(folder: Path = FOLDER) -> list[Record]:
    """Read all records, by file name.

    Raises:
        InputError: a file is damaged.
    """
    return [read_record(path) for path in sorted(folder.glob("*/*.json"))]


def read_record(path: Path) -> Record:
    """Read the record of a file.

    Raises:
        InputError: the file is damaged.
    """
    try:
        stored = read_json(path, Record)
    except InputError as error:
        raise InputError(f"Expected a record of evidence in {path}, got one that is damaged ({error}).") from error
    also = {_WORD.sub(_of_today, name): _from_json(value) for name, value in stored.also.items()}
    if (settings := settings_of_today(stored.settings)) != stored.settings:
        run = Experiment.from_run_config({**Experiment().to_run_config(), **settings})
        stored = replace(stored, settings=settings, digest=digest(run))
    return replace(stored, value=_from_json(stored.value), also=also)


def _of_today(word: re.Match[str]) -> str:
    return renames().keys.get(word[0], word[0])


def in_json(value: Any) -> Any:
    """Return a value as JSON has it, which knows neither infinity nor NaN: these are words."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _from_json(value: float | str) -> float | str:
    return float(value) if value in NOT_FINITE else value
