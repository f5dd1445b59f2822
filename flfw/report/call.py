"""Call of sim.py that asks for a run again, put together from its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from flfw.experiment import Experiment

# Keys of the configuration that are flags of sim.py; every other key is listed, not typed.
_FLAGS = {
    "method", "dataset", "net", "split", "side", "augment", "normalise", "clients", "sample", "rounds",
    "sampling", "local_epochs", "batch_size", "lr", "seed", "target_epsilon", "epsilon_budget", "delta", "accountant",
    "accounting", "patient_examples", "patient_clients", "canaries", "defended", "defence", "attack", "audit_rounds",
    "victim_batch", "victim_steps", "images", "curve", "group", "colluding", "vantage", "adaptation", "pictures",
    "membership_pairs", "resize", "fit", "colour",
}  # fmt: skip
_SAID_IF_CHANGED = {
    "defence", "adaptation", "sampling", "target_epsilon", "epsilon_budget", "delta", "accountant", "accounting",
    "patient_examples", "patient_clients", "canaries", "group", "colluding", "membership_pairs",
    "resize", "fit", "colour",
}  # fmt: skip


def command(config: Mapping[str, Any]) -> str:
    """Return the call of sim.py for this configuration, one flag for each setting that has one."""
    words = ["python", "sim.py"]
    for key, value in config.items():
        if key in _FLAGS and value not in (None, "", []) and not _is_usual(key, value):
            values = [str(part) for part in value] if isinstance(value, list) else [str(value)]
            joined = [",".join(values)] if key in ("audit_rounds", "defended") else values
            words += ["--" + key.replace("_", "-"), *joined]
    pairs = config.get("set") or []
    return shlex.join([*words, "--set", *pairs] if pairs else words)


def _is_usual(key: str, value: Any) -> bool:
    return key in _SAID_IF_CHANGED and value == getattr(Experiment(), key)
