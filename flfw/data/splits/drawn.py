"""Split for more clients than there are data: each client's examples are drawn by the seed and its number alone.

No other client and no number of clients has a say in what a client holds: so nothing is computed before it is asked
for, and a million clients are no more work than ten. Clients may share examples. None holds an example twice.
"""

from __future__ import annotations

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.cut import Cut, trainable
from flfw.data.splits.on_demand import OnDemand
from flfw.data.splits.schemes import Drawn
from flfw.errors import BadInput, require
from flfw.rng import numpy_generator


def pools(dataset: Dataset, scheme: Drawn, clients: int, rng: np.random.Generator) -> Cut:
    """Return the pools of all draws, as those of one client: training data without victims, and all test data."""
    return Cut([trainable(dataset)], [np.arange(len(dataset.test_y))])


def parts(dataset: Dataset, scheme: Drawn, pool: np.ndarray, part: str, clients: int, seed: int) -> OnDemand:
    """Return the parts of all clients.

    Args:
        dataset: the data.
        scheme: how many examples of how many classes.
        pool: the examples that are drawn from.
        part: ``train`` or ``test``.
        clients: number of clients.
        seed: seed of the draws.

    Raises:
        BadInput: the pool may have too few examples for a client.
    """
    size = getattr(scheme, part)
    if not scheme.classes:
        _require(size, len(pool), part, scheme)
        return OnDemand(clients, size, lambda one: _drawn(pool, size, numpy_generator(seed, f"drawn {part}", one)))
    labels = np.asarray(getattr(dataset, f"{part}_y"))[pool]
    by_class = [pool[labels == label] for label in range(dataset.classes)]
    require(scheme.classes <= dataset.classes, f"drawn.classes <= {dataset.classes}", classes=scheme.classes)
    _require(size, sum(sorted(map(len, by_class))[: scheme.classes]), part, scheme)

    def of(client: int) -> np.ndarray:
        chosen = numpy_generator(seed, "drawn classes", client).choice(dataset.classes, scheme.classes, replace=False)
        mine = np.concatenate([by_class[label] for label in chosen])
        return _drawn(mine, size, numpy_generator(seed, f"drawn {part}", client))

    return OnDemand(clients, size, of)


def _drawn(pool: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    return pool[rng.choice(len(pool), size, replace=False)]


def _require(size: int, there: int, part: str, scheme: Drawn) -> None:
    if size > there:
        which = f"{scheme.classes} classes may have" if scheme.classes else "there are"
        raise BadInput(f"Expected drawn.{part} <= {there}, the {part} examples that {which}, got {part}={size}.")
