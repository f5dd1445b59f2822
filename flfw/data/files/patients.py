"""Patients: whose example is which, for data that name them, and a test part of whole patients.

A patient stands for any group of examples that belong together: all images of one person, device or document.
"""

import numpy as np

from flfw.errors import InputError

SUFFIX = "@patient"
"""Ending of a data set's name whose examples name their patients."""

TAG = "@PatientID"
"""Ending of the name of a folder of DICOM files, whose headers name their patients."""


def parsed(word: str) -> tuple[str, str]:
    """Return a data set's word without its ending `SUFFIX` or `TAG`, and that ending, or an empty string."""
    ending = next((one for one in (SUFFIX, TAG) if word.endswith(one)), "")
    return word.removesuffix(ending), ending


def tested(labels: np.ndarray, patients: np.ndarray) -> np.ndarray:
    """Choose the patients of an automatic test part: (N,) bool, whether each example's patient is among them.

    A patient counts as of that class, among its own, which the fewest patients have. Every fifth patient of a class in
    the order of their numbers, from the second on, is chosen.

    Args:
        labels: (N,) classes of all examples.
        patients: (N,) their patients.
    """
    each, row = np.unique(patients, return_inverse=True)
    has = np.zeros((len(each), int(labels.max()) + 1), dtype=bool)
    has[row, labels] = True
    kind = np.where(has, has.sum(axis=0), len(each) + 1).argmin(axis=1)
    chosen = np.concatenate([np.flatnonzero(kind == one)[1::5] for one in np.unique(kind)])
    return np.isin(row, chosen)


def require_apart(name: str, train: np.ndarray | None, test: np.ndarray | None, sizes: tuple[int, int]) -> None:
    """Refuse patients of two parts that are no whole numbers >= 0 of all examples, or of whom one is in both parts.

    Args:
        name: name of the data set.
        train: (N,) patients of the training examples; None: not known.
        test: likewise.
        sizes: number of training and of test examples.
    """
    if train is None and test is None:
        return
    for part, given, size in (("train", train, sizes[0]), ("test", test, sizes[1])):
        sound = given is not None and given.shape == (size,) and given.dtype == np.int64 and given.min() >= 0
        if not sound:
            raise InputError(
                f"Expected a patient, an int64 >= 0, of each of {size} {part} examples of {name}, got others."
            )
    both = np.intersect1d(np.asarray(train), np.asarray(test))
    if len(both):
        raise InputError(
            f"Expected each patient in one part of {name}, got {len(both)} with training and with test examples, the "
            f"first of them patient {both[0]}; move all examples of a patient to one part."
        )
