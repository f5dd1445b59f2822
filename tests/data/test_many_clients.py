"""Splits for more clients than there are data: drawn on demand, and with one test set for all."""

from dataclasses import replace

import numpy as np
import pytest

from flfw import data
from flfw.data import canaries
from flfw.data.splits.lazy_parts import looked_at, most_copies, sizes, total
from flfw.data.splits.partition import split
from flfw.data.splits.schemes import IID, Sampled, SampledOnDemand
from flfw.errors import InputError

DIGITS = data.load("digits")
MILLION = 1_000_000


def test_the_last_of_a_million_clients_has_what_it_has_among_any_number() -> None:
    few, many = (split(DIGITS, SampledOnDemand(train=5, test=3), clients, seed=4) for clients in (8, MILLION))
    assert len(many.train) == len(many.test) == len(many.validation) == MILLION
    for client in (0, 7):
        assert few.train[client].tolist() == many.train[client].tolist()
        assert few.test[client].tolist() == many.test[client].tolist()
    last = many.train[MILLION - 1]
    assert len(set(last.tolist())) == 5 and last.tolist() != many.train[0].tolist()
    assert (
        last.tolist()
        == many.train[-1].tolist()
        == split(DIGITS, SampledOnDemand(5, 3), MILLION, seed=4).train[-1].tolist()
    )
    assert last.tolist() != split(DIGITS, SampledOnDemand(5, 3), MILLION, seed=5).train[-1].tolist()
    with pytest.raises(IndexError):
        many.train[MILLION]


def test_examples_are_dealt_evenly_and_not_shared_while_they_last() -> None:
    """1500 examples are 300 hands of 5 in each deck; the bound is that of a count."""
    made = split(DIGITS, SampledOnDemand(train=5, test=7), 700, seed=1)
    counted = np.bincount(np.concatenate(list(made.train)), minlength=1500)
    assert most_copies(made.train) == 3 == counted.max() and counted.min() == 2
    assert counted.sum() == 3500 == total(made.train)
    one_deck = np.bincount(np.concatenate(list(made.train[:300])))
    assert (one_deck == 1).all()
    tests = np.bincount(np.concatenate(list(made.test)))  # 297 examples are 42 hands, and three are left over
    assert tests.max() <= most_copies(made.test) == 17 and len(set(made.test[41].tolist())) == 7
    assert sorted(made.train[0].tolist()) != sorted(made.train[300].tolist())
    pairs = {frozenset(part[:2].tolist()) for part in made.train}
    assert len(pairs) > 690  # the decks are not in one order
    assert most_copies(split(DIGITS, SampledOnDemand(train=5, classes=2), 700, seed=1).train) is None


def test_a_part_of_the_clients_is_a_tuple() -> None:
    train = split(DIGITS, SampledOnDemand(train=5), 9, seed=0).train
    assert [part.tolist() for part in train[7:]] == [train[7].tolist(), train[8].tolist()]


def test_each_client_draws_from_classes_of_its_own_and_from_no_victim() -> None:
    reserved = replace(DIGITS, victims=range(700))
    made = split(reserved, SampledOnDemand(train=30, test=10, classes=2), 50, seed=0)
    seen = []
    for train, test in zip(made.train, made.test, strict=True):
        classes = set(reserved.train_y[train].tolist())
        assert len(classes) == 2 and set(reserved.test_y[test].tolist()) <= classes
        assert train.min() >= 700 and len(set(train.tolist())) == 30
        seen.append(tuple(sorted(classes)))
    assert len(set(seen)) > 10


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (SampledOnDemand(train=5000), "sampled_on_demand.train <= "),
        (SampledOnDemand(test=5000), "sampled_on_demand.test <= "),
        (SampledOnDemand(classes=11), "sampled_on_demand.classes <= 10, got classes=11"),
        (SampledOnDemand(train=400, classes=2), "the train examples that 2 classes may have, got train=400"),
    ],
)
def test_more_than_there_is_cannot_be_drawn(scheme: SampledOnDemand, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        split(DIGITS, scheme, 3, seed=0)
    assert reason in str(caught.value)


def test_one_test_set_leaves_the_training_data_as_they_are() -> None:
    each, shared = (split(DIGITS, IID(), 7, seed=2, test=test) for test in ("own", "shared"))
    assert all(np.array_equal(*both) for both in zip(each.train, shared.train, strict=True))
    assert each.test[0].tolist() != each.test[1].tolist()
    everything = list(range(len(DIGITS.test_y)))
    assert [part.tolist() for part in shared.test] == [everything] * 7  # there are fewer than a thousand
    assert shared.public.tolist() == each.public.tolist()


def test_with_one_test_set_there_may_be_more_clients_than_test_examples() -> None:
    clients = len(DIGITS.test_y) + 1
    with pytest.raises(InputError, match=f"Expected at most {clients - 1} clients"):
        split(DIGITS, IID(), clients, seed=0)
    made = split(DIGITS, IID(), clients, seed=0, test="shared")
    assert len(made.train) == len(made.test) == clients and made.test[0].max() < len(DIGITS.test_y)
    assert made.public.max() < len(DIGITS.test_y)


def test_shared_validation_examples_are_others_than_those_for_tests() -> None:
    made = split(DIGITS, Sampled(train=20), 3, seed=0, test="shared")
    assert np.intersect1d(made.test[0], made.validation[0]).size == 0
    assert len(made.test[2]) == len(made.validation[2]) == len(DIGITS.test_y) // 2
    with pytest.raises(InputError, match=r"Expected --expert test=own for sampled\.halves=alternate"):
        split(DIGITS, Sampled(train=20, halves="alternate"), 3, seed=0, test="shared")


def test_checks_of_parts_on_demand_look_at_the_first_ones() -> None:
    many = split(DIGITS, SampledOnDemand(train=5), MILLION, seed=0).train
    assert sizes(many) == [5] and looked_at(many) == range(10_000)
    assert sizes((np.arange(3), np.arange(1))) == [3, 1] and looked_at((np.arange(3), np.arange(1))) == range(2)


def test_canaries_of_very_many_clients_are_refused_before_anybody_is_asked() -> None:
    many = split(DIGITS, SampledOnDemand(train=5), 10_001, seed=0)
    with pytest.raises(InputError, match=r"Expected at most 10,000 clients for canaries, .* got clients=10001"):
        canaries.draw(many, DIGITS.train_y, 10, 2, 0)
    few = split(DIGITS, SampledOnDemand(train=5), 300, seed=0)  # one deck: each example is one client's
    assert len(canaries.draw(few, DIGITS.train_y, 10, 300, 0).indices) == 300
