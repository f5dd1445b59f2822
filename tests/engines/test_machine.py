"""What the machine or a Ray cluster can give, what is refused, and joining a cluster that is told it has GPUs."""

import dataclasses
import json
import os
import socket
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources

import sim
from flfw.engines import machine, ray_start
from flfw.engines.machine import Node, Resources
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.runs import launch
from tests.support import tiny_backbone

pytestmark = pytest.mark.early

LOOPBACK = {"node_ip_address": "127.0.0.1", "include_dashboard": False}
CORES = len(os.sched_getaffinity(0))


def on_ray(**changed: object) -> Experiment:
    return Experiment(**{"engine": "ray", **changed})  # type: ignore[arg-type]


# --- shares -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "nodes", "line"),
    [
        ({"cpus_per_client": 3}, [(2, 0)], "Expected cpus-per-client <= 2, this machine's; got 3."),
        ({"gpus_per_client": 0.1}, [(2, 0)], "Expected gpus-per-client <= 0, this machine's; got 0.1."),
        ({"attack_gpus": 0.5}, [(2, 0)], "Expected attack-gpus <= 0, this machine's; got 0.5."),
        ({"gpus_per_client": 2}, [(8, 1), (8, 1)], "Expected gpus-per-client <= 1, this machine's on one node; got 2."),
        (
            {"gpus_per_client": 0.6, "attack_gpus": 0.5},
            [(8, 1)],
            "Expected room for one client on this machine's nodes beside attack-gpus=0.5, got cpus-per-client=1, "
            "gpus-per-client=0.6; lower them.",
        ),
        (
            {"cpus_per_client": 4, "gpus_per_client": 0.5},
            [(2, 1), (8, 0)],
            "Expected room for one client on this machine's nodes, got cpus-per-client=4, gpus-per-client=0.5; "
            "lower them.",
        ),
        (
            {"engine": "flwr", "cpus_per_client": 0.5},
            [(2, 0)],
            "Expected whole cpus-per-client with --engine flwr, got cpus_per_client=0.5.",
        ),
        (
            {"engine": "flwr", "attack_gpus": 0.5},
            [(2, 1)],
            "Expected --engine ray with --attack-gpus, got engine=flwr.",
        ),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(requested: dict, nodes: list[tuple[float, float]], line: str) -> None:
    with pytest.raises(InputError) as caught:
        available = Resources(tuple(Node(c, g) for c, g in nodes), "this machine's")
        machine.check(on_ray(**requested), requested.get("attack_gpus", 0), available)
    assert str(caught.value) == line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("requested", "line"),
    [
        ({"attack_gpus": 1}, "--attack-gpus 0 on a machine without a GPU, got attack_gpus=1"),
        ({"gpus_per_client": 0.5}, "--gpus-per-client 0 on a machine without a GPU, got gpus_per_client=0.5"),
    ],
)
def test_a_gpu_that_is_not_there_is_not_forgotten_in_process(requested: dict, line: str) -> None:
    with pytest.raises(InputError, match=line):
        launch.check_resources(dataclasses.replace(on_ray(**requested), engine="inproc"))


@pytest.mark.parametrize(
    ("requested", "nodes", "clients"),
    [
        ({}, [(2, 0)], 2),
        ({"cpus_per_client": 0.5}, [(2, 0)], 4),
        ({"cpus_per_client": 2}, [(3, 0), (3, 0)], 2),  # a client is not spread over two nodes
        ({"gpus_per_client": 0.1}, [(16, 1)], 10),
        ({"gpus_per_client": 0.1}, [(4, 1)], 4),
        ({"gpus_per_client": 0.6}, [(16, 2)], 2),  # nor over two GPUs
        ({"gpus_per_client": 0.1, "attack_gpus": 0.5}, [(16, 1)], 5),
        ({"gpus_per_client": 0.25, "attack_gpus": 0.5}, [(16, 2)], 6),
        ({"gpus_per_client": 0.5}, [(4, 1), (64, 0)], 2),  # a node without a GPU takes none
        ({"gpus_per_client": 0.25}, [(2, 1), (2, 0)], 2),
        ({"gpus_per_client": 0.3}, [(16, 2)], 6),
        ({"attack_gpus": 0.5}, [(16, 1)], 16),  # clients that use no GPU leave it free anyway
    ],
)
def test_how_many_clients_work_at_once(
    monkeypatch: pytest.MonkeyPatch, requested: dict, nodes: list[tuple[float, float]], clients: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)  # Flower has four threads more than cores to wait for clients
    available = Resources(tuple(Node(c, g) for c, g in nodes), "this machine's")
    settings = on_ray(**requested)
    machine.check(settings, settings.attack_gpus, available)
    assert machine.at_once(settings, settings.attack_gpus, available) == clients
    # What Flower will count, and Ray be able to place: by the GPUs, none of whose clients is spread over two.
    shares = machine.flower_client_resources(settings, settings.attack_gpus, available)
    monkeypatch.setattr("ray.nodes", lambda: [{"Resources": {"CPU": c, "GPU": g}} for c, g in nodes])
    assert pool_size_from_resources({name: shares[name] for name in ("num_cpus", "num_gpus")}) == clients


