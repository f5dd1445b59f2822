"""Layout of Flower before its messages: a NumPyClient, lists of arrays, and a server_fn."""

from collections import OrderedDict

import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

from flfw.recording import RecordMap, recorded


def get_model():
    """Build the network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Sigmoid(), nn.Linear(24, 10))


def get_weights(net):
    """List the arrays of a network."""
    return [value.cpu().numpy() for _, value in net.state_dict().items()]


def set_weights(net, parameters):
    """Put a list of arrays into a network."""
    pairs = zip(net.state_dict().keys(), parameters, strict=True)
    net.load_state_dict(OrderedDict({name: torch.tensor(value) for name, value in pairs}), strict=True)


class FlowerClient(NumPyClient):
    """Client of one partition."""

    def __init__(self, partition_id):
        images, labels = load_digits(return_X_y=True)
        self.partition_id, self.net = partition_id, get_model()
        self.x = torch.tensor(images[[partition_id]] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.y = torch.tensor(labels[[partition_id]])

    def fit(self, parameters, config):
        """Train one step."""
        set_weights(self.net, parameters)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        nn.functional.cross_entropy(self.net(self.x), self.y).backward()
        optimizer.step()
        return get_weights(self.net), len(self.x), {"partition-id": self.partition_id}


def client_fn(context):
    """Return the client of a node."""
    return FlowerClient(context.node_config["partition-id"]).to_client()


def server_fn(context):
    """Return strategy and configuration."""
    parameters = ndarrays_to_parameters(get_weights(get_model()))
    strategy = FedAvg(fraction_evaluate=0.0, min_available_clients=2, initial_parameters=parameters)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))


client_app = ClientApp(client_fn=client_fn)
server_app = ServerApp(server_fn=server_fn)
server_app = recorded(server_app, lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))
