"""Registrations of sites at a SuperLink: by whose key Flower knows a node, and so which client the node is."""

from __future__ import annotations

import json
from pathlib import Path


def registration_file(federation: Path, client: int) -> Path:
    """Return the path of the SuperLink's answer to the registration of a site's key."""
    return federation / "superlink" / f"registered-{client}"


def registered_nodes(federation: Path | None, clients: int) -> dict[int, int]:
    """Read which client holds the key of which node; empty: it is not known on this machine.

    Args:
        federation: folder of the federation.
        clients: number of its sites.

    Returns:
        The client of each node id, for the clients whose registration can be read.
    """
    nodes: dict[int, int] = {}
    if federation is None:
        return nodes
    for client in range(clients):
        try:
            answer = json.loads(registration_file(federation, client).read_text())
            nodes[int(answer["node-id"] if isinstance(answer, dict) else answer)] = client
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return nodes
