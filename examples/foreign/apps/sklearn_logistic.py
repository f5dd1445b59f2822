"""Layout of the scikit-learn quickstart: logistic regression whose coefficients are averaged; no network."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from flfw.recording import RecordMap, recorded


def create_model():
    """Build a model with coefficients of zero."""
    model = LogisticRegression(max_iter=1, warm_start=True)
    x, y = load_digits(return_X_y=True)
    model.classes_, model.coef_, model.intercept_ = sorted(set(y)), x[:10] * 0.0, x[:10, 0] * 0.0
    return model


def get_model_params(model):
    """List the arrays of a model."""
    return [model.coef_, model.intercept_]


client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context):
    """Train the received coefficients for an iteration."""
    model, partition = create_model(), context.node_config["partition-id"]
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    x, y = load_digits(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x[partition::20] / 16, y[partition::20])
    metrics = MetricRecord({"num-examples": len(x[partition::20]), "partition-id": partition})
    return Message(RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": metrics}), reply_to=msg)


server_app = recorded(ServerApp(), lambda context: context.run_config["recordings"], RecordMap(client="partition-id"))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(get_model_params(create_model())), num_rounds=1)
