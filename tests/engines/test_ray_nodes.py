"""Ray cluster of a head and three workers, as processes of this machine: places, deaths of nodes and of the server."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from flwr.app import ConfigRecord, Message, RecordDict

import sim
from flfw.client.site import Site
from flfw.engines import machine, ray_start
from tests.campaigns.ray_nodes import RayNodes, ray_nodes
from tests.campaigns.same_results import differences, numbers
from tests.support.awkward_app import app
from tests.support.clock import wait_for

pytestmark = [pytest.mark.early, pytest.mark.timeout(900)]

COME_S = 600.0  # of a process that died at its start Ray only learns after `flfw.engines.ray_start`'s five minutes
WORKERS = [(2, 1), (1, 0), (1, 0)]  # cores and GPUs of which they are told
CLIENTS = 6


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder, ray_nodes(Path(folder), WORKERS) as running:
        yield running


@pytest.fixture
def joined(nodes: RayNodes) -> Iterator[RayNodes]:
    nodes.up()
    with ray_start.started(nodes.address, Site(), lambda: 100_000_000):
        yield nodes


def grid(cpus: float, gpus: float = 0.0) -> Any:
    from flfw.engines.ray_grid import RayGrid

    actors, shares = machine.pool_size_and_shares(machine.nodes_of_ray(), cpus, gpus)
    return RayGrid(app, CLIENTS, {}, actors=actors, actor_options=shares)


def messages(nodes: Iterable[int] = range(1, CLIENTS + 1), **config: Any) -> list[Message]:
    return [Message(RecordDict({"config": ConfigRecord(config)}), node, "train") for node in nodes]


def found(replies: Iterable[Message], name: str) -> list[int]:
    return [int(reply.content.metric_records["metrics"][name]) for reply in replies]  # type: ignore[arg-type]


def pids_of(grid: Any, actors: int) -> set[int]:
    """Processes of the actors, once so many have come."""
    pids, until = set[int](), time.monotonic() + COME_S
    while len(pids) < actors:
        pids |= set(found(grid.send_and_receive(messages(seconds=0.05), timeout=240), "pid"))
        if time.monotonic() > until:
            alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            pytest.fail(f"{len(pids)} of {actors} came; nodes alive: {alive}; left: {ray.available_resources()}")
    return pids


@pytest.mark.slow
def test_actors_land_where_their_resources_are(joined: RayNodes) -> None:
    assert sorted((node.cpus, node.gpus) for node in machine.nodes_of_ray().nodes) == sorted([(0, 0), *WORKERS])
    everywhere = grid(cpus=1)
    pids = pids_of(everywhere, 4)
    places = [len(pids & set(joined.processes(number))) for number in (0, 1, 2)]
    everywhere.close()
    assert places == [2, 1, 1], "none on the head"
    shared = grid(cpus=0.5, gpus=0.5)
    pids = pids_of(shared, 2)
    there = set(joined.processes(0))
    shared.close()
    assert pids <= there, "the node with a GPU"


@pytest.mark.nightly
@pytest.mark.parametrize("killed", [(1,), (0, 1)])
def test_nodes_that_are_killed_in_mid_round_lose_nobody(
    joined: RayNodes, capfd: pytest.CaptureFixture[str], killed: tuple[int, ...]
) -> None:
    """Their clients are asked again elsewhere, with the state that they had; nobody waits for the nodes."""
    cluster = grid(cpus=1)
    pids = pids_of(cluster, 4)
    lost = pids & {process for number in killed for process in joined.processes(number)}
    before = found(cluster.send_and_receive(messages()), "asked")
    ids = cluster.push_messages(messages(seconds=1.0))
    assert len(lost) == sum(WORKERS[number][0] for number in killed)
    killing = threading.Timer(0.3, lambda: [joined.kill(number) for number in killed])
    killing.start()
    replies = [cluster.reply_to(message_id, time.monotonic() + 240) for message_id in ids]
    killing.join()
    assert found(replies, "asked") == [n + 1 for n in before]
    assert not lost & set(found(replies, "pid"))
    joined.up()  # then all actors have a place again
    assert pids_of(cluster, 4) >= (pids - lost)
    cluster.close()
    shown = capfd.readouterr()
    assert "Raylet is terminated" not in shown.out + shown.err  # nor its log


@pytest.mark.nightly
def test_a_node_that_hangs_is_given_up_and_what_it_answers_later_counts_nowhere(joined: RayNodes) -> None:
    """Nobody waits behind its client, so that Ray's own look at its nodes decides."""
    cluster = grid(cpus=1)
    pids_of(cluster, 4)
    before = found(cluster.send_and_receive(messages()), "asked")
    ids = cluster.push_messages(messages(range(1, 5), seconds=1.0))  # one for each actor
    time.sleep(0.3)
    hanging = joined.processes(1)
    for process in hanging:
        os.kill(process, signal.SIGSTOP)
    replies = [cluster.reply_to(message_id, time.monotonic() + 400) for message_id in ids]
    assert found(replies, "asked") == [n + 1 for n in before[:4]]
    assert not set(hanging) & set(found(replies, "pid"))
    for process in hanging:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    wait_for(lambda: joined.raylet(1) is None)  # it learns that it counts as dead
    again = cluster.send_and_receive(messages(), timeout=240)
    assert found(again, "asked") == [n + 2 for n in before[:4]] + [n + 1 for n in before[4:]]
    joined.up()
    pids_of(cluster, 4)
    cluster.close()


