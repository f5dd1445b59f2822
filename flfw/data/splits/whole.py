"""The split of data that lie apart from the start: whoever has a data set holds all of it.

All of the training part is the client's; the test part is halved at random into validation and test. On one machine
that is one client. Data that only the sites have (`flfw.data.readers.at_site`) are another set at each site, and there
every client of that site holds all of it.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.cut import Cut, even, trainable
from flfw.data.splits.schemes import Whole
from flfw.errors import require


def divide(dataset: Dataset, scheme: Whole, clients: int, rng: np.random.Generator) -> Cut:
    """The split of a data set of one client.

    Raises:
        BadInput: there are several, who would hold the same.
    """
    alone = f"clients=1 with split=whole, as all of {dataset.name} is one client's; choose another --split"
    require(clients == 1, alone, clients=clients)
    validation, test = even(len(dataset.test_y), 2, rng)
    return Cut([trainable(dataset)], [test], [validation])
