"""Cost of a round on real sites: ``python -m benchmarks.deploy [--json] [--quick] [--only NAME ...] [--rounds N]``.

A server and three sites start on this machine (TLS, keys). There run, one after the other:

- floor: an app that does nothing, on Flower's own SuperNodes: the cost of their polling and their processes;
- stock: fedavg on Flower's own SuperNodes, which start a process, and its imports, for each message;
- fedavg, hyperfl (dense, factors) and fedcg on this project's sites, whose processes are forks.

Each has the median seconds of a round, the first round left out; ``besides``, the same less the slowest client's own
work, with the goal of less than 4 s for fedavg; and the bytes on the server's sockets for a round and client, as the
kernel counts them, TLS and polls among them, beside the bytes of the tensors. The last line is one JSON object.
"""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import output
from benchmarks.local_federation import ROOT, SITES, federation
from flfw.engines import processes
from flfw.engines.layout import FederationLayout, environment
from flfw.engines.superlink import toml_lines

_GOAL_S = 4.0
_COMMON = ["--clients", str(SITES), "--local-epochs", "1", "--split", "iid", "--attack", "none"]
_METHODS = {
    "fedavg": ["--method", "fedavg"],
    "hyperfl_dense": ["--method", "hyperfl"],
    "hyperfl_factors": ["--method", "hyperfl", "--set", "upload=factors"],
    "fedcg": ["--method", "fedcg", "--set", "iterations=10"],
}
GATE = output.BenchmarkPart("a server and three sites start", 20, 20)
PARTS = {
    "fedavg": output.BenchmarkPart("this project's sites", 40, 10),
    "hyperfl_dense": output.BenchmarkPart("this project's sites, 60 MB a message", 100, 0),
    "hyperfl_factors": output.BenchmarkPart("this project's sites, upload=factors", 70, 0),
    "fedcg": output.BenchmarkPart("this project's sites", 70, 0),
    "floor": output.BenchmarkPart("an app that does nothing, Flower's own SuperNodes", 70, 0),
    "stock": output.BenchmarkPart("fedavg on Flower's own SuperNodes", 90, 0),
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


def use_flowers_own(layout: FederationLayout) -> None:
    """Start Flower's own SuperNodes in place of this project's."""
    for number in range(SITES):
        site = layout.site(number)
        processes.stop(site, "supernode")
        words = layout.supernode_command(number)
        size = processes.log_size(site, "supernode")
        processes.start(["flower-supernode", *words[words.index("--") + 1 :]], site, "supernode", _environment(site))
        while b"SuperNode ID: " not in (site / "supernode.log").read_bytes()[size:]:
            time.sleep(0.1)


def _environment(path: Path) -> dict[str, str]:
    return environment(path / "home")


def floor(layout: FederationLayout, rounds: int) -> dict[str, Any]:
    """Measure the seconds of a round of an app that does nothing."""
    folder = layout.folder / "empty"
    folder.mkdir()
    (folder / "empty.py").write_text(_EMPTY.format(sites=SITES, file=folder / "seconds", rounds=rounds))
    (folder / "pyproject.toml").write_text(_EMPTY_PROJECT.format(config=toml_lines({"nothing": 0})))
    subprocess.run(
        ["flwr", "run", str(folder), "--stream"],
        env=_environment(layout.superlink),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=300,
    )
    return {"round_s": median(_later([float(line) for line in (folder / "seconds").read_text().split()]))}


def measured(layout: FederationLayout, name: str, flags: list[str], rounds: int) -> dict[str, Any]:
    """Run an experiment; return the seconds of a round, those besides clients' own work, and bytes up and down."""
    out, before = layout.folder / f"run-{name}", _wire(layout)
    requested = ["--federation", str(layout.folder), "--rounds", str(rounds), "--out", str(out), *_COMMON, *flags]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "sim.py", *requested], cwd=ROOT, env=environ, check=True, capture_output=True)
    up, down = (after - earlier for after, earlier in zip(_wire(layout), before, strict=True))
    rows = json.loads((out / "result.json").read_text())["rounds"]
    slowest: dict[int, float] = {}
    with (out / "clients.csv").open() as file:
        for client in csv.DictReader(file):
            server_round = int(client["round"])
            slowest[server_round] = max(slowest.get(server_round, 0.0), float(client["seconds"]))
    messages = SITES * rounds
    return {
        "round_s": median(row["seconds"] for row in _later(rows)),
        "besides_s": median(row["seconds"] - slowest[row["round"]] for row in _later(rows)),
        "tensors_up_mb": rows[-1]["upload_bytes"] / SITES / 1e6,
        "tensors_down_mb": rows[-1]["download_bytes"] / SITES / 1e6,
        "wire_up_mb": up / messages / 1e6,  # of all messages, enrolment and final evaluation among them
        "wire_down_mb": down / messages / 1e6,
    }


