"""Layout of an app that sends changes: clients answer with the weights after training minus before."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits
from torch import nn

from flfw.recording import RecordMap, recorded


def build():
    """Build the network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train a step, and send the change."""
    net, partition = build(), context.node_config["partition-id"]
    before = msg.content["arrays"].to_torch_state_dict()
    net.load_state_dict(before)
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x[[partition]] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    nn.functional.cross_entropy(net(images), torch.tensor(y[[partition]])).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    delta = {name: value - before[name] for name, value in net.state_dict().items()}
    metrics = MetricRecord({"num-examples": 1, "partition-id": partition})
    return Message(RecordDict({"delta": ArrayRecord(delta), "metrics": metrics}), reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Add the mean change to the model, without a strategy."""
    state, nodes = build().state_dict(), list(grid.get_node_ids())
    for server_round in range(1, 3):
        content = RecordDict({"arrays": ArrayRecord(state)})
        group = str(server_round)
        messages = [Message(content, dst_node_id=n, message_type="train", group_id=group) for n in nodes]
        deltas = [reply.content["delta"].to_torch_state_dict() for reply in grid.send_and_receive(messages)]
        state = {name: value + sum(delta[name] for delta in deltas) / len(deltas) for name, value in state.items()}
