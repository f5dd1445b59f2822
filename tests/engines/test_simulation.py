"""Flower apps that know nothing of this project, on its actors: with messages, and with a NumPyClient."""

from collections.abc import Iterator

import numpy as np
import pytest
import ray
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context as LegacyContext
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flfw.engines.simulation import run_simulation
from flfw.errors import InputError

pytestmark = pytest.mark.early

CLIENTS, ROUNDS = 4, 3
START = np.zeros((2, 2), np.float64)
# Client p adds p + 1, or 2.5 on average, in each round: all numbers are exact, in any order of a sum.
END = START + 2.5 * ROUNDS


# --- messages -----------------------------------------------------------------------------------------------------

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    assert context.run_config["lr"] == 0.5 and context.node_config["num-partitions"] == CLIENTS
    step = float(context.node_config["partition-id"]) + 1  # type: ignore[arg-type]
    trained = [value + step for value in message.content.array_records["arrays"].to_numpy_ndarrays(keep_input=False)]
    rounds = int(context.state.metric_records.get("rounds", MetricRecord({"n": 0}))["n"]) + 1  # type: ignore[arg-type]
    context.state["rounds"] = MetricRecord({"n": rounds})
    metrics = MetricRecord({"num-examples": 10, "rounds": rounds})
    return Message(RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    (value,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    metrics = MetricRecord({"num-examples": 10, "largest": float(value.max())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def server(results: list) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(min_available_nodes=CLIENTS, min_train_nodes=CLIENTS, min_evaluate_nodes=CLIENTS)
        assert context.run_config["lr"] == 0.5
        results.append(strategy.start(grid=grid, initial_arrays=ArrayRecord([START]), num_rounds=ROUNDS))

    return app


# --- an older app -------------------------------------------------------------------------------------------------


class Adds(NumPyClient):
    """Client of Flower's first style."""

    def __init__(self, partition: int) -> None:
        self.step = partition + 1

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]
        return [value + self.step for value in parameters], 10, {}

    def evaluate(self, parameters, config):  # type: ignore[no-untyped-def]
        return float(parameters[0].max()), 10, {}


def client_fn(context: LegacyContext):  # type: ignore[no-untyped-def]
    return Adds(int(context.node_config["partition-id"])).to_client()


class Watched(OlderFedAvg):
    """Strategy of Flower's first style that keeps what it evaluates."""

    losses: list[float]

    def aggregate_evaluate(self, server_round, results, failures):  # type: ignore[no-untyped-def]
        assert not failures
        loss, metrics = super().aggregate_evaluate(server_round, results, failures)
        self.losses.append(loss)  # type: ignore[arg-type]
        return loss, metrics


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """A Ray that this process has started already, and that stays."""
    import os
    import sys

    from flfw.engines import ray_start

    ray_start.configure_ray("")
    path = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ray_start.start({"address": "local", "num_cpus": 2, "include_dashboard": False, "runtime_env": {"env_vars": path}})
    yield
    assert ray.is_initialized(), "it was this process's own"
    ray.shutdown()


@pytest.mark.nightly
def test_an_app_of_messages_runs_as_on_flower(one_ray: None) -> None:
    results: list = []
    resources = {"client_resources": {"num-cpus": 0.5}}
    run_simulation(server(results), client_app, CLIENTS, backend_config=resources, run_config={"lr": 0.5})
    (result,) = results
    assert np.array_equal(result.arrays.to_numpy_ndarrays()[0], END)
    assert [metrics["rounds"] for metrics in result.train_metrics_clientapp.values()] == [1, 2, 3], "state is kept"
    assert [metrics["largest"] for metrics in result.evaluate_metrics_clientapp.values()] == [2.5, 5.0, 7.5]


@pytest.mark.nightly
def test_an_app_of_the_older_style_runs_as_well(one_ray: None) -> None:
    parameters = ndarrays_to_parameters([START])
    everyone = {"min_available_clients": CLIENTS, "min_fit_clients": CLIENTS, "min_evaluate_clients": CLIENTS}
    strategy = Watched(initial_parameters=parameters, **everyone)
    strategy.losses = []

    def server_fn(context: LegacyContext) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    run_simulation(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), CLIENTS)
    assert strategy.losses == [2.5, 5.0, 7.5]


@pytest.mark.nightly
def test_a_client_that_does_not_fit_is_refused(one_ray: None) -> None:
    with pytest.raises(InputError, match=r"Expected room for one client in Ray, got num_cpus=99, num_gpus=0; lower"):
        run_simulation(ServerApp(), ClientApp(), 2, backend_config={"client_resources": {"num_cpus": 99}})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"num_supernodes": 0}, "Expected num_supernodes >= 1, got num_supernodes=0."),
        ({"backend_name": "spark"}, "Expected backend_name ray, got backend_name=spark."),
        (
            {"backend_config": {"actors": {}}},
            "Expected a backend_config of init_args, client_resources, actor, got backend_config=actors.",
        ),
        (
            {"backend_config": {"actor": {"tensorflow": 1}}},
            "Expected no enable_tf_gpu_growth; set TF_FORCE_GPU_ALLOW_GROWTH=true, got enable_tf_gpu_growth=True.",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(given: dict, line: str) -> None:
    with pytest.raises(InputError) as caught:
        run_simulation(ServerApp(), ClientApp(), **{"num_supernodes": 2, **given})
    assert str(caught.value) == line
