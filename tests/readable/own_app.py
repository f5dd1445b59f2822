"""An app of somebody else: one linear layer, two clients with an image each, as on docs/recording.md."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

_RNG = np.random.default_rng(0)
images = torch.tensor(_RNG.random((50, 1, 8, 8)), dtype=torch.float32)  # raw, in [0, 1]
labels = torch.tensor(_RNG.integers(10, size=50))
app = ClientApp()


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@app.train()
def train(message: Message, context: Context) -> Message:
    net, those = build(), [context.node_id - 1]  # each client has one image
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    nn.functional.cross_entropy(net((images[those] - 0.5) / 0.5), labels[those]).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