def _wire(layout: FederationLayout) -> tuple[int, int]:
    """Return the bytes received and sent so far by the server on its sites' connections."""
    sockets = subprocess.run(
        ["ss", "-Htni", "state", "established", f"sport = :{layout.port}"], capture_output=True, text=True, check=True
    ).stdout
    received, sent = (re.findall(rf"{field}:(\d+)", sockets) for field in ("bytes_received", "bytes_sent"))
    return sum(map(int, received)), sum(map(int, sent))


def _later(rows: list[Any]) -> list[Any]:
    """Return all rounds but the first, or the only one."""
    return rows[1:] or rows


def measure(run: output.BenchmarkRun, rounds: int) -> dict[str, dict[str, Any]]:
    """Measure the chosen parts, by name."""
    results: dict[str, dict[str, Any]] = {}
    run.begin_gate()
    flags = ["--methods", "fedavg,hyperfl,fedcg", "--max-upload-mb", "200"]
    with (
        tempfile.TemporaryDirectory(prefix="flfw-deploy-") as place,
        federation(Path(place) / "federation", *flags) as layout,
    ):
        for name in run.parts(*_METHODS):
            results[name] = measured(layout, name, _METHODS[name], rounds)
        if {"floor", "stock"} & set(run.names):
            use_flowers_own(layout)
        for name in run.parts("floor"):
            results[name] = floor(layout, rounds)
        for name in run.parts("stock"):
            results[name] = measured(layout, name, _METHODS["fedavg"], rounds)
    return results


def compared(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures that need more than one part, or a goal; those without their parts are left out."""
    figures: dict[str, Any] = {}
    if "floor" in results:
        minimum = results["floor"]["round_s"]
        figures["over_floor_s"] = {name: row["round_s"] - minimum for name, row in results.items()}
    if {"stock", "fedavg"} <= results.keys():
        figures["stock_over_ours"] = results["stock"]["round_s"] / results["fedavg"]["round_s"]
    if "fedavg" in results:
        figures["met"] = results["fedavg"]["besides_s"] < _GOAL_S
    return figures


def main() -> None:
    """Measure and print."""
    flags = output.parser(__doc__)
    flags.add_argument(
        "--rounds", type=output.whole(), help="of each run; the first of many does not count (6; quick: 1)"
    )
    run = output.start(flags, PARTS, GATE)
    results = measure(run, run.amount(6, 1, run.asked.rounds))
    figures = compared(results)
    lines = [f"{name:<16} " + "  ".join(f"{k} {v:.2f}" for k, v in row.items()) for name, row in results.items()]
    if "stock_over_ours" in figures:
        lines += [f"fedavg on Flower's own SuperNodes takes {figures['stock_over_ours']:.2f} times as long"]
    if "met" in figures:
        lines += [f"fedavg besides < {_GOAL_S:g} s: {figures['met']}"]
    run.report({"deploy": results, **figures}, lines)


if __name__ == "__main__":
    main()
