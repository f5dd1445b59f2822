"""Apps of Flower that know nothing of this project, recorded in this process, and audits of them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.attacks.analytic import Analytic
from flfw.audit.measures.public import PublicData
from flfw.messages.inprocess import InProcessGrid
from flfw.recorded_apps import audit
from flfw.recording.grid import RecordingGrid
from flfw.recording.observation import Observation, Truth, Vantage
from flfw.rng import initialising, numpy_generator, torch_generator
from tests.support.csv_files import read_csv

SPACE = ((1, 6, 6), (0.5,), (0.25,))
LR = 0.5

Local = Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor] | None]
"""Trains a network on raw inputs and labels; returns the tensors to send, or None for the whole state."""


class Convolutional(nn.Module):
    """With batch normalisation, and names of its own."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(torch.tanh(self.norm(self.stem(x)))).flatten(1))


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))


def fresh(build: Callable[[], nn.Module] = Convolutional, seed: int = 0) -> nn.Module:
    with initialising(seed, "foreign"):
        return build()


def examples(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch_generator(0, "foreign examples", seed)
    return torch.rand(count, 1, 6, 6, generator=rng), torch.randint(3, (count,), generator=rng)


def normalised(x: Tensor) -> Tensor:
    return (x - 0.5) / 0.25


def step(net: nn.Module, x: Tensor, y: Tensor, steps: int = 1, mode: str = "train") -> None:
    net.train(mode == "train")
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], LR)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(net(normalised(x)), y).backward()
        optimiser.step()


def as_seen(received: dict[str, Tensor], sent: dict[str, Tensor]) -> Observation:
    """Observe an update at the server."""
    return Observation(Vantage.SERVER, "update", "target", 1, 7, 0, sent, received)


def app_of(
    build: Callable[[], nn.Module], count: int, local: Local, numbered: bool = False, mods: Sequence[Any] = ()
) -> ClientApp:
    """Trains on its partition's examples, and sends what ``local`` returns."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        net = build()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        with initialising(partition, "the app's own"):  # dropout draws from the global generator
            sent = local(net, *examples(count, seed=partition))
        sent = dict(net.state_dict()) if sent is None else sent
        arrays = ArrayRecord([value.numpy() for value in sent.values()]) if numbered else ArrayRecord(sent)  # type: ignore[arg-type]
        metrics = MetricRecord({"num-examples": count, "partition-id": partition})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def client_app(build: Callable[[], nn.Module], count: int, steps: int = 1, noise: float = 0.0) -> ClientApp:
    """Takes steps of SGD and sends the whole state, as Flower's own examples do; with noise, a new one each time."""

    def local(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        step(net, x, y, steps=steps)
        rng = torch_generator(0, "foreign noise", int(1e6 * float(x[0, 0, 0, 0])))
        return {
            name: value + noise * torch.randn(value.shape, generator=rng) if value.is_floating_point() else value
            for name, value in net.state_dict().items()
        }

    return app_of(build, count, local)


def recorded(
    folder: Path, app: ClientApp, build: Callable[[], nn.Module], rounds: int = 1, clients: int = 2, one: bool = False
) -> Path:
    """Record a run; with ``one``, of the training messages alone, without an average of the answers."""
    grid = RecordingGrid(InProcessGrid(app, clients, {}), folder)
    start = ArrayRecord(fresh(build).state_dict())  # type: ignore[arg-type]
    if not one:
        FedAvg().start(grid, start, num_rounds=rounds, train_config=ConfigRecord({"lr": LR}), timeout=60)
        return folder
    config = ConfigRecord({"server-round": 1})
    messages = [
        Message(RecordDict({"arrays": start, "config": config}), dst_node_id=node, message_type="train", group_id="1")
        for node in range(1, clients + 1)
    ]
    replies = list(grid.send_and_receive(messages, timeout=60))
    assert len(replies) == clients and not any(reply.has_error() for reply in replies)
    return folder


def truth_of(count: int) -> Callable[[int], Truth | None]:
    """Of node 1 and 2, which hold partition 0 and 1."""

    def truth(client: int) -> Truth:
        x, y = examples(count, seed=client - 1)
        return Truth(x, y, torch.arange(count))

    return truth


def ask(recordings: Path, out: Path, count: int = 1, **given: Any) -> dict[str, Any]:
    """Audit, and read the result."""
    rng = numpy_generator(0, "foreign public")
    public = PublicData.from_arrays(rng.random((40, 1, 6, 6), dtype="float32"), rng.integers(3, size=40))
    details: dict[str, Any] = {
        "net": dense,
        "attacks": {"analytic": Analytic()},
        "truth": truth_of(count),
        "public": public,
        "inputs": SPACE,
        "name": "toy",
        "dataset": "noise",
    }
    details |= {} if "training" in given else {"lr": LR}
    assert audit(recordings, out=out, **{**details, **given}) == out
    return json.loads((out / "result.json").read_text())


def rows(out: Path) -> list[dict[str, str]]:
    return read_csv(out / "audit.csv")
