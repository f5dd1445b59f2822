"""Layout of the XGBoost quickstart: trees travel as the bytes of a file. Here the file is written by hand."""

import json

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging
from sklearn.datasets import load_digits

from flfw.recording import RecordMap, recorded


def train_trees(x, y):
    """Train a stump, and write it as XGBoost's save_raw("json") does."""
    feature = int(np.argmax(np.abs((x - x.mean(0)).T @ (y - y.mean()))))
    tree = {"split_indices": [feature, 0, 0], "split_conditions": [float(x[:, feature].mean()), -0.1, 0.1]}
    booster = {"name": "gbtree", "model": {"trees": [tree], "tree_info": [0], "iteration_indptr": [0, 1]}}
    booster["model"]["gbtree_model_param"] = {"num_trees": "1", "num_parallel_tree": "1"}
    return json.dumps({"learner": {"gradient_booster": booster}, "version": [2, 1, 0]}).encode()


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train trees on this client's images."""
    partition, (x, y) = context.node_config["partition-id"], load_digits(return_X_y=True)
    model = np.frombuffer(train_trees(x[partition::2], y[partition::2]), dtype=np.uint8)
    metrics = MetricRecord({"num-examples": len(x[partition::2]), "partition-id": partition})
    return Message(RecordDict({"arrays": ArrayRecord([model]), "metrics": metrics}), reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; there is no model at the start."""
    strategy = FedXgbBagging(fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.array([], dtype=np.uint8)]), num_rounds=1)
