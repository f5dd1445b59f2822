"""Folder of a federation: its files, addresses and start commands, and which client each node is.

    federation.toml      clients, addresses
    ca/                  ca.key, which stays with the operator of the authority; ca.crt
    superlink/           server.pem, server.key, superlink.db, home/ (FLWR_HOME), tmp/, superlink.log
    site-0/ ...          ca.crt, node-key, node-key.pub, policy.toml, data/, state/, home/, tmp/, supernode.log
    start/               start scripts, one for each machine

A site is registered at the SuperLink by its key. By whose key Flower knows a node tells which client the node is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import sysconfig
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

from flfw.bounds import BoundedSettings, PositiveInt
from flfw.errors import InputError, require
from flfw.files.typed import fitted, read_toml

_FILE = "federation.toml"
_LAST_GRPC = (1, 39)  # later SuperNodes speak HTTP
_PORTS = range(1024, 65536)
_ADDRESS = re.compile(r"(?=.*\w)[\w.:-]{1,64}", re.ASCII)
_MOST_SITES = 10_000
_WAY_OUT = "restore it as init wrote it"


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


def transport(flower: str | None = None) -> str:
    """Return the protocol of SuperNodes, ``gRPC`` or ``HTTPS``, in a version of Flower (default: the installed)."""
    numbers = (flower or version("flwr")).split(".")
    return "gRPC" if (int(numbers[0]), int(numbers[1])) <= _LAST_GRPC else "HTTPS"


@dataclass(frozen=True)
class FederationLayout(BoundedSettings):
    """A federation's folder and addresses.

    Attributes:
        folder: absolute path.
        clients: number of sites, >= 1.
        host: name or address under which sites reach the server.
        listen: address that the server listens on for sites.
        port: port of the server for sites.
        control_port: port of the server for ``flwr``; every user with access to it can submit apps.
        site_port: port of the first site's own processes, on its loopback interface; other sites use the next ports.
    """

    folder: Path
    clients: PositiveInt
    host: str = "127.0.0.1"
    listen: str = "127.0.0.1"
    port: int = 9092
    control_port: int = 9093
    site_port: int = 9200

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clients <= _MOST_SITES, f"clients <= {_MOST_SITES:,}, each with a port", clients=self.clients)
        for name in ("host", "listen"):
            address = getattr(self, name)
            fits = bool(_ADDRESS.fullmatch(address))
            require(fits, f"{name} as a name or address of 1 to 64 characters", **{name: address or "nothing"})
        for name in ("port", "control_port", "site_port"):
            port = getattr(self, name)
            require(port in _PORTS, f"{_PORTS.start} <= {name.replace('_', '-')} < {_PORTS.stop}", **{name: port})
        used = [self.port, self.control_port, *range(self.site_port, self.site_port + self.clients)]
        fits = len(set(used)) == len(used) and max(used) in _PORTS
        requested = f"{self.port} {self.control_port} {self.site_port}-{self.site_port + self.clients - 1}"
        require(fits, f"ports that all differ, below {_PORTS.stop}", ports=requested)

    @classmethod
    def read(cls, folder: Path) -> FederationLayout:
        """Read the layout of a federation from its folder.

        Raises:
            InputError: there is none, or its file is damaged.
        """
        path = folder.absolute() / _FILE
        if not path.is_file():
            raise InputError(f"Expected a federation's folder with {_FILE}, got {folder}; make one with init.")
        return fitted({**read_toml(path, _WAY_OUT), "folder": str(folder.absolute())}, cls, path, _WAY_OUT)

    def write(self) -> None:
        """Write the file of this layout."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "folder"}
        lines = [f"{name} = {json.dumps(value)}" for name, value in known.items()]
        (self.folder / _FILE).write_text("\n".join(lines) + "\n")

    @property
    def superlink(self) -> Path:
        """The server's folder."""
        return self.folder / "superlink"

    def site(self, number: int) -> Path:
        """Return the folder of a site."""
        return self.folder / f"site-{number}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names and addresses in the server's certificate."""
        return tuple(dict.fromkeys([self.host, "localhost", "127.0.0.1"]))

    @property
    def control(self) -> tuple[str, str]:
        """Address at which the server listens for ``flwr``, and address for ``flwr``; with gRPC only this machine.

        SuperNodes that speak HTTPS use the same port, so there it must be open.
        """
        return ("127.0.0.1", "127.0.0.1") if transport() == "gRPC" else (self.listen, self.host)

    @property
    def sites_port(self) -> int:
        """Port at which sites reach the server; SuperNodes that speak HTTPS use the port of ``flwr``."""
        return self.port if transport() == "gRPC" else self.control_port

    @property
    def connection(self) -> str:
        """Text of ``config.toml`` in FLWR_HOME, by which ``flwr`` finds the server."""
        lines = ["[superlink]", 'default = "federation"', "[superlink.federation]"]
        lines += [f"address = {json.dumps(f'{self.control[1]}:{self.control_port}')}"]
        return "\n".join([*lines, f"root-certificates = {json.dumps(str(self.folder / 'ca' / 'ca.crt'))}"]) + "\n"

    def superlink_command(self) -> list[str]:
        """Return the command that starts the server: Flower's SuperLink, by a launcher."""
        folder = self.superlink
        command = ["python", "-m", "flfw.deploy.server_launcher"]
        command += ["--ssl-ca-certfile", str(self.folder / "ca" / "ca.crt")]
        command += ["--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile", str(folder / "server.key")]
        command += ["--enable-supernode-auth", "--database", str(folder / "superlink.db")]
        command += ["--disable-runtime-dependency-installation"]
        if transport() == "gRPC":
            command += ["--fleet-api-address", f"{self.listen}:{self.port}"]
        return [*command, "--host", self.control[0], "--port", str(self.control_port)]

    def supernode_command(self, number: int) -> list[str]:
        """Return the command that starts a site: Flower's SuperNode under the site's policy."""
        folder = self.site(number)
        config = {"partition-id": number, "num-partitions": self.clients}
        config |= {"data-root": str(folder / "data"), "state": str(folder / "state")}
        command = ["python", "-m", "flfw.deploy.guard", str(folder / "policy.toml"), "--"]
        command += ["--root-certificates", str(folder / "ca.crt"), "--superlink", f"{self.host}:{self.sites_port}"]
        command += ["--host", "127.0.0.1", "--port", str(self.site_port + number)]
        command += ["--auth-supernode-private-key", str(folder / "node-key")]
        return [*command, "--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())]

    def register_command(self, number: int) -> list[str]:
        """Return the command that registers a site's public key at the server, once."""
        return ["flwr", "supernode", "register", str(self.site(number) / "node-key.pub"), "federation"]


def environment(home: Path) -> dict[str, str]:
    """Return the environment variables of Flower's programs, which start each other by name.

    Args:
        home: FLWR_HOME, the folder of the data that they received.
    """
    scripts = sysconfig.get_path("scripts")
    settings = {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    here = ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get("no_proxy")]))
    plugins = os.pathsep.join(str(Path(location).absolute()) for location in sys.path if location)
    return {**os.environ, **settings, "PATH": path, "PYTHONPATH": plugins, "no_proxy": here}


def shell(command: list[str], folder: Path, home: Path) -> str:
    """Return a command as a line of a script in which ``$here`` is the federation's folder, even after a copy."""
    settings = {"FLWR_HOME": str(home), "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    settings |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    words = [*(f"{name}={_quoted(value, folder)}" for name, value in settings.items())]
    return " ".join([*words, *(_quoted(word, folder) for word in command)])


def _quoted(word: str, folder: Path) -> str:
    return '"$here"'.join(shlex.quote(part) if part else "" for part in word.split(str(folder))) or "''"
