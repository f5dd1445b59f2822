"""Federations of processes over gRPC, with TLS and keys, and the runs of an honest server on them."""

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from flfw.deploy import __main__ as deployment
from flfw.engines import processes
from flfw.engines.layout import FederationLayout, environment
from tests.support.paths import ROOT

SITES = 3
COMMON = ("--clients", str(SITES), "--local-epochs", "1", "--attack", "none", "--split", "sampled")


def free_ports(number: int) -> list[int]:
    """Return so many neighbouring ports that nobody uses."""
    for first in range(25000 + os.getpid() % 5000, 45000, number):
        try:
            for port in range(first, first + number):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return list(range(first, first + number))
    raise AssertionError("no free ports")


def deploy(*text: str) -> str:
    """Return the output of ``python -m flfw.deploy``."""
    with redirect_stdout(io.StringIO()) as message:
        assert deployment.main(text) == 0, message.getvalue()
    return message.getvalue()


def made(folder: Path, *flags: str) -> FederationLayout:
    """Make a federation of three sites, of which none is at work yet."""
    ports = free_ports(2 + SITES)
    places = ["--port", str(ports[0]), "--control-port", str(ports[1]), "--site-port", str(ports[2])]
    deploy("init", str(folder), "--clients", str(SITES), *places, *flags)
    return FederationLayout.read(folder)


@contextmanager
def at_work(layout: FederationLayout, empty: Sequence[int] = ()) -> Iterator[None]:
    """Start all parts but some sites, and end all at the end."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as places:
        patch.setenv("OMP_NUM_THREADS", "1")
        try:
            for number in empty:
                places.enter_context(vacant(layout, number))
            deploy("up", str(layout.folder))
            places.close()
            yield
        finally:
            deploy("down", str(layout.folder))


def start_in_place(layout: FederationLayout, number: int, module: str, argument: Path) -> None:
    """Start another program than the guard as a site, with its key and its addresses; return when it is admitted."""
    words, site = layout.supernode_command(number), layout.site(number)
    at = words.index("flfw.deploy.guard")
    words = [*words[:at], module, str(argument), *words[at + 2 :]]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:  # a site that was killed is admitted again when its heartbeats are missed
        before = processes.log_size(site, "supernode")
        processes.start(words, site, "supernode", environment(site / "home"))
        while processes.alive(site, "supernode") is not None and time.monotonic() < deadline:
            if b"SuperNode ID" in (site / "supernode.log").read_bytes()[before:]:
                return
            time.sleep(0.2)
    raise AssertionError(processes.last_line(site, "supernode"))


@contextmanager
def vacant(layout: FederationLayout, number: int) -> Iterator[None]:
    """Keep a site's place, so that nothing is started there."""
    site = layout.site(number)
    processes.start([sys.executable, "-c", "import time; time.sleep(600)"], site, "supernode", environment(site))
    try:
        yield
    finally:
        processes.stop(site, "supernode")


def run(layout: FederationLayout, out: Path, *flags: str, limit: float = 600) -> str:
    """Carry out a run of an honest server to its end; return what it says on the terminal."""
    words = [sys.executable, "sim.py", "--federation", str(layout.folder), "--out", str(out), *flags]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=limit, check=False, errors="replace"
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def result(out: Path) -> dict[str, Any]:
    """Return the ``result.json`` of a run."""
    return json.loads((out / "result.json").read_text())
