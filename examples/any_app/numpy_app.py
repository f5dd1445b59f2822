"""App of Flower's first style: NumPyClient, ``client_fn`` and ``server_fn``."""

import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from training import LR, ROUNDS, accuracy, images, network, train


class DigitsClient(NumPyClient):
    """Client with its images."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.partition = partition
        self.net, self.data = network(), images(partition, partitions)

    def set_parameters(self, parameters) -> None:
        """Take the weights over."""
        with torch.no_grad():
            for weights, sent in zip(self.net.parameters(), parameters, strict=True):
                weights.copy_(torch.from_numpy(sent))

    def fit(self, parameters, config):
        """Train for an epoch."""
        self.set_parameters(parameters)
        train(self.net, self.data, 1000 * config["round"] + self.partition, LR)
        return [weights.detach().numpy() for weights in self.net.parameters()], len(self.data[1]), {}

    def evaluate(self, parameters, config):
        """Evaluate on the client's own images."""
        self.set_parameters(parameters)
        share = accuracy(self.net, self.data)
        return 1 - share, len(self.data[1]), {"accuracy": share}


def client_fn(context: Context):
    """Build the client of a partition."""
    place = context.node_config
    return DigitsClient(place["partition-id"], place["num-partitions"]).to_client()


client_app = ClientApp(client_fn=client_fn)


class LastKept(FedAvg):
    """Federated averaging that keeps its last model in a list."""

    results: list

    def aggregate_fit(self, server_round, results, failures):
        """Average, and keep the average."""
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        self.results[:] = [parameters_to_ndarrays(parameters)]
        return parameters, metrics


def server_app(results: list) -> ServerApp:
    """Build a ServerApp that puts its last model into the results."""

    def server_fn(context: Context) -> ServerAppComponents:
        start = ndarrays_to_parameters([weights.detach().numpy() for weights in network().parameters()])
        strategy = LastKept(initial_parameters=start, on_fit_config_fn=lambda server_round: {"round": server_round})
        strategy.results = results
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    return ServerApp(server_fn=server_fn)