def test_this_machine_is_asked(small: Experiment) -> None:
    with pytest.raises(InputError, match=f"Expected cpus-per-client <= {CORES}, this machine's; got {CORES + 1}"):
        launch.check_resources(on_ray(cpus_per_client=CORES + 1))
    gpus = torch.cuda.device_count()
    with pytest.raises(InputError, match=f"Expected gpus-per-client <= {gpus}, this machine's; got {gpus + 1}"):
        launch.check_resources(on_ray(gpus_per_client=gpus + 1))
    launch.check_resources(on_ray())
    launch.check_resources(small)  # in process nothing is shared out


def test_nothing_is_written_when_a_share_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--cpus-per-client", "1000", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"sim.py: Expected cpus-per-client <= {CORES}, this machine's; got 1000.\n"
    assert list(tmp_path.iterdir()) == []


# --- a cluster ----------------------------------------------------------------------------------------------------

SEES = """
    import json, os, pathlib, time
    from typing import final
    from flfw.task.defence import Defence


    @final
    class Sees(Defence):
        def update(self, update, rng):
            import sys
            ray = sys.modules.get("ray")
            if ray is None or not ray.is_initialized():
                return update
            time.sleep(3)  # else the first node that is ready has answered all before the other one is
            about = {"node": ray.get_runtime_context().get_node_id(), "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
            about["pid"] = os.getpid()
            with pathlib.Path(%r).open("a") as lines:
                lines.write(json.dumps(about) + "\\n")
            return update
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes on this machine, each told that it has a core and a GPU; the address of the first."""
    from ray.cluster_utils import Cluster

    running = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, **LOOPBACK})
    running.add_node(num_cpus=1, num_gpus=1, **LOOPBACK)
    yield running.address
    running.shutdown()


@pytest.mark.nightly
def test_a_cluster_is_joined_and_its_gpus_are_shared_out(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sees_gpus.py").write_text(textwrap.dedent(SEES % str(tmp_path / "seen")))
    monkeypatch.syspath_prepend(str(tmp_path))
    common = "--method fedper --clients 4 --rounds 2 --local-epochs 1 --attack none --defence sees_gpus:Sees"
    flags = f"{common} --ray-address {cluster} --gpus-per-client 0.5"
    assert sim.main([*flags.split(), "--out", str(tmp_path / "there")]) == 0, capsys.readouterr().err
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) == 8
    assert len({details["node"] for details in seen}) == 2, "only one node was given work"
    assert len({details["pid"] for details in seen}) == 2
    assert {details["gpus"] for details in seen} <= {"0", "1"}
    assert sim.main([*common.split(), "--engine", "inproc", "--out", str(tmp_path / "here")]) == 0
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("there", "here")]
    rounds = [[{k: v for k, v in row.items() if k != "seconds"} for row in r["rounds"]] for r in results]
    assert rounds[0] == rounds[1]
    if not torch.cuda.is_available():
        assert "Clients were given shares of a GPU and see none: they computed on the CPU." in results[0]["notes"]
    with ray_start.joined(cluster):  # it runs on
        assert machine.available_resources(cluster) == Resources((Node(1, 1), Node(1, 1)), "the cluster's")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "train"), [("hyperfl_lpm", "adapter"), ("fedavg", "lora"), ("fedavg", "linear_probe")]
)
def test_frozen_bodies_get_their_shares_of_a_gpu(cluster: str, tmp_path: Path, method: str, train: str) -> None:
    """All of a network moves, see tests/nets/test_backbones.py; here clients see no GPU if there is none."""
    common = (
        f"--method {method} --net {tiny_backbone.NAME} --expert weights=random --trainable {train} "
        f"--clients 4 --rounds 2"
    )
    common += " --local-epochs 1 --attack none"
    shares = f"--ray-address {cluster} --gpus-per-client 0.5"
    assert sim.main([*common.split(), *shares.split(), "--out", str(tmp_path / "there")]) == 0
    assert sim.main([*common.split(), "--engine", "inproc", "--out", str(tmp_path / "here")]) == 0
    there, here = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("there", "here"))
    if not torch.cuda.is_available():
        rounds = [[{k: v for k, v in row.items() if k != "seconds"} for row in r["rounds"]] for r in (there, here)]
        assert rounds[0] == rounds[1]
    assert there["provenance"]["weights"] == here["provenance"]["weights"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--cpus-per-client 2", "Expected cpus-per-client <= 1, the cluster's on one node; got 2."),
        ("--gpus-per-client 1.5", "Expected gpus-per-client <= 1, the cluster's on one node; got 1.5."),
        ("--engine inproc", "Expected --engine ray with --ray-address, got engine=inproc."),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, line: str
) -> None:
    assert sim.main(["--ray-address", cluster, *flags.split(), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"sim.py: {line}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "nowhere", "127.0.0.1:http", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_refused_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = address.format(port=free.getsockname()[1])
    started = time.monotonic()
    assert sim.main(["--ray-address", address, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sim.py: Expected ") and address in line
    assert time.monotonic() - started < 60
    assert not (tmp_path / "run").exists()
