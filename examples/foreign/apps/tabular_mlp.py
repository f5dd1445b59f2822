"""Layout of a tabular app: scaled columns, an MLP, and batches in a fixed order."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_wine
from sklearn.preprocessing import MinMaxScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flfw.recording import RecordMap, recorded


class IncomeClassifier(nn.Module):
    """Three layers for rows of 13 numbers."""

    def __init__(self, input_dim=13):
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(input_dim, 32), nn.Linear(32, 16)
        self.output = nn.Linear(16, 3)

    def forward(self, x):
        """Return class scores."""
        return self.output(torch.relu(self.layer2(torch.relu(self.layer1(x)))))


def load_rows(partition_id, count=6):
    """Load a client's rows, scaled to [0, 1]."""
    x, y = load_wine(return_X_y=True)
    x = torch.tensor(MinMaxScaler().fit_transform(x), dtype=torch.float32)
    at = slice(partition_id, partition_id + 25 * count, 25)
    return x[at], torch.tensor(y)[at]


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train for two epochs."""
    net, partition = IncomeClassifier(), context.node_config["partition-id"]
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-3)
    for _ in range(2):
        for x, y in DataLoader(TensorDataset(*load_rows(partition)), batch_size=3, shuffle=False):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": 6, "partition-id": partition})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(IncomeClassifier().state_dict()), num_rounds=1)
