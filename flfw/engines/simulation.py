"""Simulation of any Flower app on this project's actors, called as Flower's own ``run_simulation`` is.

``sim.py`` does not use it.

    from flfw.engines.simulation import run_simulation

    run_simulation(server_app, client_app, num_supernodes=100, backend_config={"client_resources": {"num_cpus": 1}})

The server's code runs in the calling thread. docs/running.md says what differs from Flower's engine.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from flfw.engines import machine, ray_start
from flfw.errors import InputError, require
from flfw.experiment import Scalar

_SECTIONS = ("init_args", "client_resources", "actor")


def run_simulation(
    server_app: ServerApp,
    client_app: ClientApp,
    num_supernodes: int,
    backend_name: str = "ray",
    backend_config: Mapping[str, Any] | None = None,
    enable_tf_gpu_growth: bool = False,
    verbose_logging: bool = False,
    *,
    run_config: Mapping[str, Scalar] | None = None,
) -> None:
    """Run a ServerApp and a ClientApp, on a Ray that is started for it, or on the one that this process has started.

    Args:
        server_app: the server's app, in either of Flower's styles.
        client_app: the clients' app.
        num_supernodes: number of clients.
        backend_name: ``ray``; there is no other.
        backend_config: ``client_resources`` (``num_cpus`` and ``num_gpus`` of each client at work; default: 1 and 0),
            ``init_args`` of ``ray.init``; Flower's ``actor`` is read, but its ``tensorflow`` is refused.
        enable_tf_gpu_growth: refused: set the variable ``TF_FORCE_GPU_ALLOW_GROWTH``, as Flower says.
        verbose_logging: whether Flower's logger shows the server's debug messages.
        run_config: the run configuration in the Contexts of the server and of every client.

    Raises:
        InputError: an argument is refused, or no client fits on this machine or cluster.
        RunError: Ray did not start, or was lost.
    """
    require(num_supernodes >= 1, "num_supernodes >= 1", num_supernodes=num_supernodes)
    require(backend_name == "ray", "backend_name ray", backend_name=backend_name)
    config = {name.replace("-", "_"): values for name, values in (backend_config or {}).items()}
    for name in config:
        require(name in _SECTIONS, f"a backend_config of {', '.join(_SECTIONS)}", backend_config=name)
    init, actor_options, actor = ({k.replace("-", "_"): v for k, v in (config.get(s) or {}).items()} for s in _SECTIONS)
    growth = enable_tf_gpu_growth or bool(actor.get("tensorflow"))
    require(not growth, "no enable_tf_gpu_growth; set TF_FORCE_GPU_ALLOW_GROWTH=true", enable_tf_gpu_growth=growth)
    given = dict(run_config or {})
    with _ray(init) as stays, _verbose(verbose_logging):
        from flfw.engines.ray_grid import RayGrid

        actors, reserved = _fitting(actor_options)
        grid = RayGrid(client_app, num_supernodes, given, actors=actors, actor_options={**actor_options, **reserved})
        try:
            server_app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(given)))
        finally:
            if stays:
                grid.close()  # the next simulation needs their place


def _fitting(actor_options: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    cpus, gpus = float(actor_options.get("num_cpus", 1)), float(actor_options.get("num_gpus", 0))
    require(cpus > 0 <= gpus, "num_cpus > 0 and num_gpus >= 0", num_cpus=cpus, num_gpus=gpus)
    actors, reserved = machine.pool_size_and_shares(machine.nodes_of_ray(), cpus, gpus)
    if not actors:
        raise InputError(f"Expected room for one client in Ray, got num_cpus={cpus:g}, num_gpus={gpus:g}; lower them.")
    return actors, reserved


@contextmanager
def _ray(init: dict[str, Any]) -> Iterator[bool]:
    """Start Ray with some arguments and end it, or use the one that was started already; yield whether it stays."""
    ray_start.configure_ray(str(init.get("address", "")))
    import ray

    if ray.is_initialized():
        yield True
        return
    environment = dict(init.pop("runtime_env", {}))
    path = os.pathsep.join(location for location in sys.path if location)
    environment["env_vars"] = {"PYTHONPATH": path, **environment.get("env_vars", {})}
    usual = {"address": "local", "include_dashboard": False, "logging_level": logging.WARNING}
    ray_start.start({**usual, **init, "runtime_env": environment})
    try:
        yield False
    finally:
        ray.shutdown()


@contextmanager
def _verbose(verbose: bool) -> Iterator[None]:
    logger = logging.getLogger("flwr")
    before = logger.level
    if verbose:
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(before)
