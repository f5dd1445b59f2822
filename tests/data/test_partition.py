"""Splits: the papers' exact numbers, and what no split may do."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flfw.data import describe, load
from flfw.data.files import cache
from flfw.data.splits import dominant
from flfw.data.splits.partition import split
from flfw.data.splits.schemes import (
    IID,
    Dirichlet,
    Domains,
    Dominant,
    FullCopy,
    Pathological,
    Pools,
    Sampled,
    Shards,
    scheme,
    schemes,
)
from flfw.errors import InputError
from flfw.plugins import build_settings
from tests.support.toys import toy

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))
FOLDERS = {"mnist": "MNIST", "fmnist": "FashionMNIST", "cifar10": "cifar-10-batches-py"}


def of_domains(train=(40, 60, 20), test=(8, 6, 4), **rest):
    """Examples of three domains that follow each other: ink, paint and chalk."""
    data = toy(classes=2, train=sum(train) // 2, test=sum(test) // 2)
    column, test_column = np.repeat(np.arange(3), train), np.repeat(np.arange(3), test)
    names = ("ink", "paint", "chalk")
    return replace(data, domains=names, train_domain=column, test_domain=test_column, **rest)


def real_set(name):
    if not (REAL / FOLDERS[name]).is_dir():
        pytest.skip(f"no {FOLDERS[name]} in FLFW_DATA={REAL}")
    return load(name, REAL)


def none_twice(*partitions):
    """Whether no index stands twice in all of these arrays together."""
    together = np.concatenate(partitions)
    return len(np.unique(together)) == len(together)


ALL = (
    IID(),
    Dirichlet(5.0),
    Pathological(4),
    Dominant(10, 5),
    Sampled(20, 30),
    Shards(30),
    FullCopy(),
    Pools(20, share=0.6),
    Pools(12, share=0.6, classes=3),
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Expected the published")
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("clients", [20, 100])
def test_papers_splits_of_the_real_sets(name, clients):
    real = real_set(name)
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
    with pytest.raises(InputError, match=r"10 or 62 classes .* classes=7; take --split iid or dirichlet"):
        split(toy(classes=7), Dominant(10, 5), clients=2, seed=0)
    # 16 // 10 + 6 and 64 // 3 + 1: 28 of a group's last class.
    with pytest.raises(InputError, match=r"at most 20 examples of class \d .* train part of toy .* from train=80"):
        split(toy(), Dominant(80, 5), clients=2, seed=0)
    with pytest.raises(InputError, match="test part of toy"):
        split(toy(), Dominant(10, 80), clients=2, seed=0)
    with pytest.raises(InputError, match="train=-1"):
        Dominant(train=-1)
    with pytest.raises(InputError, match=r"toy has none of its own, got Dominant\(train=0.*dominant.train=600"):
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
    for chosen in (*ALL, Domains(held_out="chalk")):
        used = of_domains() if chosen == Domains(held_out="chalk") else data
        first = split(used, chosen, clients=4, seed=3)
        kept = split(used, chosen, clients=4, seed=3)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / type(chosen).__name__ / str(chosen)))
        afresh = split(used, chosen, clients=4, seed=3)
        for other in (kept, afresh):
            for part in ("train", "test", "validation"):
                for ours, theirs in zip(getattr(first, part), getattr(other, part), strict=True):
                    assert ours.tolist() == theirs.tolist() and ours.dtype == np.int64
            for part in ("distillation", "proxy", "public"):
                assert getattr(first, part).tolist() == getattr(other, part).tolist()
                assert getattr(first, part).dtype == np.int64
    assert split(data, IID(), 4, 3).train[0].tolist() != split(data, IID(), 4, 4).train[0].tolist()


@pytest.mark.slow
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
        (replace(data, train_x=data.train_x[::-1]), Dirichlet(0.5), 4, 0),
        (replace(data, test_x=data.test_x[::-1]), Dirichlet(0.5), 4, 0),
        (replace(data, domains=("a",)), Dirichlet(0.5), 4, 0),
        (replace(data, domains=("b",)), Dirichlet(0.5), 4, 0),
        (replace(data, train_domain=np.ones(500, np.int64)), Dirichlet(0.5), 4, 0),
        (replace(data, test_domain=np.ones(100, np.int64)), Dirichlet(0.5), 4, 0),
        (replace(data, held_out="a"), Dirichlet(0.5), 4, 0),
        (replace(data, per_client={"dominant": (1, 1)}), Dirichlet(0.5), 4, 0),
        (load("digits"), Dirichlet(0.5), 4, 0),
        (load("digits", side=16), Dirichlet(0.5), 4, 0),  # mapped from another file
    ]
    for variant in variants:
        split(*variant)
    assert len(list((cache.user_cache() / "splits").iterdir())) == len(variants)


def test_empty_clients_are_named():
    with pytest.raises(InputError, match=r"training data .* client 1 and \d+ more .*Dirichlet\(alpha=0.01\), seed=0"):
        split(toy(), Dirichlet(0.01), clients=30, seed=0)
    with pytest.raises(InputError, match="at most 100 clients"):
        split(toy(), IID(), clients=101, seed=0)
    with pytest.raises(InputError, match=r"at most 0 clients, as toy has 0 training examples that are no victims"):
        split(toy(victims=200), Dirichlet(1.0), clients=2, seed=0)
    with pytest.raises(InputError, match="clients=0"):
        split(toy(), IID(), clients=0, seed=0)
    assert not (cache.user_cache() / "splits").exists()


def test_a_client_without_test_data_is_named():
    data = toy(classes=2, train=4, test=2)
    data = replace(data, test_y=np.zeros(4, np.int64))  # nobody can test on class 1
    with pytest.raises(InputError, match=r"test data for each of 2 clients, got none for client \d"):
        split(data, Dirichlet(0.02), clients=2, seed=seed_that_separates(data))


def seed_that_separates(data):
    """A seed whose Dirichlet draw gives each of two clients one class."""
    from flfw.data.splits import partitioners
    from flfw.rng import numpy_generator

    for seed in range(50):
        partitions = partitioners.dirichlet(data.train_y, 2, 0.02, numpy_generator(seed, "split"))
        if sorted(tuple(counts(data.train_y, indices, 2)) for indices in partitions) == [(0, 4), (4, 0)]:
            return seed
    raise AssertionError("no seed below 50 separates the classes")


def test_the_partitioners_for_other_flower_apps_are_the_same_splits():
    from datasets import Dataset as Table

    from flfw.data.splits import partitioners as ours

    data, drawn = toy(), of_domains(test=(20, 20, 20))
    names = np.asarray(drawn.domains)[drawn.train_domain]
    for partitioner, used, chosen in (
        (ours.DominantPartitioner(7, "label", classes=10, examples=10), data, Dominant(10, 5)),
        (ours.SampledPartitioner(7, examples=20, seed=5), data, Sampled(20)),
        (ours.DomainPartitioner(7, "domain", ["ink", "paint"], seed=5), drawn, Domains(held_out="chalk")),
        (ours.DomainPartitioner(7, "domain", ["ink", "chalk"], 5, seed=5), drawn, Domains(5, held_out="paint")),
        (ours.ShardCopiesPartitioner(7, "label", 40, 3, seed=5), data, Shards(40, 3)),
        (ours.PoolPartitioner(7, "label", 10, 0.5, seed=5), data, Pools(10, 0.5)),
        (ours.PoolPartitioner(7, "label", 10, 0.5, 2, seed=5), data, Pools(10, 0.5, 2)),
    ):
        columns = {"label": used.train_y, "index": np.arange(len(used.train_y))}
        partitioner.dataset = Table.from_dict(columns | ({"domain": names} if used is drawn else {}))
        assert partitioner.num_partitions == 7
        for client, indices in enumerate(split(used, chosen, clients=7, seed=5).train):
            assert partitioner.load_partition(client)["index"][:] == indices.tolist()


def test_an_even_cut_is_that_of_flowers_partitioner():
    from datasets import Dataset as Table
    from flwr_datasets.partitioner import IidPartitioner

    from flfw.rng import numpy_generator

    data, partitioner = toy(), IidPartitioner(7)
    order = numpy_generator(3, "split").permutation(len(data.train_y))
    partitioner.dataset = Table.from_dict({"row": order})
    for client, part in enumerate(split(data, IID(), clients=7, seed=3).train):
        assert partitioner.load_partition(client)["row"][:] == part.tolist()


def test_schemes_by_name():
    assert schemes() == (
        *("iid", "dirichlet", "pathological", "dominant", "sampled", "domains", "shards", "full_copy"),
        *("pools", "sampled_on_demand", "natural", "dataset_per_client"),
    )
    assert scheme("dirichlet")() == Dirichlet(alpha=0.5)
    with pytest.raises(
        InputError, match=r"^Got split=shard; .* among iid, dirichlet, .*, dataset_per_client, or package.module:Class"
    ):
        scheme("shard")
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match=f"alpha={alpha}"):
            Dirichlet(alpha)
    requested = ["shards.pool=50", "dominant.disjoint=true", "pools.share=0.5", "domains.held_out=ink"]
    assert build_settings(Shards, "shards", requested) == Shards(train=0, shards=2, pool=50)
    assert build_settings(Dominant, "dominant", requested) == Dominant(disjoint=True)
    assert build_settings(Pools, "pools", requested) == Pools(share=0.5)
    assert build_settings(Domains, "domains", requested) == Domains(held_out="ink")
    assert describe("cancer").split in schemes()


@pytest.mark.parametrize("chosen", ALL, ids=repr)
def test_no_victim_is_anybodys_and_nobodys_data_are_somebodys(chosen):
    made = split(toy(train=50, victims=37), chosen, clients=5, seed=0)
    held, spare = np.unique(np.concatenate(made.train)), np.concatenate([made.distillation, made.proxy])
    assert min([*held, *spare]) >= 37
    assert none_twice(held, spare)
    assert all(none_twice(given) for given in made.train)
    assert all(none_twice(*given) for given in zip(made.test, made.validation, strict=True))
    assert [len(given) > 0 for given in made.validation] == [isinstance(chosen, Sampled)] * 5


def test_nobody_public_looks_like_a_training_example():
    data = toy()
    data.test_x[[3, 7, 20, 50]] = data.train_x[[150, 151, 5, 199]]  # 5 is a victim, 199 is nobody's
    made = split(replace(data, victims=range(10)), Shards(20, pool=190), clients=9, seed=0)
    assert sorted(np.concatenate(made.train).tolist()) == list(range(10, 190))
    assert set(range(100)) - set(made.public.tolist()) == {3, 7, 20}
    assert {3, 7, 20} < set(np.concatenate(made.test).tolist())  # clients still test on them


def test_disjoint_dominant_clients_until_a_class_is_used_up():
    # Class 2 has 20 examples; its quotas are 5, 3, 1, 1, 1, 5, 3, 1, and then 1 too many.
    fits = split(toy(), Dominant(10, 5, disjoint=True), clients=8, seed=0)
    assert none_twice(*fits.train)
    shared = split(toy(), Dominant(10, 5), clients=9, seed=0)
    assert [chosen.tolist() for chosen in fits.train] == [chosen.tolist() for chosen in shared.train[:8]]
    assert not none_twice(*shared.train)
    with pytest.raises(InputError, match=r"at most 8 clients, as with dominant.disjoint=true and 10 .* got clients=9"):
        split(toy(), Dominant(10, 5, disjoint=True), clients=9, seed=0)
    assert not none_twice(*split(toy(test=6), Dominant(10, 5, disjoint=True), clients=8, seed=0).test)


def test_pathological_clients_hold_as_many_classes_as_asked():
    data = toy(train=60, test=30)
    made = split(data, Pathological(classes=3), clients=6, seed=0)
    assert none_twice(*made.train)
    held = [np.array(counts(data.train_y, chosen)) for chosen in made.train]
    assert [(chosen > 0).sum() for chosen in held] == [3] * 6
    for chosen, test in zip(held, made.test, strict=True):
        assert (np.array(counts(data.test_y, test)) > 0).tolist() == (chosen > 0).tolist()
    drawn = sum(chosen > 0 for chosen in held)
    for chosen in held:  # a class is cut evenly among those who drew it
        assert all(abs(chosen[label] - 60 / drawn[label]) < 1 for label in np.flatnonzero(chosen))
    assert sum(held).tolist() == [60 * (n > 0) for n in drawn]  # and unused if nobody did
    assert min(drawn) == 0


def test_sampled_clients_and_what_is_left_for_the_server():
    made = split(toy(victims=20), Sampled(train=50, distillation=25), clients=3, seed=0)
    assert [len(chosen) for chosen in made.train] == [50] * 3
    assert len(made.distillation) == 25
    assert none_twice(*made.train, made.distillation)
    assert [len(chosen) for chosen in made.validation + made.test] == [17, 17, 17, 17, 16, 16]
    assert sorted(np.concatenate(made.validation + made.test).tolist()) == list(range(100))
    assert made.train[0].tolist() != sorted(made.train[0].tolist())
    assert len(split(toy(victims=20), Sampled(50), clients=3, seed=0).distillation) == 30  # all that is left
    with pytest.raises(InputError, match=r"at most 3 clients, as each takes 50 of 180 .* got clients=4"):
        split(toy(victims=20), Sampled(50), clients=4, seed=0)


def test_alternate_halves_are_the_same_at_every_seed_and_dealt_anew():
    one, two = (split(toy(victims=20), Sampled(50, halves="alternate"), clients=3, seed=seed) for seed in (0, 1))
    for made in (one, two):
        assert sorted(np.concatenate(made.validation).tolist()) == list(range(0, 100, 2))
        assert sorted(np.concatenate(made.test).tolist()) == list(range(1, 100, 2))
        assert [len(chosen) for chosen in made.test] == [17, 17, 16]
    assert one.test[0].tolist() != two.test[0].tolist()
    assert one.train[0].tolist() != two.train[0].tolist()
    drawn = split(toy(victims=20), Sampled(50), clients=3, seed=0)
    assert sorted(np.concatenate(drawn.test).tolist()) != list(range(1, 100, 2))
    with pytest.raises(InputError, match=r"sampled\.halves among drawn, alternate, got halves=odd"):
        Sampled(halves="odd")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Expected the published")
@pytest.mark.parametrize(("clients", "tests"), [(4, 1250), (8, 625)])
def test_sampled_cifar_as_in_the_paper(clients, tests):
    made = split(real_set("cifar10"), Sampled(), clients, seed=0)
    assert [len(chosen) for chosen in made.train] == [2000] * clients
    assert [len(chosen) for chosen in made.validation + made.test] == [tests] * (2 * clients)
    assert len(made.distillation) == 32_000
    assert none_twice(*made.train, made.distillation)
    assert none_twice(*made.validation, *made.test)
    assert min(min(chosen) for chosen in (*made.train, made.distillation)) >= 2000  # the victims
    if clients == 8:
        assert len(np.unique(np.concatenate([*made.train, made.distillation]))) == 50_000 - 2000


def test_a_domain_a_client_and_one_for_the_server():
    data = of_domains(held_out="paint", victims=range(5))
    made = split(data, Domains(distillation=50), clients=2, seed=0)
    assert [sorted(chosen.tolist()) for chosen in made.train] == [list(range(5, 40)), list(range(100, 120))]
    assert len(made.distillation) == 50 and set(made.distillation.tolist()) < set(range(40, 100))
    for chosen, domain in zip(zip(made.test, made.validation, strict=True), (range(8), range(14, 18)), strict=True):
        assert sorted(np.concatenate(chosen).tolist()) == list(domain)
        assert len(chosen[0]) == len(chosen[1])
    none = split(data, Domains(train=7, held_out="none"), clients=3, seed=0)
    assert [data.train_domain[chosen].tolist() for chosen in none.train] == [[0] * 7, [1] * 7, [2] * 7]
    assert len(none.distillation) == 0
    assert [len(chosen) for chosen in split(data, Domains(), clients=1, seed=0).train] == [35]  # only the first domain


def test_clients_of_one_domain_share_it_in_pieces():
    data = of_domains(held_out="ink")
    made = split(data, Domains(), clients=3, seed=0)
    assert [len(chosen) for chosen in made.train] == [30, 20, 30]  # paint, chalk, paint
    assert [(len(a), len(b)) for a, b in zip(made.test, made.validation, strict=True)] == [(2, 1), (2, 2), (2, 1)]
    assert none_twice(*made.train) and none_twice(*made.test, *made.validation)
    chosen = replace(data, per_client={"domains": (25, 0)})  # at most what a client's piece has
    assert [len(indices) for indices in split(chosen, Domains(), clients=3, seed=0).train] == [25, 20, 25]
    assert [len(indices) for indices in split(chosen, Domains(train=10), clients=3, seed=0).train] == [10] * 3
    with pytest.raises(
        InputError, match=r"at most 30 .* as 60 of domain paint are for 2 clients, got domains.train=31"
    ):
        split(data, Domains(train=31), clients=3, seed=0)
    with pytest.raises(InputError, match=r"validation data for each of 9 clients, got none for client 1 and 7 more"):
        split(data, Domains(), clients=9, seed=0)  # 6 of paint in 2, 1, 1, 1, 1 and 4 of chalk in 1, 1, 1, 1


def test_domains_that_are_not_there():
    with pytest.raises(InputError, match=r"data set of several domains, got dataset=toy"):
        split(toy(), Domains(), clients=2, seed=0)
    with pytest.raises(InputError, match=r"among ink, paint, chalk, or none; got domains.held_out=oil"):
        split(of_domains(), Domains(held_out="oil"), clients=2, seed=0)
    alone = replace(of_domains(), domains=("ink",), train_domain=np.zeros(120, int), test_domain=np.zeros(18, int))
    with pytest.raises(InputError, match=r"a domain of toy for the clients, got held_out=ink"):
        split(alone, Domains(held_out="ink"), clients=2, seed=0)


def test_shards_by_hand():
    data = toy(classes=2, train=12, test=3)
    # 4 clients of 2 shards of 3: the 8 shards of 24 examples, four of each class.
    made = split(data, Shards(train=6), clients=4, seed=0)
    assert sorted(np.concatenate(made.train).tolist()) == list(range(24))
    assert {tuple(counts(data.train_y, chosen, 2)) for chosen in made.train} <= {(6, 0), (3, 3), (0, 6)}
    assert [len(chosen) for chosen in made.test] == [2, 2, 1, 1]
    assert none_twice(*made.test)
    # 7 // 2 examples a shard: one is lost to rounding. 10 x 6 of the first 10 examples: each in six clients.
    copied = split(data, Shards(train=7, pool=10), clients=10, seed=0)
    assert Counter(np.concatenate(copied.train).tolist()) == dict.fromkeys(range(10), 6)
    assert [len(chosen) for chosen in copied.test] == [1] * 10
    assert [copied.test[client].tolist() for client in (6, 7)] == [copied.test[client].tolist() for client in (0, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_no_client_holds_an_example_twice_however_small_a_class_is(seed):
    sizes = [40, 3, 4, 5, 18]
    data = toy(classes=5)
    data = replace(data, train_y=np.repeat(np.arange(5), sizes), train_x=np.arange(70)[:, None])
    # 30 clients x 5 shards x 6 in 900 examples, 13 copies: a shard may lie within a class of 3.
    made = split(data, Shards(train=30, shards=5), clients=30, seed=seed)
    assert [len(np.unique(chosen)) for chosen in made.train] == [30] * 30
    times = np.bincount(np.concatenate(made.train), minlength=70)
    for label in range(5):
        of_class = times[data.train_y == label]
        assert of_class.max() - of_class.min() <= 1 and of_class.max() <= 13
    # Still shards.
    assert np.mean([(np.array(counts(data.train_y, chosen, 5)) == 0).any() for chosen in made.train]) > 0.3


@pytest.mark.filterwarnings("ignore:Expected the published")
@pytest.mark.parametrize(("clients", "times", "tests"), [(100, 1, 100), (1000, 10, 10)])
def test_shards_of_mnist_as_in_the_paper(clients, times, tests):
    real = real_set("mnist")
    made = split(real, Shards(pool=50_000), clients, seed=0)
    assert Counter(np.concatenate(made.train).tolist()) == dict.fromkeys(range(50_000), times)
    assert all(len(np.unique(chosen)) == 500 for chosen in made.train)
    classes = Counter(len(np.unique(real.train_y[chosen])) for chosen in made.train)
    assert set(classes) <= {1, 2, 3, 4}
    assert classes[2] > 0.7 * clients  # one in ten draws the same class twice, and a few shards are of two
    assert [len(chosen) for chosen in made.test] == [tests] * clients


def test_everybody_holds_everything():
    cancer = load("cancer")
    made = split(cancer, FullCopy(), clients=5, seed=0)
    assert [chosen.tolist() for chosen in made.train] == [list(range(426))] * 5
    assert [len(chosen) for chosen in made.test] == [29, 29, 29, 28, 28]
    assert none_twice(*made.test)
    many = split(toy(test=1), FullCopy(), clients=12, seed=0).test  # ten test examples
    assert [chosen.tolist() for chosen in many[10:]] == [chosen.tolist() for chosen in many[:2]]


def test_clients_draw_from_the_sensitive_pool_and_the_rest_is_public():
    made = split(toy(victims=40), Pools(train=6, share=0.25), clients=6, seed=0)  # 40 of 160 are sensitive
    assert [len(chosen) for chosen in made.train] == [6] * 6
    assert len(made.proxy) == 120
    assert none_twice(*made.train, made.proxy)
    assert sorted(np.concatenate(made.test).tolist()) == list(range(100))
    seven = split(toy(victims=40), Pools(train=6, share=0.25), clients=7, seed=0)
    assert [chosen.tolist() for chosen in seven.train[:6]] == [chosen.tolist() for chosen in made.train]
    assert [seven.train[6][index] in made.train[0] for index in range(6)] == [False] * 4 + [True] * 2  # begun again
    assert all(len(np.unique(chosen)) == 6 for chosen in seven.train) and len(seven.proxy) == 120
    with pytest.raises(InputError, match=r"pools.train <= 40, the sensitive pool, got train=41"):
        split(toy(victims=40), Pools(train=41, share=0.25), clients=1, seed=0)
    with pytest.raises(InputError, match=r"at most 100 clients, as toy has 100 test examples, got clients=101"):
        split(toy(), Pools(train=1), clients=101, seed=0)


def test_pools_by_classes_give_each_client_its_own_few():
    data = toy(train=100)
    made = split(data, Pools(train=11, share=0.5, classes=2), clients=20, seed=0)
    held = [sorted(counts(data.train_y, chosen)) for chosen in made.train]
    assert held == [[0] * 8 + [5, 6]] * 20
    assert none_twice(*made.train, made.proxy)
    assert len(made.proxy) == 500
    assert len({tuple(np.unique(data.train_y[chosen])) for chosen in made.train}) > 5  # not the same two for all
    # Ten examples of each of two classes serve two clients of 5 + 5, and a third one shares with them.
    three = split(toy(classes=2, train=10), Pools(10, share=1.0, classes=2), clients=3, seed=0).train
    assert none_twice(*three[:2]) and sorted(three[2].tolist()) == sorted(three[0].tolist())
    with pytest.raises(InputError, match=r"pools.classes <= 0, as 0 classes .* got classes=11; 0 draws"):
        split(toy(train=2), Pools(200, classes=11), clients=2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen", "clients"),
    [
        ("mnist", Pools(), 10),
        ("cifar10", Pools(), 10),  # 20,000 examples of a pool of 12,000
        ("cifar10", Pools(classes=2), 10),
        ("cifar10", Shards(pool=42_000), 100),
        ("mnist", Shards(pool=50_000), 100),
        ("cifar10", Dominant(), 100),
        ("fmnist", Sampled(), 4),
        ("cifar10", Sampled(), 8),
    ],
)
@pytest.mark.filterwarnings("ignore:Expected the published")
def test_the_papers_own_numbers_of_clients_fit(name, chosen, clients):
    real = real_set(name)
    made = split(real, chosen, clients, seed=0)
    train = {len(given) for given in made.train}
    assert train == {real.per_client[type(chosen).__name__.lower()][0] if not isinstance(chosen, Sampled) else 2000}
    assert all(len(np.unique(given)) == len(given) for given in made.train)
    held = Counter(np.concatenate(made.train).tolist())
    assert (max(held.values()) > 1) == (
        isinstance(chosen, Dominant) or (name == "cifar10" and isinstance(chosen, Pools))
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pathological(0), "pathological.classes >= 1, got classes=0"),
        (lambda: Sampled(train=-1), "sampled.train >= 0, got train=-1"),
        (lambda: Domains(distillation=-2), "domains.distillation >= 0, got distillation=-2"),
        (lambda: Shards(shards=0), "shards.shards >= 1, got shards=0"),
        (lambda: Shards(pool=-1), "shards.pool >= 0, got pool=-1"),
        (lambda: Pools(share=float("nan")), "0 < pools.share <= 1, got share=nan"),
        (lambda: Pools(classes=-1), "pools.classes >= 0, got classes=-1"),
        (
            lambda: split(toy(), Pathological(11), 2, 0),
            "pathological.classes <= 10, the classes there are, got classes=11",
        ),
        (lambda: split(toy(train=1), Pathological(9), 10, 0), "clients=10 pathological.classes=9 of 10 examples"),
        (lambda: split(toy(), Shards(), 2, 0), "toy has none of its own for shards, got shards.train=0"),
        (
            lambda: split(toy(), Shards(201), 2, 0),
            "shards.train <= 200, the examples there are, got shards=2 train=201",
        ),
        (lambda: split(toy(), Shards(2, 3), 2, 0), "got shards=3 train=2"),
        (lambda: split(toy(), Shards(9, pool=201), 2, 0), "shards.pool <= 200, the training part of toy, got pool=201"),
        (lambda: split(toy(), Pools(), 2, 0), "toy has none of its own for pools, got pools.train=0"),
        (lambda: split(toy(), Sampled(0), 2, 0), "toy has none of its own for sampled, got sampled.train=0"),
    ],
)
def test_what_a_scheme_refuses(make, message):
    with pytest.raises(InputError, match=message):
        make()
