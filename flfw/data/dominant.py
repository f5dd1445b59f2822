"""The papers' dominant-class split: a client holds some of every class and most of its group's few.

HyperFL (Guo et al., AAAI 2025), after FedPAC. Client i is of group ``i mod G``; 20 % of its examples are spread evenly
over all classes, 80 % evenly over the group's dominant classes. In each share every class gets
``max(1, share // classes)``, and what then remains of the share goes to the last class; so a share smaller than its
number of classes is rounded up to one each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flfw.errors import BadInput

_GROUPS: dict[int, tuple[Sequence[int], ...]] = {
    10: ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0)),
    # EMNIST by class: digits, upper case, lower case.
    62: (range(10), range(10, 36), range(36, 62)),
}


def groups(classes: int) -> tuple[Sequence[int], ...]:
    """The dominant classes of each group.

    Raises:
        BadInput: the papers define no groups for so many classes.
    """
    if classes not in _GROUPS:
        raise BadInput(
            f"Expected {' or '.join(map(str, _GROUPS))} classes for the dominant split, got classes={classes}; "
            "take --split iid or dirichlet."
        )
    return _GROUPS[classes]


def _share(examples: int, among: Sequence[int], classes: int) -> np.ndarray:
    """Examples of each class (classes,) when ``examples`` are spread evenly over the classes ``among``."""
    each = max(1, examples // len(among))
    counts = np.zeros(classes, dtype=np.int64)
    counts[list(among)] = each
    counts[among[-1]] += max(0, examples - each * len(among))
    return counts


def quotas(classes: int, client: int, examples: int) -> np.ndarray:
    """How many examples of each class (classes,) int64 the client holds.

    >>> quotas(10, client=1, examples=600).tolist()
    [12, 12, 172, 172, 172, 12, 12, 12, 12, 12]
    """
    dominant = groups(classes)
    even = examples // 5
    return _share(even, range(classes), classes) + _share(examples - even, dominant[client % len(dominant)], classes)


def assign(pools: Sequence[np.ndarray], client_quotas: Iterable[np.ndarray], starts: Sequence[int]) -> list[np.ndarray]:
    """Give each client in turn its quota of every class, taken where the client before it stopped.

    A quota is one run of its class's pool; where the run would pass the end, the pointer first goes back to 0. So no
    client holds an example twice, while clients share examples once a pool is used up, as in the papers.

    Args:
        pools: indices of each class, in the order of the data set.
        client_quotas: for each client its quotas (classes,), none larger than its pool.
        starts: position in each pool of the first client's run.

    Returns:
        for each client its indices (sum of quotas,), class by class.
    """
    pointers = list(starts)
    partitions = []
    for quota in client_quotas:
        indices = []
        for label, (pool, wanted) in enumerate(zip(pools, quota.tolist(), strict=True)):
            first = pointers[label] if pointers[label] + wanted <= len(pool) else 0
            indices.append(pool[first : first + wanted])
            pointers[label] = first + wanted
        partitions.append(np.concatenate(indices))
    return partitions
