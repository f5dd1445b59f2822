"""What a round costs on real sites: ``python -m benchmarks.deploy [--json] [--rounds N]``; six minutes on two cores.

Starts a server and three sites on this machine (TLS, keys), and runs there, one after the other:

- floor: an app that does nothing, on Flower's own SuperNodes: what their polling and their processes cost;
- stock: fedavg on Flower's own SuperNodes, which start a process, and its imports, for each message;
- fedavg, hyperfl (dense, factors) and fedcg on this project's sites, whose processes are forks.

Of each: the median seconds of a round but for the first; ``besides``, the same less the slowest client's own work, of
which fewer than 4 s are the goal for fedavg; and the bytes that went over the server's sockets for a round and client,
as the kernel counts them, TLS and polls among them, with the tensors' own beside. The last line is one JSON object.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import output
from flfw.deploy import processes
from flfw.deploy.layout import Layout, environment
from flfw.engines.bundle import toml_lines

_ROOT = Path(__file__).parent.parent
_SITES, _GOAL_S = 3, 4.0
_COMMON = ["--clients", str(_SITES), "--local-epochs", "1", "--split", "iid", "--attack", "none"]
_METHODS = {
    "fedavg": ["--method", "fedavg"],
    "hyperfl_dense": ["--method", "hyperfl"],
    "hyperfl_factors": ["--method", "hyperfl", "--set", "upload=factors"],
    "fedcg": ["--method", "fedcg", "--set", "iterations=10"],
}
_EMPTY = """
import sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)


@server.main()
def serve(grid, context):
    while len(nodes := list(grid.get_node_ids())) < {sites}:
        time.sleep(0.1)
    with open("{file}", "w") as file:
        for number in range({rounds}):
            began = time.time()
            asked = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
            assert len(list(grid.send_and_receive(asked))) == {sites}
            file.write(str(time.time() - began) + chr(10))
"""
_EMPTY_PROJECT = """
[project]
name = "empty"
version = "1.0.0"
license = {{ text = "none" }}
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "empty:server"
clientapp = "empty:client"
[tool.flwr.app.config]
{config}
"""


@contextmanager
def federation() -> Iterator[Layout]:
    """Three sites at work that let everything leave; they end with this."""
    with tempfile.TemporaryDirectory(prefix="flfw-deploy-") as name:
        folder, port = Path(name) / "federation", _free_ports(2 + _SITES)
        ports = ["--port", str(port), "--control-port", str(port + 1), "--site-port", str(port + 2)]
        _deploy("init", str(folder), "--methods", "fedavg,hyperfl,fedcg", "--largest-upload-mb", "200", *ports)
        try:
            _deploy("up", str(folder))
            yield Layout.read(folder)
        finally:
            _deploy("down", str(folder))


def _deploy(*words: str) -> None:
    quiet = [sys.executable, "-m", "flfw.deploy", *words]
    subprocess.run(quiet, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL)


def _free_ports(number: int) -> int:
    """The first of so many neighbours that nobody listens on."""
    for first in range(21000, 60000, number):
        if not any(processes.listens("127.0.0.1", first + more) for more in range(number)):
            return first
    raise RuntimeError("Expected free ports above 21000, got none.")


def use_flowers_own(layout: Layout) -> None:
    """Start Flower's own SuperNodes in place of this project's."""
    for number in range(_SITES):
        site = layout.site(number)
        processes.stop(site, "supernode")
        words = layout.supernode_command(number)
        said = processes.said(site, "supernode")
        processes.start(["flower-supernode", *words[words.index("--") + 1 :]], site, "supernode", _environment(site))
        while b"SuperNode ID: " not in (site / "supernode.log").read_bytes()[said:]:
            time.sleep(0.1)


def _environment(place: Path) -> dict[str, str]:
    return environment(place / "home")


def floor(layout: Layout, rounds: int) -> dict[str, Any]:
    """Seconds of a round of an app that does nothing."""
    folder = layout.folder / "empty"
    folder.mkdir()
    (folder / "empty.py").write_text(_EMPTY.format(sites=_SITES, file=folder / "seconds", rounds=rounds))
    (folder / "pyproject.toml").write_text(_EMPTY_PROJECT.format(config=toml_lines({"nothing": 0})))
    subprocess.run(
        ["flwr", "run", str(folder), "--stream"],
        env=_environment(layout.superlink),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=300,
    )
    return {"round_s": median(map(float, (folder / "seconds").read_text().split()[1:]))}


def measured(layout: Layout, name: str, flags: list[str], rounds: int) -> dict[str, Any]:
    """A run's rounds: their seconds, those besides clients' own work, and bytes a round and client, up and down."""
    out, before = layout.folder / f"run-{name}", _wire(layout)
    asked = ["--federation", str(layout.folder), "--rounds", str(rounds), "--out", str(out), *_COMMON, *flags]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "sim.py", *asked], cwd=_ROOT, env=environ, check=True, capture_output=True)
    up, down = (after - earlier for after, earlier in zip(_wire(layout), before, strict=True))
    rows = json.loads((out / "result.json").read_text())["rounds"]
    slowest: dict[int, float] = {}
    with (out / "clients.csv").open() as file:
        for client in csv.DictReader(file):
            server_round = int(client["round"])
            slowest[server_round] = max(slowest.get(server_round, 0.0), float(client["seconds"]))
    messages = _SITES * rounds
    return {
        "round_s": median(row["seconds"] for row in rows[1:]),
        "besides_s": median(row["seconds"] - slowest[row["round"]] for row in rows[1:]),
        "tensors_up_mb": rows[-1]["upload_bytes"] / _SITES / 1e6,
        "tensors_down_mb": rows[-1]["download_bytes"] / _SITES / 1e6,
        "wire_up_mb": up / messages / 1e6,  # of all messages, enrolment and final evaluation among them
        "wire_down_mb": down / messages / 1e6,
    }


def _wire(layout: Layout) -> tuple[int, int]:
    """Bytes that the sites' connections have brought to the server and taken from it so far."""
    said = subprocess.run(
        ["ss", "-Htni", "state", "established", f"sport = :{layout.port}"], capture_output=True, text=True, check=True
    ).stdout
    return sum(map(int, re.findall(r"bytes_received:(\d+)", said))), sum(
        map(int, re.findall(r"bytes_sent:(\d+)", said))
    )


def main(rounds: int) -> dict[str, dict[str, Any]]:
    """All of it, by name."""
    found: dict[str, dict[str, Any]] = {}
    with federation() as layout:
        for name, flags in _METHODS.items():
            found[name] = measured(layout, name, flags, rounds)
        use_flowers_own(layout)
        found["floor"] = floor(layout, rounds)
        found["stock"] = measured(layout, "stock", _METHODS["fedavg"], rounds)
    return found


if __name__ == "__main__":
    parser = output.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="of each run, >= 2 (default 6)")
    asked = parser.parse_args()
    results = main(asked.rounds)
    lines = [f"{name:<16} " + "  ".join(f"{k} {v:.2f}" for k, v in row.items()) for name, row in results.items()]
    ratio = results["stock"]["round_s"] / results["fedavg"]["round_s"]
    over = {name: row["round_s"] - results["floor"]["round_s"] for name, row in results.items()}
    met = results["fedavg"]["besides_s"] < _GOAL_S
    lines += [f"fedavg on Flower's own SuperNodes takes {ratio:.2f} times as long; besides < {_GOAL_S:g} s: {met}"]
    output.say(
        {"deploy": results, "over_floor_s": over, "stock_over_ours": ratio, "met": met}, lines, only_json=asked.json
    )
