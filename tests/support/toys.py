"""A data set small enough to count by hand, for the tests of splits."""

import numpy as np

from flfw.data import Dataset


def toy(classes=10, train=20, test=10, victims=0, test_start=0):
    """``train`` and ``test`` examples of each class: index i has label ``i % classes``; no two inputs are equal."""
    train_y, test_y = np.arange(classes * train) % classes, np.arange(classes * test) % classes
    return Dataset(
        name="toy",
        train_x=1 + np.arange(len(train_y), dtype=np.float32)[:, None],
        train_y=train_y,
        test_x=-1 - np.arange(len(test_y), dtype=np.float32)[:, None],
        test_y=test_y,
        classes=classes,
        mean=(0.0,),
        std=(1.0,),
        source="made up",
        md5_ok=None,
        victims=range(victims),
        test_start=test_start,
    )
