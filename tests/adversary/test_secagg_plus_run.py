"""Flower's own SecAgg+, masks and all, on this project's actors: its server recovers what the quantiser says."""

import numpy as np
import pytest
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context as LegacyContext
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext as ServerContext
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from flfw.adversary.secure_aggregation import Quantiser
from flfw.engines.simulation import run_simulation
from flfw.rng import numpy_generator

pytestmark = [pytest.mark.nightly, pytest.mark.early]

CLIENTS = 5
SHAPES = ((3, 4), (5,))


def trained(partition: int) -> list[np.ndarray]:
    rng = numpy_generator(0, "trained", partition)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


def weight(partition: int) -> int:
    return 10 * (partition + 1)


class Trains(NumPyClient):
    """Client that sends numbers of its own, unless it drops out."""

    def __init__(self, partition: int, gone: int) -> None:
        self.partition, self.gone = partition, gone

    def fit(self, parameters, config):  # type: ignore[no-untyped-def]
        if self.partition == self.gone:
            raise RuntimeError("dropped out while it trained")
        return trained(self.partition), weight(self.partition), {}


class Watched(FedAvg):
    """Strategy that keeps the mean that it gets from the workflow."""

    def __init__(self, means: list[list[np.ndarray]], **more: int | float) -> None:
        start = ndarrays_to_parameters([np.zeros(shape, np.float32) for shape in SHAPES])
        super().__init__(initial_parameters=start, fraction_evaluate=0.0, **more)  # type: ignore[arg-type]
        self.means = means

    def aggregate_fit(self, server_round, results, failures):  # type: ignore[no-untyped-def]
        self.means += [parameters_to_ndarrays(result.parameters) for _, result in results]
        return super().aggregate_fit(server_round, results, failures)


def recovered(gone: int) -> list[list[np.ndarray]]:
    """Run one round of SecAgg+; return the mean as the server attributes it to each client that stayed."""
    means: list[list[np.ndarray]] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        older = ServerContext(
            context=context,
            config=ServerConfig(num_rounds=1),
            strategy=Watched(means, min_fit_clients=CLIENTS, min_available_clients=CLIENTS),
        )
        secure = SecAggPlusWorkflow(num_shares=5, reconstruction_threshold=3, timeout=60)
        DefaultWorkflow(fit_workflow=secure)(grid, older)

    def client_fn(context: LegacyContext):  # type: ignore[no-untyped-def]
        return Trains(int(context.node_config["partition-id"]), gone).to_client()

    run_simulation(server, ClientApp(client_fn=client_fn, mods=[secaggplus_mod]), CLIENTS)
    return means


@pytest.mark.parametrize("gone", [-1, 3])
def test_the_server_recovers_the_mean_of_those_that_stayed_within_the_rounding(gone: int) -> None:
    stayed = [partition for partition in range(CLIENTS) if partition != gone]
    means = recovered(gone)
    assert len(means) == len(stayed)  # Flower hands its strategy the mean in the place of each client's own message

    rng, quantiser = np.random.RandomState(0), Quantiser()
    sent = [quantiser.quantise(trained(partition), weight(partition), rng) for partition in stayed]
    weights = [weight(partition) for partition in stayed]
    bound = quantiser.step * len(sent) * quantiser.quantization_range / sum(client.ratio for client in sent)
    ours = quantiser.recover(sent)
    for index in range(len(SHAPES)):
        exact = np.average([trained(partition)[index] for partition in stayed], axis=0, weights=weights)
        for mean in means:
            assert 0 < np.abs(mean[index] - exact).max() < bound
            assert np.abs(mean[index] - ours[index]).max() < 2 * bound  # each rounds at random
