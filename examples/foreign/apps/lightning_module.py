"""Layout of PyTorch Lightning: the network inside a module with its step and optimiser, and a trainer around it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import nn

from flfw.recording import RecordMap, recorded


class LitDigits(nn.Module):
    """Contents of a LightningModule; its tensors' names begin with "model."."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        """Return the optimiser."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


class DigitTrainer:
    """The part of a Trainer that is needed."""

    def __init__(self, max_epochs):
        self.max_epochs = max_epochs

    def fit(self, module, batches):
        """Train a module."""
        optimizer = module.configure_optimizers()
        for _ in range(self.max_epochs):
            for i, batch in enumerate(batches):
                optimizer.zero_grad()
                module.training_step(batch, i).backward()
                optimizer.step()


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train the received module."""
    partition, (x, y) = context.node_config["partition-id"], load_digits(return_X_y=True)
    batch = torch.tensor(x[[partition]] / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y[[partition]])
    module = LitDigits()
    module.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    DigitTrainer(max_epochs=3).fit(module, [batch])
    metrics = MetricRecord({"num-examples": 1, "partition-id": partition})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=msg)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(LitDigits().state_dict()), num_rounds=1)


names = RecordMap(client="partition-id", prefix="model.")
server_app = recorded(server_app, lambda context: context.run_config["recordings"], names)
