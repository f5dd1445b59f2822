"""Splits by patient: a scheme divides patients instead of examples, and a client gets all examples of each of its own.

To the scheme a patient is one example, of the class that most of its examples have (the first of several). So clients
get nearly equal numbers of patients, or classes of patients in the drawn proportions, and not so of examples.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flfw.data.files.dataset import Dataset
from flfw.data.splits.schemes import IID, DatasetPerClient, Dirichlet, FullCopy, Pathological, name_of
from flfw.data.splits.split_indices import SplitIndices, SplitScheme, at_most
from flfw.errors import InputError, require

BY_PATIENT: tuple[type[SplitScheme], ...] = (IID, Dirichlet, Pathological, FullCopy, DatasetPerClient)
"""Schemes that ask for no number of examples, so that they can divide patients."""


def require_by_patient(dataset: Dataset, scheme: SplitScheme) -> None:
    """Refuse a scheme of the project that would separate a patient's examples.

    Raises:
        InputError: naming the schemes that do not.
    """
    known = [name_of(one) for one in BY_PATIENT]
    able = f"split among {', '.join(known)} for {dataset.name}, whose patients stay whole"
    require(isinstance(scheme, BY_PATIENT), able, split=name_of(type(scheme)))


def divide(dataset: Dataset, scheme: SplitScheme, clients: int, rng: np.random.Generator) -> SplitIndices:
    """Divide the patients of a data set by a scheme for examples; patients with a victim are no client's.

    Args:
        dataset: data with patients.
        scheme: one of `BY_PATIENT`.
        clients: number of clients.
        rng: generator of the draws.

    Raises:
        InputError: there are more clients than patients of a part that is cut, or the scheme refuses.
    """
    train, test = _examples(dataset.train_group, dataset.victims), _examples(dataset.test_group)
    if isinstance(scheme, IID | Dirichlet | Pathological):
        name, left = dataset.name.partition("?")[0], " (without victims)" if len(dataset.victims) else ""
        at_most(
            min(len(train), len(test)),
            clients,
            f"each needs a patient to train on and another to be tested with, and {name} has {len(train)} to train on"
            f"{left} and {len(test)} for testing",
            "take fewer --clients, or a column or folders with more patients",
        )
    reduced = replace(
        dataset,
        train_x=dataset.train_x[[one[0] for one in train]],
        train_y=_main_classes(dataset.kinds(dataset.train_y), train),
        test_x=dataset.test_x[[one[0] for one in test]],
        test_y=_main_classes(dataset.kinds(dataset.test_y), test),
        victims=range(0),
        train_group=None,
        test_group=None,
    )
    cut = scheme.divide(reduced, clients, rng)
    return SplitIndices(
        [_together(train, chosen) for chosen in cut.train],
        [_together(test, chosen) for chosen in cut.test],
        [_together(test, chosen) for chosen in cut.validation],
    )


def _examples(groups: np.ndarray | None, without: Sequence[int] = ()) -> list[np.ndarray]:
    """Return the examples of each patient, in order, of patients that have none of some examples."""
    column = np.asarray(groups)
    order = np.argsort(column, kind="stable")
    each = np.split(order, np.flatnonzero(np.diff(column[order])) + 1)
    return [one for one in each if not np.isin(one, without).any()]


def _main_classes(labels: np.ndarray, patients: Sequence[np.ndarray]) -> np.ndarray:
    column = np.asarray(labels)
    return np.array([np.bincount(column[one]).argmax() for one in patients], dtype=np.int64)


def _together(patients: Sequence[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    return np.concatenate([patients[one] for one in chosen]) if len(chosen) else np.zeros(0, np.int64)


def repeated(groups: np.ndarray, times: int) -> np.ndarray:
    """Return the patients of a part that is repeated so many times; each copy of a patient is another one."""
    column = np.asarray(groups)
    return np.concatenate([column + copy * (int(column.max()) + 1) for copy in range(times)])


def shuffled(groups: np.ndarray, size: int, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw parts of whole patients, each of about ``size`` examples: no more, unless the part's first has more.

    Raises:
        InputError: there are fewer patients than parts.
    """
    patients = _examples(groups)
    require(len(patients) >= parts, f"{parts} patients or more with test examples", patients=len(patients))
    order = rng.permutation(len(patients)).tolist()
    drawn = []
    for part in range(parts):
        mine = [patients[order.pop(0)]]
        while len(order) > parts - part - 1 and sum(map(len, mine)) + len(patients[order[0]]) <= size:
            mine.append(patients[order.pop(0)])
        drawn.append(np.sort(np.concatenate(mine)))
    return drawn


def require_whole(dataset: Dataset, cut: SplitIndices) -> None:
    """Refuse a cut that separates a patient: a client with one of its examples has all of them that any client has.

    Several clients may hold the same whole patient. A patient of the server's or the defences' data is no client's, and
    none of the validation data has test data.

    Raises:
        InputError: naming the patient.
    """
    train, test = np.asarray(dataset.train_group), np.asarray(dataset.test_group)
    parts = (("training", train, cut.train), ("test", test, cut.test), ("validation", test, cut.validation))
    for part, groups, held in parts:
        if separated := _separated(groups, held):
            patient, few, all_ = separated
            raise InputError(
                f"Expected every patient's {part} examples at one client, got {few} of the {all_} of patient {patient} "
                f"at one ({dataset.name}); take another --split."
            )
    pairs = (
        ("clients and the server", train, cut.train, [cut.distillation]),
        ("clients and defences", train, cut.train, [cut.proxy]),
        ("test and validation", test, cut.test, cut.validation),
    )
    for names, groups, some, others in pairs:
        both = np.intersect1d(_present(groups, some), _present(groups, others))
        if len(both):
            raise InputError(
                f"Expected no patient in the data of {names}, got patient {both[0]} in both ({dataset.name}); take "
                "another --split."
            )


def _separated(groups: np.ndarray, parts: Sequence[np.ndarray]) -> tuple[int, int, int] | None:
    """Return a patient, how many of its examples a client holds and how many all hold, if a client lacks some."""
    if not len(parts):
        return None
    total = np.bincount(groups[np.unique(np.concatenate(parts))])
    for part in parts:
        patients, counts = np.unique(groups[np.unique(part)], return_counts=True)
        if len(lacking := np.flatnonzero(counts < total[patients])):
            first = lacking[0]
            return int(patients[first]), int(counts[first]), int(total[patients[first]])
    return None


def _present(groups: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(groups[np.concatenate(parts)]) if len(parts) else groups[:0]


def most_at_a_client(groups: np.ndarray, parts: Sequence[np.ndarray]) -> int:
    """Return the largest number of examples that one patient has at one client."""
    column = np.asarray(groups)
    return max((int(np.bincount(column[part]).max()) for part in parts if len(part)), default=0)


def most_clients(groups: np.ndarray, parts: Sequence[np.ndarray]) -> int:
    """Return the largest number of clients at which one patient has examples."""
    column = np.asarray(groups)
    return int(np.bincount(np.concatenate([np.unique(column[part]) for part in parts])).max(initial=0))
