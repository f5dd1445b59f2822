"""Split of data that have clients from the start: a client holds the examples that are its own.

Such data are generated on demand (`flfw.data.generated`): before a client is asked for, it costs nothing.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.files.population import PERSONS, STRIDE
from flfw.data.splits.lazy_parts import LazyParts
from flfw.data.splits.schemes import Natural
from flfw.data.splits.split_indices import SplitIndices, at_most
from flfw.errors import InputError, require


def parts(dataset: Dataset, scheme: Natural, clients: int, test: str) -> SplitIndices:
    """Return the parts of all clients; with ``test="shared"`` all have the test examples that are no client's.

    Raises:
        InputError: the data have no clients of their own, or more are asked for than there are.
    """
    without = f"another --split for {dataset.name}, whose examples are no client's"
    require(dataset.is_generated, without, split="natural")
    at_most(PERSONS, clients, f"{dataset.name} has no more")
    for name, size in (("train", scheme.train), ("test", scheme.test)):
        require(size <= STRIDE, f"natural.{name} <= {STRIDE}", **{name: size})
    train = LazyParts(clients, scheme.train, lambda one: one * STRIDE + np.arange(scheme.train), copies=1)
    own_tests = LazyParts(clients, scheme.test, lambda one: one * STRIDE + np.arange(scheme.test), copies=1)
    tests = LazyParts.same(clients, dataset.common_tests) if test == "shared" else own_tests
    return SplitIndices(train, tests, LazyParts.same(clients, np.zeros(0, np.int64)))


def refuse_others(dataset: Dataset, scheme: str) -> None:
    """Refuse to cut generated data, which are not all there, by another scheme.

    Raises:
        InputError: the data are generated.
    """
    if dataset.is_generated:
        raise InputError(
            f"Expected split=natural for {dataset.name}, whose clients have examples of their own, got split={scheme}."
        )
