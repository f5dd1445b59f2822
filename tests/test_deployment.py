"""Real sites: a SuperLink and three SuperNodes as processes of their own, on the loopback interface, with TLS and keys.

The same app, the same numbers; what is killed goes on; who has no key or another authority is not let in.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import flfw
from flfw.deploy import certificates, processes
from flfw.deploy.layout import Layout, environment, transport

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(flfw.__file__).parent.parent
SITES = 3
COMMON = ("--clients", str(SITES), "--local-epochs", "1", "--split", "iid", "--attack", "none")
COMMON += ("--round-deadline", "120")
HYPERFL = ("--method", "hyperfl", "--rounds", "3", *COMMON)


def free_ports(number: int) -> list[int]:
    """The first of so many neighbours that nobody uses."""
    for first in range(20000 + os.getpid() % 5000, 40000, number):
        try:
            for port in range(first, first + number):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return list(range(first, first + number))
    raise AssertionError("no free ports")


def command(*words: str) -> list[str]:
    return [sys.executable, *words]


def call(*words: str, code: int = 0, limit: float = 200) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*words), cwd=ROOT, env=quiet(), capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """Three sites at work."""
    folder = tmp_path_factory.mktemp("deployment") / "federation"
    ports = free_ports(2 + SITES + 2)
    flags = ["--port", str(ports[0]), "--control-port", str(ports[1]), "--site-port", str(ports[2])]
    call("-m", "flfw.deploy", "init", str(folder), "--methods", "hyperfl,fedcg,fed_cdp", *flags)
    try:
        up(folder)
        yield Layout.read(folder)
    finally:
        call("-m", "flfw.deploy", "down", str(folder))


def up(folder: Path) -> None:
    said = call("-m", "flfw.deploy", "up", str(folder)).stdout
    assert said.startswith(f"transport   {transport()} with TLS") and said.count(": process ") == 1 + SITES


def deployed(layout: Layout, out: Path, *flags: str) -> list[str]:
    return command("sim.py", "--federation", str(layout.folder), "--out", str(out), *flags)


def numbers(out: Path) -> dict[str, Any]:
    result = json.loads((out / "result.json").read_text())
    rounds = [{key: value for key, value in row.items() if key != "seconds"} for row in result["rounds"]]
    return {"rounds": rounds, "final": result["final"]}


def last_model(out: Path) -> dict[str, torch.Tensor]:
    (path,) = (out / "checkpoint").glob("round-*.safetensors")
    return load_file(path)


def private(folder: Path, client: int) -> dict[str, torch.Tensor]:
    """The newest version of a client's private tensors, of the newest experiment."""
    return load_file(max(folder.glob(f"*/client-{client:04d}/round-*"), key=lambda path: path.stat().st_mtime))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same settings in one process."""
    out = tmp_path_factory.mktemp("simulated") / "run"
    call("sim.py", "--engine", "inproc", "--out", str(out), "--keep-state", *HYPERFL)
    return out


def require_same(layout: Layout, out: Path, simulated: Path) -> None:
    there, here = numbers(out), numbers(simulated)
    assert len(there["rounds"]) == 3 and there == here
    assert equal(last_model(out), last_model(simulated))
    for client in range(SITES):
        assert equal(private(layout.site(client) / "state", client), private(simulated / "state", client))


def wait_for(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- who gets in ---------------------------------------------------------------------------------------------------


def over_tls(layout: Layout, authority: Path, protocols: list[str]) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority))
    context.set_alpn_protocols(protocols)
    plain = socket.create_connection(("127.0.0.1", layout.port), timeout=20)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.skipif(transport() != "gRPC", reason="later SuperNodes speak HTTP")
def test_the_port_for_sites_speaks_http_2_over_tls(federation: Layout) -> None:
    with closing(over_tls(federation, federation.site(0) / "ca.crt", ["h2", "http/1.1"])) as wire:
        assert wire.selected_alpn_protocol() == "h2"
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        head = wire.recv(9)
        assert (head[3], head[5:9]) == (4, b"\x00\x00\x00\x00")  # SETTINGS, of the connection
    with socket.create_connection(("127.0.0.1", federation.port), timeout=20) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert plain.recv(9)[3:4] != b"\x04"  # nothing is said in the clear


def test_the_server_is_known_by_its_own_authority_alone(federation: Layout, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(certificates.authority().public)
    with pytest.raises(ssl.SSLCertVerificationError):
        over_tls(federation, tmp_path / "ca.crt", ["h2"])


def as_site_0(layout: Layout, folder: Path, changed: dict[str, Path]) -> tuple[int, str]:
    """Starts another SuperNode in place of site 0's, with other files; how it ended and what it said."""
    words = layout.supernode_command(0)
    for option, value in changed.items():
        words[words.index(option) + 1] = str(value)
    words[words.index("--port") + 1] = str(layout.site_port + SITES)
    words += ["--max-retries", "2", "--max-wait-time", "5"]
    folder.mkdir(exist_ok=True)
    pid = processes.start(words, folder, "supernode", environment(folder))
    try:
        wait_for(lambda: processes.alive(folder, "supernode") is None, 60)
    finally:
        processes.stop(folder, "supernode")
    return pid, (folder / "supernode.log").read_text(errors="replace")


