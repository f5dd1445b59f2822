"""Layout of a class around an app: Adam, several epochs of shuffled batches, random brightness."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from flfw.recording import RecordMap, recorded


class BrightDigits(Dataset):
    """A client's images, with a random brightness each time that one is taken."""

    def __init__(self, partition_id, count=8):
        x, y = load_digits(return_X_y=True)
        at = slice(partition_id * count, (partition_id + 1) * count)
        self.x, self.y = torch.tensor(x[at] / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y[at])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + 0.02 * torch.randn(1, 1, 1), self.y[i]


class LocalTrainer:
    """Trainer of a client."""

    def __init__(self, partition_id):
        self.data = BrightDigits(partition_id)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def fit(self, epochs=3, lr=1e-3):
        """Train the network."""
        optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)
        for _ in range(epochs):
            for x, y in DataLoader(self.data, batch_size=4, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.net(x), y).backward()
                optimizer.step()


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train the received network."""
    trainer = LocalTrainer(context.node_config["partition-id"])
    trainer.net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainer.fit()
    metrics = MetricRecord({"num-examples": 8, "partition-id": context.node_config["partition-id"]})
    return Message(RecordDict({"arrays": ArrayRecord(trainer.net.state_dict()), "metrics": metrics}), reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    FedAdam(fraction_evaluate=0.0).start(grid, ArrayRecord(LocalTrainer(0).net.state_dict()), num_rounds=1)
