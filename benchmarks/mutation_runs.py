"""Small finished run whose files the benchmark of mutations changes."""

from __future__ import annotations

import json
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from flfw.experiment import Experiment
from flfw.runs import run


@cache
def recorded(scratch: Path) -> Path:
    """Make a run of two clients and one round with one closed form; return its folder."""
    experiment = Experiment(
        method="fedavg",
        net="linear",
        clients=2,
        rounds=1,
        local_epochs=1,
        images=2,
        attack=("analytic",),
        audit_source="both",
        engine="inproc",
        out=scratch / "whole",
    )
    with redirect_stderr(StringIO()):
        folder = run.run(experiment)
    result = _timeless(json.loads((folder / "result.json").read_text()))
    result["config"]["out"] = "/nowhere/run"
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    return folder


def _timeless(value: Any) -> Any:
    """Return a result without times, so that the same seed changes the same characters."""
    if isinstance(value, dict):
        return {key: 0.5 if key.endswith("seconds") else _timeless(inner) for key, inner in value.items()}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value
