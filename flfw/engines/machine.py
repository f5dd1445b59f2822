"""The machine, or the Ray cluster, that simulated clients share: what it has, who gets how much, starting and joining.

Ray must start in the main thread: its processes are told to die with the thread that started them. So a time limit is
kept by a second thread, and what that can do about a Ray that hangs is to end the process.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from typing import Any

from flfw.client.site import Site
from flfw.errors import BadInput, RunFailed, require
from flfw.experiment import Experiment

_RAY_START_S = 90.0
_CONNECT_S = 5.0
_EPSILON = 1e-9  # ten times a tenth of a GPU fit on it
# Huge pages for a client's large temporaries: a hypernetwork's gradients are 60 MB, allocated anew in every step.
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True)
class Node:
    """One machine's share: CPU cores and GPUs."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Resources:
    """What there is to share.

    Attributes:
        nodes: the machines.
        owner: "this machine's" or "the cluster's", for what is said of it.
    """

    nodes: tuple[Node, ...]
    owner: str


def resources(address: str) -> Resources:
    """What this machine has or, with the address of a cluster that was `joined`, what that has."""
    if address:
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = tuple(Node(float(has.get("CPU", 0)), float(has.get("GPU", 0))) for has in alive)
        return Resources(nodes, "the cluster's")
    import torch

    return Resources((Node(len(os.sched_getaffinity(0)), torch.cuda.device_count()),), "this machine's")


def check(experiment: Experiment, there_are: Resources) -> None:
    """Refuse what cannot be given.

    Raises:
        BadInput: naming the flag, what there is, and what was asked for.
    """
    if experiment.engine == "flwr":
        whole = float(experiment.cpus_per_client).is_integer()
        require(whole, "whole cpus-per-client with --engine flwr", cpus_per_client=experiment.cpus_per_client)
        require(not experiment.attack_gpus, "--engine ray with --attack-gpus", engine=experiment.engine)
    cpus, gpus = max(node.cpus for node in there_are.nodes), max(node.gpus for node in there_are.nodes)
    most = "" if len(there_are.nodes) == 1 else " on one node"
    for flag, asked, has in (
        ("cpus-per-client", experiment.cpus_per_client, cpus),
        ("gpus-per-client", experiment.gpus_per_client, gpus),
        ("attack-gpus", experiment.attack_gpus, gpus),
    ):
        if asked > has:
            raise BadInput(f"Expected {flag} <= {has:g}, {there_are.owner}{most}; got {asked:g}.")
    if not at_once(experiment, there_are):
        shares = f"cpus-per-client={experiment.cpus_per_client:g}, gpus-per-client={experiment.gpus_per_client:g}"
        left = f" beside attack-gpus={experiment.attack_gpus:g}" if experiment.attack_gpus else ""
        raise BadInput(f"Expected room for one client on {there_are.owner} nodes{left}, got {shares}; lower them.")


def check_server(experiment: Experiment) -> None:
    """Refuse a GPU for what the server computes, which it does on this machine, where there is none.

    Raises:
        BadInput: there is none.
    """
    if experiment.server_device == "cuda":
        import torch

        fits = torch.cuda.is_available()
        require(fits, "--server-device cpu on a machine without a GPU", server_device=experiment.server_device)


def at_once(experiment: Experiment, there_are: Resources) -> int:
    """How many clients work at once: as many actors as Flower starts, as far as it has threads to wait for them."""
    shares = client_resources(experiment, there_are)
    actors = sum(_flowers_count(node, shares["num_cpus"], shares["num_gpus"]) for node in there_are.nodes)
    return min(actors, 32, (os.cpu_count() or 1) + 4)


def client_resources(experiment: Experiment, there_are: Resources) -> dict[str, Any]:
    """What Flower's engine sets aside for a client, and from which it counts how many fit.

    Flower would start more clients than fit on the GPUs: it neither knows of the attacks' share nor that no client is
    spread over two GPUs, and then waits for one that Ray never starts. Letting each take more cores limits them. An
    actor whose process dies is started again, for Flower would go on handing messages to the dead one; those wait for
    the new process only if Ray may try a message twice, so a client that dies is asked once more before it has failed.
    """
    cpus, gpus, taken = experiment.cpus_per_client, experiment.gpus_per_client, experiment.attack_gpus
    for node in there_are.nodes if gpus else ():
        fit = _that_fit(node, gpus, taken)
        taken = 0 if node.gpus else taken  # the attacks take theirs from the first node that has a GPU
        if _flowers_count(node, cpus, gpus) > fit:
            cpus = floor(node.cpus / fit * 1e4) / 1e4 if fit else node.cpus + 1  # Ray rounds to 1e-4
    return {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 1}


