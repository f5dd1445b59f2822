"""App of Flower's Message API: federated averaging, as in Flower's quickstart for PyTorch."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from training import LR, ROUNDS, accuracy, images, network, train

client_app = ClientApp()


def received(message: Message, context: Context):
    """Return the network that was sent, and the client's images."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, images(context.node_config["partition-id"], context.node_config["num-partitions"])


@client_app.train()
def train_locally(message: Message, context: Context) -> Message:
    """Train for an epoch, in an order that the client and the round decide."""
    net, data = received(message, context)
    config = message.content["config"]
    train(net, data, 1000 * config["server-round"] + context.node_config["partition-id"], config["lr"])
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@client_app.evaluate()
def evaluate_locally(message: Message, context: Context) -> Message:
    """Evaluate on the client's own images."""
    net, data = received(message, context)
    metrics = MetricRecord({"accuracy": accuracy(net, data), "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def server_app(results: list) -> ServerApp:
    """Build a ServerApp that appends its last model to the results."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Train by federated averaging."""
        config = ConfigRecord({"lr": LR})
        start = ArrayRecord(network().state_dict())
        done = FedAvg().start(grid, start, ROUNDS, train_config=config)
        results.append(done.arrays.to_numpy_ndarrays())

    return app
