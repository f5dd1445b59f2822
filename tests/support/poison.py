"""Poison for a copy of a run: all data that a job does not grant are replaced by values that change any result."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flfw.audit.jobs import AttackJob
from flfw.recording.format import MANIFEST, Line
from flfw.recording.manifest import HEAD, rewrite
from flfw.recording.reader import Recordings, is_recorded, places

_POISON = "poisoned"
_READ_BY_JOBS = ("control", "slot", "point")  # the keys of a probe's message that jobs read
_RECORDINGS = ("observations", "examples")
_SIDES = ("sent_to_client", "sent_by_client")


def poisoner(folder: Path, copy: Path) -> Callable[[AttackJob], None]:
    """Poison a whole copy; return a function that, called before a job, restores only the recordings of that job.

    Args:
        folder: the folder of the run.
        copy: the folder of the copy.
    """
    for path in sorted(copy.rglob("*")):
        if path.is_file():
            _poison(path)
    recorded = {name: Recordings(folder / name) for name in _RECORDINGS if is_recorded(folder / name)}
    healed: list[Path] = []

    def heal(job: AttackJob) -> None:
        for path in [*healed, *(copy / "queue").glob("*.safetensors")]:
            _poison(path)
        healed.clear()
        name = job.recordings.name
        granted = {exchange.id for exchange in job.exchanges} | set(job.uploads) | set(job.earlier)
        lines = [line for line in recorded[name].lines if line["id"] in granted]
        for file in {f"{line['place']}{line[side]['file']}" for line in lines for side in _SIDES}:
            shutil.copyfile(folder / name / file, copy / name / file)
            healed.append(copy / name / file)
        for place in places(folder / name):
            header = json.loads((place / MANIFEST).read_bytes().partition(b"\n")[0])
            there = "" if place == folder / name else f"{place.name}/"
            lines = [_without_grants(line) for line in recorded[name].lines if line["place"] == there]
            rewrite(copy / name / there, [header, *lines])
            healed.extend(copy / name / there / file for file in (MANIFEST, HEAD))

    return heal


def _poison(path: Path) -> None:
    """Replace a file; tensors become NaN or -1, so that an attack that reads them does not fail."""
    data = f"{_POISON}\n".encode()
    if path.suffix == ".safetensors":
        with suppress(SafetensorError):  # a damaged file holds no tensors
            data = save({name: _sentinels(value) for name, value in load(path.read_bytes()).items()})
    path.unlink()  # not overwritten: tensors that were read from it before may still use the old file
    path.write_bytes(data)


def _sentinels(value: Tensor) -> Tensor:
    if value.is_floating_point():
        return torch.full_like(value, torch.nan)
    return torch.zeros_like(value) if value.dtype is torch.bool else torch.zeros_like(value) - 1


def _without_grants(line: Line) -> Line:
    """Return a manifest's line with poison in all entries that are not needed to read the exchange."""
    config = {key: value if key in _READ_BY_JOBS else _POISON for key, value in line["config"].items()}
    others = {key: _POISON for key in ("node", "group") if key in line}
    return {
        **{key: value for key, value in line.items() if key not in ("id", "place")},
        **others,
        "config": config,
        "metrics": dict.fromkeys(line.get("metrics", {}), _POISON),
    }
