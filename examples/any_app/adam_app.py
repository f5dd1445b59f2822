"""App with FedAdam at the server, and a mod around the clients that clips what they change."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from message_app import evaluate_locally, train_locally
from training import LR, ROUNDS, network

NORM = 0.5


def clipped(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Scale the change of the weights down to a norm."""
    sent = message.content["arrays"].to_numpy_ndarrays()
    reply = call_next(message, context)
    trained = reply.content["arrays"]
    changes = [after - before for after, before in zip(trained.to_numpy_ndarrays(), sent, strict=True)]
    scale = np.float32(min(1.0, NORM / max(float(np.sqrt(sum((c.astype(float) ** 2).sum() for c in changes))), 1e-12)))
    kept = [before + scale * change for before, change in zip(sent, changes, strict=True)]
    names = ArrayRecord(kept)
    reply.content["arrays"] = ArrayRecord(dict(zip(trained, names.values(), strict=True)))
    return reply


client_app = ClientApp()
client_app.train(mods=[clipped])(train_locally)
client_app.evaluate()(evaluate_locally)


def server_app(results: list) -> ServerApp:
    """Build a ServerApp that appends its last model to the results."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Train with FedAdam."""
        config = ConfigRecord({"lr": LR})
        start = ArrayRecord(network().state_dict())
        done = FedAdam(eta=0.02).start(grid, start, ROUNDS, train_config=config)
        results.append(done.arrays.to_numpy_ndarrays())

    return app
