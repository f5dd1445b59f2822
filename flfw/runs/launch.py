"""Start of the two apps on an engine: this process, processes of Ray, Flower's engine on Ray, or its own commands."""

import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from flfw import nets
from flfw.client.gradient_client import GradientClient, unstackable
from flfw.client.site import Site
from flfw.dp import message_cost
from flfw.engines import apps, machine, ray_start, superlink
from flfw.engines.branches import summable
from flfw.engines.federation import federate
from flfw.engines.machine import at_once, available_resources
from flfw.errors import RunError, require
from flfw.experiment import Experiment, Scalar
from flfw.messages.inprocess import InProcessGrid, MessageBatches
from flfw.messages.streaming import GRACE_S, GridWrapper
from flfw.plans.run_plan import RunPlan
from flfw.rng import initialising
from flfw.task.client_plan import ClientPlan

_ENGINES = ("inproc", "ray")
_ON_GPU = 16
"""Clients that ``batched-clients=auto`` lets compute together at most: each holds its model in the same process."""
_TRIED = 4  # inputs of the trial of a network with stacked weights
_HOOKS = frozenset({"update"})
"""Hooks of a defence that joint steps do not touch."""


def resolve_batched_clients(run_plan: RunPlan) -> tuple[RunPlan, list[str]]:
    """Replace ``batched-clients=auto`` by a number, and refuse a number above 1 where no steps are computed together.

    Returns:
        The experiment, and a note if auto had to be 1.

    Raises:
        InputError: naming what keeps the clients apart.
    """
    experiment = run_plan.experiment
    if experiment.clients_per_batch == 1:
        return run_plan, []
    reason = not_batchable_reason(run_plan)
    if experiment.clients_per_batch:
        require(not reason, f"--batched-clients 1 with {reason}", batched_clients=experiment.batched_clients)
        return run_plan, []
    on_gpu = bool(experiment.gpus_per_client) and torch.cuda.is_available()
    maximum = _ON_GPU if on_gpu else run_plan.client_class.batched_on_cpu(run_plan.client.model)
    if not reason and maximum == 1:
        reason = "a method and a network whose joint steps take as long on a CPU"
    number = 1 if reason else _number(run_plan, maximum)
    notes = [f"batched-clients=auto became 1: {reason}."] if reason else []
    return run_plan.replaced(batched_clients=str(number)), notes


def not_batchable_reason(run_plan: RunPlan) -> str:
    """Name the reason why clients of a run do not compute together; empty: there is none."""
    experiment, plan = run_plan.experiment, run_plan.client
    if experiment.federation:
        return "--federation, whose sites are machines of their own"
    if experiment.engine not in _ENGINES:
        return f"engine={experiment.engine}, which hands out one message at a time"
    if reason := run_plan.client_class.not_batchable_reason(run_plan.client.model, run_plan.client.settings):
        return f"method={experiment.method}, {reason}"
    if (defence := plan.defence) and experiment.defended_partitions and (hooks := defence.active_hooks - _HOOKS):
        return f"defence={experiment.defence}, which acts at the {', '.join(sorted(hooks))} of local steps"
    if run_plan.client.draws:
        return f"net={experiment.net}, which draws random numbers in training"
    if issubclass(run_plan.client_class, GradientClient) and (reason := _tried(run_plan)):
        return f"net={experiment.net}, {reason}"
    return ""


def _tried(run_plan: RunPlan) -> str:
    """Name the reason against a model with stacked weights; see `flfw.client.gradient_client.unstackable`."""
    shape, _ = run_plan.task.input_space
    with initialising(0, "network with stacked weights"):
        return unstackable(run_plan.client.build_model(), torch.rand(_TRIED, *shape))


def _number(run_plan: RunPlan, maximum: int) -> int:
    """Return how many clients to join: at most ``maximum``, and no more than leave work for each process."""
    experiment = run_plan.experiment
    alone = experiment.engine == "inproc" or bool(experiment.ray_address)
    processes = 1 if alone else max(1, at_once(experiment, experiment.attack_gpus, available_resources("")))
    return min(maximum, ceil(experiment.per_round / processes))


