"""A malicious server's messages to two real sites over gRPC: refused by policy, by the weights, and told by hashes."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flfw.engines import processes
from flfw.engines.layout import FederationLayout
from tests.support.paths import ROOT
from tests.support.sites_at_work import at_work, deploy, free_ports

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

FLAGS = ("--net", "mlp", "--clients", "2", "--rounds", "1", "--local-epochs", "1", "--attack", "none")
FLAGS += ("--split", "sampled", "--expert", "round_deadline=120", "--set", "sampled.train=20")

EQUAL_ROWS = """
from typing import final
from flfw.messages.wire import pack, unpack
from flfw.nets.training.optimisers import LocalTraining
from flfw.server.aggregation import weighted_mean
from flfw.server.strategy import FederatedStrategy


@final
class EqualRows(FederatedStrategy):
    Settings = LocalTraining
    downloads = uploads = ("*",)

    def arrays_for(self, partition, arrays):
        tensors = unpack(arrays)
        weight = tensors["extractor.1.weight"]
        return pack({**tensors, "extractor.1.weight": weight[:1].repeat(len(weight), 1)})

    def aggregate(self, updates):
        return weighted_mean(updates)
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationLayout]:
    """Two sites that check what they are sent; only the first one lets a server change the network."""
    folder = tmp_path_factory.mktemp("tampered") / "federation"
    (folder.parent / "crafting.py").write_text(EQUAL_ROWS)
    ports = [str(port) for port in free_ports(4)]
    flags = ["--port", ports[0], "--control-port", ports[1], "--site-port", ports[2], "--methods", "fedavg"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder.parent))
        deploy("init", str(folder), "--clients", "2", *flags, "--plugins", "crafting:EqualRows")
        layout = FederationLayout.read(folder)
        for number in (0, 1):
            allow(layout, number, "reject_suspicious_weights")
        allow(layout, 0, "allow_malicious_server")
        with at_work(layout):
            yield layout


def allow(layout: FederationLayout, number: int, switch: str) -> None:
    policy = layout.site(number) / "policy.toml"
    chosen = policy.read_text()
    assert f"{switch} = false" in chosen
    policy.write_text(chosen.replace(f"{switch} = false", f"{switch} = true"))


def ended(layout: FederationLayout, out: Path, *flags: str, code: int = 1) -> str:
    """The last line of what a run says."""
    words = [sys.executable, "sim.py", "--federation", str(layout.folder), "--out", str(out), *flags, *FLAGS]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return (done.stderr.splitlines() or [""])[-1]


def hashes(layout: FederationLayout, number: int, since: int) -> dict[str, str]:
    """The hash in a site's own log of each message of training since a place in the log."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # the run may have ended by the other site's refusal
        lines = (layout.site(number) / "supernode.log").read_bytes()[since:].decode(errors="replace")
        if logged := dict(re.findall(r"flfw: (train in round \d+): received weights ([0-9a-f]{64})", lines)):
            return logged
        time.sleep(0.2)
    raise AssertionError(f"site {number} logged no hash")


def compared(layout: FederationLayout, out: Path, *flags: str, code: int) -> tuple[str, list[dict[str, str]]]:
    """The end of a run, and the hashes in the logs of both sites."""
    before = [processes.log_size(layout.site(number), "supernode") for number in (0, 1)]
    line = ended(layout, out, *flags, code=code)
    return line, [hashes(layout, number, before[number]) for number in (0, 1)]


def test_two_sites_notice_a_malicious_server_in_three_ways(federation: FederationLayout, tmp_path: Path) -> None:
    # 1. The policy of one site lets no server change the network.
    line = ended(federation, tmp_path / "imprint", "--method", "fedavg", "--malicious-server", "imprint")
    assert "client 1 failed" in line
    assert line.endswith("this site's policy lets no server change the network, and the run's is changed by imprint")

    # 2. Honest weights pass, and both sites log the same hash; crafted ones for the honest network are refused.
    _, (one, other) = compared(federation, tmp_path / "honest", "--method", "fedavg", code=0)
    assert one == other and list(one) == ["train in round 1"]
    line, _ = compared(federation, tmp_path / "crafted", "--method", "crafting:EqualRows", code=1)
    assert (
        "failed in round 1: was sent weights that its reject_suspicious_weights refuses: extractor.1.weight has "
        in line
    )

    # 3. Where both let the network be changed, each alone sees crafted weights, and the hashes differ.
    allow(federation, 1, "allow_malicious_server")
    processes.stop(federation.site(1), "supernode")
    deploy("up", str(federation.folder))
    flags = ("--method", "fedavg", "--malicious-server", "loki")
    line, (one, other) = compared(federation, tmp_path / "loki", *flags, code=1)
    assert "was sent weights that its reject_suspicious_weights refuses: extractor.imposed." in line
    assert list(one) == list(other) == ["train in round 1"] and one != other
