"""Patients: folders of theirs, a test part of whole patients, splits that separate nobody, and what is refused."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from flfw.data import Dataset, absolute, describe, load
from flfw.data.files import patients
from flfw.data.splits.partition import SplitScheme, split
from flfw.data.splits.patients import most_at_a_client, most_clients
from flfw.data.splits.schemes import IID, DatasetPerClient, Dirichlet, FullCopy, Pathological, Sampled, Shards
from flfw.data.splits.split_indices import SplitIndices
from flfw.errors import InputError
from tests.support.pictures import noise, save
from tests.support.toys import toy


def write(path: Path, files: str) -> None:
    for number, file in enumerate(files.split()):
        save(path / f"{file}.png", np.roll(noise(6, 6), number))


def of_patients(seed: int = 0) -> Dataset:
    """30 patients of 1 to 4 training examples, and 20 others for testing; some have examples of two classes."""
    rng = np.random.default_rng(seed)
    data = toy(classes=3, train=25, test=15)
    train = np.sort(np.concatenate([np.arange(30), rng.integers(0, 30, 45)]))
    test = 30 + np.sort(np.concatenate([np.arange(20), rng.integers(0, 20, 25)]))
    labels, test_labels = np.minimum(train // 10, 2), (test - 30) % 3
    return replace(data, train_y=labels, test_y=test_labels, train_group=train, test_group=test)


def test_a_patient_is_the_first_folder_below_a_class_and_the_same_in_two_classes(tmp_path: Path) -> None:
    """Both have p1, the only ones of class a are p1 and p2: p2, the second, is for testing, and of class b p4."""
    write(tmp_path, "a/p1/0 a/p1/deep/1 a/p2/0 b/p1/0 b/p3/0 b/p4/0 b/p4/1")
    data = load(f"folder:{tmp_path}@patient")
    assert data.train_group is not None and data.test_group is not None
    assert sorted(zip(data.train_group, data.train_y, strict=True)) == [(0, 0), (0, 0), (0, 1), (2, 1)]
    assert sorted(zip(data.test_group, data.test_y, strict=True)) == [(1, 0), (3, 1), (3, 1)]
    plain = load(f"folder:{tmp_path}")
    assert (plain.train_group, len(plain.train_y) + len(plain.test_y)) == (None, 7)


def test_parts_of_their_own_are_kept_and_share_no_patient(tmp_path: Path) -> None:
    write(tmp_path, "train/a/p/0 train/b/q/0 test/a/r/0 test/b/r/0")
    data = load(f"folder:{tmp_path}@patient")
    assert (np.asarray(data.train_group).tolist(), np.asarray(data.test_group).tolist()) == ([0, 1], [2, 2])
    write(tmp_path, "test/b/p/0")
    with pytest.raises(InputError, match="each patient in one part, got p in"):
        describe(f"folder:{tmp_path}@patient")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ("a/p/0 a/1 b/q/0 b/q/1", "a folder of each patient in .*a, with all images, got 1.png beside"),
        ("a/p/0 a/q/1 b/r/0 b/r/1", "got none of b in the test part"),
    ],
)
def test_other_layouts_are_refused_in_one_line(tmp_path: Path, files: str, text: str) -> None:
    write(tmp_path, files)
    with pytest.raises(InputError, match=text) as refused:
        describe(f"folder:{tmp_path}@patient")
    assert "\n" not in str(refused.value)


def test_a_folder_whose_own_name_has_the_ending(tmp_path: Path) -> None:
    write(tmp_path / "x@patient", "a/0 a/1 b/0 b/1")
    name = absolute(f"folder:{tmp_path}/x@patient/")
    assert name == absolute(name) == f"folder:{tmp_path}/x@patient/"
    assert load(name).train_group is None
    assert absolute("folder:/x/@patient") == "folder:/x@patient"


def test_rows_of_a_site_have_their_patient_after_the_class(tmp_path: Path) -> None:
    rows = ["0.1,0,7", "0.2,0,7", "0.3,0,9", "0.4,1,2", "0.5,1,8", "0.6,1,8"]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    data = load("site:1:2@patient", tmp_path)
    assert (np.asarray(data.train_group).tolist(), np.asarray(data.test_group).tolist()) == ([7, 7, 2], [9, 8, 8])
    assert data.train_y.tolist() == [0, 0, 1]
    (tmp_path / "rows.csv").write_text("\n".join(rows).replace(",9", ",0.5"))
    with pytest.raises(InputError, match="a whole number >= 0 of a patient"):
        load("site:1:2@patient", tmp_path)
    (tmp_path / "rows.csv").write_text("0.1,0\n")
    with pytest.raises(InputError, match="1 numbers and a class and a patient"):
        load("site:1:2@patient", tmp_path)


def test_every_fifth_patient_of_its_rarest_class_is_for_testing() -> None:
    """Class 1 has three patients, class 0 four: 0 counts as of class 1, with 5 and 6, of whom 5 is the second."""
    labels, whose = np.array([0, 0, 0, 0, 1, 1, 1, 0]), np.array([0, 1, 2, 3, 0, 5, 6, 1])
    assert patients.tested(labels, whose).tolist() == [False, False, True, False, False, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [IID(), Dirichlet(0.5), Pathological(2)], ids=["iid", "dirichlet", "pathological"])
@pytest.mark.parametrize("test", ["own", "shared"])
def test_over_many_seeds_no_patient_is_separated(scheme: object, test: str) -> None:
    cut = 0
    for seed in range(50):
        data = of_patients(seed)
        assert data.train_group is not None and data.test_group is not None
        try:
            one = split(data, scheme, 3, seed, test)  # type: ignore[arg-type]
        except InputError as error:
            assert "data for each of 3 clients" in str(error)
            continue
        cut += 1
        total = np.bincount(data.train_group)
        assert most_clients(data.train_group, one.train) == 1
        for mine in one.train:
            held = np.bincount(data.train_group[mine], minlength=30)
            assert np.all((held == 0) | (held == total))
        for mine in one.test:
            held = np.bincount(data.test_group[mine], minlength=50)
            assert np.all((held == 0) | (held == np.bincount(data.test_group, minlength=50)))
    assert cut >= 30


def test_clients_hold_nearly_equal_numbers_of_patients_and_all_or_one_where_asked() -> None:
    data = of_patients()
    assert data.train_group is not None and data.test_group is not None
    one = split(data, IID(), 4, 0)
    assert sorted(len(np.unique(data.train_group[mine])) for mine in one.train) == [7, 7, 8, 8]
    assert sum(map(len, one.train)) == 75
    all_ = split(data, FullCopy(), 4, 0)
    assert [len(mine) for mine in all_.train] == [75] * 4
    alone = split(data, DatasetPerClient(), 1, 0)
    both = np.intersect1d(data.test_group[alone.test[0]], data.test_group[alone.validation[0]])
    assert (len(alone.train[0]), len(both)) == (75, 0)
    assert most_at_a_client(data.train_group, one.train) == np.bincount(data.train_group).max()


@pytest.mark.parametrize("scheme", [IID(), Dirichlet(0.5), Pathological(2)], ids=["iid", "dirichlet", "pathological"])
def test_too_few_patients_are_counted_in_plain_words(scheme: object) -> None:
    """Of its 31 patients one is for testing."""
    few = replace(of_patients(), name="csv:t.csv@y?patient=ward", test_group=np.full(45, 30))
    with pytest.raises(InputError) as refused:
        split(few, scheme, 3, 0)  # type: ignore[arg-type]
    assert str(refused.value) == (
        "Expected at most 1 client, as each needs a patient to train on and another to be tested with, and "
        "csv:t.csv@y has 30 to train on and 1 for testing, got clients=3; take fewer --clients, or a column or folders "
        "with more patients."
    )


@pytest.mark.parametrize("scheme", [Sampled(train=5), Shards(train=6)])
def test_schemes_for_numbers_of_examples_are_refused(scheme: object) -> None:
    with pytest.raises(
        InputError, match="split among iid, dirichlet, pathological, full_copy, dataset_per_client for toy"
    ):
        split(of_patients(), scheme, 2, 0)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Careless(SplitScheme):
    """Every second example to each of two clients."""

    def divide(self, dataset: Dataset, clients: int, rng: np.random.Generator) -> SplitIndices:
        """Divide by the places of examples."""
        train, test = np.arange(len(dataset.train_y)), np.arange(len(dataset.test_y))
        return SplitIndices([train[::2], train[1::2]], [test[::2], test[1::2]])


def test_a_scheme_of_a_user_is_checked_after_its_cut() -> None:
    with pytest.raises(InputError, match="Expected every patient's training examples at one client, got"):
        split(of_patients(), Careless(), 2, 0)
    assert split(replace(of_patients(), train_group=None, test_group=None), Careless(), 2, 0).patients is None