def begun(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with log.open("ab") as end:
        return subprocess.Popen([sys.executable, sim.__file__, *words], env=variables, stdout=end, stderr=end)


def unequal(there: Path, here: Path) -> list[str]:
    """Compare all numbers of two runs."""
    lines = differences(numbers(there), numbers(here))
    return [line for line in lines if not line.startswith("/result.json/config/")]


@pytest.mark.nightly
def test_a_run_survives_the_death_of_its_server_and_then_of_a_node(nodes: RayNodes, tmp_path: Path) -> None:
    nodes.up()
    common = "--method hyperfl --set hidden=16 embedding=8 sampled.train=50 --split sampled --clients 6 --rounds 6"
    flags = [*common.split(), "--local-epochs", "1", "--attack", "none"]
    there, here = tmp_path / "there", tmp_path / "here"
    log = tmp_path / "log"
    server = begun([*flags, "--ray-address", nodes.address, "--out", str(there)], log)
    wait_for(lambda: "round 1/" in log.read_text())
    server.kill()
    server.wait()
    assert not (there / "result.json").exists()
    again = begun(["--resume", str(there), "--ray-address", nodes.address], log)
    wait_for(lambda: "round 4/" in log.read_text())
    nodes.kill(0)
    assert again.wait(240) == 0, log.read_text()
    assert sim.main([*flags, "--engine", "inproc", "--out", str(here)]) == 0
    assert unequal(there, here) == []
    assert not ray.is_initialized()


@pytest.mark.nightly
def test_a_run_with_batched_clients_and_sums_of_blocks_survives_the_death_of_two_nodes(
    nodes: RayNodes, tmp_path: Path
) -> None:
    nodes.up()
    common = "--method fedavg --net linear --clients 20 --rounds 5 --batched-clients 2 --local-epochs 10 --attack none"
    there, here, log = tmp_path / "there", tmp_path / "here", tmp_path / "log"
    server = begun([*common.split(), "--ray-address", nodes.address, "--out", str(there)], log)
    wait_for(lambda: "round 2/" in log.read_text())
    for number in (0, 1):
        nodes.kill(number)
    assert server.wait(240) == 0, log.read_text()
    assert sim.main([*common.split(), "--engine", "inproc", "--out", str(here)]) == 0
    assert unequal(there, here) == []
