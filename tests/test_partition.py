"""Splits: the papers' exact numbers, and what no split may do."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flfw.data import Dataset, cache, describe, dominant, load
from flfw.data.partition import IID, Dirichlet, Dominant, scheme, schemes, split
from flfw.errors import BadInput

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
FOLDERS = {"mnist": "MNIST", "fmnist": "FashionMNIST", "cifar10": "cifar-10-batches-py"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def toy(classes=10, train=20, test=10, victims=0, test_start=0):
    """``train`` and ``test`` examples of each class; the label of index i is ``i % classes``."""
    train_y, test_y = np.arange(classes * train) % classes, np.arange(classes * test) % classes
    return Dataset(
        name="toy",
        train_x=np.zeros((len(train_y), 1), np.float32),
        train_y=train_y,
        test_x=np.zeros((len(test_y), 1), np.float32),
        test_y=test_y,
        classes=classes,
        mean=(0.0,),
        std=(1.0,),
        source="made up",
        md5_ok=None,
        victims=range(victims),
        test_start=test_start,
    )


def counts(labels, indices, classes=10):
    return np.bincount(labels[indices], minlength=classes).tolist()


@pytest.mark.parametrize(
    ("client", "examples", "expected"),
    [
        (0, 600, [172, 172, 172, 12, 12, 12, 12, 12, 12, 12]),
        (9, 600, [172, 12, 12, 12, 12, 12, 12, 12, 172, 172]),  # group 4: 8, 9 and 0
        (6, 300, [6, 6, 86, 86, 86, 6, 6, 6, 6, 6]),
        (2, 150, [3, 3, 3, 3, 43, 43, 43, 3, 3, 3]),
        (3, 45, [1, 1, 1, 1, 1, 1, 13, 13, 13, 1]),  # 9 // 10 rounded up to one each: 46 in all
        (4, 500, [144, 10, 10, 10, 10, 10, 10, 10, 143, 143]),  # 400 = 133 + 133 + 134: the last class is 0
        (0, 5, [2, 2, 3, 1, 1, 1, 1, 1, 1, 1]),  # 1 and 4: the last dominant class gets the fourth
    ],
)
def test_quotas_of_ten_classes(client, examples, expected):
    assert dominant.quotas(10, client, examples).tolist() == expected


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (0, [83] * 10 + [3] * 51 + [17]),
        (4, [3] * 10 + [33] * 25 + [53] + [3] * 25 + [17]),
        (2, [3] * 36 + [33] * 25 + [67]),
    ],
)
def test_quotas_of_emnist(client, expected):
    assert dominant.quotas(62, client, 1000).tolist() == expected
    assert sum(expected) == 1000
    emnist = split(toy(62, train=400, test=400), Dominant(1000, 1000), clients=5, seed=0)
    labels = np.arange(62 * 400) % 62
    assert counts(labels, emnist.train[client], 62) == expected


def test_the_pointer_goes_on_where_the_client_before_stopped_and_wraps():
    pools = [np.arange(10), np.arange(100, 103)]
    partitions = dominant.assign(pools, [np.array([4, 1])] * 4, starts=[0, 2])
    assert [indices.tolist() for indices in partitions] == [
        [0, 1, 2, 3, 102],
        [4, 5, 6, 7, 100],
        [0, 1, 2, 3, 101],  # 8-11 would pass the end
        [4, 5, 6, 7, 102],
    ]


def test_dominant_split_by_hand():
    made = split(toy(), Dominant(train=10, test=5), clients=11, seed=0)
    # 2 // 10 -> one of each class; 8 // 3 -> two of each dominant class, and the two left for the last one.
    assert made.train[0].tolist() == [0, 10, 20, 1, 11, 21, 2, 12, 22, 32, 42, 3, 4, 5, 6, 7, 8, 9]
    # Client 1: classes 2, 3, 4; class 2 goes on behind 42.
    assert made.train[1].tolist() == [30, 31, 52, 62, 72, 13, 23, 33, 14, 24, 34, 44, 54, 15, 16, 17, 18, 19]
    assert [counts(np.arange(200) % 10, made.train[client]) for client in (0, 5, 10)] == [[3, 3, 5] + [1] * 7] * 3
    assert counts(np.arange(100) % 10, made.test[1]) == [1, 1, 2, 2, 3, 1, 1, 1, 1, 1]
    assert made.public.tolist() == list(range(100))


def test_test_pointers_start_where_the_data_set_says_and_wrap_to_0():
    made = split(toy(test_start=95), Dominant(train=10, test=5), clients=2, seed=0)
    # Classes 5-9 have one image from 95 on, the others none.
    assert made.test[0].tolist() == [0, 10, 1, 11, 2, 12, 22, 3, 4, 95, 96, 97, 98, 99]
    assert made.test[1].tolist() == [20, 21, 32, 42, 13, 23, 14, 24, 34, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("chosen", [Dominant(train=10, test=5), IID(), Dirichlet(1.0)])
def test_no_client_trains_on_a_victim_even_after_wraps(chosen):
    made = split(toy(victims=37), chosen, clients=20, seed=0)
    seen = set(np.concatenate(made.train).tolist())
    assert not seen & set(range(37))
    assert seen == set(range(37, 200)) or isinstance(chosen, Dominant)
    if isinstance(chosen, Dominant):
        assert 37 in made.train[0]  # the first image of class 7 that is no victim
        assert sum(map(len, made.train)) > 200  # so pointers did wrap


def test_digits_main_job():
    digits = load("digits")
    made = split(digits, Dominant(), clients=10, seed=0)
    assert [len(indices) for indices in made.train] == [150] * 10
    assert [len(indices) for indices in made.test] == [46] * 10
    assert all(len(set(indices.tolist())) == len(indices) for indices in (*made.train, *made.test))
    assert counts(digits.test_y, made.test[4]) == [13, 1, 1, 1, 1, 1, 1, 1, 13, 13]


@pytest.mark.filterwarnings("ignore:Expected the published")
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("clients", [20, 100])
def test_papers_splits_of_the_real_sets(name, clients):
    if not (REAL / FOLDERS[name]).is_dir():
        pytest.skip(f"no {FOLDERS[name]} in FLFW_DATA={REAL}")
    real = load(name, REAL)
    made = split(real, Dominant(), clients, seed=0)
    test = 300 if name == "cifar10" else 600
    for client in range(clients):
        major = [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]][client % 5]
        train_counts = [172 if label in major else 12 for label in range(10)]
        assert counts(real.train_y, made.train[client]) == train_counts
        assert counts(real.test_y, made.test[client]) == [count * test // 600 for count in train_counts]
        assert len(set(made.train[client].tolist())) == 600
        assert len(set(made.test[client].tolist())) == test
    shared = Counter(np.concatenate(made.train).tolist())
    assert (max(shared.values()) > 1) == (clients == 100)  # 20 clients fit, 100 share images
    first = 2000 if name == "cifar10" else 0
    assert min(shared) >= first
    assert made.train[0][0] == first + np.flatnonzero(real.train_y[first:] == 0)[0]
    start = 500 if name == "cifar10" else 0
    assert made.test[0][0] == start + np.flatnonzero(real.test_y[start:] == 0)[0]


def test_dominant_refusals():
    with pytest.raises(BadInput, match=r"10 or 62 classes .* classes=7; take --split iid or dirichlet"):
        split(toy(classes=7), Dominant(10, 5), clients=2, seed=0)
    # 16 // 10 + 6 and 64 // 3 + 1: 28 of a group's last class.
    with pytest.raises(BadInput, match=r"at most 20 examples of class \d .* train part of toy .* from train=80"):
        split(toy(), Dominant(80, 5), clients=2, seed=0)
    with pytest.raises(BadInput, match="test part of toy"):
        split(toy(), Dominant(10, 80), clients=2, seed=0)
    with pytest.raises(BadInput, match="train=-1"):
        Dominant(train=-1)
    with pytest.raises(BadInput, match="dataset=toy"):
        split(toy(), Dominant(), clients=2, seed=0)


def test_iid_and_dirichlet_share_everything_out_once():
    data = toy(train=50, test=20)
    for chosen in (IID(), Dirichlet(0.5)):
        made = split(data, chosen, clients=7, seed=0)
        assert sorted(np.concatenate(made.train).tolist()) == list(range(500))
        assert all(len(set(indices.tolist())) == len(indices) for indices in made.test)
        assert all(indices.dtype == np.int64 for indices in (*made.train, *made.test, made.public))
    iid = split(data, IID(), clients=7, seed=0)
    assert {len(indices) for indices in iid.train} == {71, 72}
    assert sorted(np.concatenate(iid.test).tolist()) == list(range(200))
    assert min(counts(data.train_y, iid.train[0])) > 0  # shuffled: not a run of one class
    assert iid.train[0].tolist() != sorted(iid.train[0].tolist())


def test_dirichlet_concentrates_as_alpha_says():
    data = toy(train=100)

    def largest_share(alpha):
        partitions = split(data, Dirichlet(alpha), clients=5, seed=1).train
        return np.mean([max(counts(data.train_y, indices)) / len(indices) for indices in partitions])

    assert largest_share(1000.0) < 0.12  # a tenth each
    assert 0.15 < largest_share(1.0) < 0.35
    assert largest_share(0.1) > 0.35


def test_dirichlet_test_sets_have_the_clients_own_mix():
    data = toy(train=100, test=40)
    made = split(data, Dirichlet(0.5), clients=4, seed=0)
    for train, test in zip(made.train, made.test, strict=True):
        share = np.array(counts(data.train_y, train)) / len(train)
        expected = np.minimum(share * 100, 40)  # 400 // 4 of the test part, no class more than whole
        assert np.abs(counts(data.test_y, test) - expected).max() < 1


def test_same_arguments_same_split_whether_kept_or_not(tmp_path, monkeypatch):
    data = toy(train=50)
    for chosen in (IID(), Dirichlet(0.5), Dominant(10, 5)):
        first = split(data, chosen, clients=4, seed=3)
        kept = split(data, chosen, clients=4, seed=3)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / type(chosen).__name__))
        afresh = split(data, chosen, clients=4, seed=3)
        for other in (kept, afresh):
            for ours, theirs in zip(first.train + first.test, other.train + other.test, strict=True):
                assert ours.tolist() == theirs.tolist()
    assert split(data, IID(), 4, 3).train[0].tolist() != split(data, IID(), 4, 4).train[0].tolist()


def test_what_is_kept_depends_on_everything_it_should():
    data = toy(train=50)
    variants = [
        (data, Dirichlet(0.5), 4, 0),
        (data, Dirichlet(0.6), 4, 0),
        (data, Dirichlet(0.5), 5, 0),
        (data, Dirichlet(0.5), 4, 1),
        (replace(data, victims=range(5)), Dirichlet(0.5), 4, 0),
        (replace(data, train_y=data.train_y[::-1]), Dirichlet(0.5), 4, 0),
        (replace(data, test_y=data.test_y[::-1]), Dirichlet(0.5), 4, 0),
    ]
    for variant in variants:
        split(*variant)
    assert len(list((cache.user_cache() / "splits").iterdir())) == len(variants)


def test_empty_clients_are_named():
    with pytest.raises(BadInput, match=r"training data .* client 1 and \d+ more .*Dirichlet\(alpha=0.01\), seed=0"):
        split(toy(), Dirichlet(0.01), clients=30, seed=0)
    with pytest.raises(BadInput, match="at most 100 clients"):
        split(toy(), IID(), clients=101, seed=0)
    with pytest.raises(BadInput, match=r"at most 0 clients, as toy has 0 training examples that are no victims"):
        split(toy(victims=200), Dirichlet(1.0), clients=2, seed=0)
    with pytest.raises(BadInput, match="clients=0"):
        split(toy(), IID(), clients=0, seed=0)
    assert not (cache.user_cache() / "splits").exists()


def test_a_client_without_test_data_is_named():
    data = toy(classes=2, train=4, test=2)
    data = replace(data, test_y=np.zeros(4, np.int64))  # nobody can test on class 1
    with pytest.raises(BadInput, match=r"test data for each of 2 clients, got none for client \d"):
        split(data, Dirichlet(0.02), clients=2, seed=seed_that_separates(data))


def seed_that_separates(data):
    """A seed whose Dirichlet draw gives each of two clients one class."""
    from flfw.data import partitioners
    from flfw.rng import numpy_generator

    for seed in range(50):
        partitions = partitioners.dirichlet(data.train_y, 2, 0.02, numpy_generator(seed, "split"))
        if sorted(tuple(counts(data.train_y, indices, 2)) for indices in partitions) == [(0, 4), (4, 0)]:
            return seed
    raise AssertionError("no seed below 50 separates the classes")


def test_the_partitioner_for_other_flower_apps_is_the_same_split():
    from datasets import Dataset as Table

    from flfw.data.partitioners import DominantPartitioner

    data = toy()
    partitioner = DominantPartitioner(7, "label", classes=10, examples=10)
    partitioner.dataset = Table.from_dict({"label": data.train_y, "index": np.arange(200)})
    made = split(data, Dominant(10, 5), clients=7, seed=0)
    assert partitioner.num_partitions == 7
    for client, indices in enumerate(made.train):
        assert partitioner.load_partition(client)["index"][:] == indices.tolist()


def test_schemes_by_name():
    assert schemes() == ("iid", "dirichlet", "dominant")
    assert scheme("dirichlet")() == Dirichlet(alpha=0.5)
    with pytest.raises(BadInput, match="among iid, dirichlet, dominant; got split=shard"):
        scheme("shard")
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(BadInput, match=f"alpha={alpha}"):
            Dirichlet(alpha)
    assert describe("cancer").split in schemes()
