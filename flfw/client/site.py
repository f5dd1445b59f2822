"""The machine a client runs on: the folders of its data, its private state and its truth.

None of it comes from the server. A deployed SuperNode names the folders in its node config; `sim.py`, whose nodes have
no config of their own, sets the environment of the client processes. A simulation that was started without it, by
``flwr run``, has a folder of its own in the user's state folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VARIABLES = {"data_root": "FLFW_DATA", "state": "FLFW_STATE", "truth": "FLFW_TRUTH", "examples": "FLFW_EXAMPLES"}


@dataclass(frozen=True)
class Site:
    """A client's own folders.

    Attributes:
        data_root: the data sets' files; None: the default of `flfw.data.load`.
        state: private tensors between rounds; None: methods with private state refuse to start.
        truth: what a probe was made of, for scoring; None: this site answers no probes.
        examples: gradients of single examples, as an observer on the client reads them; None: none are written down.
        volunteered: the training examples it gives away, as places in its own order; None: any, as in a simulation.
    """

    data_root: Path | None = None
    state: Path | None = None
    truth: Path | None = None
    examples: Path | None = None
    volunteered: tuple[int, ...] | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, Any], experiment: str) -> Site:
        """Read the site off its node config or, where that is silent, its process environment.

        Args:
            node_config: of the node.
            experiment: the experiment's id, which names the folder of a simulation.
        """
        given = {
            field: node_config.get(field.replace("_", "-")) or os.environ.get(variable)
            for field, variable in _VARIABLES.items()
        }
        if _simulated() and not (given["state"] or given["truth"]):
            folder = simulation(experiment)
            given |= {field: given[field] or str(folder / field) for field in ("state", "truth", "examples")}
        data_root, state, truth, examples = (Path(str(v)) if (v := given[field]) else None for field in _VARIABLES)
        if truth is None or "volunteered" not in node_config:
            return cls(data_root, state, truth, examples)
        volunteered = tuple(map(int, str(node_config["volunteered"]).split()))
        return cls(data_root, state, truth / _named(experiment), examples, volunteered)  # several runs of one site

    def environment(self) -> dict[str, str]:
        """List the variables that make `of` find this site in another process."""
        return {v: str(getattr(self, field)) for field, v in _VARIABLES.items() if getattr(self, field)}


def home() -> Path:
    """Name the user's folder for files that outlive a process: ``$XDG_STATE_HOME/flfw``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "flfw"


def simulation(experiment: str) -> Path:
    """Name the folder of the virtual clients of a simulation that names none."""
    return home() / "simulations" / _named(experiment)


def _named(experiment: str) -> str:
    """Make a folder's name of an experiment's id, which comes from the server."""
    if not experiment.isalnum():
        raise ValueError(f"Expected an experiment of letters and digits, got {experiment!r}.")
    return experiment


def _simulated() -> bool:
    """Tell whether this process is one of Ray's: virtual clients live there, and real ones never do."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
