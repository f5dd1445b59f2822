"""Files of a federation as ``init`` writes them: certificates, keys, folders, policies and start scripts."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from flfw.deploy import certificates
from flfw.deploy.layout import FederationLayout, shell, transport
from flfw.engines.registrations import registration_file
from flfw.errors import InputError

_HERE = 'here=$(cd "$(dirname "$0")/.." && pwd)'
_CA = """sed -i "s|^root-certificates = .*|root-certificates = \\"$here/ca/ca.crt\\"|" """  # Flower needs it absolute
_HOME = _CA + '"$here/superlink/home/config.toml"'


def make(layout: FederationLayout, policy: str) -> None:
    """Make a federation's folder.

    Args:
        layout: folder and addresses of the federation.
        policy: text of the initial policy of each site.

    Raises:
        InputError: the folder exists and is not empty, or cannot be made.
    """
    require_new(layout.folder)
    missing = [folder for folder in (layout.folder, *layout.folder.parents) if not os.path.lexists(folder)]
    try:
        layout.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _fill(layout, policy)
    except OSError as error:
        for path in layout.folder.iterdir() if os.path.isdir(layout.folder) else ():  # noqa: PTH112 - it was empty
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise InputError(f"Expected a folder that can be made, got {layout.folder} ({error.strerror}).") from error


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        InputError: see above.
    """
    if os.path.isdir(folder) and any(folder.iterdir()):  # noqa: PTH112 - a name that is too long is no error here
        raise InputError(f"Expected a new folder, got {folder}, which holds something; choose another.")


def _fill(layout: FederationLayout, policy: str) -> None:
    for folder in (layout.folder / "ca", layout.superlink, layout.superlink / "home"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(layout.folder / ".gitignore", b"*\n")  # the folder holds keys and may be inside a checkout
    authority = certificates.authority()
    _write(layout.folder / "ca" / "ca.key", authority.private, secret=True)
    _write(layout.folder / "ca" / "ca.crt", authority.public)
    _write_server(layout, authority)
    _write(layout.superlink / "home" / "config.toml", layout.connection.encode())
    for number in range(layout.clients):
        _make_site(layout.site(number), authority.public, policy)
    _write_scripts(layout)
    layout.write()


def renew(layout: FederationLayout) -> None:
    """Give the server a new key and certificate by the same authority; sites need no change.

    Raises:
        InputError: the authority's key is not here.
    """
    try:
        private, public = (layout.folder / "ca" / name for name in ("ca.key", "ca.crt"))
        authority = certificates.Pair(private.read_bytes(), public.read_bytes())
    except OSError as error:
        raise InputError(f"Expected the authority's key and certificate, got {error}.") from error
    _write_server(layout, authority)


def _write_server(layout: FederationLayout, authority: certificates.Pair) -> None:
    server = certificates.server(authority, layout.hosts)
    _write(layout.superlink / "server.key", server.private, secret=True)
    _write(layout.superlink / "server.pem", server.public)


def _make_site(folder: Path, authority: bytes, policy: str) -> None:
    for part in (folder, folder / "data", folder / "state", folder / "home"):
        part.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = certificates.node()
    _write(folder / "node-key", key.private, secret=True)
    _write(folder / "node-key.pub", key.public)
    _write(folder / "ca.crt", authority)
    _write(folder / "policy.toml", policy.encode())


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    path.touch(0o600 if secret else 0o644)  # the mode is set before the data are written
    path.write_bytes(data)


def _write_scripts(layout: FederationLayout) -> None:
    """Write a script for each machine; it works in any folder to which the federation was copied."""
    folder = layout.folder / "start"
    folder.mkdir()
    line = partial(shell, folder=layout.folder)
    home = layout.superlink / "home"
    scripts = {"1-superlink.sh": [_HOME, line(layout.superlink_command(), home=home)]}
    scripts["2-register.sh"] = [
        f'{line([*layout.register_command(n), "--format", "json"], home=home)} > "$here"/{registration_file(Path(), n)}'
        for n in range(layout.clients)
    ]
    for number in range(layout.clients):
        scripts[f"3-site-{number}.sh"] = [line(layout.supernode_command(number), home=layout.site(number) / "home")]
    for name, lines in scripts.items():
        path = folder / name
        path.write_text("\n".join(["#!/bin/sh", f"# {transport()}", "set -e", _HERE, *lines]) + "\n")
        path.chmod(0o755)
