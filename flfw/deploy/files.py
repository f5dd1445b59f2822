"""What ``init`` writes: certificates, keys, folders, a policy a site, and what is to be run where."""

from __future__ import annotations

import shlex
from pathlib import Path

from flfw.deploy import certificates
from flfw.deploy.layout import Layout, shell, transport
from flfw.errors import BadInput


def make(layout: Layout, policy: str) -> None:
    """Make a federation's folder.

    Args:
        layout: what it is to be.
        policy: each site's, to begin with.

    Raises:
        BadInput: it exists and holds something.
    """
    if layout.folder.exists() and any(layout.folder.iterdir()):
        raise BadInput(f"Expected a new folder, got {layout.folder}, which holds something; choose another.")
    for folder in (layout.folder, layout.folder / "ca", layout.superlink, layout.superlink / "home"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = certificates.authority()
    _write(layout.folder / "ca" / "ca.key", authority.private, secret=True)
    _write(layout.folder / "ca" / "ca.crt", authority.public)
    server = certificates.server(authority, layout.hosts)
    _write(layout.superlink / "server.key", server.private, secret=True)
    _write(layout.superlink / "server.pem", server.public)
    _write(layout.superlink / "home" / "config.toml", layout.connection.encode())
    for number in range(layout.clients):
        _make_site(layout.site(number), authority.public, policy)
    _write_scripts(layout)
    layout.write()


def _make_site(folder: Path, authority: bytes, policy: str) -> None:
    for part in (folder, folder / "data", folder / "state", folder / "home"):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = certificates.node()
    _write(folder / "node-key", key.private, secret=True)
    _write(folder / "node-key.pub", key.public)
    _write(folder / "ca.crt", authority)
    _write(folder / "policy.toml", policy.encode())


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    path.touch(0o600 if secret else 0o644)  # before anything is in it
    path.write_bytes(data)


def _write_scripts(layout: Layout) -> None:
    """For several machines: a script each, for a folder that was copied to the same place there."""
    folder = layout.folder / "start"
    folder.mkdir()
    registered = [shell(layout.register_command(n), layout.superlink / "home") for n in range(layout.clients)]
    server = [shell(layout.superlink_command(), layout.superlink / "home")]
    scripts = {"1-superlink.sh": server, "2-register.sh": registered}
    for number in range(layout.clients):
        scripts[f"3-site-{number}.sh"] = [shell(layout.supernode_command(number), layout.site(number) / "home")]
    for name, lines in scripts.items():
        inside = f"cd {shlex.quote(str(layout.folder))}"
        path = folder / name
        path.write_text("\n".join(["#!/bin/sh", f"# {transport()}", "set -e", inside, *lines]) + "\n")
        path.chmod(0o755)
