"""Split schemes and their settings, those of a user's own as ``package.module:Class``.

Benchmark splits are by Flower's partitioners: iid, Dirichlet proportions, a few classes a client. Their training data
are disjoint; with uneven classes, a client tests on the class proportions of its training data.

Zero examples stand for the data set's default number. Generated data (`flfw.data.generated`) have clients from the
start: a client holds the examples that are its own, and costs nothing before it is asked for.

Other data are separate from the start: the client gets the whole training part; the test part is halved at random into
validation and test. On one machine there is only one client. Data that only the sites have
(`flfw.data.readers.at_site`) differ between sites, and every client of a site holds all data of that site.
"""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flfw.bounds import BoundedSettings, PositiveInt
from flfw.data.files.dataset import PERSONS, STRIDE, Dataset
from flfw.data.splits import dominant
from flfw.data.splits.domains import Domains, Sampled
from flfw.data.splits.dominant import Dominant
from flfw.data.splits.lazy_parts import LazyParts, SampledOnDemand
from flfw.data.splits.pools import Pools
from flfw.data.splits.shards import FullCopy, Shards
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most, even, trainable
from flfw.errors import InputError, require, unknown
from flfw.plugins import imported


@dataclass(frozen=True)
class IID(SplitScheme):
    """Training and test part, each shuffled and cut into nearly equal, disjoint parts."""

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Shuffle both parts and cut them evenly."""
        pool = _pool(dataset, clients)
        train = even(len(pool), clients, rng)  # as Flower's IidPartitioner cuts a shuffled table
        return SplitIndices([pool[rows] for rows in train], even(len(dataset.test_y), clients, rng))


@dataclass(frozen=True)
class Dirichlet(SplitScheme):
    """Classes of the training part divided disjointly, each in proportions drawn from Dir(alpha)."""

    alpha: float = 0.5  # > 0; a small value gives few classes a client

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"Expected alpha > 0, got alpha={self.alpha}; 0.5 is usual, 100 is nearly iid.")

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Divide each class in proportions drawn from Dir(alpha); a client may be left empty."""
        pool = _pool(dataset, clients)
        from flfw.data.splits import partitioners  # imports flwr_datasets, 6 s and 250 MB

        train = [pool[rows] for rows in partitioners.dirichlet(dataset.train_y[pool], clients, self.alpha, rng)]
        return SplitIndices(train, _alike(dataset, train))


@dataclass(frozen=True)
class Pathological(SplitScheme, BoundedSettings):
    """Random classes for each client; a class is cut evenly over the clients that drew it, and else unused."""

    NAMED = "pathological."
    classes: PositiveInt = 2  # number of classes of each client

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Give each client ``self.classes`` random classes."""
        pool = _pool(dataset, clients)
        from flfw.data.splits import partitioners

        train = [pool[rows] for rows in partitioners.pathological(dataset.train_y[pool], clients, self.classes, rng)]
        return SplitIndices(train, _alike(dataset, train))


def _pool(dataset: Dataset, clients: int) -> np.ndarray:
    """Return the indices of the training examples without victims; refuse too few examples for the clients."""
    pool, tests = trainable(dataset), len(dataset.test_y)
    reason = f"{dataset.name} has {len(pool)} training examples that are no victims and {tests} test examples"
    at_most(min(len(pool), tests), clients, reason)
    return pool


def _alike(dataset: Dataset, train: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return each client's test indices: its share of the test part, in the class proportions of its training data.

    If a client needs more test examples of a class than there are, it gets the whole class, so nothing is repeated.
    """
    pools = dominant.by_class(dataset.test_y, dataset.classes)
    size = len(dataset.test_y) // len(train)
    most = [len(pool) for pool in pools]
    client_quotas = []
    for indices in train:
        exact = np.bincount(dataset.train_y[indices], minlength=dataset.classes) * size / max(1, len(indices))
        quota = np.floor(exact).astype(np.int64)
        # Largest remainders: the examples lost by rounding down go to the classes with the largest loss.
        quota[np.argsort(quota - exact, kind="stable")[: round(exact.sum()) - quota.sum()]] += 1
        client_quotas.append(np.minimum(quota, most))
    return dominant.assign(pools, client_quotas, [0] * len(pools))


