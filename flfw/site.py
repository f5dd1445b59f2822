"""What belongs to the machine a client runs on: where its data, its private state and its truth lie.

None of it comes from the server. A deployed SuperNode names the folders in its node config; a simulation, whose nodes
have no config of their own, sets the environment of the client processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VARIABLES = {"data_root": "FLFW_DATA", "state": "FLFW_STATE", "truth": "FLFW_TRUTH"}


@dataclass(frozen=True)
class Site:
    """A client's own folders.

    Attributes:
        data_root: the data sets' files; None: the default of `flfw.data.load`.
        state: private tensors between rounds; None: methods with private state refuse to start.
        truth: what a probe was made of, for scoring; None: this site answers no probes.
    """

    data_root: Path | None = None
    state: Path | None = None
    truth: Path | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Site:
        """The site as its node config or, where that is silent, its process environment describes it."""
        found = {
            field: node_config.get(field.replace("_", "-")) or os.environ.get(variable)
            for field, variable in _VARIABLES.items()
        }
        return cls(**{field: Path(str(value)) for field, value in found.items() if value})

    def environment(self) -> dict[str, str]:
        """The variables that make `of` find this site in another process."""
        return {v: str(getattr(self, field)) for field, v in _VARIABLES.items() if getattr(self, field)}
