"""Dominant-class split of the papers: a client holds a few examples of every class and most of its group's classes.

HyperFL (Guo et al., AAAI 2025), after FedPAC. Client i is in group ``i mod G``; 20 % of its examples are spread evenly
over all classes, 80 % evenly over the group's dominant classes. In each share every class gets
``max(1, share // classes)``, and the remainder of the share goes to the last class; so a share smaller than its number
of classes is rounded up to one example each.

In the papers clients share training examples once a class is used up. With ``disjoint=true`` no example is shared: the
scarcest class then limits the number of clients. Test examples may be shared in both cases.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most
from flfw.errors import InputError

_GROUPS: dict[int, tuple[Sequence[int], ...]] = {
    10: ((0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0)),
    # EMNIST by class: digits, upper case, lower case.
    62: (range(10), range(10, 36), range(36, 62)),
}


def groups(classes: int) -> tuple[Sequence[int], ...]:
    """Return the dominant classes of each group.

    Raises:
        InputError: the papers define no groups for this number of classes.
    """
    if classes not in _GROUPS:
        raise InputError(
            f"Expected {' or '.join(map(str, _GROUPS))} classes for the dominant split, got classes={classes}; "
            "take --split iid or dirichlet."
        )
    return _GROUPS[classes]


def _share(examples: int, among: Sequence[int], classes: int) -> np.ndarray:
    """Return the numbers of examples (classes,) when ``examples`` are spread evenly over the classes ``among``."""
    each = max(1, examples // len(among))
    counts = np.zeros(classes, dtype=np.int64)
    counts[list(among)] = each
    counts[among[-1]] += max(0, examples - each * len(among))
    return counts


def quotas(classes: int, client: int, examples: int) -> np.ndarray:
    """Return the number of examples of each class (classes,) int64 that the client holds.

    >>> quotas(10, client=1, examples=600).tolist()
    [12, 12, 172, 172, 172, 12, 12, 12, 12, 12]
    """
    dominant = groups(classes)
    even = examples // 5
    return _share(even, range(classes), classes) + _share(examples - even, dominant[client % len(dominant)], classes)


def assign(pools: Sequence[np.ndarray], client_quotas: Iterable[np.ndarray], starts: Sequence[int]) -> list[np.ndarray]:
    """Give each client in turn its quota of every class, starting at the end of the previous client's run.

    A quota is one run of its class's pool; if the run would pass the end, the pointer first goes back to 0. So no
    client holds an example twice, but clients share examples once a pool is used up, as in the papers.

    Args:
        pools: indices of each class, in the order of the data set.
        client_quotas: quotas (classes,) of each client, none larger than its pool.
        starts: start of the first client's run in each pool.

    Returns:
        Indices (sum of quotas,) of each client, class by class.
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


def by_class(labels: np.ndarray, classes: int, leave_out: range = range(0)) -> list[np.ndarray]:
    """Return the indices of each class in ``labels`` (N,), in order, without those in ``leave_out``."""
    return [np.setdiff1d(np.flatnonzero(labels == label), leave_out) for label in range(classes)]


@dataclass(frozen=True)
class Dominant(SplitScheme):
    """Dominant-class split, see ``flfw.data.splits.dominant``: clients may share examples, see ``assign`` there."""

    train: int = 0  # examples a client, before rounding
    test: int = 0  # likewise
    disjoint: bool = False  # whether clients must not share training examples; they may still share test examples

    def __post_init__(self) -> None:
        if min(self.train, self.test) < 0:
            raise InputError(
                f"Expected train, test >= 0 examples a client, got train={self.train} test={self.test}; "
                "0 takes the data set's own numbers."
            )

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split a data set as the papers do; no client trains on a victim, and nothing is random.

        HyperFL's code starts CIFAR-10's pointers at 2000 (train) and 500 (test); the paper does not give their unit.
        Here they count images of the whole part: training begins after the 2,000 victims, and as these are not in the
        pools, it never returns to them. Counted within each class (5,000 and 1,000 images), the pointers would give
        clients the same numbers of other images, and from client 36 on they would wrap into the victims.

        Raises:
            InputError: no numbers of examples, more of a class than it has, or too many disjoint clients.
        """
        sized = _sized(self, dataset)
        train_pools = by_class(dataset.train_y, dataset.classes, leave_out=dataset.victims)
        test_pools = by_class(dataset.test_y, dataset.classes)
        test_starts = [int(np.searchsorted(pool, dataset.test_start)) for pool in test_pools]
        partitions = []
        for part, pools, starts, examples in (
            ("train", train_pools, [0] * len(train_pools), sized.train),
            ("test", test_pools, test_starts, sized.test),
        ):
            client_quotas = [quotas(dataset.classes, client, examples) for client in range(clients)]
            for label, pool in enumerate(pools):
                wanted = max(quota[label] for quota in client_quotas)
                if wanted > len(pool):
                    raise InputError(
                        f"Expected at most {len(pool)} examples of class {label} a client, all that the {part} part of "
                        f"{dataset.name} has, got {wanted} from {part}={examples}; ask for less or take another "
                        "--split."
                    )
            if part == "train" and self.disjoint:
                room = np.cumsum(client_quotas, axis=0) <= [len(pool) for pool in pools]
                reason = f"with dominant.disjoint=true and {examples} examples each a class is then used up"
                at_most(int(room.all(axis=1).sum()), clients, reason)
            partitions.append(assign(pools, client_quotas, starts))
        return SplitIndices(*partitions)


def _sized(scheme: Dominant, dataset: Dataset) -> Dominant:
    """Return the scheme with zeros replaced by the data set's default numbers."""
    groups(dataset.classes)
    if scheme.train and scheme.test:
        return scheme
    default = dataset.per_client.get("dominant")
    if default is None:
        raise InputError(
            f"Expected the numbers of examples a client, as {dataset.name} has none of its own, got {scheme}; "
            "pass --set dominant.train=600 dominant.test=600."
        )
    return replace(scheme, train=scheme.train or default[0], test=scheme.test or default[1])
