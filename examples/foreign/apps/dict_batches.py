"""Layout of Hugging Face: batches are dicts, the model returns loss and logits, records and actions have own names."""

from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits
from torch import nn

from flfw.recording import RecordMap, recorded


@dataclass
class ClassifierOutput:
    """Result of a model."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class DigitsForClassification(nn.Module):
    """A model that takes keyword arguments."""

    def __init__(self):
        super().__init__()
        self.encoder, self.classifier = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, pixel_values, labels=None):
        """Return logits, and the loss if there are labels."""
        logits = self.classifier(torch.nn.functional.gelu(self.encoder(pixel_values.flatten(1))))
        return ClassifierOutput(logits, None if labels is None else nn.functional.cross_entropy(logits, labels))


class DigitLogits(DigitsForClassification):
    """The same model for an audit, which needs the scores alone."""

    def forward(self, x):
        """Return class scores."""
        return super().forward(x).logits


client_app = ClientApp()


@client_app.train("finetune")
def finetune(msg: Message, context: Context):
    """Train the received model further."""
    partition, (x, y) = context.node_config["partition-id"], load_digits(return_X_y=True)
    pixels = torch.tensor(x[[partition]] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    batch = {"pixel_values": (pixels - 0.5) / 0.5, "labels": torch.tensor(y[[partition]])}
    model = DigitsForClassification()
    model.load_state_dict(msg.content["server_model"].to_torch_state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    model.train()
    model(**batch).loss.backward()
    optimizer.step()
    content = {"client_model": ArrayRecord(model.state_dict()), "state": ArrayRecord({"seen": torch.ones(1)})}
    return Message(RecordDict({**content, "metrics": MetricRecord({"partition-id": partition})}), reply_to=msg)


records = RecordMap("client_model", "server_model", types=("train.finetune",), client="partition-id")
server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], records)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask every node once, without a strategy."""
    model = RecordDict({"server_model": ArrayRecord(DigitsForClassification().state_dict())})
    nodes = grid.get_node_ids()
    list(grid.send_and_receive([Message(model, dst_node_id=n, message_type="train.finetune") for n in nodes]))
