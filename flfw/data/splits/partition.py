"""Split of a data set over clients, server, defences and attackers, by one of ``schemes()``.

A split is computed once and kept in the user's cache, so that client processes read it without Flower's partitioners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any

import numpy as np

from flfw.data.files import cache
from flfw.data.files.dataset import Dataset
from flfw.data.splits import domains, dominant, mixtures, pools, sampled, shards, whole
from flfw.data.splits.cut import Cut, at_most
from flfw.data.splits.outside import SplitScheme, source_of
from flfw.data.splits.schemes import (
    IID,
    AnyScheme,
    Dirichlet,
    Domains,
    Dominant,
    Everything,
    Pathological,
    Pools,
    Sampled,
    Scheme,
    Shards,
    Whole,
    scheme,
    schemes,
)
from flfw.errors import BadInput
from flfw.rng import numpy_generator

__all__ = [
    "IID",
    "AnyScheme",
    "Dirichlet",
    "Domains",
    "Dominant",
    "Everything",
    "Pathological",
    "Pools",
    "Sampled",
    "Scheme",
    "Shards",
    "Split",
    "SplitScheme",
    "Whole",
    "for_each",
    "nobodys",
    "scheme",
    "schemes",
    "split",
]


@dataclass(frozen=True)
class Split:
    """Indices (int64) of the examples that each party holds.

    Attributes:
        train: for each client indices into ``train_x``, none twice, never a victim.
        test: for each client indices into ``test_x``, none twice.
        validation: for each client other indices into ``test_x``; empty if the scheme has no validation data.
        distillation: indices into ``train_x`` that the server may use without labels; none is a client's or a victim.
            Empty if the scheme has none.
        proxy: indices into ``train_x`` for the clients' defences; none is trained on or a victim. Empty if the scheme
            has none.
        public: indices into ``test_x`` that an attacker may hold: the official test part without inputs equal, byte
            for byte, to a client's training example or a victim, as an attacker must not hold its target. Clients may
            test on them.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    validation: tuple[np.ndarray, ...]
    distillation: np.ndarray
    proxy: np.ndarray
    public: np.ndarray


_DIVIDE: Mapping[type[Scheme], Callable[[Dataset, Any, int, np.random.Generator], Cut]] = {
    IID: mixtures.iid,
    Dirichlet: mixtures.dirichlet,
    Pathological: mixtures.pathological,
    Dominant: dominant.divide,
    Sampled: sampled.divide,
    Domains: domains.divide,
    Shards: shards.divide,
    Everything: shards.everything,
    Pools: pools.divide,
    Whole: whole.divide,
}


def split(dataset: Dataset, scheme: AnyScheme, clients: int, seed: int) -> Split:
    """Split the data set over ``clients`` clients; the same arguments give the same split in any process.

    Raises:
        BadInput: no clients, a client without training, test or validation data, or too few data for the scheme.
    """
    if clients < 1:
        raise BadInput(f"Expected clients >= 1, got clients={clients}; pass --clients.")
    examples = len(dataset.train_y)
    at_most(examples, clients, f"{dataset.name} has {examples} training examples")  # though schemes may share them
    family = dataset.name.partition(":")[0]  # the rest may be a path
    file = cache.user_cache() / "splits" / f"{family}-{_key(dataset, scheme, clients, seed)}.npz"
    if not file.exists():
        rng = numpy_generator(seed, "split")
        known = not isinstance(scheme, SplitScheme)
        cut = _DIVIDE[type(scheme)](dataset, scheme, clients, rng) if known else scheme.divide(dataset, clients, rng)
        for part, partitions in (("training", cut.train), ("test", cut.test), ("validation", cut.validation)):
            empty = [client for client, indices in enumerate(partitions) if len(indices) == 0]
            if empty:
                raise BadInput(
                    f"Expected {part} data for each of {clients} clients, got none for client {empty[0]} and "
                    f"{len(empty) - 1} more ({dataset.name}, {scheme}, seed={seed}); take fewer --clients, another "
                    "--split or another --seed."
                )
        cache.publish(file, lambda path: _write(path, cut, _public(dataset, cut.train)))
    return _read(file)