def run_on_engine(run_plan: RunPlan, site: Site) -> None:
    """Train and probe; all files are written below ``experiment.out``.

    Args:
        run_plan: of the run, with ``out`` an existing absolute folder.
        site: the folders of the simulated clients.

    Raises:
        InputError: this machine does not have the resources asked for.
        RunError: a client or the engine failed.
    """
    experiment = run_plan.experiment
    for name in ("flwr", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # failures are raised as errors of one line
    if experiment.federation:
        superlink.run_in_federation(experiment)
        return
    engines = {"inproc": _run_in_process, "ray": _run_on_ray, "flwr-sim": _run_on_flowers_engine, "flwr": _run_by_flwr}
    with _environment(site.environment()), machine.kept_memory():
        engines[experiment.engine](run_plan, site)


def check_resources(experiment: Experiment) -> None:
    """Refuse shares that the machine or the cluster does not have; with them a thread of Flower would hang.

    Raises:
        InputError: naming the flag and the available share, or a flag that belongs to a federation of real sites.
        RunError: the server of a federation of real sites does not run.
    """
    machine.check_server(experiment, experiment.attack_gpus, experiment.federation is not None)
    if experiment.federation:
        superlink.check_federation(experiment)
        return
    at_sites = "--federation with --expert record=true; a simulation records what it attacks"
    require(not experiment.record, at_sites, record=True)
    alone = experiment.engine != "flwr-sim" or not machine.is_running()
    require(alone, "--engine ray where Ray is running in this process, or ray.shutdown() before", engine="flwr-sim")
    if experiment.engine != "inproc":
        with ray_start.joined(experiment.ray_address):
            machine.check(experiment, experiment.attack_gpus, available_resources(experiment.ray_address))


def _run_in_process(run_plan: RunPlan, site: Site) -> None:
    grid = InProcessGrid(
        apps.client,
        run_plan.client.rounds.clients,
        run_plan.experiment.to_run_config(),
        introduced=True,
        one_disk=True,
        batches=_message_batches(run_plan.client),
        late=_summable(run_plan),
    )
    federate(grid, run_plan)


def _summable(run_plan: RunPlan) -> bool:
    return summable(run_plan.client, run_plan.engine.engine, run_plan.audit.sees_updates)


def store_bytes(run_plan: RunPlan) -> int:
    """Return the size of a new object store of Ray."""
    at_work = machine.at_once(run_plan.engine, run_plan.audit.settings.attack_gpus, available_resources(""))
    replies = min(run_plan.client.local.clients_per_batch, run_plan.client.rounds.per_round)
    return machine.object_store_bytes(at_work, replies, nets.numel(run_plan.client.model.state_dict()))


def _message_batches(plan: ClientPlan) -> MessageBatches | None:
    """Return how messages of a run are answered together; None: each is answered by itself."""
    size = min(plan.local.clients_per_batch, plan.rounds.per_round)
    return MessageBatches(message_cost.TRAIN, size, apps.train_together) if size > 1 else None


def _run_on_ray(run_plan: RunPlan, site: Site) -> None:
    experiment = run_plan.experiment
    ray_start.configure_ray(experiment.ray_address)
    from flfw.engines.ray_grid import RayGrid  # imports Ray, which reads its configuration then

    run_config, address = experiment.to_run_config(), experiment.ray_address
    with ray_start.started(address, site, partial(store_bytes, run_plan)) as options:
        available, attack_gpus = available_resources(address), experiment.attack_gpus
        cpus, gpus = experiment.cpus_per_client, experiment.gpus_per_client
        actors, shares = machine.pool_size_and_shares(available, cpus, gpus, attack_gpus)
        grid = RayGrid(
            apps.client,
            experiment.clients,
            run_config,
            actors=actors,
            actor_options={**shares, **options},
            grace=GRACE_S,
            introduced=True,
            # Else actors may be on other machines.
            one_disk=not experiment.ray_address and len(machine.nodes_of_ray().nodes) == 1,
            stateful=False,
            batches=_message_batches(run_plan.client),
            uploads=run_plan.client.sharing.uploads if _summable(run_plan) else (),
        )
        try:
            federate(grid, run_plan)
        finally:
            if options:  # this Ray goes on, and its owner needs the actors' place
                grid.close()


def _run_on_flowers_engine(run_plan: RunPlan, site: Site) -> None:
    experiment = run_plan.experiment
    ray_start.configure_ray(experiment.ray_address)
    from flwr.simulation.run_simulation import _run_simulation  # imports Ray, too
    from flwr.supercore.telemetry import EventType

    stopped = threading.Event()
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        federate(StoppableGrid(grid, stopped), run_plan)

    run_config, address = experiment.to_run_config(), experiment.ray_address
    store = partial(store_bytes, run_plan)
    with tempfile.TemporaryDirectory(prefix="flfw-app-") as folder, ray_start.started(address, site, store):
        superlink.write_app(Path(folder), run_config)
        shares = machine.flower_client_resources(experiment, experiment.attack_gpus, available_resources(address))
        try:
            _run_simulation(
                num_supernodes=experiment.clients,
                exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
                client_app=apps.client,
                server_app=server,
                server_app_context=_server_context(run_config),
                backend_config={"client_resources": shares},
                is_app=True,
                app_dir=folder,
            )
        except RuntimeError as error:
            if isinstance(error, RunError) or not str(error).startswith("An error was encountered"):
                raise
            raise RunError(f"Flower's simulation engine failed: {ray_start.first_line(_root(error))}") from error
        finally:
            stopped.set()


def _root(error: BaseException) -> BaseException:
    return _root(error.__cause__) if error.__cause__ else error


class EngineStopped(RunError):
    """Error of a server whose engine ended while it was still at work."""


class StoppableGrid(GridWrapper):
    """Grid that ends the server's thread once the engine has ended; otherwise the thread would wait forever.

    Args:
        grid: the Grid that does the work.
        stopped: set once no client answers any more.
    """

    def __init__(self, grid: Grid, stopped: threading.Event) -> None:
        super().__init__(grid)
        self._stopped = stopped

    def get_node_ids(self) -> Iterable[int]:
        """Implement `Grid.get_node_ids`."""
        self._check()
        return super().get_node_ids()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Implement `Grid.pull_messages`."""
        self._check()
        return super().pull_messages(message_ids)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise EngineStopped("The engine stopped before the run was over.")


def _run_by_flwr(run_plan: RunPlan, site: Site) -> None:
    experiment = run_plan.experiment
    superlink.run_on_superlink(
        experiment.to_run_config(),
        {**site.environment(), **machine.ALLOCATOR},
        clients=experiment.clients,
        cpus_per_client=experiment.cpus_per_client,
        gpus_per_client=experiment.gpus_per_client,
        out=experiment.folder,
    )


def _server_context(run_config: dict[str, Scalar]) -> Context:
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(run_config))


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
