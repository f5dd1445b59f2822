"""Federation on this machine for a benchmark: a server and sites over gRPC, with TLS and keys."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flfw.engines import processes
from flfw.engines.layout import FederationLayout

ROOT = Path(__file__).parent.parent
SITES = 3


@contextmanager
def federation(folder: Path, *flags: str) -> Iterator[FederationLayout]:
    """Start a server and three sites in a new folder, and stop them at the end; ``flags`` are those of ``init``."""
    port = _free_ports(2 + SITES)
    ports = ["--port", str(port), "--control-port", str(port + 1), "--site-port", str(port + 2)]
    deploy("init", str(folder), "--clients", str(SITES), *flags, *ports)
    try:
        deploy("up", str(folder))
        yield FederationLayout.read(folder)
    finally:
        deploy("down", str(folder))


def deploy(*text: str) -> None:
    """Carry out a command of ``python -m flfw.deploy`` without its output.

    Raises:
        CalledProcessError: it failed.
    """
    quiet = [sys.executable, "-m", "flfw.deploy", *text]
    subprocess.run(quiet, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _free_ports(number: int) -> int:
    """Return the first of so many neighbouring ports without a listener."""
    for first in range(21000, 60000, number):
        if not any(processes.listens("127.0.0.1", first + more) for more in range(number)):
            return first
    raise RuntimeError("Expected free ports above 21000, got none.")