def _flowers_count(node: Node, cpus: float, gpus: float) -> int:
    """What `flwr.simulation.ray_transport.ray_actor.pool_size_from_resources` counts for one node."""
    by_cpus = int(node.cpus / cpus)
    return min(by_cpus, int(node.gpus / gpus)) if gpus else by_cpus


def _that_fit(node: Node, share: float, taken: float) -> int:
    """Clients that fit on a node's GPUs, none spread over two, with the attacks' share taken from one of them."""
    free = [1.0] * int(node.gpus)
    if taken and free:
        free[0] -= taken
    return int(sum(free) / share + _EPSILON) if share >= 1 else sum(int(gpu / share + _EPSILON) for gpu in free)


def configure_ray(address: str) -> None:
    """What Ray reads when it is imported: where it listens, and what it need not print.

    By default its ports, through which code can be run, are open to the network. The setting that keeps them on the
    loopback interface is named after the systems for which it is the default. What is not printed are the retries of
    actors, those at their own end among them: whatever fails for good comes back as an error.
    """
    if not address:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", r"There are (\d+|infinite) retries remaining")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour to come; silences its notice


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Look into a running cluster, and leave it again; without an address there is none to look into.

    Raises:
        BadInput: nobody answers there.
    """
    if not address:
        yield
        return
    configure_ray(address)
    import ray

    _connect(address, {})
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def started(experiment: Experiment, site: Site, numbers: int) -> Iterator[None]:
    """Ray for one run: started here and ended, or joined and left.

    Raises:
        RunFailed: it did not start.
        BadInput: nobody answers at ``experiment.ray_address``.
    """
    import ray

    path = os.pathsep.join(p for p in sys.path if p)
    variables = {**site.environment(), **ALLOCATOR, "PYTHONPATH": path, "RAY_ADDRESS": "local"}
    if experiment.ray_address:
        del variables["RAY_ADDRESS"]
        _connect(experiment.ray_address, variables)
    else:
        _start(object_store_bytes(experiment, numbers), variables)
    try:
        yield
    finally:
        ray.shutdown()


def _start(object_store: int, variables: dict[str, str]) -> None:
    """Start Ray on an address of its own; without one it would join, or wait for, whatever cluster it has heard of."""
    import ray

    with _time_limit():
        try:
            ray.init(
                address="local",
                num_cpus=len(os.sched_getaffinity(0)),
                include_dashboard=False,
                object_store_memory=object_store,
                **_quiet(variables),
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise RunFailed(f"Ray did not start: {first_line(error)}; try --engine inproc.") from error


def _connect(address: str, variables: dict[str, str]) -> None:
    import ray

    host, _, port = address.rpartition(":")
    if address != "auto":
        if not (host and port.isdecimal()):
            raise BadInput(f"Expected ray-address as host:port or auto, got {address}.")
        try:  # Ray itself would try for a minute
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise BadInput(f"Expected a Ray cluster at {address}, got no answer: {error}.") from error
    with _time_limit():
        try:
            ray.init(address=address, **_quiet(variables))
        except (RuntimeError, ValueError, OSError) as error:
            raise BadInput(f"Expected a Ray cluster at {address}, got none: {first_line(error)}") from error


def _quiet(variables: dict[str, str]) -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"env_vars": variables}}


def first_line(error: BaseException) -> str:
    """What an error says, without what it adds."""
    return (str(error).splitlines() or [repr(error)])[0]


def object_store_bytes(experiment: Experiment, numbers: int) -> int:
    """Return room for one message each way for every client at work, and a tenth more.

    Args:
        experiment: resolved.
        numbers: in the method's model.

    A store that is used over and over stays in the processor's reach; the default, a third of the memory, is walked
    through once, page fault by page fault, and stays in every actor's resident memory.
    """
    at_work = at_once(experiment, resources(""))
    return max(100_000_000, int(2.2 * at_work * 4 * numbers))


@contextmanager
def _time_limit() -> Iterator[None]:
    over = threading.Event()
    threading.Thread(target=_give_up_unless, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _give_up_unless(over: threading.Event) -> None:
    if not over.wait(_RAY_START_S):
        print(f"flfw: Ray did not start within {_RAY_START_S:.0f} s; try --engine inproc.", file=sys.stderr)
        os._exit(1)
