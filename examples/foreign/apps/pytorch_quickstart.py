"""Layout of the PyTorch quickstart: a ClientApp and a ServerApp of messages, SGD with momentum on a DataLoader."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flfw.recording import RecordMap, recorded


class QuickstartNet(nn.Module):
    """Two layers for the digits."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Return class scores."""
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def load_data(partition_id, images=2):
    """Load a client's images in [-1, 1]."""
    x, y = load_digits(return_X_y=True)
    at = slice(partition_id * images, (partition_id + 1) * images)
    x = torch.tensor(x[at] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return DataLoader(TensorDataset((x - 0.5) / 0.5, torch.tensor(y[at])), batch_size=32, shuffle=True)


def train_fn(net, loader, epochs, lr):
    """Train in place."""
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(net(images), labels).backward()
            optimizer.step()


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train the received model."""
    model = QuickstartNet()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader = load_data(context.node_config["partition-id"])
    train_fn(model, loader, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = {"num-examples": len(loader.dataset), "partition-id": context.node_config["partition-id"]}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    strategy = FedAvg(fraction_evaluate=0.0)
    arrays = ArrayRecord(QuickstartNet().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, train_config=ConfigRecord({"lr": 0.05}), num_rounds=1)
