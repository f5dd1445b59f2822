"""Client: trains on its own images, or tests on the images that no client trains on."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import SmallNet, load_data
from quickstart.task import test as test_fn
from quickstart.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the received model on this client's images, and send it back."""
    model, config = SmallNet(), msg.content["config"]
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition_id = context.node_config["partition-id"]
    loader, _ = load_data(partition_id, context.run_config["images"], config["batch-size"])
    loss = train_fn(model, loader, config["local-epochs"], config["lr"])
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset), "partition-id": partition_id}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the received model."""
    model = SmallNet()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = load_data(context.node_config["partition-id"], context.run_config["images"], 1)
    loss, accuracy = test_fn(model, loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
