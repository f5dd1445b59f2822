"""Layout of a baseline: a legacy client with FedProx's proximal term, settings in a dict, models by name."""

import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedProx
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits
from torch import nn

from flfw.recording import RecordMap, recorded

CFG = {"mu": 1.0, "learning_rate": 0.05, "num_epochs": 4, "model": "mlp"}
MODELS = {"mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))}


class ProximalClient(NumPyClient):
    """Client whose loss keeps near to the received model."""

    def __init__(self, cid):
        x, y = load_digits(return_X_y=True)
        self.cid, self.net = cid, MODELS[CFG["model"]]()
        self.x = torch.tensor(x[[cid]] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.y = torch.tensor(y[[cid]])

    def fit(self, parameters, config):
        """Train with the proximal term that the server's strategy asks for."""
        weights = list(self.net.parameters())
        for parameter, value in zip(weights, parameters, strict=True):
            parameter.data = torch.tensor(value)
        received = [parameter.detach().clone() for parameter in weights]
        optimizer = torch.optim.SGD(weights, lr=CFG["learning_rate"])
        for _ in range(CFG["num_epochs"]):
            optimizer.zero_grad()
            proximal = sum((w - w0).norm(2) ** 2 for w, w0 in zip(weights, received, strict=True))
            loss = nn.functional.cross_entropy(self.net(self.x), self.y) + config["proximal_mu"] / 2 * proximal
            loss.backward()
            optimizer.step()
        return [parameter.detach().numpy() for parameter in weights], len(self.x), {"cid": self.cid}


def server_fn(context):
    """Return strategy and configuration."""
    start = ndarrays_to_parameters([p.detach().numpy() for p in MODELS[CFG["model"]]().parameters()])
    strategy = FedProx(proximal_mu=CFG["mu"], fraction_evaluate=0.0, initial_parameters=start)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))


client_app = ClientApp(client_fn=lambda context: ProximalClient(context.node_config["partition-id"]).to_client())
server_app = ServerApp(server_fn=server_fn)
server_app = recorded(server_app, lambda context: context.run_config["recordings"], RecordMap(client="cid"))
