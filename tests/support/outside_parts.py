"""A data set, a split and a table of a user's own, named as package.module:name."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flfw.data import DatasetArrays
from flfw.data.files.columns import Column, TableSchema
from flfw.data.files.dataset import Dataset
from flfw.data.splits.partition import SplitScheme
from flfw.data.splits.split_indices import SplitIndices
from flfw.experiment import Experiment
from flfw.papers.preset import Preset, ResultMetric, Scale
from flfw.papers.published import Cell, OutsideTable, Table
from flfw.rng import numpy_generator
from tests.support.tables import ROWS

CARD_NAME = "tests.support.outside_parts:STRIPES"
WITHOUT_CONSTANTS = "tests.support.outside_parts:PLAIN"
WITH_PLANS = {"tests.support.outside_parts:NUMBERED": True, "tests.support.outside_parts:OF_ITS_ROWS": False}
SPLIT_NAME = "tests.support.outside_parts:Turns"
TABLE_NAME = "tests.support.outside_parts:STRIPED"


def _stripes(root: Path, side: int | None) -> DatasetArrays:
    """Images of one bright row, whose place is the class; noise beside it."""
    rng = numpy_generator(0, "stripes")
    y = rng.permutation(np.arange(120) % 4)
    x = rng.integers(0, 60, (120, 1, 8, 8), dtype=np.uint8)
    x[np.arange(120), 0, 2 * y] += 180
    return DatasetArrays(x[:80], y[:80].astype(np.int64), x[80:], y[80:].astype(np.int64))


STRIPES = replace(ROWS, shape=(1, 8, 8), classes=4, read=_stripes, net="linear", mean=(0.2,), std=(0.3,))

NUMBERS = TableSchema(
    (Column("a", "numeric", 0, 4), Column("b", "numeric", 0, 2)), "c", "classification", ("no", "yes")
)


def _numbers(root: Path, side: int | None) -> DatasetArrays:
    """Rows of two numbers in [0, 1], and whether the first is the larger one."""
    x = numpy_generator(0, "numbers").random((120, 2), dtype=np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    return DatasetArrays(x[:80], y[:80], x[80:], y[80:])


NUMBERED = replace(
    STRIPES,
    shape=(2,),
    classes=2,
    read=_numbers,
    mean=(0.0, 0.0),
    std=(1.0, 1.0),
    columns=replace(NUMBERS, public=True),
)
OF_ITS_ROWS = replace(NUMBERED, columns=NUMBERS)  # by a plan that may be made of these very rows

PLAIN = replace(STRIPES, mean=(), std=())  # mean and deviation are those of the training examples


@dataclass(frozen=True)
class Turns(SplitScheme):
    """Examples in turns: client k has every n-th one, from its own start."""

    skip: int = 0  # first examples that nobody has

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Cut both parts in turns."""
        train, test = (np.arange(first, len(y)) for first, y in ((self.skip, dataset.train_y), (0, dataset.test_y)))
        return SplitIndices([train[k::clients] for k in range(clients)], [test[k::clients] for k in range(clients)])


def _measured(cell: Cell, scale: Scale) -> Preset:
    run = Experiment(
        method=str(cell.keys["method"]),
        dataset=CARD_NAME,
        split=SPLIT_NAME,
        clients=2,
        rounds=2,
        local_epochs=1,
        batch_size=10,
        attack=("none",),
    )
    return Preset(((run,),), ResultMetric("final.acc_global", "accuracy of the model as received"))


STRIPED = OutsideTable(
    Table(
        "stripes.1",
        "Accuracy on stripes",
        "Nobody et al., not published.",
        ("method",),
        (),
        tuple(Cell("stripes.1", {"method": m}, (m,), (), "accuracy", "%", 50.0) for m in ("fedavg", "local_only")),
    ),
    _measured,
)