def test_a_key_that_is_not_registered_is_refused(federation: Layout, tmp_path: Path) -> None:
    key = tmp_path / "node-key"
    key.touch(0o600)
    key.write_bytes(certificates.node().private)
    _, said = as_site_0(federation, tmp_path / "other", {"--auth-supernode-private-key": key})
    assert "SuperNode ID" not in said and "305" in said


def test_a_supernode_with_another_authority_is_not_connected(federation: Layout, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(certificates.authority().public)
    _, said = as_site_0(federation, tmp_path / "other", {"--root-certificates": tmp_path / "ca.crt"})
    assert "SuperNode ID" not in said


# --- runs ----------------------------------------------------------------------------------------------------------


def test_a_deployment_equals_the_simulation_bit_for_bit(federation: Layout, simulated: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call(*deployed(federation, out, *HYPERFL)[1:])
    progress = [line[:9] for line in done.stderr.splitlines() if line.startswith("round")]
    assert progress == ["round 1/3", "round 2/3", "round 3/3"]
    require_same(federation, out, simulated)


def test_what_was_killed_goes_on_and_loses_nothing(federation: Layout, simulated: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        deployed(federation, out, *HYPERFL), cwd=ROOT, env=quiet(), stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            wait_for(lambda: any((out / "checkpoint").glob("round-00001-*")))
            kill(federation.superlink, "superlink")
            _, said = running.communicate(timeout=150)
        finally:
            running.kill()
    last = said.splitlines()[-1]
    assert running.returncode == 1 and last.startswith("sim.py: Flower's SuperLink was lost during run "), said
    assert "Traceback" not in said
    kill(federation.site(0), "supernode")
    assert call("-m", "flfw.deploy", "status", str(federation.folder), code=1).stdout.count("not at work") == 2
    assert "server at work" in call("sim.py", "--resume", str(out), code=1).stderr
    up(federation.folder)
    call("sim.py", "--resume", str(out))
    require_same(federation, out, simulated)
    resumed = json.loads((out / "result.json").read_text())["provenance"]["resumed"]
    assert len(resumed) == 1 and resumed[0]["after_round"] >= 1


def kill(folder: Path, name: str) -> None:
    pid = processes.alive(folder, name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes.alive(folder, name) is None)


@pytest.mark.parametrize("method", ["fed_cdp", "fedcg"])
def test_other_methods_equal_their_simulation(federation: Layout, tmp_path: Path, method: str) -> None:
    flags = ("--method", method, "--rounds", "2", *COMMON)
    call(*deployed(federation, tmp_path / "there", *flags)[1:], limit=280)
    call("sim.py", "--engine", "inproc", "--out", str(tmp_path / "here"), *flags, limit=280)
    assert len(numbers(tmp_path / "there")["rounds"]) == 2
    assert numbers(tmp_path / "there") == numbers(tmp_path / "here")
    assert equal(last_model(tmp_path / "there"), last_model(tmp_path / "here"))


def test_a_site_that_accepts_another_app_says_so(federation: Layout, tmp_path: Path) -> None:
    site = federation.site(1)
    before = (site / "policy.toml").read_text()
    try:
        (site / "policy.toml").write_text("apps = ['" + "0" * 64 + "']\nuploads = ['*']\nlargest_upload_mb = 1\n")
        processes.stop(site, "supernode")
        up(federation.folder)
        done = call(*deployed(federation, tmp_path / "run", *HYPERFL)[1:], code=1)
    finally:
        (site / "policy.toml").write_text(before)
        processes.stop(site, "supernode")
        up(federation.folder)
    assert "this site's policy does not accept app " in done.stderr.splitlines()[-1]


def test_a_site_whose_policy_lets_nothing_leave_stops_the_run(federation: Layout, tmp_path: Path) -> None:
    """As a hostile app finds it: what is no upload by the site's own list stays, whatever the app says of it."""
    site = federation.site(2)
    before = (site / "policy.toml").read_text()
    try:
        (site / "policy.toml").write_text(re.sub("uploads = .*", 'uploads = ["nothing.*"]', before))
        processes.stop(site, "supernode")
        up(federation.folder)
        done = call(*deployed(federation, tmp_path / "run", *HYPERFL)[1:], code=1)
    finally:
        (site / "policy.toml").write_text(before)
        processes.stop(site, "supernode")
        up(federation.folder)
    assert "client 2 failed in round 1: this site's policy does not let hypernet." in done.stderr.splitlines()[-1]
