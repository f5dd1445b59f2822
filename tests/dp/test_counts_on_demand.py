"""Counts of a privacy claim over clients whose data are drawn on demand: nobody's data are looked at."""

from dataclasses import replace

import numpy as np
import pytest

from flfw import data
from flfw.data.splits.lazy_parts import LazyParts
from flfw.data.splits.partition import Split, for_each, nobodys, split
from flfw.data.splits.schemes import Natural, SampledOnDemand
from flfw.dp.private_metrics import held_by_each, most_held
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant, is_known, schedules
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan

DIGITS = data.load("digits")
MILLION = 1_000_000


def unasked(size: int, copies: int) -> LazyParts:
    def draw(client: int) -> np.ndarray:
        raise AssertionError(f"client {client} was asked for its data")

    return LazyParts(MILLION, size, draw, copies)


def listed(one: Split) -> Split:
    return replace(one, train=list(one.train), test=list(one.test), validation=list(one.validation))


@pytest.mark.parametrize("clients", [3, 300, 700])
def test_the_known_counts_are_those_of_a_look_at_all_data(clients: int) -> None:
    """1500 training examples are 300 hands of 5; 297 test examples are 42 hands of 7, with three left over."""
    known = split(DIGITS, SampledOnDemand(train=5, test=7), clients, seed=0)
    assert max(held_by_each(known)) == max(held_by_each(listed(known))) == 12
    assert most_held(known) >= most_held(listed(known))
    shared = split(DIGITS, SampledOnDemand(train=5), clients, seed=0, test="shared")
    assert most_held(shared) == most_held(listed(shared)) == clients
    many = split(DIGITS, SampledOnDemand(train=5, test=297), clients, seed=0)  # every client tests on all
    assert most_held(many) == most_held(listed(many)) == clients


@pytest.mark.parametrize(("copies", "replication"), [(1, 1), (334, 334)])
def test_a_claim_looks_at_no_data_where_the_counts_are_known(copies: int, replication: int) -> None:
    experiment = Experiment(
        method="dp_fedavg",
        dataset="synthetic",
        split="natural",
        clients=MILLION,
        sample=10,
        rounds=3,
        set=("noise_multiplier=2", "clip=1"),
        attack=("none",),
        metrics="private",
    )
    run_plan = plan(experiment)
    nothing = np.zeros(0, np.int64)
    tests, none = unasked(20, 1), LazyParts.same(MILLION, nothing)
    parts = Split(unasked(50, copies), tests, none, nothing, nothing, nothing)
    run_plan, _ = resolve_noise(run_plan, parts)
    (schedule,) = schedules(run_plan.client, parts)
    assert (schedule.examples, schedule.held) == (50, 70)
    accountant = RunAccountant(run_plan.client, parts)
    (seen,) = accountant.against("example", "server")
    assert [others.max_copies for _, others in seen] == [replication] * 2
    assert {one.unit for one in accountant.claims()} == {"example", "client"}


def test_a_generated_example_is_one_clients() -> None:
    made = split(data.load("synthetic"), Natural(), MILLION, seed=0)
    assert most_held(made) == 1 and held_by_each(made) == [70]


def test_data_of_nobody_and_of_a_site_are_not_repeated_for_each_client() -> None:
    assert not is_known(nobodys(MILLION)) and isinstance(nobodys(MILLION).train, LazyParts)
    one = split(DIGITS, SampledOnDemand(train=5), 1, seed=0)
    each = for_each(listed(one), MILLION)
    assert each.train[MILLION - 1] is each.train[0] and len(each.test) == MILLION
