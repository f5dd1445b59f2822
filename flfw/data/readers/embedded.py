"""Data sets shipped with scikit-learn as small files; scikit-learn is not imported (95 MB and 3 s a process)."""

from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.rng import numpy_generator

_DIGITS_FILE = "datasets/data/digits.csv.gz"
_CANCER_FILE = "datasets/data/breast_cancer.csv"
_DIGITS_TRAIN = 1500
_CANCER_TRAIN = 426


def digits(root: Path, side: int | None) -> DatasetArrays:
    """Read 1,797 handwritten digits, (1, 8, 8): the first 1,500 rows train, the last 297 test.

    The file mixes the classes evenly (146-153 a class in the first part, 27-33 in the second), so a cut in file order
    is balanced. Its 17 grey levels 0..16 are scaled to 0..255.
    """
    table = np.loadtxt(root / _DIGITS_FILE, delimiter=",")
    x = np.rint(table[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    y = table[:, 64]
    return DatasetArrays(x[:_DIGITS_TRAIN], y[:_DIGITS_TRAIN], x[_DIGITS_TRAIN:], y[_DIGITS_TRAIN:])


def cancer(root: Path, side: int | None) -> DatasetArrays:
    """Read 569 tumours with 30 features, 0 malignant and 1 benign: 426 rows train, 143 test.

    The file is ordered in blocks, so the rows are shuffled first, with a fixed seed. Features are scaled to [0, 1] with
    the training part's minimum and maximum; test values outside are clipped.
    """
    table = np.loadtxt(root / _CANCER_FILE, delimiter=",", skiprows=1)
    table = table[numpy_generator(0, "cancer cut").permutation(len(table))]
    x, y = table[:, :30], table[:, 30]
    low, high = x[:_CANCER_TRAIN].min(axis=0), x[:_CANCER_TRAIN].max(axis=0)
    x = np.clip((x - low) / (high - low), 0, 1)
    return DatasetArrays(x[:_CANCER_TRAIN], y[:_CANCER_TRAIN], x[_CANCER_TRAIN:], y[_CANCER_TRAIN:])


DIGITS = DatasetCard(
    shape=(1, 8, 8),
    classes=10,
    files={_DIGITS_FILE: None},
    read=digits,
    source="Optical recognition of handwritten digits (UCI), test part, as shipped with scikit-learn",
    licence="CC BY 4.0, as the UCI repository states",
    citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998",
    fetch="pip install scikit-learn",
    package="sklearn",
    per_client={"dominant": (150, 45)},
)

CANCER = DatasetCard(
    shape=(30,),
    classes=2,
    files={_CANCER_FILE: None},
    read=cancer,
    source="Wisconsin diagnostic breast cancer (UCI), as shipped with scikit-learn",
    licence="CC BY 4.0, as the UCI repository states",
    citation="Wolberg et al., Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning Repository, 1993",
    fetch="pip install scikit-learn",
    package="sklearn",
    net="mlp",
    split="iid",
)
