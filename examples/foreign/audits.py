"""Audits of the apps beside this file: python audits.py [APP ...].

Each app is run in this process on two clients, which is quicker than Flower's simulation; its recordings are the same.
"""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from apps import (
    dict_batches,
    fedprox_baseline,
    lightning_module,
    numpy_client,
    pytorch_quickstart,
    sends_deltas,
    sends_gradients,
    sklearn_logistic,
    tabular_mlp,
)
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits
from torch import nn

from flfw.attacks.analytic import Analytic
from flfw.attacks.ig import IG, IGSettings
from flfw.audit.measures.public import PublicData
from flfw.errors import InputError
from flfw.messages.inprocess import InProcessGrid
from flfw.recorded_apps import TrainingDescription, audit
from flfw.recording.observation import Truth

PLAIN, HALVES = ((1, 8, 8), (0.0,), (1.0,)), ((1, 8, 8), (0.5,), (0.5,))  # x and (x - 0.5) / 0.5
ROWS = ((13,), (0.0,) * 13, (1.0,) * 13)


@dataclass(frozen=True)
class ForeignExample:
    """An app, and all that an audit has to be told about it.

    Attributes:
        net: builds the network, with class scores as its result.
        training: the clients' training, and the tensors that they send.
        inputs: shape, mean and deviation of the inputs.
        images: number of images of a client.
        config: the run configuration.
    """

    net: Callable[[], nn.Module]
    training: TrainingDescription
    inputs: tuple = PLAIN
    images: int = 1
    config: dict = field(default_factory=dict)


def brighter(x, rng):
    """Change the brightness of each image at random."""
    return x + 0.02 * torch.randn(len(x), 1, 1, 1, generator=rng)


def perceptron(hidden, activation):
    """Return a function that builds a network of two layers."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), activation(), nn.Linear(hidden, 10))


EXAMPLES = {
    "pytorch_quickstart": ForeignExample(
        pytorch_quickstart.QuickstartNet,
        TrainingDescription(0.05, momentum=0.9, batch_size=32, epochs=1),
        HALVES,
        images=2,
        config={"local-epochs": 1},
    ),
    "numpy_client": ForeignExample(numpy_client.get_model, TrainingDescription(0.1)),
    "lightning_module": ForeignExample(
        lambda: lightning_module.LitDigits().model, TrainingDescription(0.01, "adam", epochs=3)
    ),
    "dict_batches": ForeignExample(
        dict_batches.DigitLogits, TrainingDescription(1e-2, "adamw", weight_decay=0.01), HALVES
    ),
    "sklearn_logistic": ForeignExample(sklearn_logistic.create_model, TrainingDescription()),
    "xgboost_bytes": ForeignExample(perceptron(16, nn.ReLU), TrainingDescription()),
    "tabular_mlp": ForeignExample(
        tabular_mlp.IncomeClassifier,
        TrainingDescription(0.1, weight_decay=1e-3, batch_size=3, epochs=2, shuffled=False),
        ROWS,
        images=6,
    ),
    "sends_deltas": ForeignExample(sends_deltas.build, TrainingDescription(0.1, sends="delta")),
    "sends_gradients": ForeignExample(sends_gradients.make_net, TrainingDescription(sends="gradient"), HALVES),
    "adam_epochs": ForeignExample(
        perceptron(32, nn.ReLU), TrainingDescription(1e-3, "adam", batch_size=4, epochs=3, augment=brighter), images=8
    ),
    "fedprox_baseline": ForeignExample(
        fedprox_baseline.MODELS["mlp"], TrainingDescription(0.05, proximal=1.0, epochs=4)
    ),
}


def digits(partition, count):
    """Return a client's images as the apps choose them."""
    x, y = load_digits(return_X_y=True)
    at = torch.arange(partition * count, (partition + 1) * count)
    return Truth(torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8)[at] / 16, torch.tensor(y)[at], at)


def rows(partition, count):
    """Return a client's rows."""
    x, y = tabular_mlp.load_rows(partition, count)
    return Truth(x, y, torch.arange(partition, partition + 25 * count, 25))


def run(name, folder, clients=2):
    """Run an app, which records itself; return the folder of the recordings."""
    app, config = importlib.import_module(f"apps.{name}"), {**EXAMPLES[name].config, "recordings": str(folder)}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    app.server_app(InProcessGrid(app.client_app, clients, config), context)
    return folder


def examine(name, recordings, out, iterations=300, **changed):
    """Audit an app's recordings; return the entries of its result."""
    example = EXAMPLES[name]
    if example.inputs is ROWS:
        x, y = tabular_mlp.load_rows(20, 6)
        public, truth, data = PublicData.from_arrays(x.numpy(), y.numpy()), rows, "wine"
    else:
        x, y = load_digits(return_X_y=True)
        images = (x[-200:] / 16).astype("float32").reshape(-1, 1, 8, 8)
        public, truth, data = PublicData.from_arrays(images, y[-200:]), digits, "digits"
    details = {"net": example.net, "training": example.training, "inputs": example.inputs, "name": name} | changed
    attacks = {"analytic": Analytic(), "ig": IG(IGSettings(iterations=iterations))}
    audit(
        recordings,
        attacks=attacks,
        truth=lambda client: truth(client, example.images),
        public=public,
        dataset=data,
        out=out,
        **details,
    )
    return json.loads((Path(out) / "result.json").read_text())["audit"]


def main(names):
    """Run and audit apps; print a line for each attack, or the reason of a refusal."""
    for name in names or EXAMPLES:
        folder = Path(tempfile.mkdtemp(prefix="foreign-"))
        try:
            for entry in examine(name, run(name, folder / "recordings"), folder / "audit"):
                print(f"{name}, {entry['attack']}, round {entry['round']}: {entry['verdict']}. {entry['reason']}")
            print("   ", *(check["words"] for check in entry["consistency"][:1]))
        except InputError as error:
            print(f"{name}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
