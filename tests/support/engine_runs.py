"""Training alone by any engine, and its numbers without its times."""

import dataclasses
import json
from pathlib import Path

from flfw.client.site import Site
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.runs import launch


def train_by_engine(experiment: Experiment, folder: Path, truth: bool = True) -> dict:
    """Train, without an audit or results; what ``training.json`` says then."""
    folder.mkdir()
    site = Site(state=folder / "state", truth=folder / "truth" if truth else None)
    launch.run_on_engine(plan(dataclasses.replace(experiment, out=folder)), site)
    return json.loads((folder / "training.json").read_text())


def rows_without_times(training: dict) -> list:
    """List the rows of rounds, clients and the end."""
    rows = [*training["rounds"], *training["clients"], *training["final"]]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


BROKEN = """
from typing import final
from flfw.task.defence import Defence

@final
class Broken(Defence):
    def update(self, update, rng):
        raise ValueError("the shield fell")
"""
