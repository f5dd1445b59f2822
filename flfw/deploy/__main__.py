"""A federation of real clients: ``python -m flfw.deploy init|up|status|down DIR``, and ``hash``.

init    makes certificates, keys, a folder a site, and scripts with what is to be run where
up      starts the server and all sites on this machine; those that are at work already are left alone
status  says what is at work
down    ends the sites, then the server; what they keep stays
hash    prints the SHA-256 of this code as an app, by which a site's policy accepts it
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from flfw import plugins
from flfw.deploy import certificates, processes
from flfw.deploy.files import make
from flfw.deploy.layout import Layout, environment, transport
from flfw.deploy.policy import Policy
from flfw.deploy.submit import bundle_hash
from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment
from flfw.method import Method

_UP_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 2 for bad input, 1 where something did not start, with one line on stderr."""
    asked = _parser().parse_args(arguments)
    try:
        return _COMMANDS[asked.command](asked)
    except BadInput as error:
        print(f"flfw.deploy: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"flfw.deploy: {error}", file=sys.stderr)
        return 1


def _init(asked: argparse.Namespace) -> int:
    ports = (asked.port, asked.control_port, asked.site_port)
    layout = Layout(asked.folder.absolute(), asked.clients, asked.host, asked.listen, *ports)
    uploads: dict[str, None] = {}
    for method in asked.methods.split(","):
        cls = plugins.find(plugins.METHOD, method, Method)
        uploads |= dict.fromkeys(cls.uploads)
    make(layout, Policy((bundle_hash(),), tuple(uploads), asked.largest_upload_mb).text())
    way = f"{transport()} with TLS and a key a site"
    print(f"{layout.folder}: {layout.clients} sites, server at {layout.host}, by {way}")
    print(f"on this machine   python -m flfw.deploy up {asked.folder}")
    print(f"on several        {layout.folder / 'start'} has what to run where")
    return 0


def _up(asked: argparse.Namespace) -> int:
    layout = Layout.read(asked.folder)
    up(layout)
    return _status(asked)


def up(layout: Layout) -> None:
    """Start what is not at work.

    Raises:
        RunFailed: something did not start.
    """
    own = layout.superlink
    processes.start(layout.superlink_command(), own, "superlink", environment(own / "home"))
    _wait_until_up(layout)
    _register(layout)
    for number in range(layout.clients):
        site = layout.site(number)
        processes.start(layout.supernode_command(number), site, "supernode", environment(site / "home"))


def _wait_until_up(layout: Layout) -> None:
    deadline = time.monotonic() + _UP_S
    ports = [layout.control_port, *([layout.port] if transport() == "gRPC" else [])]
    while time.monotonic() < deadline:
        if processes.alive(layout.superlink, "superlink") is None:
            said = processes.last_line(layout.superlink, "superlink")
            raise RunFailed(f"Flower's SuperLink did not start: {said}")
        if all(_listens(layout, port) for port in ports):
            return
        time.sleep(0.1)
    raise RunFailed(f"Flower's SuperLink did not start within {_UP_S:.0f} s; see {layout.superlink / 'superlink.log'}.")


def _listens(layout: Layout, port: int) -> bool:
    host = "127.0.0.1" if layout.listen in ("0.0.0.0", "127.0.0.1") else layout.listen
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _register(layout: Layout) -> None:
    """Tell the server the sites' public keys; it keeps them, so once."""
    variables = environment(layout.superlink / "home")
    for number in range(layout.clients):
        done = layout.site(number) / "registered"
        if done.exists():
            continue
        command = [*layout.register_command(number), "--format", "json"]
        said = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=layout.superlink)
        try:
            answer = json.loads(said.stdout)
        except ValueError:
            answer = {"success": False, "error-message": (said.stderr or said.stdout).strip()}
        if not answer.get("success"):
            raise RunFailed(f"The server does not take the key of site {number}: {answer.get('error-message')}")
        done.write_text(f"{answer['node-id']}\n")


def _status(asked: argparse.Namespace) -> int:
    layout = Layout.read(asked.folder)
    ends = certificates.ends((layout.superlink / "server.pem").read_bytes())
    print(f"transport   {transport()} with TLS (certificate until {ends:%Y-%m-%d}), a key a site")
    parts = [("superlink", layout.superlink, f"sites {layout.host}:{layout.port}, flwr :{layout.control_port}")]
    parts += [("supernode", layout.site(number), f"site {number}") for number in range(layout.clients)]
    missing = 0
    for name, folder, words in parts:
        pid = processes.alive(folder, name)
        missing += pid is None
        state = f"process {pid}" if pid else f"not at work ({processes.last_line(folder, name)})"
        print(f"{name:<11} {words}: {state}")
    return 1 if missing else 0


def _down(asked: argparse.Namespace) -> int:
    layout = Layout.read(asked.folder)
    parts = [(layout.site(number), "supernode") for number in range(layout.clients)]
    ended = sum(processes.stop(folder, name) for folder, name in [*parts, (layout.superlink, "superlink")])
    print(f"ended {ended} processes; keys, state and runs stay in {layout.folder}")
    return 0


def _hash(asked: argparse.Namespace) -> int:
    print(bundle_hash())
    return 0


_COMMANDS = {"init": _init, "up": _up, "status": _status, "down": _down, "hash": _hash}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m flfw.deploy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        one = commands.add_parser(name)
        if name != "hash":
            one.add_argument("folder", type=Path, metavar="DIR")
        if name == "init":
            one.add_argument("--clients", type=int, default=3, help="sites (default 3)")
            one.add_argument("--methods", default=Experiment().method, help="whose uploads the sites' policies allow")
            one.add_argument("--largest-upload-mb", type=float, default=100.0, help="which these policies allow")
            one.add_argument("--host", default="127.0.0.1", help="name or address under which sites reach the server")
            one.add_argument("--listen", default="127.0.0.1", help="address that the server listens on")
            one.add_argument("--port", type=int, default=9092, help="of the server for sites")
            one.add_argument("--control-port", type=int, default=9093, help="of the server for flwr")
            one.add_argument("--site-port", type=int, default=9200, help="of the first site's own processes")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
