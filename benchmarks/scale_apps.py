"""Side of `benchmarks.scale`: ``python -m benchmarks.scale_apps SIDE NET CLIENTS ROUNDS OUT``.

SIDE is ``stock`` (Flower's FedAvg and a ClientApp, on Flower's simulation engine) or an engine of this project. In both
a client sends back what it received; to the ten numbers of ``classifier.bias`` it adds its own number. After each
round the server notes the processor's seconds of all processes below this one. They and the last aggregate go to OUT.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any, final

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.process_family import descendants
from flfw import nets
from flfw.client.federated_client import FederatedClient
from flfw.client.site import Site
from flfw.engines import ray_start
from flfw.experiment import Experiment
from flfw.messages.wire import pack, unpack
from flfw.nets.net import Net, Tensors
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import initialising
from flfw.runs import launch
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy

_SEED, _OWN = 0, "classifier.bias"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def dense(shape: tuple[int, ...], classes: int, numbers: int) -> Net:
    """Build one hidden layer, as wide as makes about so many numbers."""
    inputs = prod(shape)
    width = (numbers - classes) // (inputs + 1 + classes)
    return Net(nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU()), nn.Linear(width, classes))


def small(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network of 117 thousand numbers."""
    return dense(shape, classes, 117_000)


def large(shape: tuple[int, ...], classes: int) -> Net:
    """Build a network of 14.9 million numbers, as many as a hypernetwork of HyperFL has."""
    return dense(shape, classes, 14_900_000)


@final
class Marks:
    """Seconds of the processor after each round, of this process and all below it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def note(self) -> None:
        """Read them now."""
        self.seconds.append(sum(map(_processor_seconds, [os.getpid(), *descendants(os.getpid())])))


MARKS = Marks()


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


# --- this project's side ------------------------------------------------------------------------------------------


@final
class NoOp(FederatedClient):
    """Client that neither trains nor evaluates."""

    def train(self) -> dict[str, float]:
        """Do nothing."""
        return {"loss": 1.0}

    def accuracy(self, part: str = "test") -> float:
        """Return a number."""
        return 0.5

    def upload_tensors(self) -> Tensors:
        """Choose the received tensors, one of them with the client's own number added."""
        return {n: v + float(self.ctx.partition) if n == _OWN else v for n, v in super().upload_tensors().items()}


@final
class NoOpAvg(FederatedStrategy):
    """Average of all tensors that notes the processor's seconds."""

    client = "benchmarks.scale_apps:NoOp"
    downloads = ("*",)
    uploads = ("*",)
    reduces = "mean"

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average, and note."""
        result = weighted_mean(updates)
        MARKS.note()
        return result


def ours(name: str, net: str, clients: int, rounds: int, out: Path) -> Tensors:
    """Run this project's side on one of its engines; return the last aggregate."""
    run = out / "run"
    run.mkdir()
    experiment = _experiment(net, clients, rounds, engine=name, out=run)
    launch.run_on_engine(plan(experiment), Site(state=run / "state"))
    (last,) = (run / "checkpoint").glob(f"round-{rounds:05d}-*")
    return {key.removeprefix("model/"): value for key, value in load_file(last).items() if key.startswith("model/")}


def _experiment(net: str, clients: int, rounds: int, **more: Any) -> Experiment:
    return without_auto(
        Experiment(
            method="benchmarks.scale_apps:NoOpAvg",
            net=f"benchmarks.scale_apps:{net}",
            clients=clients,
            rounds=rounds,
            seed=_SEED,
            attack=("none",),
            split="sampled",
            set=("sampled.train=10",),
            **more,
        )
    )


# --- Flower's side ------------------------------------------------------------------------------------------------

stock_client = ClientApp()


@stock_client.train()
def echo(message: Message, context: Context) -> Message:
    """Send back the received arrays, with this client's number added to one of them."""
    arrays = message.content.array_records["arrays"]
    bias = unpack(ArrayRecord({_OWN: arrays[_OWN]}))[_OWN] + float(context.node_config["partition-id"])
    arrays[_OWN] = pack({_OWN: bias})[_OWN]
    metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class StockAvg(FedAvg):
    """Flower's FedAvg that notes the processor's seconds."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Average, and note."""
        result = super().aggregate_train(server_round, replies)
        MARKS.note()
        return result


def stock(net: str, clients: int, rounds: int, out: Path) -> Tensors:
    """Run Flower's side on Flower's engine; return the last aggregate."""
    ray_start.configure_ray("")
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    results: list[Any] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = StockAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        results.append(strategy.start(grid, pack(_first(net, clients)), num_rounds=rounds))

    path = os.pathsep.join(location for location in sys.path if location)
    cores = {"num_cpus": len(os.sched_getaffinity(0)), "include_dashboard": False}
    ray_start.start({"address": "local", **cores, "runtime_env": {"env_vars": {"PYTHONPATH": path}}})
    _run_simulation(
        num_supernodes=clients,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        client_app=stock_client,
        server_app=app,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )
    return unpack(results[0].arrays)


def _first(net: str, clients: int) -> Tensors:
    """Return the tensors with which this project's side begins."""
    experiment = _experiment(net, clients, 1, engine="inproc")
    with initialising(_SEED, "model"):
        model = nets.build(experiment.net, *plan(experiment).task.input_space)
    return {name: value.detach() for name, value in model.state_dict().items()}


def main(side: str, net: str, clients: int, rounds: int, out: Path) -> None:
    """Run one side, and write its marks and its last aggregate."""
    torch.set_num_threads(1)
    run: Callable[..., Tensors] = stock if side == "stock" else lambda *given: ours(side, *given)
    aggregate = run(net, clients, rounds, out)
    save_file(aggregate, out / "aggregate.safetensors")
    (out / "marks.json").write_text(json.dumps(MARKS.seconds))


if __name__ == "__main__":
    words = sys.argv[1:]
    from benchmarks import scale_apps  # the plug-ins are imported by this name, and its marks are theirs

    scale_apps.main(words[0], words[1], int(words[2]), int(words[3]), Path(words[4]))
