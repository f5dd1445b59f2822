"""Split schemes and their settings, those of a user's own as ``package.module:Class``.

Zero examples stand for the data set's default number. Generated data (`flfw.data.generated`) have clients from the
start: a client holds the examples that are its own, and costs nothing before it is asked for.

Other data are separate from the start: the client gets the whole training part; the test part is halved at random into
validation and test. On one machine there is only one client. Data that only the sites have
(`flfw.data.readers.at_site`) differ between sites, and every client of a site holds all data of that site.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import PERSONS, STRIDE, Dataset
from flfw.data.splits.domains import Domains, Sampled
from flfw.data.splits.dominant import Dominant
from flfw.data.splits.drawn import SampledOnDemand
from flfw.data.splits.lazy_parts import LazyParts
from flfw.data.splits.mixtures import IID, Dirichlet, Pathological
from flfw.data.splits.pools import Pools
from flfw.data.splits.shards import FullCopy, Shards
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most, even, trainable
from flfw.errors import InputError, require, unknown
from flfw.plugins import imported


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
class Natural(SplitScheme):
    """Examples that a client has of its own in generated data, see ``flfw.data.splits.schemes``."""

    train: int = 50  # examples a client
    test: int = 20  # likewise

    def __post_init__(self) -> None:
        require(self.train >= 1, "natural.train >= 1", train=self.train)
        require(self.test >= 1, "natural.test >= 1", test=self.test)

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
        raise unknown(f"a split among {', '.join(_SCHEMES)}, or package.module:Class", "split", name, _SCHEMES)
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
