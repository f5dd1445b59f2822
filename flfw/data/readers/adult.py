"""UCI Adult: income above 50,000 dollars a year, predicted from census data (Becker and Kohavi, 1996)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flfw.data.files.dataset import DatasetArrays, DatasetCard
from flfw.data.files.remote import Remote, remotes
from flfw.errors import InputError
from flfw.rng import numpy_generator

# The published categories of each column, in alphabetical order; a column without any holds whole numbers.
_COLUMNS = {
    column: tuple(categories.split())
    for column, categories in {
        "age": "",
        "workclass": "Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
        "fnlwgt": "",
        "education": "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad "
        "Masters Preschool Prof-school Some-college",
        "education-num": "",
        "marital-status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated "
        "Widowed",
        "occupation": "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
        "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support "
        "Transport-moving",
        "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
        "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
        "sex": "Female Male",
        "capital-gain": "",
        "capital-loss": "",
        "hours-per-week": "",
        "native-country": "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France "
        "Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica "
        "Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland "
        "South Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia",
    }.items()
}
_NUMERIC = np.repeat([not known for known in _COLUMNS.values()], [len(known) or 1 for known in _COLUMNS.values()])
_LABELS = ("<=50K", ">50K")
_UNKNOWN = "?"


def _features(words: list[str]) -> Iterator[float]:
    """Yield the features of one row in the order of the columns; raise ValueError for a wrong row."""
    if len(words) != len(_COLUMNS):
        raise ValueError(f"{len(words) + 1} columns")
    for word, (column, known) in zip(words, _COLUMNS.items(), strict=True):
        if not known:
            yield int(word)
        elif word in known or word == _UNKNOWN:
            yield from (word == category for category in known)
        else:
            raise ValueError(f"{column}={word}")


def _rows(path: Path) -> Iterator[list[float]]:
    """Yield the features of each row followed by its label."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("|"):  # adult.test begins with a comment, and both files end in an empty line
            continue
        *words, label = (word.strip() for word in line.split(","))
        try:
            if label.removesuffix(".") not in _LABELS:  # adult.test has a full stop after the label
                raise ValueError(f"label {label!r}")
            yield [*_features(words), _LABELS.index(label.removesuffix("."))]
        except ValueError as error:
            raise InputError(
                f"Expected 14 columns and a label as in adult.names, got {error} in {path}:{number}; "
                "remove the file and get it again."
            ) from error


def adult(root: Path, side: int | None) -> DatasetArrays:
    """Read 48,842 people with 105 features in [0, 1], label 1 above 50,000 dollars: 36,631 rows train, 12,211 test.

    Fed-CDP (Wei et al., ICDCS 2021) reports 105 features and this number of rows. So both published parts form one
    table here, shuffled with a fixed seed and cut 3:1. The features are the 6 numeric columns and 99 categories, one
    column each. An unknown value, written ``?``, is all zeros in its group. A separate column for it in the 3 groups
    with unknown values, as is more usual, would make 108 features.

    Numeric columns are scaled with the training part's minimum and maximum; test values outside are clipped.
    """
    table = np.array([row for file in ADULT.files for row in _rows(root / file)], dtype=np.float64)
    table = table[numpy_generator(0, "adult cut").permutation(len(table))]
    x, y, cut = table[:, :-1], table[:, -1], len(table) * 3 // 4
    low, high = x[:cut, _NUMERIC].min(axis=0), x[:cut, _NUMERIC].max(axis=0)
    # Whole numbers: 1 apart or equal.
    x[:, _NUMERIC] = np.clip((x[:, _NUMERIC] - low) / np.maximum(high - low, 1), 0, 1)
    return DatasetArrays(x[:cut], y[:cut], x[cut:], y[cut:])


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_PUBLISHED = (
    Remote(f"{_UCI}/adult.data", "adult/adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
    Remote(f"{_UCI}/adult.test", "adult/adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
)

ADULT = DatasetCard(
    shape=(len(_NUMERIC),),
    classes=2,
    files={remote.file: remote.md5 for remote in _PUBLISHED},
    read=adult,
    source="https://archive.ics.uci.edu/dataset/2/adult",
    licence="CC BY 4.0, as the UCI repository states",
    citation="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996",
    fetch=remotes(*_PUBLISHED),
    net="mlp",
    split="iid",
    per_client={"shards": (300, 0)},
    # Not normalised: the column of a country with one person, divided by its standard deviation, would be 200 there.
    mean=(0.0,) * len(_NUMERIC),
    std=(1.0,) * len(_NUMERIC),
)
