"""Records of main jobs: one for a machine, a version of the code and a seed, in one JSON file."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files import outcomes
from flfw.files.result_file import RESULT, read_result
from flfw.files.sealed import write_atomic
from flfw.files.typed import read_json
from flfw.plans.run_plan import without_auto
from flfw.runs.verify import experiment_of

DOCS = Path(__file__).resolve().parents[2] / "docs"  # `flfw/papers` is a link to the folder in the checkout
FILE = DOCS / "main_job.json"


@dataclass(frozen=True)
class MainJobEntry:
    """Result of an attack on one round.

    Attributes:
        attack: its name.
        adaptive: whether the attacker knew all processing of the data, or not (static).
        round: the attacked round; 0 is before training.
        images: number of attacked images.
        recovered: number of recovered ones.
        interval: 95 % interval of their share.
        psnr: mean in dB; None where every attempt failed.
        verdict: in words.
    """

    attack: str
    adaptive: bool
    round: int
    images: int
    recovered: int
    interval: tuple[float, float]
    psnr: float | None
    verdict: str


@dataclass(frozen=True)
class MainJob:
    """Numbers of one main job.

    Attributes:
        seed: its seed.
        hardware: its machine.
        instructions: instruction set that torch chose there; empty: the run did not note it.
        torch: version of torch.
        date: day on which it ended, YYYY-MM-DD.
        code: hash of the code.
        engine: engine, which decides no number on one CPU.
        accuracy: accuracy after local training.
        entries: results of its attacks.
    """

    seed: int
    hardware: str
    instructions: str
    torch: str
    date: str
    code: str
    engine: str
    accuracy: float
    entries: tuple[MainJobEntry, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Key under which a later record replaces this one."""
        return self.hardware, self.instructions, self.torch, self.code, f"{self.seed:06d}"


def read(file: Path = FILE) -> list[MainJob]:
    """Read all records; there may be none yet.

    Raises:
        InputError: the file is damaged.
    """
    return read_json(file, list[MainJob]) if file.exists() else []


def add(jobs: Iterable[MainJob], file: Path = FILE) -> list[MainJob]:
    """Add records to the file, in order; one of the same machine, code and seed is replaced. Return all."""
    by_key = {job.key: job for job in (*read(file), *jobs)}
    kept = [by_key[key] for key in sorted(by_key)]
    write_atomic(file, (json.dumps([asdict(job) for job in kept], indent=1, allow_nan=False) + "\n").encode())
    return kept


def take(folder: Path) -> MainJob:
    """Read the record of a finished run, of this or another machine.

    Raises:
        InputError: there is none, or it is not the main job: a setting that decides numbers is not at its default.
    """
    result = read_result(folder)
    config = result.get("config") or {}
    _require_main_job(experiment_of(config, folder), folder)
    provenance, surroundings = result.get("provenance") or {}, result.get("environment") or {}
    session = (provenance.get("sessions") or [{}])[-1]
    # An earlier version noted no time: then that of the file counts.
    ended = datetime.fromtimestamp((folder / RESULT).stat().st_mtime, UTC)
    if session.get("ended_at"):
        ended = datetime.fromisoformat(session["ended_at"])
    try:
        return MainJob(
            seed=config["seed"],
            hardware=surroundings["hardware"],
            instructions=((session.get("machine") or {}).get("torch") or {}).get("instructions") or "",
            torch=surroundings["torch"],
            date=ended.date().isoformat(),
            code=provenance["code"],
            engine=config["engine"],
            accuracy=result["final"]["acc_local"],
            entries=tuple(_entry(entry) for entry in result["audit"]),
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"Expected a finished main job in {folder}, got one without {error}.") from error


def _entry(entry: Mapping[str, Any]) -> MainJobEntry:
    return MainJobEntry(
        **{name: entry[name] for name in ("attack", "round", "images", "adaptive")},
        verdict=outcomes.in_words(entry),
        recovered=round(entry["share_recovered"] * entry["images"]),
        interval=(entry["share_interval"][0], entry["share_interval"][1]),
        psnr=entry["psnr"]["mean"] if entry["psnr"] else None,
    )


def _require_main_job(experiment: Experiment, folder: Path) -> None:
    wanted = without_auto(replace(Experiment(), seed=experiment.seed)).decisive
    for name, value in experiment.decisive.items():
        if value != wanted[name]:
            raise InputError(f"Expected {name}={wanted[name]}, the main job's, got {name}={value} in {folder}.")
