"""Quantity skew: nothing is lost, nothing is held twice, and sizes differ."""

import numpy as np

from flfw.data.splits.partition import split
from flfw.data.splits.quantity import Quantity
from tests.support.toys import toy


def test_all_examples_are_held_once_in_parts_of_different_sizes() -> None:
    parts = split(toy(), Quantity(alpha=5), clients=3, seed=0).train
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    assert len({len(part) for part in parts}) == 3