def outside(name: str) -> type[SplitScheme]:
    """Return the class that ``package.module:Class`` names.

    Raises:
        InputError: there is no such class, or it is no concrete `SplitScheme`.
    """
    scheme = imported(name, "split")
    if not (inspect.isclass(scheme) and issubclass(scheme, SplitScheme)) or inspect.isabstract(scheme):
        raise InputError(f"Expected split={name} to be a concrete SplitScheme, got {scheme!r}.")
    return scheme


def source_of(scheme: SplitScheme) -> str:
    """Return the text of a scheme's file, so that a changed scheme is another one."""
    return Path(inspect.getfile(type(scheme))).read_text(encoding="utf-8")


@dataclass(frozen=True)
class DatasetPerClient(SplitScheme):
    """Whole data set for each client, on data that differ from client to client, see ``flfw.data.splits.schemes``."""

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Split a data set of one client into training, validation and test indices.

        Raises:
            InputError: there are several clients, which would hold the same data.
        """
        alone = f"clients=1 with split=dataset_per_client, as all of {dataset.name} is one client's"
        require(clients == 1, f"{alone}; choose another --split", clients=clients)
        validation, test = even(len(dataset.test_y), 2, rng)
        return SplitIndices([trainable(dataset)], [test], [validation])


@dataclass(frozen=True)
class Natural(SplitScheme, BoundedSettings):
    """Examples that a client has of its own in generated data, see ``flfw.data.splits.schemes``."""

    NAMED = "natural."
    train: PositiveInt = 50  # examples a client
    test: PositiveInt = 20  # likewise

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Return the parts of all clients, in which nothing is random.

        Raises:
            InputError: the data have no clients of their own, or more are asked for than there are.
        """
        without = f"another --split for {dataset.name}, whose examples are no client's"
        require(dataset.is_generated, without, split="natural")
        at_most(PERSONS, clients, f"{dataset.name} has no more")
        for name, size in (("train", self.train), ("test", self.test)):
            require(size <= STRIDE, f"natural.{name} <= {STRIDE}", **{name: size})
        train = LazyParts(clients, self.train, lambda one: one * STRIDE + np.arange(self.train), copies=1)
        tests = LazyParts(clients, self.test, lambda one: one * STRIDE + np.arange(self.test), copies=1)
        return SplitIndices(train, tests, LazyParts.same(clients, np.zeros(0, np.int64)))


_SCHEMES: dict[str, type[SplitScheme]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "pathological": Pathological,
    "dominant": Dominant,
    "sampled": Sampled,
    "domains": Domains,
    "shards": Shards,
    "full_copy": FullCopy,
    "pools": Pools,
    "sampled_on_demand": SampledOnDemand,
    "natural": Natural,
    "dataset_per_client": DatasetPerClient,
}


def schemes() -> tuple[str, ...]:
    """Return the names of the split schemes."""
    return tuple(_SCHEMES)


def is_known(scheme: SplitScheme) -> bool:
    """Return whether a scheme is one of the project, not a user's own."""
    return type(scheme) in _SCHEMES.values()


def name_of(kind: type[SplitScheme]) -> str:
    """Return the name of a scheme; of a user's own, that of its class."""
    return next((name for name, one in _SCHEMES.items() if one is kind), kind.__name__)


def scheme(name: str) -> type[SplitScheme]:
    """Return the settings class of a scheme; the error for an unknown name lists the known ones."""
    if ":" in name:
        return outside(name)
    if name not in _SCHEMES:
        raise unknown(f"a split among {', '.join(_SCHEMES)}, or package.module:Class", f"split={name}", name, _SCHEMES)
    return _SCHEMES[name]


def refuse_others(dataset: Dataset, scheme: str) -> None:
    """Refuse to cut generated data, which are not all there, by another scheme.

    Raises:
        InputError: the data are generated.
    """
    if dataset.is_generated:
        raise InputError(
            f"Expected split=natural for {dataset.name}, whose clients have examples of their own, got split={scheme}."
        )
