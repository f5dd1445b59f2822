"""Layout of FedSGD: clients answer with a gradient, as a list of arrays, and the server takes the step."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits
from torch import nn

from flfw.recording import RecordMap, recorded


def make_net():
    """Build the network."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(256, 10))


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Compute the gradient of the mean loss."""
    net, partition = make_net(), context.node_config["partition-id"]
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x[[partition]] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    loss = nn.functional.cross_entropy(net((images - 0.5) / 0.5), torch.tensor(y[[partition]]))
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    metrics = MetricRecord({"num-examples": 1, "partition-id": partition})
    content = {"gradients": ArrayRecord([gradient.numpy() for gradient in gradients]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Take two steps of gradient descent."""
    net, nodes = make_net(), list(grid.get_node_ids())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for server_round in range(1, 3):
        content, group = RecordDict({"arrays": ArrayRecord(net.state_dict())}), str(server_round)
        messages = [Message(content, dst_node_id=n, message_type="train", group_id=group) for n in nodes]
        replies = [reply.content["gradients"].to_numpy_ndarrays() for reply in grid.send_and_receive(messages)]
        for parameter, *parts in zip(net.parameters(), *replies, strict=True):
            parameter.grad = torch.tensor(sum(parts) / len(parts))
        optimizer.step()
