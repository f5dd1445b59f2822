"""Split schemes and their settings, those of a user's own as ``package.module:Class``.

Zero examples stand for the data set's default number. Generated data (`flfw.data.generated`) have clients from the
start: a client holds the examples that are its own, and costs nothing before it is asked for.

Other data are separate from the start: the client gets the whole training part; the test part is halved at random into
validation and test. On one machine there is only one client. Data that only the sites have
(`flfw.data.readers.at_site`) differ between sites, and every client of a site holds all data of that site.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.files.population import PERSONS, STRIDE
from flfw.data.splits.lazy_parts import LazyParts
from flfw.data.splits.split_indices import SplitIndices, at_most, even, trainable
from flfw.errors import InputError, require, unknown
from flfw.plugins import imported


class SplitScheme(ABC):
    """Scheme of a user's own: a frozen dataclass with its settings as fields, ``--set Class.field=value``."""

    @abstractmethod
    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Cut a data set.

        Args:
            dataset: the data; ``dataset.victims`` are no client's.
            clients: number of clients, >= 1.
            rng: generator of all random choices.
        """


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
class IID:
    """Training and test part, each shuffled and cut into nearly equal, disjoint parts."""


@dataclass(frozen=True)
class Dirichlet:
    """Classes of the training part divided disjointly, each in proportions drawn from Dir(alpha)."""

    alpha: float = 0.5  # > 0; a small value gives few classes a client

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InputError(f"Expected alpha > 0, got alpha={self.alpha}; 0.5 is usual, 100 is nearly iid.")


@dataclass(frozen=True)
class Pathological:
    """Random classes for each client; a class is cut evenly over the clients that drew it, and else unused."""

    classes: int = 2  # number of classes of each client

    def __post_init__(self) -> None:
        require(self.classes >= 1, "pathological.classes >= 1", classes=self.classes)


@dataclass(frozen=True)
class Dominant:
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


@dataclass(frozen=True)
class Sampled:
    """Random disjoint samples for the clients and one for the server, see ``flfw.data.splits.domains``."""

    train: int = 2000  # examples a client
    distillation: int = 32_000  # at most; from the examples that no client holds
    halves: Literal["drawn", "alternate"] = "drawn"  # of the test part: by lot, or every other example at every seed

    def __post_init__(self) -> None:
        _counts("sampled", train=self.train, distillation=self.distillation)
        require(self.halves in ("drawn", "alternate"), "sampled.halves=drawn or alternate", halves=self.halves)


@dataclass(frozen=True)
class Domains:
    """A domain for each client and one for the server, see ``flfw.data.splits.domains``."""

    train: int = 0  # examples a client; 0 without a default of the data set: the whole domain
    distillation: int = 32_000  # at most; from the held-out domain
    held_out: str = ""  # the server's domain; empty: the data set's default; none: there is none

    def __post_init__(self) -> None:
        _counts("domains", train=self.train, distillation=self.distillation)


@dataclass(frozen=True)
class Shards:
    """Random runs of the training part sorted by label, see ``flfw.data.splits.shards``."""

    train: int = 0  # examples a client, before rounding down to whole shards
    shards: int = 2  # number of shards of each client; 15 for LFW
    pool: int = 0  # number of first training examples that are dealt; 0: all

    def __post_init__(self) -> None:
        _counts("shards", train=self.train, pool=self.pool)
        require(self.shards >= 1, "shards.shards >= 1", shards=self.shards)


@dataclass(frozen=True)
class FullCopy:
    """Whole training part for every client; the test part is cut evenly. See ``flfw.data.splits.shards``."""


@dataclass(frozen=True)
class Pools:
    """Samples from a sensitive pool; the rest of the data is public, see ``flfw.data.splits.pools``."""

    train: int = 0  # examples a client
    share: float = 0.25  # share of the training part in the sensitive pool; 0 < share <= 1
    classes: int = 0  # number of random classes of each client; 0: iid

    def __post_init__(self) -> None:
        _counts("pools", train=self.train, classes=self.classes)
        require(0 < self.share <= 1, "0 < pools.share <= 1", share=self.share)


@dataclass(frozen=True)
class DatasetPerClient:
    """Whole data set for each client, on data that differ from client to client, see ``flfw.data.splits.schemes``."""


@dataclass(frozen=True)
class SampledOnDemand:
    """Examples dealt to each client by the seed and its number, on demand, see ``flfw.data.splits.drawn``."""

    train: int = 20  # examples a client
    test: int = 20  # likewise
    classes: int = 0  # number of random classes of each client; 0: a client draws from all

    def __post_init__(self) -> None:
        require(self.train >= 1, "sampled_on_demand.train >= 1", train=self.train)
        require(self.test >= 1, "sampled_on_demand.test >= 1", test=self.test)
        _counts("sampled_on_demand", classes=self.classes)


@dataclass(frozen=True)
class Natural:
    """Examples that a client has of its own in generated data, see ``flfw.data.splits.schemes``."""

    train: int = 50  # examples a client
    test: int = 20  # likewise

    def __post_init__(self) -> None:
        require(self.train >= 1, "natural.train >= 1", train=self.train)
        require(self.test >= 1, "natural.test >= 1", test=self.test)


def _counts(scheme: str, **counts: int) -> None:
    for name, count in counts.items():
        require(count >= 0, f"{scheme}.{name} >= 0", **{name: count})


Scheme: TypeAlias = (
    IID
    | Dirichlet
    | Pathological
    | Dominant
    | Sampled
    | Domains
    | Shards
    | FullCopy
    | Pools
    | DatasetPerClient
    | SampledOnDemand
    | Natural
)
_SCHEMES: dict[str, type[Scheme]] = {
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


AnyScheme: TypeAlias = Scheme | SplitScheme
"""A scheme of the project, or a user's own."""


def name_of(kind: type[AnyScheme]) -> str:
    """Return the name of a scheme; of a user's own, that of its class."""
    return next((name for name, one in _SCHEMES.items() if one is kind), kind.__name__)


def scheme(name: str) -> type[AnyScheme]:
    """Return the settings class of a scheme; the error for an unknown name lists the known ones."""
    if ":" in name:
        return outside(name)
    if name not in _SCHEMES:
        raise unknown(f"a split among {', '.join(_SCHEMES)}, or package.module:Class", "split", name, _SCHEMES)
    return _SCHEMES[name]


def natural_parts(dataset: Dataset, scheme: Natural, clients: int, test: str) -> SplitIndices:
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


def divide_whole(dataset: Dataset, scheme: DatasetPerClient, clients: int, rng: np.random.Generator) -> SplitIndices:
    """Split a data set of one client into training, validation and test indices.

    Raises:
        InputError: there are several clients, which would hold the same data.
    """
    alone = f"clients=1 with split=dataset_per_client, as all of {dataset.name} is one client's; choose another --split"
    require(clients == 1, alone, clients=clients)
    validation, test = even(len(dataset.test_y), 2, rng)
    return SplitIndices([trainable(dataset)], [test], [validation])
