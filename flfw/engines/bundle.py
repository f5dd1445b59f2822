"""App that is handed to Flower: its code and its pyproject.toml."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from flfw.experiment import Scalar
from flfw.storage.provenance import sources


def write_app(folder: Path, run_config: dict[str, Scalar]) -> None:
    """Write a pyproject.toml with the run's configuration; simulated clients get it only from there."""
    lines = [
        "[project]",
        'name = "flfw-run"',
        'version = "0.1.0"',
        "[tool.flwr.app]",
        'publisher = "flfw"',
        "[tool.flwr.app.components]",
        'serverapp = "flfw.apps:server"',
        'clientapp = "flfw.apps:client"',
        "[tool.flwr.app.config]",
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n" + toml_lines(run_config), encoding="utf-8")


def toml_lines(run_config: dict[str, Scalar]) -> str:
    """Format a run's configuration as TOML, one line per key; scalars are written as in JSON."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in run_config.items())


def write_bundle(folder: Path, run_config: dict[str, Scalar]) -> None:
    """Write the running code and its configuration as an app; Flower takes only the modules of a package."""
    for name, source in sources().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    write_app(folder, run_config)
