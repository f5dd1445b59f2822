"""Split of a data set over clients, server, defences and attackers, by one of ``schemes()``.

A split is computed once and kept in the user's cache, so that client processes read it without Flower's partitioners.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from flfw.data.files import cache
from flfw.data.files.dataset import Dataset
from flfw.data.splits import patients
from flfw.data.splits.lazy_parts import LazyParts
from flfw.data.splits.schemes import Natural, SampledOnDemand, is_known, refuse_others, source_of
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most
from flfw.errors import InputError, require
from flfw.rng import numpy_generator


@dataclass(frozen=True)
class Split:
    """Indices (int64) of the examples that each party holds.

    Attributes:
        train: for each client indices into ``train_x``, none twice, never a victim; perhaps computed on demand.
        test: for each client indices into ``test_x``, none twice; the same for all with a shared test set.
        validation: for each client other indices into ``test_x``; empty if the scheme has no validation data.
        distillation: indices into ``train_x`` that the server may use without labels; none is a client's or a victim.
            Empty if the scheme has none.
        proxy: indices into ``train_x`` for the clients' defences; none is trained on or a victim. Empty if the scheme
            has none.
        public: indices into ``test_x`` that an attacker may hold: the official test part without inputs equal, byte
            for byte, to a client's training example or a victim, as an attacker must not hold its target. Clients may
            test on them.
        patients: (N,) int64, the patient of each training example; None: patients are not known.
        test_patients: likewise of each test example.
    """

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    validation: Sequence[np.ndarray]
    distillation: np.ndarray
    proxy: np.ndarray
    public: np.ndarray
    patients: np.ndarray | None = None
    test_patients: np.ndarray | None = None


TestParts: TypeAlias = Literal["own", "shared"]
"""Whether each client has test examples of its own, or all have the same."""
_SHARED = 1000  # test examples, and as many for validation


def split(dataset: Dataset, scheme: SplitScheme, clients: int, seed: int, test: TestParts = "own") -> Split:
    """Split the data set over ``clients`` clients; the same arguments give the same split in any process.

    With ``test="shared"`` all clients test on the same examples: at most 1000 that are drawn by the seed, and as many
    others for validation where the scheme has it. What they train on is as without.

    Raises:
        InputError: no clients, a client without training, test or validation data, or too few data for the scheme.
    """
    if clients < 1:
        raise InputError(f"Expected clients >= 1, got clients={clients}; pass --clients.")
    if isinstance(scheme, Natural):
        none = np.zeros(0, np.int64)
        cut = scheme.divide(dataset, clients, numpy_generator(seed, "split"))
        tests = LazyParts.same(clients, dataset.common_tests) if test == "shared" else cut.test
        return Split(cut.train, tests, cut.validation, none, none, dataset.common_tests)
    refuse_others(dataset, type(scheme).__name__.lower())
    if dataset.train_group is not None and is_known(scheme):
        patients.require_by_patient(dataset, scheme)
    if isinstance(scheme, SampledOnDemand):
        pool = _kept(dataset, SampledOnDemand(), 1, 0)
        train = scheme.parts(dataset, pool.train[0], "train", clients, seed)
        tested = scheme.parts(dataset, pool.test[0], "test", clients, seed)
        one = replace(pool, train=train, test=tested, validation=LazyParts.same(clients, pool.validation[0]))
    else:
        examples = len(dataset.train_y)
        at_most(examples, clients, f"{dataset.name} has {examples} training examples")  # though schemes may share them
        one = _kept(_with_tests_for(dataset, scheme, clients) if test == "shared" else dataset, scheme, clients, seed)
    one = _with_shared_tests(one, len(dataset.test_y), seed, dataset.test_group) if test == "shared" else one
    return replace(one, patients=dataset.train_group, test_patients=dataset.test_group)


def _with_shared_tests(one: Split, tests: int, seed: int, groups: np.ndarray | None) -> Split:
    """Return a split whose clients all have the same test examples, and the same for validation if they have any.

    Args:
        one: the split; its ``public`` may name positions in a longer test part, see `_with_tests_for`.
        tests: number of test examples there are.
        seed: seed of the draw.
        groups: (tests,) patients, who stay whole; None: they are not known.
    """
    order, clients = numpy_generator(seed, "shared test").permutation(tests), len(one.train)
    validated = len(one.validation[0]) > 0
    size = min(_SHARED, tests // 2 if validated else tests)
    test, validation = np.sort(order[:size]), np.sort(order[size : 2 * size] if validated else order[:0])
    if groups is not None:
        rng = numpy_generator(seed, "shared test")
        test, validation = [*patients.shuffled(groups, size, 1 + validated, rng), order[:0]][:2]
    same = {"test": LazyParts.same(clients, test), "validation": LazyParts.same(clients, validation)}
    return replace(one, **same, public=one.public[one.public < tests])


def _with_tests_for(dataset: Dataset, scheme: SplitScheme, clients: int) -> Dataset:
    """Repeat the test part until there are two examples for each client: schemes refuse to divide a shorter one.

    What a scheme makes of them is not used. Only a user's own scheme may look at the inputs.
    """
    alternate = getattr(scheme, "halves", "") == "alternate"
    require(not alternate, "--expert test=own for sampled.halves=alternate, whose halves are apart", test="shared")
    tests = len(dataset.test_y)
    units = tests if dataset.test_group is None else len(np.unique(dataset.test_group))
    times = max(1, -(-2 * clients // units))
    indices = np.arange(times * tests) % tests
    group = None if dataset.test_group is None else patients.repeated(dataset.test_group, times)
    domain = dataset.test_domain[indices] if len(dataset.test_domain) else dataset.test_domain
    inputs, labels = dataset.test_x[indices], np.asarray(dataset.test_y)[indices]
    return replace(dataset, test_x=inputs, test_y=labels, test_domain=domain, test_group=group)


def _kept(dataset: Dataset, scheme: SplitScheme, clients: int, seed: int) -> Split:
    """Return a scheme's cut of the data, computed once and kept in the user's cache."""
    family = dataset.name.partition(":")[0]  # the rest may be a path
    file = cache.user_cache() / "splits" / f"{family}-{_key(dataset, scheme, clients, seed)}.npz"
    if not file.exists():
        rng = numpy_generator(seed, "split")
        cut = _cut(dataset, scheme, clients, rng)
        for part, partitions in (("training", cut.train), ("test", cut.test), ("validation", cut.validation)):
            empty = [client for client, indices in enumerate(partitions) if len(indices) == 0]
            if empty:
                raise InputError(
                    f"Expected {part} data for each of {clients} clients, got none for client {empty[0]} and "
                    f"{len(empty) - 1} more ({dataset.name}, {scheme}, seed={seed}); take fewer --clients, another "
                    "--split or another --seed."
                )
        cache.publish(file, lambda path: _write(path, cut, _public(dataset, cut.train)))
    return cache.read_damaged(file, partial(_stored, file))


def _cut(dataset: Dataset, scheme: SplitScheme, clients: int, rng: np.random.Generator) -> SplitIndices:
    """Cut the data by a scheme; where patients are known, no patient is separated."""
    if dataset.train_group is None:
        return scheme.divide(dataset, clients, rng)
    by_patient = is_known(scheme)  # one of a user's own keeps patients whole itself
    cut = patients.divide(dataset, scheme, clients, rng) if by_patient else scheme.divide(dataset, clients, rng)
    patients.require_whole(dataset, cut)
    return cut


def for_each(one: Split, clients: int) -> Split:
    """Repeat the split of one client for ``clients`` clients, for data that differ from client to client.

    Nothing is copied: all clients have the same arrays.
    """
    same = {name: LazyParts.same(clients, getattr(one, name)[0]) for name in ("train", "test", "validation")}
    return replace(one, **same)


def nobodys(clients: int) -> Split:
    """Return an empty split, for data on other machines."""
    none = np.zeros(0, dtype=np.int64)
    return for_each(Split((none,), (none,), (none,), none, none, none), clients)


def _key(dataset: Dataset, scheme: SplitScheme, clients: int, seed: int) -> str:
    """Compute a digest of everything that a split depends on."""
    columns = [dataset.train_y, dataset.test_y, dataset.train_domain, dataset.test_domain]
    columns += [group for group in (dataset.train_group, dataset.test_group) if group is not None]
    numbers = dataset.classes, dataset.victims, dataset.test_start
    names = dataset.domains, dataset.held_out, dict(dataset.per_client)
    inputs = _identity(dataset.train_x), _identity(dataset.test_x)
    code = "" if is_known(scheme) else source_of(scheme)
    return cache.digest(
        *(np.asarray(column).tobytes() for column in columns), *inputs, *numbers, *names, scheme, code, clients, seed
    )


def _identity(inputs: np.ndarray) -> object:
    """Return the identity of the inputs: their bytes, or the fingerprint of the mapped file, as reading takes long."""
    if isinstance(inputs, np.memmap) and isinstance(inputs.base, mmap):  # the whole map, not a view of a part
        return cache.fingerprint([Path(str(inputs.filename))])
    return inputs.tobytes()


def evenly(indices: np.ndarray, maximum: int) -> np.ndarray:
    """Return at most ``maximum`` indices, evenly spaced: sets of several domains store these one after another."""
    return indices[np.linspace(0, len(indices) - 1, min(len(indices), maximum)).round().astype(int)]


def _public(dataset: Dataset, train: Sequence[np.ndarray]) -> np.ndarray:
    """Return the indices into ``test_x`` of the inputs that are no client's training example and no victim."""
    held = np.asarray(dataset.train_x)  # a plain array: slicing rows of a mapped array is slow
    test = [row.tobytes() for row in np.asarray(dataset.test_x)]
    watched = set(test)
    secret = np.union1d(np.concatenate(train), np.asarray(dataset.victims, dtype=np.int64))
    known = {row for index in secret if (row := held[index].tobytes()) in watched}
    return np.flatnonzero([row not in known for row in test])


def _write(path: Path, cut: SplitIndices, public: np.ndarray) -> None:
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


def _stored(path: Path) -> Split:
    with np.load(path) as stored:
        parts: dict[str, Any] = dict(stored)
    if any(part.dtype.kind not in "iu" or part.ndim != 1 or part.min(initial=0) < 0 for part in parts.values()):
        raise ValueError("indices that are no whole numbers >= 0")
    ends = {name: np.cumsum(parts[f"{name}_sizes"]) for name in parts if f"{name}_sizes" in parts}
    if any(len(parts[name]) != end[-1] for name, end in ends.items()):
        raise ValueError("other numbers of indices than their sizes")
    parts |= {name: tuple(np.split(parts[name], end[:-1])) for name, end in ends.items()}
    return Split(**{field.name: parts[field.name] for field in fields(Split) if field.name in parts})
