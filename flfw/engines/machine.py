"""Machine or Ray cluster that simulated clients share: its resources, and the share of each actor.

An actor is a process in which clients work one after the other, or some at once with ``batched-clients``. The settings
``cpus-per-client`` and ``gpus-per-client`` are the shares of one actor.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

from flfw.errors import InputError, require
from flfw.experiment.experiment import ExecutionSettings

_GPU_DEVICES = ("nvidia*", "nvhost*", "dxg", "kfd")
_ROUNDING = 1e-9  # of a share: ten tenths of a GPU fit on one
_KEPT, _GIVEN_BACK = 2**29, 2**25  # bytes of a tensor from which its memory goes back to the system: glibc's most
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's mallopt
# Huge pages for a client's large temporaries: a hypernetwork's gradients are 60 MB, allocated anew in every step.
_TUNABLES = f"hugetlb=1:glibc.malloc.mmap_threshold={_KEPT}:glibc.malloc.trim_threshold={2 * _KEPT}"
ALLOCATOR = {"GLIBC_TUNABLES": f"glibc.malloc.{_TUNABLES}", "MALLOC_ARENA_MAX": "2"}


@contextmanager
def kept_memory() -> Iterator[None]:
    """Let this process keep the memory of tensors that it gives up meanwhile, and use it again.

    glibc gives that of large ones back to the system at once, and most of the time of a copy of 60 MB is then spent on
    new pages.
    """
    system = ctypes.CDLL(None)
    if not (hasattr(system, "mallopt") and hasattr(system, "malloc_trim")):  # another library than glibc
        yield
        return
    system.mallopt(_MMAP_THRESHOLD, _KEPT)
    system.mallopt(_TRIM_THRESHOLD, 2 * _KEPT)
    try:
        yield
    finally:
        system.mallopt(_MMAP_THRESHOLD, _GIVEN_BACK)
        system.mallopt(_TRIM_THRESHOLD, 2 * _GIVEN_BACK)
        system.malloc_trim(0)


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


def available_resources(address: str) -> Resources:
    """Return the resources of this machine or, where Ray runs in this process or a cluster was `joined`, Ray's."""
    if address or is_running():
        return nodes_of_ray()
    gpus = 0
    if may_have_gpu():
        import torch

        gpus = torch.cuda.device_count()
    return Resources((Node(len(os.sched_getaffinity(0)), gpus),), "this machine's")


def may_have_gpu() -> bool:
    """Return whether PyTorch may find a GPU here; False: it certainly does not, as no driver has a device.

    The files are those of NVIDIA's drivers for servers and for Tegra, of Windows' subsystem, and of AMD's. This takes
    no time, where PyTorch's own answer takes a second for its import.
    """
    return sys.platform != "linux" or any(next(Path("/dev").glob(name), None) for name in _GPU_DEVICES)


def is_running() -> bool:
    """Return whether this process has started or joined a Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def nodes_of_ray() -> Resources:
    """Return the resources of the Ray that this process has started or joined."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Resources(tuple(Node(float(has.get("CPU", 0)), float(has.get("GPU", 0))) for has in alive), "the cluster's")


def check(engine: ExecutionSettings, attack_gpus: float, available: Resources) -> None:
    """Refuse shares that exceed the resources.

    Args:
        engine: settings of the engine.
        attack_gpus: share of a GPU that the attacks take.
        available: the nodes.

    Raises:
        InputError: naming the flag, the available share, and the share asked for.
    """
    if engine.engine == "flwr":
        whole = float(engine.cpus_per_client).is_integer()
        require(whole, "whole cpus-per-client with --engine flwr", cpus_per_client=engine.cpus_per_client)
        require(not attack_gpus, "--engine ray with --attack-gpus", engine=engine.engine)
    cpus, gpus = max(node.cpus for node in available.nodes), max(node.gpus for node in available.nodes)
    where = "" if len(available.nodes) == 1 else " on one node"
    for flag, requested, has in (
        ("cpus-per-client", engine.cpus_per_client, cpus),
        ("gpus-per-client", engine.gpus_per_client, gpus),
        ("attack-gpus", attack_gpus, gpus),
    ):
        if requested > has:
            raise InputError(f"Expected {flag} <= {has:g}, {available.owner}{where}; got {requested:g}.")
    if not at_once(engine, attack_gpus, available):
        shares = f"cpus-per-client={engine.cpus_per_client:g}, gpus-per-client={engine.gpus_per_client:g}"
        left = f" beside attack-gpus={attack_gpus:g}" if attack_gpus else ""
        raise InputError(f"Expected room for one client on {available.owner} nodes{left}, got {shares}; lower them.")


