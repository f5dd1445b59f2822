"""UCI Adult: the encoding by hand on a few rows, by pandas on all of them, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from flfw.data import describe, load
from flfw.data.files import cache
from flfw.errors import InputError
from flfw.rng import numpy_generator

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
CENSUS = [  # all but the income
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba",
    "50, Private, 83311, 10th, 6, Divorced, Armed-Forces, Husband, Other, Male, 0, 0, 13, United-States",
    "28, ?, 338409, Preschool, 1, Widowed, ?, Wife, Black, Female, 0, 1902, 40, ?",
    "61, Without-pay, 1484705, Doctorate, 16, Separated, Sales, Unmarried, White, Female, 99999, 0, 99, Yugoslavia",
]
HIGH = [0, 1, 0, 1]
GROUPS = [1, 8, 1, 16, 1, 7, 14, 6, 5, 2, 1, 1, 1, 41]  # features of each column
STARTS = np.cumsum([0, *GROUPS[:-1]])
NUMERIC = [start for start, width in zip(STARTS, GROUPS, strict=True) if width == 1]
PLACE = {  # of some categories in their groups, counted by hand in adult.names, alphabetically
    "State-gov": 6, "Private": 3, "Without-pay": 7, "Bachelors": 9, "10th": 0, "Preschool": 13, "Doctorate": 10,
    "Never-married": 4, "Divorced": 0, "Widowed": 6, "Separated": 5, "Adm-clerical": 0, "Armed-Forces": 1, "Sales": 11,
    "Not-in-family": 1, "Husband": 0, "Wife": 5, "Unmarried": 4, "White": 4, "Other": 3, "Black": 2, "Male": 1,
    "Female": 0, "Cuba": 4, "United-States": 38, "Yugoslavia": 40,
}  # fmt: skip


def write_adult(root, rows=None, test_rows=None):
    """Three rows in adult.data and one in adult.test, as the files are published."""
    folder = root / "adult"
    folder.mkdir(exist_ok=True)
    labelled = [f"{row}, {'>50K' if high else '<=50K'}" for row, high in zip(CENSUS, HIGH, strict=True)]
    (folder / "adult.data").write_text("\n".join(rows or labelled[:3]) + "\n\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(test_rows or [labelled[3] + "."]) + "\n\n")
    return root


def encoded(row, low, high):
    """The 105 features of a row, one after the other."""
    features = np.zeros(105)
    numeric = iter(zip(low, high, strict=True))
    for word, start, width in zip(row.split(", "), STARTS, GROUPS, strict=True):
        if width == 1:
            minimum, maximum = next(numeric)
            features[start] = min(max((int(word) - minimum) / (maximum - minimum), 0), 1)
        elif word != "?":
            features[start + PLACE[word]] = 1
    return features


@pytest.mark.filterwarnings("ignore:Expected the published")
def test_four_rows_by_hand(tmp_path):
    adult = load("adult", write_adult(tmp_path))
    order = numpy_generator(0, "adult cut").permutation(4)
    numbers = np.array([[int(word) for word in row.split(", ") if word.isdecimal()] for row in CENSUS])
    train = numbers[order[:3]]
    expected = [encoded(CENSUS[i], train.min(axis=0), train.max(axis=0)) for i in order]
    np.testing.assert_allclose(np.concatenate([adult.train_x, adult.test_x]), expected, atol=1e-6)
    assert [*adult.train_y, *adult.test_y] == [HIGH[i] for i in order]
    assert (len(adult.train_y), len(adult.test_y), adult.train_x.dtype) == (3, 1, np.float32)
    assert (adult.shape, adult.classes, adult.md5_ok, adult.is_image) == ((105,), 2, False, False)


@pytest.mark.filterwarnings("ignore:Expected the published")
def test_a_column_that_never_changes_is_all_zeros(tmp_path):
    adult = load("adult", write_adult(tmp_path, [f"{CENSUS[0]}, <=50K"] * 3, [f"{CENSUS[0]}, <=50K."]))
    assert not adult.train_x[:, NUMERIC].any()
    assert adult.train_x.sum(axis=1).tolist() == [8, 8, 8]


@pytest.mark.filterwarnings("ignore:Expected the published")
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("State-gov", "Astronaut", "workclass=Astronaut"),
        ("Male", "male", "sex=male"),
        ("77516", "?", "invalid literal for int() with base 10: '?'"),
        ("39", "nan", "'nan'"),
        (", 40", "", "14 columns"),
        ("Cuba", "Cuba, Cuba", "16 columns"),
        ("<=50K", ">=50K", "label '>=50K'"),
    ],
)
def test_a_malformed_row_is_named_with_file_and_line(tmp_path, old, new, complaint):
    good = f"{CENSUS[0]}, <=50K"
    write_adult(tmp_path, rows=[good, good.replace(old, new)])
    with pytest.raises(InputError, match=r"adult\.data:2; remove the file and get it again\.$") as error:
        load("adult", tmp_path)
    assert complaint in str(error.value)
    write_adult(tmp_path, test_rows=[good.replace(old, new) + "."])
    with pytest.raises(InputError, match=r"adult\.test:2; remove the file and get it again\.$"):
        load("adult", tmp_path)
    assert not (cache.user_cache() / "pixels").exists()


def real():
    if not (REAL / "adult").is_dir():
        pytest.skip(f"no adult in FLFW_DATA={REAL}")
    return load("adult", REAL)


@pytest.mark.slow
def test_real_adult_has_the_papers_numbers():
    adult = real()
    assert (adult.train_x.shape, adult.test_x.shape, adult.md5_ok) == ((36631, 105), (12211, 105), True)
    assert round(float(np.concatenate([adult.train_y, adult.test_y]).mean()), 4) == 0.2393
    assert abs(adult.train_y.mean() - adult.test_y.mean()) < 0.01
    for x in (adult.train_x, adult.test_x):
        assert (x.min(), x.max()) == (0, 1)
    assert (adult.train_x.min(axis=0)[NUMERIC].tolist(), adult.train_x.max(axis=0)[NUMERIC].tolist()) == (
        [0] * 6,
        [1] * 6,
    )
    assert (set(adult.mean), set(adult.std)) == ({0.0}, {1.0})


@pytest.mark.slow
def test_every_group_is_one_hot_or_all_zeros_where_unknown():
    adult = real()
    x = np.concatenate([adult.train_x, adult.test_x])
    unknown = {}
    for column, (start, width) in enumerate(zip(STARTS, GROUPS, strict=True)):
        if width > 1:
            group = x[:, start : start + width]
            assert set(np.unique(group)) == {0, 1}
            assert group.any(axis=0).all()  # every published category occurs
            assert set(np.unique(group.sum(axis=1))) <= {0, 1}
            unknown[column] = int((group.sum(axis=1) == 0).sum())
    assert {column: rows for column, rows in unknown.items() if rows} == {1: 2799, 6: 2809, 13: 857}


@pytest.mark.slow
def test_real_adult_is_what_pandas_makes_of_it():
    import pandas as pd

    adult = real()
    read = {"header": None, "skipinitialspace": True, "na_values": "?"}
    parts = [pd.read_csv(REAL / "adult" / "adult.data", **read)]
    parts += [pd.read_csv(REAL / "adult" / "adult.test", skiprows=1, **read)]
    table = pd.concat(parts, ignore_index=True).iloc[numpy_generator(0, "adult cut").permutation(48842)]
    labels = table.pop(14).str.startswith(">50K").to_numpy()
    columns = [
        pd.get_dummies(table[i], dtype=float) if width > 1 else table[[i]].astype(float)
        for i, width in enumerate(GROUPS)
    ]
    x = np.concatenate([column.to_numpy() for column in columns], axis=1)
    low, high = x[:36631].min(axis=0), x[:36631].max(axis=0)
    x = np.clip((x - low) / np.where(high > low, high - low, 1), 0, 1)
    np.testing.assert_allclose(np.concatenate([adult.train_x, adult.test_x]), x, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([adult.train_y, adult.test_y]), labels)


def test_the_card():
    card = describe("adult")
    assert (card.net, card.split, card.per_client) == ("mlp", "iid", {"shards": (300, 0)})
    assert list(card.files) == ["adult/adult.data", "adult/adult.test"]