def for_each(one: Split, clients: int) -> Split:
    """Repeat the split of one client for ``clients`` clients, for data that differ from client to client.

    Nothing is copied: all clients have the same arrays.
    """
    return replace(one, train=one.train * clients, test=one.test * clients, validation=one.validation * clients)


def nobodys(clients: int) -> Split:
    """Return an empty split, for data on other machines."""
    none = np.zeros(0, dtype=np.int64)
    return for_each(Split((none,), (none,), (none,), none, none, none), clients)


def _key(dataset: Dataset, scheme: AnyScheme, clients: int, seed: int) -> str:
    """Compute a digest of everything that a split depends on."""
    columns = dataset.train_y, dataset.test_y, dataset.train_domain, dataset.test_domain
    numbers = dataset.classes, dataset.victims, dataset.test_start
    names = dataset.domains, dataset.held_out, dict(dataset.per_client)
    inputs = _identity(dataset.train_x), _identity(dataset.test_x)
    code = source_of(scheme) if isinstance(scheme, SplitScheme) else ""
    return cache.digest(
        *(np.asarray(column).tobytes() for column in columns), *inputs, *numbers, *names, scheme, code, clients, seed
    )


def _identity(inputs: np.ndarray) -> object:
    """Return the identity of the inputs: their bytes, or the fingerprint of the mapped file, as reading takes long."""
    if isinstance(inputs, np.memmap) and isinstance(inputs.base, mmap):  # the whole map, not a view of a part
        return cache.fingerprint([Path(str(inputs.filename))])
    return inputs.tobytes()


def evenly(indices: np.ndarray, most: int) -> np.ndarray:
    """Return at most ``most`` of the indices, evenly spaced: sets of several domains store these one after another."""
    places = np.linspace(0, len(indices) - 1, min(len(indices), most)).round().astype(int)
    return indices[places]


def _public(dataset: Dataset, train: Sequence[np.ndarray]) -> np.ndarray:
    """Return the indices into ``test_x`` of the inputs that are no client's training example and no victim."""
    held = np.asarray(dataset.train_x)  # a plain array: slicing rows of a mapped array is slow
    test = [row.tobytes() for row in np.asarray(dataset.test_x)]
    watched = set(test)
    secret = np.union1d(np.concatenate(train), np.asarray(dataset.victims, dtype=np.int64))
    known = {row for index in secret if (row := held[index].tobytes()) in watched}
    return np.flatnonzero([row not in known for row in test])


def _write(path: Path, cut: Cut, public: np.ndarray) -> None:
    """Write one array for each field of `Split`; per-client arrays are concatenated, with their sizes beside them."""
    parts = cut._asdict() | {"public": public, "validation": cut.validation or [public[:0]] * len(cut.train)}
    arrays: dict[str, Any] = {}
    for name, part in parts.items():
        if isinstance(part, np.ndarray):
            arrays[name] = part
        else:
            arrays[name], arrays[f"{name}_sizes"] = np.concatenate(part), [len(indices) for indices in part]
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _read(path: Path) -> Split:
    """Read a split written by `_write`."""
    return cache.read_damaged(path, partial(_stored, path))


def _stored(path: Path) -> Split:
    with np.load(path) as stored:
        parts: dict[str, Any] = dict(stored)
    if any(part.dtype.kind not in "iu" or part.ndim != 1 or part.min(initial=0) < 0 for part in parts.values()):
        raise ValueError("indices that are no whole numbers >= 0")
    ends = {name: np.cumsum(parts[f"{name}_sizes"]) for name in parts if f"{name}_sizes" in parts}
    if any(len(parts[name]) != end[-1] for name, end in ends.items()):
        raise ValueError("other numbers of indices than their sizes")
    parts |= {name: tuple(np.split(parts[name], end[:-1])) for name, end in ends.items()}
    return Split(**{field.name: parts[field.name] for field in fields(Split)})
