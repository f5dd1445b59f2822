"""Folders on a client's machine: its data, its private state and the true examples of its probes.

The server does not choose them. A deployed SuperNode names the folders in its node config. In `sim.py` it names
none: environment variables of the client processes do. A simulation that was started by ``flwr run`` uses a new folder
in the user's state folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flfw.client.store import ClientStore
from flfw.errors import InputError
from flfw.experiment.fields import integer
from flfw.messages.inprocess import FORCED

_VARIABLES = {"data_root": "FLFW_DATA", "state": "FLFW_STATE", "truth": "FLFW_TRUTH", "examples": "FLFW_EXAMPLES"}


@dataclass(frozen=True)
class Site:
    """Folders and volunteered examples of a client's machine.

    Attributes:
        data_root: folder of the data sets' files; None: the default of `flfw.data.load`.
        state: folder of the private tensors between rounds; None: methods with private state refuse to start.
        truth: folder of the true examples of probes, for scoring; None: this site answers no probes.
        examples: folder of the gradients of single examples, as an observer on the client reads them; None: they are
            not written.
        volunteered: positions of the training examples that the site volunteers; None: any, as in a simulation.
        forces: whether each private state is forced to disk as it is written; False: the server of a simulation does.
    """

    data_root: Path | None = None
    state: Path | None = None
    truth: Path | None = None
    examples: Path | None = None
    volunteered: tuple[int, ...] | None = None
    forces: bool = True

    @classmethod
    def from_config(cls, node_config: Mapping[str, Any], experiment: str) -> Site:
        """Build the site from its node config, and from environment variables for missing keys.

        Args:
            node_config: configuration of the node.
            experiment: the experiment's id, which names the folder of a simulation.

        Raises:
            InputError: a place that is volunteered is no number, or the id is no name.
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
            return cls(data_root, state, truth, examples, forces=FORCED not in node_config)
        volunteered = tuple(integer(word, "volunteered") for word in str(node_config["volunteered"]).split())
        # A folder for each run of this site.
        return cls(data_root, state, truth / _named(experiment), examples, volunteered)

    def store(self, experiment: str, partition: int) -> ClientStore | None:
        """Return the store of a client's private state in an experiment; None: no folder is configured."""
        return ClientStore(self.state, experiment, partition, force=self.forces) if self.state else None

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which `from_config` builds this site in another process."""
        return {v: str(getattr(self, field)) for field, v in _VARIABLES.items() if getattr(self, field)}


def home() -> Path:
    """Return the user's folder for persistent state: ``$XDG_STATE_HOME/flfw``."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "flfw"


def simulation(experiment: str) -> Path:
    """Return the folder of a simulation's virtual clients, where no folder is configured."""
    return home() / "simulations" / _named(experiment)


def _named(experiment: str) -> str:
    """Check the experiment's id from the server, which becomes the name of a folder."""
    if not experiment.isalnum():
        raise InputError(f"Expected an experiment of letters and digits, got {experiment!r}.")
    return experiment


def _simulated() -> bool:
    """Return whether this process is one of Ray's: virtual clients run there, real clients never do."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()
