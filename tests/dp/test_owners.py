"""Units with several owners: an example at several clients, a patient at several sites, and what is refused.

Each count is compared with the length by which the unit can change all that is released, tried out with vectors: noise
of deviation 1 on each released sum makes all of it one Gaussian mechanism of multiplier 1 / length.
"""

import dataclasses
from itertools import product
from math import sqrt

import numpy as np
import pytest

from flfw.dp.run_accountant import RunAccountant
from flfw.dp.site_ledger import most_repeated
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.claims import Claim
from flfw.privacy.mechanism import GaussianEvent, Mechanism, Others
from tests.dp.test_run_accountant import DELTA, asked, epsilon, held


def claims(experiment: Experiment, *train: object) -> dict[tuple[str, str], Claim]:
    split = held(*train)  # type: ignore[arg-type]
    return {(one.unit, one.adversary): one for one in RunAccountant(plan(experiment).client, split).claims()}


def length(phase: GaussianEvent) -> float:
    """By how much a unit may change everything, as the accountant is told: the inverse of one Gaussian's multiplier."""
    assert phase.sampling_rate == 1
    return sqrt(phase.steps) / phase.noise_multiplier


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("owners", [1, 2, 3])
def test_no_way_to_deal_a_units_examples_changes_more_than_is_counted(copies: int, owners: int) -> None:
    """Clients with their own noise, two passes in batches of two: all places of all copies are tried."""
    rounds, batches, size = 2, 3, 2
    mechanism = Mechanism(1.0, rounds * batches, batch=size, max_participations=rounds)
    maximum, places = 0.0, list(product(range(batches), repeat=copies))
    fits = [where for where in places if max(np.bincount(where)) <= size]
    for passes in product(fits, repeat=rounds):  # the same at each owner: their noises, and so their squares, add up
        squares = sum(float(np.square(np.bincount(where, minlength=batches)).sum()) for where in passes)
        maximum = max(maximum, sqrt(owners * squares))
    assert sqrt(owners * rounds) <= maximum <= length(mechanism.phase(copies, others=Others(owners))) + 1e-12
    if copies <= size:
        assert maximum == pytest.approx(length(mechanism.phase(copies, others=Others(owners))))


@pytest.mark.parametrize("owners", [1, 2, 3])
def test_owners_whose_updates_meet_in_one_noisy_sum(owners: int) -> None:
    """A server's noise: updates add up in the rounds that owners share, and cost less where they share none."""
    mechanism = Mechanism(1.0, 4, clipped="client", noised_by="server", max_participations=2)
    rounds = [np.array(chosen) for chosen in product([0, 1], repeat=4) if sum(chosen) == 2]
    lengths = [float(np.linalg.norm(sum(chosen))) for chosen in product(rounds, repeat=owners)]
    assert max(lengths) == pytest.approx(length(mechanism.phase(others=Others(owners))))
    if owners == 2:
        assert min(lengths) == 2.0 < max(lengths)


def test_an_example_twice_at_one_client_is_refused_and_across_clients_counted() -> None:
    experiment = asked("fed_cdp", "noise_multiplier=6", "grouping=flat")
    with pytest.raises(InputError, match=r"each example once at a client, .*, got once=False\.$"):
        claims(experiment, [0, 1, 2, 2], [3, 4])
    both = claims(experiment, range(20), range(15, 35))
    assert both["example", "server"].epsilon == epsilon(6, 1, 2 * 10)
    assert (
        "No example is held by more than 2 clients; all of them are counted." in both["example", "server"].assumptions
    )
    with pytest.raises(InputError, match="each example once at a client"):
        claims(experiment, [0, 1, 1], [1, 4])
    assert most_repeated(np.array([3, 1, 3, 3])) == 3  # a site, which cannot choose its data, counts them


def test_one_busy_example_is_counted_for_all() -> None:
    """The largest number of owners, wherever they are; a client's own claim does not pay for it."""
    experiment = asked("fed_cdp", "noise_multiplier=6", "grouping=flat", clients=4)
    parts = [range(10), range(10, 20), [0, *range(20, 29)], [0, *range(30, 39)]]
    assert RunAccountant(plan(experiment).client, held(*parts)).others("example")[0].max_copies == 3  # type: ignore[arg-type]
    assert claims(experiment, *parts)["example", "outsider"].epsilon == epsilon(6, 1, 3 * 10)
    lone = claims(experiment, *(range(10 * k, 10 * k + 10) for k in range(4)))
    assert claims(experiment, *parts)["client", "server"].epsilon == lone["client", "server"].epsilon


