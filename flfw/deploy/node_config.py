"""Node config of a site: the entries that its policy adds, which an app reads and no server can change."""

import hashlib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from flfw.deploy import quota
from flfw.deploy.policy import Policy
from flfw.dp import site_ledger
from flfw.errors import InputError
from flfw.messages.reasons import QUIET

_NOTED = "policy.sha256"  # in a site's folder, written at its start
_OF_SIMULATIONS = ("FLFW_TRUTH", "FLFW_EXAMPLES")  # with them an app gives any training example away to probes


def leave_simulations(variables: MutableMapping[str, str]) -> list[str]:
    """Remove the variables by which simulated clients keep the truth of any probe; return those that were there.

    A site inherits the environment of whoever starts it, and what its policy volunteers is all that it gives away.
    """
    return [name for name in _OF_SIMULATIONS if variables.pop(name, None) is not None]


def entries(policy: Policy, folder: Path) -> dict[str, str]:
    """Return the entries by their keys.

    Args:
        policy: the policy of the site.
        folder: folder of the site.
    """
    added: dict[str, str] = {}
    if policy.error_detail == "own":
        added[QUIET] = "true"
    if policy.min_examples:
        added["fewest-examples"] = str(policy.min_examples)
    if policy.reject_suspicious_weights:
        added["check-broadcast"] = "true"
    if policy.audit_examples:
        added |= {"truth": str(folder / "truth"), "volunteered": " ".join(map(str, policy.audit_examples))}
    if budget := policy.budget:
        added |= budget.to_node_config(folder / site_ledger.FILE)
    return added


def note_policy(folder: Path) -> None:
    """Note the hash of a site's policy, which holds from now until the site's next start."""
    (folder / _NOTED).write_text(f"{_hash_of_policy(folder)}\n")


def is_another_policy(folder: Path) -> bool:
    """Return whether a site's policy is another than the noted one: it may be an older file, or none."""
    noted = folder / _NOTED
    return noted.is_file() and noted.read_text().strip() != _hash_of_policy(folder)


def _hash_of_policy(folder: Path) -> str:
    file = folder / "policy.toml"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "none"


def spent(policy: Policy, folder: Path) -> list[str]:
    """Return a line for each limit over all runs that the policy sets, with the part of it that is spent.

    Raises:
        InputError: a ledger is damaged.
    """
    lines: list[str] = []
    if budget := policy.budget:
        lines.append(f"budget {site_ledger.read(folder / site_ledger.FILE, budget).of(budget)}")
    if policy.max_messages < inf:
        lines.append(f"messages {quota.count(folder / quota.FILE)} of {policy.max_messages:g} answered")
    return lines


def announcements(policy: Policy, folder: Path) -> list[str]:
    """Return the lines that a site's log gets at its start.

    Raises:
        InputError: a ledger is damaged.
    """
    lines: list[str] = []
    if policy.audit_examples:
        places = " ".join(map(str, policy.audit_examples))
        truth = folder / "truth"
        lines.append(f"gives away its training examples {places}, if a run records; their truth stays in {truth}")
    if policy.allow_seeded_defence:
        lines.append("lets a run's defence draw from the run's seed: the server knows it, and can repeat the draws")
    return [*lines, *spent(policy, folder)]


def remarks(run_config: Mapping[str, Any]) -> list[str]:
    """Return the lines that a site's log gets on a run that its policy lets start."""
    lines: list[str] = []
    if run_config.get("record"):
        lines.append("the server records what this site sends in the run's audited rounds, as the policy allows")
    if (defence := run_config.get("defence")) and defence != "none":
        if run_config.get("defence-randomness") == "secure":
            lines.append(f"the run has the defence {defence}, whose draws come from this machine and are secret")
        else:
            lines.append(f"the server can repeat what the run's defence {defence} draws, as the policy allows")
    return lines


def extended(arguments: Sequence[str], policy: Policy, folder: Path) -> list[str]:
    """Return the arguments of a SuperNode with the entries in its node config.

    Raises:
        InputError: there are entries, and the arguments have no node config.
    """
    result, added = list(arguments), entries(policy, folder)
    if added and "--node-config" not in result[:-1]:
        raise InputError(f"Expected --node-config, to which the policy adds {', '.join(added)}; got none.")
    if added:
        result[result.index("--node-config") + 1] += "".join(
            f" {key}={json.dumps(value)}" for key, value in added.items()
        )
    return result
