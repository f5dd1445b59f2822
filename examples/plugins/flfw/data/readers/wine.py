"""Wine: 178 rows of 13 features, shipped with scikit-learn."""

from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.rng import numpy_generator

_FILE = "datasets/data/wine_data.csv"
_TRAIN = 133


def wine(root: Path, side: int | None) -> DatasetArrays:
    """Read the rows in a shuffled order with a fixed seed; features are scaled to [0, 1] by the training part."""
    table = np.loadtxt(root / _FILE, delimiter=",", skiprows=1)
    table = table[numpy_generator(0, "wine cut").permutation(len(table))]
    x, y = table[:, :13], table[:, 13].astype(np.int64)
    low, high = x[:_TRAIN].min(axis=0), x[:_TRAIN].max(axis=0)
    x = np.clip((x - low) / (high - low), 0, 1).astype(np.float32)
    return DatasetArrays(x[:_TRAIN], y[:_TRAIN], x[_TRAIN:], y[_TRAIN:])


WINE = DatasetCard(
    shape=(13,),
    classes=3,
    files={_FILE: None},
    read=wine,
    source="Wine recognition data (UCI), as shipped with scikit-learn",
    licence="CC BY 4.0, as the UCI repository states",
    citation="Aeberhard and Forina, Wine, UCI Machine Learning Repository, 1992",
    fetch="pip install scikit-learn",
    package="sklearn",
    net="mlp",
    split="iid",
)
