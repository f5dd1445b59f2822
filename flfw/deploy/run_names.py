"""Names in a run's configuration by which a server could choose what a site reads, executes or gives away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flfw.deploy.pins import Pins

SHOWN = 80
"""Characters of a name that a server chose, in a reason."""
BY_PATH = ("csv:", "folder:", "hf:", "parquet:", "text:")
"""Beginnings of data sets of which the server says where they lie on this machine."""
DATA_PREFIXES = (
    "celeba", "csv", "digit5", "domainnet", "folder", "hf", "office_caltech", "parquet", "site", "synthetic",
    "synthetic_images", "text",
)  # fmt: skip
"""Words before the colon of the project's data sets; a test keeps them complete."""

_PLUGGED = ("method", "defence", "attack", "tampered-by", "net", "split")  # may name any class installed at the site


def plugins_of(run_config: Mapping[str, Any]) -> list[str]:
    """Return the classes that a run names as ``package.module:Class``, which are no part of its app."""
    words = [word for key in _PLUGGED for word in re.split(r"[\s,+]+", str(run_config.get(key, "")))]
    dataset = str(run_config.get("dataset", ""))
    words += [] if dataset.partition(":")[0] in DATA_PREFIXES else [dataset]
    return [word for word in words if ":" in word]


def may_mean_others(dataset: str, pins: Pins | None) -> str | None:
    """Return why a server could choose the examples that a site volunteers of its own data; None: it cannot.

    Places count in the order of the run's training part. Of the site's own data the name decides that, such as one with
    patients; of data in a path or of a plug-in the seed does. Published data are nobody's own.

    Args:
        dataset: name of the run's data set.
        pins: the site's pins of runs; None: it pins nothing.
    """
    prefix = dataset.partition(":")[0]
    if prefix == "site":
        rule = pins.rules.get("dataset") if pins else None
        pinned = rule in (dataset, [dataset])
        return None if pinned else "another dataset could mean others; pin this one alone in [run]"
    if dataset.startswith(BY_PATH) or (":" in dataset and prefix not in DATA_PREFIXES):
        return f"a seed decides which those are in {dataset[:SHOWN]}; volunteer examples of site: data"
    return None