@pytest.mark.parametrize(("method", "chosen"), [("fed_cdp", ()), ("fed_sdp", ()), ("fed_sdp", ("noised_by=server",))])
def test_a_patient_at_several_sites(method: str, chosen: tuple[str, ...]) -> None:
    experiment = asked(method, "noise_multiplier=60", "grouping=flat", *chosen, patient_examples="3")
    parts = range(25), range(25, 45)
    one, both = (
        claims(dataclasses.replace(experiment, patient_examples=f"3x{sites}"), *parts)["patient", "outsider"]
        for sites in (1, 2)
    )
    if method == "fed_cdp":  # three examples in each of ten passes, at two sites with noise of their own
        expected = [epsilon(20, 1, 10), epsilon(20, 1, 20)]
    elif chosen:  # two exchanged updates meet in each sum
        expected = [epsilon(30, 1, 5), epsilon(15, 1, 5)]
    else:
        expected = [epsilon(30, 1, 5), epsilon(30, 1, 10)]
    assert [one.epsilon, both.epsilon] == expected
    assert any("examples at no more than 2 of the clients" in sentence for sentence in both.assumptions)
    assert any("examples at no more than 1 of the clients" in sentence for sentence in one.assumptions)
    copied = claims(dataclasses.replace(experiment, patient_examples="3x2"), range(25), range(5, 25))
    more = compute_epsilon((GaussianEvent(20, 1.0, 40),), DELTA).epsilon
    assert method != "fed_cdp" or copied["patient", "outsider"].epsilon == more  # two sites, and a copy of each example


def test_a_patients_examples_are_counted_where_the_data_name_patients() -> None:
    """Patient 1 has three examples at client 0; of those asked for, fewer are refused and more are taken."""
    experiment = asked("fed_cdp", "noise_multiplier=60", "grouping=flat")
    named = dataclasses.replace(held(range(20), range(20, 40)), patients=np.array([1, 1, 1, *range(2, 39)]))

    def claimed(experiment: Experiment) -> Claim:
        entries = RunAccountant(plan(experiment).client, named).claims()
        return next(one for one in entries if (one.unit, one.adversary) == ("patient", "server"))

    three = dataclasses.replace(experiment, patient_examples="3")
    assert claimed(experiment).epsilon == claims(three, range(20), range(20, 40))["patient", "server"].epsilon
    assert any("counted in these very data" in one for one in claimed(experiment).assumptions)
    more = claimed(dataclasses.replace(experiment, patient_examples="4"))
    assert more.epsilon > claimed(experiment).epsilon
    assert any("at most 4 examples" in one and "in these data they are 3" in one for one in more.assumptions)
    with pytest.raises(InputError, match=r"Expected patient-examples >= 3, .* got patient_examples=2"):
        claimed(dataclasses.replace(experiment, patient_examples="2"))


def test_a_patient_at_two_clients_is_counted_at_both() -> None:
    experiment = asked("fed_cdp", "noise_multiplier=60", "grouping=flat")
    apart = np.array([1, 1, 1, *range(2, 19), 1, *range(20, 39)])
    named = dataclasses.replace(held(range(20), range(20, 40)), patients=apart)
    entries = RunAccountant(plan(experiment).client, named).claims()
    counted = next(one for one in entries if (one.unit, one.adversary) == ("patient", "server"))
    assert any("no more than 2 of the clients" in assumed for assumed in counted.assumptions)
    both = dataclasses.replace(experiment, patient_examples="3x2")
    assert counted.epsilon == claims(both, range(20), range(20, 40))["patient", "server"].epsilon


def test_where_a_patient_is_needs_how_much_of_it() -> None:
    with pytest.raises(InputError, match="patient-examples=0, N or NxCLIENTS, each >= 1, got patient_examples=0x2"):
        Experiment(patient_examples="0x2")
    with pytest.raises(InputError, match="got patient_examples=2x0"):
        Experiment(patient_examples="2x0")
