"""Runs the two apps: in this process, or on Flower's simulation engine over Ray."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from flwr.app import Context, RecordDict

from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment, Scalar
from flfw.site import Site

_RAY_START_S = 90.0
_LOUD = ("flwr", "ray")
# Huge pages for a client's large temporaries: a hypernetwork's gradients are 60 MB, allocated anew in every step.
_ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_ARENA_MAX": "2"}


def run(experiment: Experiment, site: Site) -> None:
    """Train and probe; everything lands under ``experiment.out``.

    Args:
        experiment: resolved, with ``out`` an existing absolute folder.
        site: the folders of the simulated clients.

    Raises:
        BadInput: this machine cannot give what is asked for.
        RunFailed: a client or the engine failed.
    """
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what fails is raised, in one line
    run_config = {**experiment.to_run_config(), "experiment-id": uuid4().hex}
    with _environment(site.environment()):
        {"inproc": _run_in_process, "ray": _run_on_ray}[experiment.engine](experiment, run_config, site)


def check_resources(experiment: Experiment) -> None:
    """Refuse shares of this machine that it does not have; Flower would find out with a hanging thread."""
    if experiment.engine != "ray":
        return
    cores = len(os.sched_getaffinity(0))
    if experiment.cpus_per_client > cores:
        raise BadInput(f"Expected cpus-per-client <= {cores}, this machine's; got {experiment.cpus_per_client:g}.")
    if experiment.gpus_per_client:
        import torch

        if experiment.gpus_per_client > torch.cuda.device_count():
            raise BadInput(
                f"Expected gpus-per-client <= {torch.cuda.device_count()}, this machine's; "
                f"got {experiment.gpus_per_client:g}."
            )


def _run_in_process(experiment: Experiment, run_config: dict[str, Scalar], site: Site) -> None:
    from flfw import apps
    from flfw.inprocess import InProcessGrid

    grid = InProcessGrid(apps.client, experiment.clients, run_config)
    apps.server(grid=grid, context=_server_context(run_config))


def _run_on_ray(experiment: Experiment, run_config: dict[str, Scalar], site: Site) -> None:
    import ray
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    from flfw import apps

    _start_ray(experiment, site)
    try:
        with tempfile.TemporaryDirectory(prefix="flfw-app-") as folder:
            _write_app(Path(folder), run_config)
            _run_simulation(
                num_supernodes=experiment.clients,
                exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
                client_app=apps.client,
                server_app=apps.server,
                server_app_context=_server_context(run_config),
                backend_config={
                    "client_resources": {
                        "num_cpus": experiment.cpus_per_client,
                        "num_gpus": experiment.gpus_per_client,
                    }
                },
                is_app=True,
                app_dir=folder,
            )
    finally:
        ray.shutdown()


def _start_ray(experiment: Experiment, site: Site) -> None:
    """Start Ray on an address of its own; without one it would join, or wait for, whatever cluster it has heard of.

    It must start in this thread: Ray's processes are told to die with the thread that started them. So the time limit
    is a second thread, and what it can do about a Ray that hangs is to end the process.
    """
    import ray

    started = threading.Event()
    threading.Thread(target=_give_up_unless, args=(started,), daemon=True).start()
    path = os.pathsep.join(p for p in sys.path if p)
    variables = {**site.environment(), **_ALLOCATOR, "PYTHONPATH": path, "RAY_ADDRESS": "local"}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour to come; silences its notice
    try:
        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            object_store_memory=_object_store_bytes(experiment),
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise RunFailed(f"Ray did not start: {error}; try --engine inproc.") from error
    finally:
        started.set()


def _object_store_bytes(experiment: Experiment) -> int:
    """Room for one message each way for every client at work, and a tenth more.

    A store that is used over and over stays in the processor's reach; the default, a third of the memory, is walked
    through once, page fault by page fault, and stays in every actor's resident memory.
    """
    from flfw import nets, parts

    at_work = int(len(os.sched_getaffinity(0)) // experiment.cpus_per_client)
    return max(100_000_000, int(2.2 * at_work * 4 * nets.numel(parts.blank_model(experiment).state_dict())))


def _give_up_unless(started: threading.Event) -> None:
    if not started.wait(_RAY_START_S):
        print(f"flfw: Ray did not start within {_RAY_START_S:.0f} s; try --engine inproc.", file=sys.stderr)
        os._exit(1)


def _server_context(run_config: dict[str, Scalar]) -> Context:
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(run_config))


def _write_app(folder: Path, run_config: dict[str, Scalar]) -> None:
    """A pyproject.toml with the run's configuration: the only place from which simulated clients are given one."""
    lines = [
        "[project]",
        'name = "flfw-run"',
        'version = "0.1.0"',
        "[tool.flwr.app]",
        'publisher = "flfw"',
        "[tool.flwr.app.components]",
        'serverapp = "flfw.apps:server"',
        'clientapp = "flfw.apps:client"',
        "[tool.flwr.app.config]",
        *(f"{key} = {json.dumps(value)}" for key, value in run_config.items()),  # JSON scalars are TOML's
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
