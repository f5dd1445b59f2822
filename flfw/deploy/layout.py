"""The folder of a federation: what lies where, which addresses are used, and the commands that start its parts.

federation.toml            clients, addresses
ca/                        ca.key, which stays with whoever admits servers; ca.crt
superlink/                 server.pem, server.key, superlink.db, home/ (FLWR_HOME), superlink.log
site-0/ ...                ca.crt, node-key, node-key.pub, policy.toml, data/, state/, home/, supernode.log
start/                     what to run where, a script a machine
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import sysconfig
import tomllib
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

from flfw.errors import BadInput, require

_FILE = "federation.toml"
_LAST_GRPC = (1, 39)  # later SuperNodes speak HTTP
_PORTS = range(1024, 65536)


def transport(flower: str | None = None) -> str:
    """What SuperNodes and SuperLink speak, ``gRPC`` or ``HTTPS``, in a version of Flower (default: the installed)."""
    numbers = (flower or version("flwr")).split(".")
    return "gRPC" if (int(numbers[0]), int(numbers[1])) <= _LAST_GRPC else "HTTPS"


@dataclass(frozen=True)
class Layout:
    """A federation's folder and addresses.

    Attributes:
        folder: absolute.
        clients: sites, >= 1.
        host: name or address under which sites reach the server.
        listen: address that the server listens on for sites.
        port: of the server for sites.
        control_port: of the server for ``flwr``: whoever reaches it can submit apps.
        site_port: of the first site's own processes among themselves, on its loopback interface; the others follow.
    """

    folder: Path
    clients: int
    host: str = "127.0.0.1"
    listen: str = "127.0.0.1"
    port: int = 9092
    control_port: int = 9093
    site_port: int = 9200

    def __post_init__(self) -> None:
        require(self.clients >= 1, "clients >= 1", clients=self.clients)
        for name in ("port", "control_port", "site_port"):
            port = getattr(self, name)
            require(port in _PORTS, f"{_PORTS.start} <= {name.replace('_', '-')} < {_PORTS.stop}", **{name: port})
        used = [self.port, self.control_port, *range(self.site_port, self.site_port + self.clients)]
        fits = len(set(used)) == len(used) and max(used) in _PORTS
        require(fits, f"ports that all differ, below {_PORTS.stop}", ports=" ".join(map(str, used)))

    @classmethod
    def read(cls, folder: Path) -> Layout:
        """The federation of a folder.

        Raises:
            BadInput: there is none, or its file is damaged.
        """
        path = folder.absolute() / _FILE
        if not path.is_file():
            raise BadInput(f"Expected a federation's folder with {_FILE}, got {folder}; make one with init.")
        try:
            return cls(folder.absolute(), **tomllib.loads(path.read_text()))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
            raise BadInput(f"Expected {path} as init wrote it, got {error}.") from error

    def write(self) -> None:
        """Its file."""
        known = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "folder"}
        lines = [f"{name} = {json.dumps(value)}" for name, value in known.items()]
        (self.folder / _FILE).write_text("\n".join(lines) + "\n")

    @property
    def superlink(self) -> Path:
        """The server's folder."""
        return self.folder / "superlink"

    def site(self, number: int) -> Path:
        """A site's folder."""
        return self.folder / f"site-{number}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the server's certificate is for."""
        return tuple(dict.fromkeys([self.host, "localhost", "127.0.0.1"]))

    @property
    def control(self) -> tuple[str, str]:
        """Where the server listens for ``flwr``, and where that finds it: this machine alone, as far as it can be.

        Later SuperNodes than those of gRPC come to the same port.
        """
        return ("127.0.0.1", "127.0.0.1") if transport() == "gRPC" else (self.listen, self.host)

    @property
    def sites_port(self) -> int:
        """Where sites reach the server; later SuperNodes than those of gRPC come to ``flwr``'s port."""
        return self.port if transport() == "gRPC" else self.control_port

    @property
    def connection(self) -> str:
        """``config.toml`` of FLWR_HOME, by which ``flwr`` finds the server."""
        lines = ["[superlink]", 'default = "federation"', "[superlink.federation]"]
        lines += [f"address = {json.dumps(f'{self.control[1]}:{self.control_port}')}"]
        return "\n".join([*lines, f"root-certificates = {json.dumps(str(self.folder / 'ca' / 'ca.crt'))}"]) + "\n"

    def superlink_command(self) -> list[str]:
        """Starts the server."""
        own = self.superlink
        command = ["flower-superlink", "--ssl-ca-certfile", str(self.folder / "ca" / "ca.crt")]
        command += ["--ssl-certfile", str(own / "server.pem"), "--ssl-keyfile", str(own / "server.key")]
        command += ["--enable-supernode-auth", "--database", str(own / "superlink.db")]
        command += ["--disable-runtime-dependency-installation"]
        if transport() == "gRPC":
            command += ["--fleet-api-address", f"{self.listen}:{self.port}"]
        return [*command, "--host", self.control[0], "--port", str(self.control_port)]

    def supernode_command(self, number: int) -> list[str]:
        """Starts a site: Flower's SuperNode under the site's policy."""
        own = self.site(number)
        config = {"partition-id": number, "num-partitions": self.clients}
        config |= {"data-root": str(own / "data"), "state": str(own / "state")}
        command = ["python", "-m", "flfw.deploy.guard", str(own / "policy.toml"), "--"]
        command += ["--root-certificates", str(own / "ca.crt"), "--superlink", f"{self.host}:{self.sites_port}"]
        command += ["--host", "127.0.0.1", "--port", str(self.site_port + number)]
        command += ["--auth-supernode-private-key", str(own / "node-key")]
        return [*command, "--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())]

    def register_command(self, number: int) -> list[str]:
        """Makes a site's public key known to the server, once."""
        return ["flwr", "supernode", "register", str(self.site(number) / "node-key.pub"), "federation"]


def environment(home: Path) -> dict[str, str]:
    """Variables for Flower's programs, which start each other by name.

    Args:
        home: FLWR_HOME, where they keep what they were sent.
    """
    scripts = sysconfig.get_path("scripts")
    own = {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    here = ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get("no_proxy")]))
    plugins = os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place)
    return {**os.environ, **own, "PATH": path, "PYTHONPATH": plugins, "no_proxy": here}


def shell(command: list[str], folder: Path, home: Path) -> str:
    """A command as a line for a script in which ``$here`` is the federation's folder, wherever that was copied."""
    own = {"FLWR_HOME": str(home), "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
    own |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    words = [*(f"{name}={_quoted(value, folder)}" for name, value in own.items())]
    return " ".join([*words, *(_quoted(word, folder) for word in command)])


def _quoted(word: str, folder: Path) -> str:
    return '"$here"'.join(shlex.quote(part) if part else "" for part in word.split(str(folder))) or "''"
