"""Split of data that are separate from the start: a client holds its whole data set.

The client gets the whole training part; the test part is halved at random into validation and test. On one machine
there is only one client. Data that only the sites have (`flfw.data.readers.at_site`) differ between sites, and every
client of a site holds all data of that site.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.schemes import DatasetPerClient
from flfw.data.splits.split_indices import SplitIndices, even, trainable
from flfw.errors import require


def divide(dataset: Dataset, scheme: DatasetPerClient, clients: int, rng: np.random.Generator) -> SplitIndices:
    """Split a data set of one client into training, validation and test indices.

    Raises:
        InputError: there are several clients, which would hold the same data.
    """
    alone = f"clients=1 with split=dataset_per_client, as all of {dataset.name} is one client's; choose another --split"
    require(clients == 1, alone, clients=clients)
    validation, test = even(len(dataset.test_y), 2, rng)
    return SplitIndices([trainable(dataset)], [test], [validation])
