"""Machine or Ray cluster that simulated clients share: its resources, their shares, starting and joining Ray.

Ray must start in the main thread, because its processes die with the thread that started them. So a second thread
keeps the time limit. If Ray hangs, this thread can only end the process.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from typing import Any

from flfw.client.site import Site
from flfw.errors import BadInput, RunFailed, require
from flfw.experiment import Experiment

_RAY_START_S = 180.0  # Ray gives up by itself, except where it hangs; on a busy machine a start takes long
_CONNECT_S = 5.0
_TOO_SLOW = "timed out during startup"  # of Ray's exception, where a machine is busy
_EPSILON = 1e-9  # so that ten tenths of a GPU fit on one
# Huge pages for a client's large temporaries: a hypernetwork's gradients are 60 MB, allocated anew in every step.
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True)
class Node:
    """CPU cores and GPUs of one machine."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Resources:
    """Resources that clients share.

    Attributes:
        nodes: the machines.
        owner: "this machine's" or "the cluster's", for messages.
    """

    nodes: tuple[Node, ...]
    owner: str


def resources(address: str) -> Resources:
    """Return the resources of this machine or, with the address of a `joined` cluster, those of the cluster."""
    if address:
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = tuple(Node(float(has.get("CPU", 0)), float(has.get("GPU", 0))) for has in alive)
        return Resources(nodes, "the cluster's")
    import torch

    return Resources((Node(len(os.sched_getaffinity(0)), torch.cuda.device_count()),), "this machine's")


def check(experiment: Experiment, there_are: Resources) -> None:
    """Refuse shares that exceed the resources.

    Raises:
        BadInput: naming the flag, the available share, and the share asked for.
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
    """Refuse a GPU for computations in this process, where this machine has none.

    Raises:
        BadInput: there is none.
    """
    here = {"server_device": experiment.server_device} if experiment.server_device == "cuda" else {}
    if experiment.engine == "inproc" and not experiment.federation:  # clients and attacks share the process, too
        shares = {"gpus_per_client": experiment.gpus_per_client, "attack_gpus": experiment.attack_gpus}
        here |= {name: share for name, share in shares.items() if share}
    for name, asked in here.items():
        import torch

        without = {"server_device": "cpu"}.get(name, "0")
        expected = f"--{name.replace('_', '-')} {without} on a machine without a GPU"
        require(torch.cuda.is_available(), expected, **{name: asked})


def at_once(experiment: Experiment, there_are: Resources) -> int:
    """Return how many clients work at once: Flower's actors, but no more than its threads that wait for them."""
    shares = client_resources(experiment, there_are)
    actors = sum(_flowers_count(node, shares["num_cpus"], shares["num_gpus"]) for node in there_are.nodes)
    return min(actors, 32, (os.cpu_count() or 1) + 4)


def client_resources(experiment: Experiment, there_are: Resources) -> dict[str, Any]:
    """Return the resources that Flower's engine reserves for a client, from which it counts how many clients fit.

    Flower would start more clients than fit on the GPUs: it does not know the attacks' share, nor that no client is
    spread over two GPUs. It would then wait for a client that Ray never starts. A larger share of cores limits the
    number of clients. An actor whose process dies is started again, since Flower would go on sending messages to the
    dead one. These messages wait for the new process only if Ray may try a message twice, so a client that dies is
    asked once more before it counts as failed.
    """
    cpus, gpus, taken = experiment.cpus_per_client, experiment.gpus_per_client, experiment.attack_gpus
    for node in there_are.nodes if gpus else ():
        fit = _that_fit(node, gpus, taken)
        taken = 0 if node.gpus else taken  # the attacks take their share from the first node that has a GPU
        if _flowers_count(node, cpus, gpus) > fit:
            cpus = floor(node.cpus / fit * 1e4) / 1e4 if fit else node.cpus + 1  # Ray rounds to 1e-4
    return {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 1}


def _flowers_count(node: Node, cpus: float, gpus: float) -> int:
    """Count clients on a node as `flwr.simulation.ray_transport.ray_actor.pool_size_from_resources` does."""
    by_cpus = int(node.cpus / cpus)
    return min(by_cpus, int(node.gpus / gpus)) if gpus else by_cpus


def _that_fit(node: Node, share: float, taken: float) -> int:
    """Count the clients that fit on a node's GPUs, none spread over two, beside the attacks' share of one GPU."""
    free = [1.0] * int(node.gpus)
    if taken and free:
        free[0] -= taken
    return int(sum(free) / share + _EPSILON) if share >= 1 else sum(int(gpu / share + _EPSILON) for gpu in free)


def configure_ray(address: str) -> None:
    """Configure Ray before its import: where it listens, and which messages it does not print.

    By default its ports, through which code can be run, are open to the network. The variable that keeps them on the
    loopback interface is named after the systems for which it is the default. Retries of actors are not printed, also
    those at an actor's normal end: a final failure comes back as an error.
    """
    if not address:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", r"There are (\d+|infinite) retries remaining")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour to come; silences its notice


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join a running cluster, and leave it again; do nothing without an address.

    Raises:
        BadInput: no cluster answers there.
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
    """Provide Ray for one run: start and end it here, or join and leave a cluster.

    Raises:
        RunFailed: it did not start.
        BadInput: no cluster answers at ``experiment.ray_address``.
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
    """Start Ray on an address of its own; without one it would join, or wait for, any cluster that it knows of."""
    import ray

    def once() -> None:
        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            object_store_memory=object_store,
            **_quiet(variables),
        )

    try:
        _twice_if_slow(once)
    except Exception as error:  # Ray also raises bare ones
        raise RunFailed(f"Ray did not start: {first_line(error)}; try --engine inproc.") from error


def _twice_if_slow(once: Callable[[], None]) -> None:
    """Start Ray; once more where the machine was too busy for Ray's own time limit."""
    import ray

    try:
        with _time_limit():
            once()
    except Exception as error:
        if _TOO_SLOW not in str(error):
            raise
        print("flfw: Ray timed out during its start; it is started once more.", file=sys.stderr)
        ray.shutdown()
        with _time_limit():
            once()


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
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [repr(error)])[0]


def object_store_bytes(experiment: Experiment, numbers: int) -> int:
    """Return room for one message each way for every client at work, and a tenth more.

    Args:
        experiment: resolved.
        numbers: number of values in the method's model.

    The memory of a small store is reused, and stays close to the processor. The default store, a third of the memory,
    is used from end to end, with a page fault for each page, and stays in every actor's resident memory.
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