def check_server(engine: ExecutionSettings, attack_gpus: float, real: bool) -> None:
    """Refuse a GPU for computations in this process, where this machine has none.

    Args:
        engine: settings of the engine.
        attack_gpus: share of a GPU that the attacks take.
        real: whether the clients are real sites.

    Raises:
        InputError: there is none.
    """
    if engine.engine != "inproc" or real:
        return
    for name, requested in {"gpus_per_client": engine.gpus_per_client, "attack_gpus": attack_gpus}.items():
        if requested:
            require(_has_gpu(), f"--{name.replace('_', '-')} 0 on a machine without a GPU", **{name: requested})


def server_device(engine: ExecutionSettings) -> str:
    """Return where the server computes what it trains itself: on a GPU if clients do, and if its machine has one."""
    return "cuda" if engine.gpus_per_client and _has_gpu() else "cpu"


def _has_gpu() -> bool:
    if not may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def at_once(engine: ExecutionSettings, attack_gpus: float, available: Resources) -> int:
    """Return how many actors work at once; in Flower's engine no more than it has threads that wait for one each."""
    actors, _ = pool_size_and_shares(available, engine.cpus_per_client, engine.gpus_per_client, attack_gpus)
    return actors if engine.engine == "ray" else min(actors, 32, (os.cpu_count() or 1) + 4)


def flower_client_resources(engine: ExecutionSettings, attack_gpus: float, available: Resources) -> dict[str, Any]:
    """Return the resources that Flower's engine reserves for a client, from which it counts how many clients fit.

    An actor whose process dies is started again, since Flower would go on sending messages to the dead one. These
    messages wait for the new process only if Ray may try a message twice, so a client that dies is asked once more
    before it counts as failed.
    """
    _, shares = pool_size_and_shares(available, engine.cpus_per_client, engine.gpus_per_client, attack_gpus)
    return {**shares, "max_restarts": -1, "max_task_retries": 1}


def pool_size_and_shares(
    available: Resources, cpus: float, gpus: float, attack_gpus: float = 0.0
) -> tuple[int, dict[str, float]]:
    """Return how many actors fit, and the ``num_cpus`` and ``num_gpus`` that Ray reserves for each.

    Ray adds up the GPUs of a node. It does not know that the attacks need a share of one, nor that an actor needs its
    share on a single GPU. So it may start more actors than there is room for, and some would wait for ever. On a node
    where this is so, each actor reserves more cores: then as many fit on the cores as on the GPUs.

    Args:
        available: the nodes.
        cpus: cores of an actor, > 0.
        gpus: GPUs of an actor.
        attack_gpus: share of a GPU that is left free for the attacks, which Ray does not reserve.
    """
    for node in available.nodes if gpus else ():
        fit = _fitting_on_gpus(node, gpus, attack_gpus)
        attack_gpus = 0 if node.gpus else attack_gpus  # the attacks take their share from the first node that has a GPU
        if _fitting_by_flower(node, cpus, gpus) > fit:
            cpus = floor(node.cpus / fit * 1e4) / 1e4 if fit else node.cpus + 1  # Ray rounds to 1e-4
    actors = sum(_fitting_by_flower(node, cpus, gpus) for node in available.nodes)
    return actors, {"num_cpus": cpus, "num_gpus": gpus}


def _fitting_by_flower(node: Node, cpus: float, gpus: float) -> int:
    """Count a node's actors as `flwr.simulation.ray_transport.ray_actor.pool_size_from_resources` does."""
    by_cpus = int(node.cpus / cpus)
    return min(by_cpus, int(node.gpus / gpus)) if gpus else by_cpus


def _fitting_on_gpus(node: Node, share: float, attack_gpus: float) -> int:
    """Count the actors that fit on a node's GPUs, none spread over two, beside the attacks' share of one GPU."""
    free = [1.0] * int(node.gpus)
    if attack_gpus and free:
        free[0] -= attack_gpus
    return int(sum(free) / share + _ROUNDING) if share >= 1 else sum(int(gpu / share + _ROUNDING) for gpu in free)


def object_store_bytes(at_work: int, replies: int, numbers: int) -> int:
    """Return room for two broadcasts, for the replies of a cohort or a sum in every process at work, and a tenth more.

    Args:
        at_work: number of actors that work at once.
        replies: number of clients that answer together.
        numbers: number of values in the method's model.

    The memory of a small store is reused, and stays close to the processor. The default store, a third of the memory,
    is used from end to end, with a page fault for each page, and stays in every actor's resident memory.
    """
    return max(100_000_000, int(1.1 * (2 + at_work * (1 + max(2, replies))) * 4 * numbers))
