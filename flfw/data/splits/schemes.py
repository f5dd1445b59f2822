"""Split schemes and their settings; 0 examples means the data set's default number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flfw.data.splits.outside import SplitScheme, outside
from flfw.errors import InputError, require, unknown


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
    """Random disjoint samples for the clients and one for the server, see ``flfw.data.splits.sampled``."""

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
    """Whole data set for each client, on data that differ from client to client, see ``flfw.data.splits.whole``."""


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
    """Examples that a client has of its own in generated data, see ``flfw.data.splits.natural``."""

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
