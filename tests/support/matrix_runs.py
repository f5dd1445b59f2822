"""Runs of a matrix: a small one to carry out, and folders written by hand."""

import csv
import json
from pathlib import Path
from typing import Any

import torch

from flfw.nets import Tensors
from flfw.task.defence import Defence
from tests.support.reported_runs import conclusion
from tests.support.small_runs import tiny


class Halves(Defence):
    """Sends half of each number, which the closed form does not mind."""

    def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
        """Half of each."""
        return {name: value / 2 for name, value in update.items()}


HALVES = f"{__name__}:Halves"
SMALL = tiny(audit_rounds="0")


def entry(**changes: Any) -> dict[str, Any]:
    """One attack at one place, as ``result.json`` has it."""
    return {
        "attack": "ig", "adaptive": True, "vantage": "server", "source": "probe", "round": 0, "client": None,
        "iterations": 100, "restarts": 1, "images": 2, "failures": 0, "identification_rate": None,
        "seconds": 1.0, **changes, **conclusion(changes.get("verdict", "no leak found"), changes.get("cause", "")),
    }  # fmt: skip


def row(victim: int, psnr: float | None, **changes: Any) -> dict[str, Any]:
    """One sample, as ``audit.csv`` has it."""
    return {
        "attack": "ig", "adaptive": True, "vantage": "server", "source": "probe", "rung": "target", "round": 0,
        "client": victim, "probe_slot": victim, "image": 0, "index": 100 + victim, "label": victim, "psnr": psnr,
        "defence": "", "ssim": None, "rmsd": None if psnr is None else 10 ** (-psnr / 20), "failed": psnr is None,
        "recovered": psnr is not None and psnr > 20, "floor_grey": 9.0, "floor_nearest_public": 14.0,
        "floor_features": 99.0, "adaptation": "", **changes,
    }  # fmt: skip


def amended(folder: Path, **changes: Any) -> Path:
    """Change entries of a finished run's ``result.json``."""
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def written(folder: Path, entries: list[dict[str, Any]], rows: list[dict[str, Any]], **config: Any) -> Path:
    """Write a finished run's folder, as far as it is read."""
    folder.mkdir(parents=True)
    details = {"seed": 0, "dataset": "digits", "split": "dominant", "clients": 2, "victim_batch": 1, **config}
    result = {"config": details, "final": {"acc_local": 0.8, "acc_global": 0.6}, "audit": entries, "notes": []}
    result["provenance"] = {"code": "c", "data": {"digest": "d"}}
    (folder / "result.json").write_text(json.dumps(result))
    with (folder / "audit.csv").open("w", newline="") as file:
        columns = dict.fromkeys(key for line in [{**row(0, 0.0), "curve": ""}, *rows] for key in line)
        writer = csv.DictWriter(file, list(columns), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return folder
