"""App whose clients keep their momentum in ``context.state`` from round to round, under a strategy of its own."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from message_app import evaluate_locally, received
from training import LR, ROUNDS, network, train

client_app = ClientApp()
client_app.evaluate()(evaluate_locally)


@client_app.train()
def train_with_momentum(message: Message, context: Context) -> Message:
    """Go on with the velocities of the client's last round."""
    net, data = received(message, context)
    velocity = [torch.zeros_like(weights) for weights in net.parameters()]
    if "velocity" in context.state:
        velocity = [torch.from_numpy(v.copy()) for v in context.state["velocity"].to_numpy_ndarrays()]
    config = message.content["config"]
    seed = 1000 * config["server-round"] + context.node_config["partition-id"]
    train(net, data, seed, config["lr"], velocity)
    context.state["velocity"] = ArrayRecord([v.numpy() for v in velocity])
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


class Decaying(FedAvg):
    """Federated averaging that halves the learning rate in each round."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):
        """Send half of the last learning rate."""
        config["lr"] = float(config["lr"]) / 2
        return super().configure_train(server_round, arrays, config, grid)


def server_app(results: list) -> ServerApp:
    """Build a ServerApp that appends its last model to the results."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Train with the strategy above."""
        config = ConfigRecord({"lr": LR})
        start = ArrayRecord(network().state_dict())
        done = Decaying().start(grid, start, ROUNDS, train_config=config)
        results.append(done.arrays.to_numpy_ndarrays())

    return app
