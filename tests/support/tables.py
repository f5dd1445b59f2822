"""A small table of one number and two categories, and what a client with such rows sends."""

from pathlib import Path

import torch
from torch import Tensor

from flfw.attacks.tableak import Categories
from flfw.data import DatasetArrays, DatasetCard
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets import tensors
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Examples, Knowledge, Observation
from flfw.rng import torch_generator
from tests.support.attackable import fresh_net, gradient, seen

TABLE = Categories(groups=((1, 2, 3), (4, 5)), open=(False, True), numbers=(0,))


def rows_of(count: int, seed: int = 0) -> Tensor:
    """Draw rows (count, 6); the second category has no value in a third of them."""
    rng = torch_generator(seed, "table")
    numbers = torch.rand(count, 1, generator=rng)
    first = torch.eye(3)[torch.randint(3, (count,), generator=rng)]
    second = torch.cat([torch.eye(2), torch.zeros(1, 2)])[torch.randint(3, (count,), generator=rng)]
    return torch.cat([numbers, first, second], 1)


def attackable_rows(batch: int, seed: int = 0) -> tuple[list[Observation], list[Knowledge], Tensor]:
    """Observe what an undefended client sends of a batch; return the knowledge about it and the rows as well."""
    x, y = rows_of(batch, seed), torch.arange(batch)
    inputs = InputSpec.from_constants((6,), [0.5] * 6, [0.5] * 6)
    net = fresh_net("mlp", (6,))
    victim = PlainVictim(fresh_net("mlp", (6,), seed=9), tensors(net), ("*",), inputs)
    public = Examples(rows_of(200, seed=1), torch.zeros(200, dtype=torch.int64))
    observation = seen(gradient(net, inputs, x, y), tensors(net))
    return [observation], [Knowledge(victim, batch, y, public=public)], x


ROWS_NAME = "tests.support.tables:ROWS"


def _read(root: Path, side: int | None) -> DatasetArrays:
    """Rows whose class is the first category's value."""
    x = rows_of(900).numpy()
    y = x[:, 1:4].argmax(1)
    return DatasetArrays(x[:600], y[:600], x[600:], y[600:])


ROWS = DatasetCard(
    shape=(6,),
    classes=3,
    files={"embedded.py": None},
    read=_read,
    source="drawn in the tests",
    fetch="nothing to get",
    package="flfw.data.readers",
    net="mlp",
    split="iid",
    mean=(0.5,) * 6,
    std=(0.5,) * 6,
)
