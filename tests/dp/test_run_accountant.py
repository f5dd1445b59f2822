"""What an experiment may claim: counts made by hand against the ledger's, targets and budgets, and what is refused."""

import dataclasses
import json
from collections.abc import Sequence
from math import inf, isinf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import sim
from flfw import nets
from flfw.command import early
from flfw.data.splits.partition import Split
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant, schedules
from flfw.dp.settings import DPSGDSettings
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets import Net
from flfw.papers import published
from flfw.plans.run_plan import plan, without_auto
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.claims import Claim
from flfw.privacy.mechanism import ClientSchedule, GaussianEvent, Others
from flfw.server.cohorts import Sampling, drawn
from flfw.strategies.fed_cdp import FedCDP, FedCDPSettings
from flfw.strategies.fed_sdp import FedSDP, FedSDPSettings
from tests.support.planned import checked

DELTA = 1e-5
LAYERS, TENSORS = 3, 6  # of the dense network: two hidden layers and a head, each with a bias
STEPS = ("fed_cdp", "dp_fedavg", "centaur", "ppsgd")
OTHERS = ("another client", "outsider")


def settled_as(experiment: Experiment, split: Any) -> tuple[Experiment, list[str]]:
    """The experiment that `resolve_noise` makes of one, and its notes."""
    run_plan, notes = resolve_noise(plan(experiment), split)
    return run_plan.experiment, notes


def asked(method: str, *assignments: str, **changes: Any) -> Experiment:
    """Two clients, five rounds of two passes in batches of 10."""
    chosen = {"clients": 2, "rounds": 5, "local_epochs": 2, "batch_size": 10, "net": "mlp", "attack": ("none",)}
    return without_auto(Experiment(method=method, engine="inproc", set=assignments, **{**chosen, **changes}))


def held(*train: Sequence[int]) -> Split:
    nothing = np.arange(0)
    return Split(
        tuple(np.array(chosen) for chosen in train), (nothing,) * len(train), (nothing,) * len(train), *(nothing,) * 3
    )


def apart(*sizes: int) -> Split:
    """Clients of these sizes, of whose examples no two are the same."""
    ends = np.cumsum((0, *sizes))
    return held(*(range(ends[k], ends[k + 1]) for k in range(len(sizes))))


UNEVEN = apart(25, 20)


def claims(experiment: Experiment, split: Split = UNEVEN) -> dict[tuple[str, str], Claim]:
    return {(one.unit, one.adversary): one for one in RunAccountant(plan(experiment).client, split).claims()}


def epsilon(multiplier: float, rate: float, steps: int, delta: float = DELTA, accountant: Any = "prv") -> float:
    return compute_epsilon((GaussianEvent(multiplier, rate, steps),), delta, accountant).epsilon


def against(
    experiment: Experiment, unit: str, split: Split = UNEVEN, adversaries: Sequence[str] = ("server", *OTHERS)
) -> float:
    """The epsilon of a unit, which is the same against each of these."""
    result = claims(experiment, split)
    (only,) = {result[unit, adversary].epsilon for adversary in adversaries}
    return only


# --- the schedules ---


def test_the_schedules_by_hand() -> None:
    split = held(range(10), range(5, 30), [0, 40, 41, 42, 43, 44, 45], [5, 0])
    experiment = asked("fed_cdp", clients=4, sample=2, rounds=6, batch_size=8, local_epochs=3)
    counts = np.zeros(4, dtype=int)
    for server_round in range(1, 7):
        counts[drawn(range(4), 2, "fixed", 0, server_round)] += 1
    weights = {"extractor.1.weight": 64 * 64, "extractor.1.bias": 64, "extractor.3.weight": 4096}
    weights |= {"extractor.3.bias": 64, "classifier.weight": 640, "classifier.bias": 10}
    result = {one.client: one for one in schedules(plan(experiment).client, split)}
    assert {k: one.examples for k, one in result.items()} == {0: 10, 1: 25, 2: 7, 3: 2}
    for client, one in result.items():
        every = ClientSchedule(one.examples, 8, 3, weights, 6, evaluations=1, client_rate=0.5, client=client)
        assert one == dataclasses.replace(every, max_participations=counts[client])
        assert isinstance(one.max_participations, int)
    assert RunAccountant(plan(experiment).client, split).others("example") == (Others(max_copies=3),)  # of example 0
    assert RunAccountant(plan(asked("fed_sdp", clients=4, sample=2)).client, split).others("client") == (Others(3, 2),)
    assert [result[k].local_steps for k in range(4)] == [3 * 2, 3 * 4, 3 * 1, 3 * 1]
    assert [result[k].example_rate for k in range(4)] == [0.8, 8 / 25, 1.0, 1.0]


def test_of_clients_with_as_many_examples_the_busiest_counts() -> None:
    experiment = asked("fed_cdp", clients=3, sample=1, rounds=9, seed=4)
    counts = [sum(k in drawn(range(3), 1, "fixed", 4, t) for t in range(1, 10)) for k in range(3)]
    known = schedules(plan(experiment).client, apart(25, 20, 20))
    assert {(one.examples, one.max_participations) for one in known} == {(25, counts[0]), (20, max(counts[1:]))}


def test_everybody_in_every_round_is_no_sampling() -> None:
    for sample in (0, 2):
        result, _ = schedules(plan(asked("fed_sdp", sample=sample, sampling="poisson")).client, UNEVEN)
        assert (result.poisson, result.max_participations, result.client_rate) == (False, 5, 1.0)
    assert all(one.poisson for one in schedules(plan(asked("fed_sdp", sample=1, sampling="poisson")).client, UNEVEN))


# --- examples ---


@pytest.mark.parametrize("method", ["fed_cdp", "dp_fedavg"])
@pytest.mark.parametrize(("grouping", "groups"), [("layer", LAYERS), ("tensor", TENSORS), ("flat", 1)])
def test_shuffled_passes_are_a_gaussian_step_in_each_pass(method: str, grouping: str, groups: int) -> None:
    """An example is once in each of 2 passes of 5 rounds; each of M groups changes by up to the bound."""
    experiment = asked(method, "noise_multiplier=6", f"grouping={grouping}")
    assert against(experiment, "example") == epsilon(6 / sqrt(groups), 1, 10)


@pytest.mark.slow
def test_noise_drawn_for_each_example_counts_as_often_as_a_step_has_it() -> None:
    for batches, each in (("shuffled", [(1.0, 10)]), ("poisson", [(0.4, 30), (0.5, 20)])):
        experiment = asked("fed_cdp", "noise_multiplier=2", "draws=example", f"batches={batches}")
        expected = max(epsilon(2 * sqrt(10) / sqrt(3), rate, steps) for rate, steps in each)
        assert against(experiment, "example") == expected
    wide = dataclasses.replace(experiment, batch_size=50, set=("noise_multiplier=2", "draws=example"))
    assert against(wide, "example") == epsilon(2 * sqrt(50) / sqrt(3), 1, 10)


# --- clients that differ ---

COINS = {"accountant": "rdp", "clients": 3}  # a batch of 10 of 25, 20 and 9 examples, in 3, 2 and 1 steps of each pass
RATES = ((25, 0.4, 30), (20, 0.5, 20), (9, 1.0, 10))


def test_a_claim_is_the_largest_of_the_clients_and_names_the_one() -> None:
    """Not the rate of the smallest client with the steps of the largest one, which nobody has."""
    each = {size: epsilon(6 / sqrt(3), rate, steps, accountant="rdp") for size, rate, steps in RATES}
    for method in ("fed_cdp", "dp_fedavg"):
        experiment = asked(method, "noise_multiplier=6", "batches=poisson", "grouping=layer", **COINS)
        result = claims(experiment, apart(25, 20, 9))["example", "server"]
        assert result.epsilon == max(each.values()) == each[9] < 0.6 * epsilon(6 / sqrt(3), 1, 30, accountant="rdp")
        assert "No client has a larger epsilon than client 2, which has 9 training examples." in result.assumptions
        assert any("taken to know each client's number of training examples" in one for one in result.assumptions)
        without = claims(experiment, apart(25, 20, 26))["example", "server"]
        assert without.epsilon == each[20] and "than client 1, which has 20" in " ".join(without.assumptions)


def test_a_client_with_a_lower_rate_and_more_steps_may_have_the_largest_epsilon() -> None:
    experiment = asked("fed_cdp", "noise_multiplier=6", "batches=poisson", "grouping=layer", **COINS)
    result = claims(experiment, apart(25, 10, 11))["example", "server"]
    smallest, larger = (epsilon(6 / sqrt(3), *one, accountant="rdp") for one in ((1.0, 10), (10 / 11, 20)))
    assert result.epsilon == larger > smallest and "than client 2, which has 11" in " ".join(result.assumptions)


def test_a_target_is_the_least_noise_with_which_no_client_exceeds_it() -> None:
    """By the rate of the smallest client and the steps of the largest one it was 20.39."""
    settled, _ = settled_as(asked("fed_cdp", "batches=poisson", target_epsilon=2.0, **COINS), apart(25, 20, 9))
    noise = float(settled.set[-1].removeprefix("noise_multiplier="))
    each = [epsilon(noise / sqrt(3), rate, steps, accountant="rdp") for _, rate, steps in RATES]
    assert noise == pytest.approx(11.774, abs=1e-3) and 2.0 - 1e-3 <= max(each) <= 2.0


def test_the_claims_and_the_noise_of_equal_clients_are_those_of_the_earlier_count() -> None:
    equal = apart(20, 20, 20)
    result = claims(asked("fed_cdp", "noise_multiplier=6", "batches=poisson", **COINS), equal)
    found = [result[unit, "server"].epsilon for unit in ("example", "client")]
    settled, _ = settled_as(asked("fed_cdp", "batches=poisson", target_epsilon=2.0, **COINS), equal)
    found.append(float(settled.set[-1].removeprefix("noise_multiplier=")))
    assert found == pytest.approx([3.1210379877603263, 454.8611458183699, 8.739069640043363], rel=1e-12)


def test_a_client_as_a_unit_counts_all_its_own_examples_in_its_own_rounds() -> None:
    """The largest client may not be the busiest one; in shuffled batches of 10 all 10 may be the client's."""
    experiment = asked("fed_cdp", "noise_multiplier=60", clients=3, sample=1, rounds=9, seed=4)
    counts = [sum(k in drawn(range(3), 1, "fixed", 4, t) for t in range(1, 10)) for k in range(3)]
    sizes = (40, 20, 10)
    each = [epsilon(60 / sqrt(3) / 10, 1, 2 * n * k // 10) for n, k in zip(sizes, counts, strict=True)]
    result = claims(experiment, apart(*sizes))["client", "server"]
    assert result.epsilon == max(each) and f"than client {int(np.argmax(each))}, which has" in str(result.assumptions)


def test_what_several_clients_tell_of_one_example_is_bounded_by_one_that_tells_as_much_as_each() -> None:
    experiment = asked("fed_cdp", "noise_multiplier=6", "batches=poisson", **COINS)
    result = claims(experiment, held(range(25), range(5, 25), range(30, 39)))
    assert result["example", "server"].epsilon == epsilon(6 / sqrt(3), 1, 2 * 30, accountant="rdp")
    assert "Several clients may hold the same example" in " ".join(result["example", "server"].assumptions)
    assert result["client", "server"] == claims(experiment, apart(25, 20, 9))["client", "server"]


def test_a_thousand_clients_of_few_sizes_are_few_schedules() -> None:
    assert len(schedules(plan(asked("fed_cdp", clients=1000)).client, apart(*[20, 25, 9, 26] * 250))) == 4


@pytest.mark.slow
def test_copies_in_other_clients_are_further_runs_for_an_example_and_none_for_a_client() -> None:
    copies = held(range(25), range(5, 25))
    experiment = asked("fed_cdp", "noise_multiplier=6")
    assert against(experiment, "example", copies) == epsilon(6 / sqrt(3), 1, 2 * 10)
    assert against(experiment, "client", copies) == against(experiment, "client", UNEVEN)


def test_sampled_cohorts_count_the_rounds_of_the_busiest_client_and_nothing_more() -> None:
    """By coins or not: of an example no round is hidden by what decides for its whole client."""
    samplings: tuple[Sampling, ...] = ("fixed", "poisson")
    for sampling in samplings:
        experiment = asked("fed_cdp", "noise_multiplier=6", clients=3, sample=1, sampling=sampling, rounds=9, seed=4)
        cohorts = [drawn(range(3), 1, sampling, 4, server_round) for server_round in range(1, 10)]
        maximum = max(sum(client in cohort for cohort in cohorts) for client in range(3))
        assert 1 < maximum < 9
        assert against(experiment, "example", apart(25, 20, 20)) == epsilon(6 / sqrt(3), 1, 2 * maximum)


def test_a_client_or_a_patient_is_a_group_of_examples() -> None:
    """A batch of 10 has at most 10 of a client's 25 examples, which take 250 places: 25 steps with all of it."""
    experiment = asked("fed_cdp", "noise_multiplier=60")
    assert against(experiment, "client") == epsilon(60 / sqrt(3) / 10, 1, 25)
    assert ("patient", "server") not in claims(experiment)
    patients = dataclasses.replace(experiment, patient_examples="4")
    assert against(patients, "patient") == epsilon(60 / sqrt(3) / 4, 1, 10)
    assert against(patients, "client") == against(experiment, "client")
    assert against(dataclasses.replace(experiment, patient_examples="1"), "patient") == against(experiment, "example")
    assert any("4 examples of one patient" in one for one in claims(patients)["patient", "server"].assumptions)


# --- clients ---


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_fed_sdp_with_clients_own_noise(sampling: Sampling) -> None:
    """Who is not drawn adds no noise, so that it is seen: coins give no credit against anybody."""
    experiment = asked("fed_sdp", "noise_multiplier=6", clients=3, sample=1, sampling=sampling, rounds=9, seed=4)
    cohorts = [drawn(range(3), 1, sampling, 4, server_round) for server_round in range(1, 10)]
    maximum = max(sum(client in cohort for cohort in cohorts) for client in range(3))
    split = apart(25, 20, 20)
    assert against(experiment, "client", split) == epsilon(6 / sqrt(3), 1, maximum)
    # One example in place of another exchanges one update for another: twice the change.
    assert against(experiment, "example", split) == epsilon(6 / sqrt(3) / 2, 1, maximum)
    said = " ".join(claims(experiment, split)["client", "outsider"].assumptions)  # how many examples is not
    assert "never learns" not in said and "No client has a larger epsilon than client" in said
    assert "training examples." not in said.partition("No client has")[2]


@pytest.mark.parametrize(
    ("method", "chosen", "groups"),
    [
        ("fed_sdp", ("noised_by=server",), LAYERS),
        ("dp_fedavg", ("unit=client",), 1),
        ("centaur", ("unit=client", "grouping=layer"), LAYERS - 1),  # the head is not sent
        ("ppsgd", ("unit=client", "grouping=tensor"), TENSORS - 2),
    ],
)
def test_the_servers_noise_claims_nothing_against_the_server(method: str, chosen: tuple[str, ...], groups: int) -> None:
    experiment = asked(method, "noise_multiplier=6", *chosen, clients=3, sample=1, rounds=9, seed=4)
    cohorts = [drawn(range(3), 1, "fixed", 4, server_round) for server_round in range(1, 10)]
    maximum = max(sum(client in cohort for cohort in cohorts) for client in range(3))
    split, poisson = apart(25, 20, 20), dataclasses.replace(experiment, sampling="poisson")
    assert against(experiment, "client", split, OTHERS) == epsilon(6 / sqrt(groups), 1, maximum)
    assert against(poisson, "client", split, OTHERS) == epsilon(6 / sqrt(groups), 1 / 3, 9)
    for one in (experiment, poisson):
        for unit in ("example", "client"):
            result = claims(one, split)[unit, "server"]
            assert isinf(result.epsilon) and "sees every message without it" in result.assumptions[0]
    assert any("never learns who was drawn" in one for one in claims(poisson, split)["client", "outsider"].assumptions)


def test_one_servers_noise_on_copies_is_one_larger_step() -> None:
    copies = held(range(25), range(5, 25))
    experiment = asked("fed_sdp", "noise_multiplier=6", "noised_by=server")
    assert against(experiment, "client", copies, OTHERS) == epsilon(6 / sqrt(3), 1, 5)
    assert against(experiment, "example", copies, OTHERS) == epsilon(6 / sqrt(3) / 4, 1, 5)
    assert against(asked("fed_sdp", "noise_multiplier=6"), "example", copies) == epsilon(6 / sqrt(3) / 2, 1, 10)


# --- where nothing can be claimed ---


@pytest.mark.parametrize("method", ["centaur", "ppsgd"])
def test_a_head_that_learns_without_noise_lets_one_example_change_the_gradients_of_all(method: str) -> None:
    """The comparison's epsilon is still told as what it is: the comparison's."""
    experiment = asked(method, "noise_multiplier=6", "batches=poisson", accountant="paper")
    for one in claims(experiment).values():
        assert isinf(one.epsilon) and one.assumptions[0].startswith("The head learns from the same examples")
    (informed,) = (
        entry
        for entry in RunAccountant(plan(experiment).client, UNEVEN).entries()
        if entry["accounting"] == "as published"
    )
    assert informed["epsilon"] == epsilon(6, 0.5, 20, accountant="rdp")  # 5 rounds of 2 passes at a half


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp", "dp_fedavg"])
def test_no_noise_is_no_claim(method: str) -> None:
    for unit in ("client", "example"):
        chosen = (f"unit={unit}",) if method == "dp_fedavg" else ()
        result = claims(asked(method, "noise_multiplier=0", *chosen))
        assert all(isinf(one.epsilon) for one in result.values())
        assert "There is no noise" in result["example", "outsider"].assumptions[0]
        entries = RunAccountant(plan(asked(method, "noise_multiplier=0", *chosen)).client, UNEVEN).entries()
        assert {entry["epsilon"] for entry in json.loads(json.dumps(entries, allow_nan=False))} == {"inf"}


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        (("bound=median",), "The bound is the median of a client's own gradient norms"),
        (("compress=before",), "Which entries are zeroed before the noise depends on all examples"),
        (("compress=after",), ""),
        (("compress=before", "compress_ratio=0"), ""),
        (("bound=decay", "last_clip=0.1"), ""),
        (("bound=lr", "lr_decay=0.9"), ""),
    ],
)
def test_what_reads_the_data_besides_is_no_claim(assignments: tuple[str, ...], why: str) -> None:
    result = claims(asked("fed_cdp", *assignments))
    plain = claims(asked("fed_cdp"))
    for key, one in result.items():
        if why:
            assert isinf(one.epsilon) and one.assumptions[0].startswith(why)
        else:
            assert one.epsilon == plain[key].epsilon < inf


def test_methods_without_a_mechanism_claim_nothing() -> None:
    for method in ("fedavg", "hyperfl", "fedper"):
        accountant = RunAccountant(plan(asked(method, accountant="paper")).client, UNEVEN)
        assert accountant.claims() == accountant.entries() == []


def test_every_claim_says_under_which_delta_by_which_accountant_and_for_how_long() -> None:
    experiment = asked("fed_cdp", "batches=poisson", delta=1e-6, accountant="rdp", rounds=7)
    for entry in RunAccountant(plan(experiment).client, UNEVEN).entries():
        assert (entry["delta"], entry["rounds"], entry["accounting"]) == (1e-6, 7, "exact")
        assert len(entry["assumptions"]) >= 6 and all(line.endswith(".") for line in entry["assumptions"])
    result = claims(experiment)["example", "server"]
    assert (result.accountant, result.epsilon) == ("rdp", epsilon(6 / sqrt(3), 0.5, 28, 1e-6, "rdp"))


# --- as the papers count ---


def printed() -> list[Any]:
    return [cell for cell in published.table("fed_cdp.6").cells if cell.value is not None]


@pytest.mark.parametrize("cell", printed(), ids=lambda cell: cell.path)
def test_table_six(cell: Any) -> None:
    """For the runs of all five data sets, each example in each client's hands once a round."""
    rounds, local, sigma = (cell.keys[key] for key in ("T", "L", "sigma"))
    layers = {"a.weight": 9, "b.weight": 9, "c.weight": 9}
    run = ClientSchedule(5 * local, 5, 1, layers, rounds=rounds, max_participations=rounds, client_rate=0.1)
    assert run.local_steps == local
    if cell.keys["method"] == "Fed-CDP":
        result = FedCDP.published_accounting(FedCDPSettings(noise_multiplier=sigma), run)
    else:
        result = FedSDP.published_accounting(FedSDPSettings(noise_multiplier=sigma), run)
    unit: Any = {"instance": "example", "client": "client"}[cell.keys["level"]]
    assert result.epsilon(unit, DELTA) == pytest.approx(cell.value, abs=1e-4)


def test_there_are_five_data_sets_two_methods_and_two_lengths_in_table_six() -> None:
    cells = printed()
    assert len(cells) == 5 * 2 * (2 + 1)  # Fed-SDP prints none for examples
    assert {cell.keys["method"] for cell in cells} == {"Fed-CDP", "Fed-SDP"}


@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp"])
def test_the_papers_count_stands_beside_the_true_one(method: str) -> None:
    """MNIST's row: 100 rounds of 100 steps; ten of 100 clients."""
    changes = {"clients": 100, "sample": 10, "rounds": 100, "local_epochs": 1, "batch_size": 5}
    experiment = asked(method, accountant="paper", **changes)
    split = apart(*[500] * 100)
    entries = RunAccountant(plan(experiment).client, split).entries()
    informed = {entry["unit"]: entry for entry in entries if entry["accounting"] == "as published"}
    value = {"fed_cdp": 0.8227, "fed_sdp": 0.8536}[method]
    assert set(informed) == {"fed_cdp": {"example", "client"}, "fed_sdp": {"client"}}[method]
    assert all(entry["epsilon"] == pytest.approx(value, abs=1e-4) for entry in informed.values())
    assert all(entry["accountant"] == "moments" and entry["assumptions"] for entry in informed.values())
    exact = [entry for entry in entries if entry["accounting"] == "exact"]
    seen_singly = [entry for entry in exact if entry["adversary"] != "aggregate"]
    assert len(exact) == 8 and len(seen_singly) == 6 and all(entry["epsilon"] > 3 * value for entry in seen_singly)
    without = RunAccountant(plan(dataclasses.replace(experiment, accountant="prv")).client, split).entries()
    assert without == exact


# --- targets and budgets ---

PROTECTED = [
    ("fed_cdp", ("batches=poisson",), "example", "server", {}),
    ("fed_cdp", ("draws=example",), "example", "server", {}),
    ("fed_cdp", ("batches=poisson",), "example", "server", {"accountant": "rdp"}),
    ("dp_fedavg", (), "example", "server", {}),
    ("fed_sdp", (), "client", "server", {"sample": 1, "sampling": "poisson"}),
    ("fed_sdp", ("noised_by=server",), "client", "outsider", {"sample": 1, "sampling": "poisson", "rounds": 40}),
    ("centaur", ("unit=client",), "client", "outsider", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "chosen", "unit", "adversary", "changes"), PROTECTED)
def test_a_target_is_reached_from_below_and_settling_again_changes_nothing(
    method: str, chosen: tuple[str, ...], unit: str, adversary: str, changes: dict[str, Any]
) -> None:
    experiment = asked(method, *chosen, target_epsilon=2.0, **changes)
    settled, notes = settled_as(experiment, UNEVEN)
    assert notes == [] and settled.rounds == experiment.rounds
    assert 2.0 - 1e-3 <= claims(settled)[unit, adversary].epsilon <= 2.0
    assert settled_as(settled, UNEVEN) == (settled, [])
    assert settled_as(Experiment.from_run_config(settled.to_run_config()), UNEVEN)[0] == settled


def test_copies_of_an_example_are_no_copies_of_a_client() -> None:
    """What protects a client needs no more noise for examples that two clients hold."""
    copies = held(range(25), range(5, 25))
    for chosen, adversary in (((), "server"), (("noised_by=server",), "outsider")):
        settled, _ = settled_as(asked("fed_sdp", *chosen, target_epsilon=2.0), copies)
        assert 2.0 - 1e-3 <= claims(settled, copies)["client", adversary].epsilon <= 2.0


def test_a_target_by_the_papers_count_is_the_papers() -> None:
    settled, _ = settled_as(asked("fed_cdp", target_epsilon=0.5, accountant="paper"), UNEVEN)
    informed = max(one.epsilon("example", DELTA) for one in RunAccountant(plan(settled).client, UNEVEN).published)
    assert 0.5 - 1e-3 <= informed <= 0.5
    assert claims(settled)["example", "server"].epsilon > 1  # the true one


def test_a_target_and_noise_of_ones_own_do_not_go_together() -> None:
    for name in ("noise_multiplier", "fed_cdp.noise_multiplier"):
        with pytest.raises(InputError, match="Expected either --target-epsilon or --set noise_multiplier, got both"):
            settled_as(asked("fed_cdp", f"{name}=6", target_epsilon=2.0), UNEVEN)


@pytest.mark.parametrize("flag", ["target_epsilon", "epsilon_budget"])
def test_targets_and_budgets_need_something_that_can_be_claimed(flag: str) -> None:
    message = f"--{flag.replace('_', '-')}"
    with pytest.raises(InputError, match=f"Expected a method that claims privacy for {message}, got method=fedavg"):
        settled_as(asked("fedavg", **{flag: 1.0}), UNEVEN)
    with pytest.raises(InputError, match=f"can be claimed for {message}.*median"):
        settled_as(asked("fed_cdp", "bound=median", **{flag: 1.0}), UNEVEN)


@pytest.mark.parametrize("changes", [{}, {"sampling": "poisson"}])
@pytest.mark.parametrize("method", ["fed_cdp", "fed_sdp"])
def test_a_budget_ends_training_with_the_last_round_that_keeps_it(method: str, changes: dict[str, Any]) -> None:
    experiment = asked(method, clients=3, sample=1, rounds=60, epsilon_budget=4.0, seed=4, **changes)
    split, unit = apart(25, 20, 20), {"fed_cdp": "example", "fed_sdp": "client"}[method]
    settled, notes = settled_as(experiment, split)
    assert 1 < settled.rounds < 60

    def spent(rounds: int) -> float:
        return claims(dataclasses.replace(experiment, rounds=rounds), split)[unit, "server"].epsilon

    assert spent(settled.rounds) <= 4.0 < spent(settled.rounds + 1)
    assert len(notes) == 1 and f"after round {settled.rounds} of 60" in notes[0]
    assert settled_as(settled, split) == (settled, [])


def test_a_budget_by_the_papers_count() -> None:
    settled, _ = settled_as(asked("fed_cdp", rounds=60, epsilon_budget=0.12, accountant="paper"), UNEVEN)
    assert 1 < settled.rounds < 60

    def counted(rounds: int) -> float:
        return epsilon(6, 0.01, 6 * rounds + 1, accountant="moments")

    assert counted(settled.rounds) <= 0.12 < counted(settled.rounds + 1)


def test_a_budget_that_all_rounds_keep_changes_nothing() -> None:
    experiment = asked("fed_cdp", epsilon_budget=1000.0)
    assert settled_as(experiment, UNEVEN) == (experiment, [])


def test_a_budget_that_one_round_exceeds_is_refused() -> None:
    with pytest.raises(InputError, match="epsilon-budget"):
        settled_as(asked("fed_cdp", epsilon_budget=0.01), UNEVEN)


def test_a_target_and_a_budget_do_not_go_together() -> None:
    """The noise would be for all rounds, of which the budget leaves fewer: a resumed run would find another one."""
    with pytest.raises(InputError, match="Expected either --target-epsilon or --expert epsilon_budget, got both"):
        settled_as(asked("fed_cdp", rounds=40, target_epsilon=2.0, epsilon_budget=1.0), UNEVEN)


@pytest.mark.parametrize("method", ["centaur", "ppsgd"])
def test_where_nothing_can_be_claimed_a_target_may_be_the_comparisons(method: str) -> None:
    with pytest.raises(InputError, match="can be claimed for --target-epsilon"):
        settled_as(asked(method, target_epsilon=4.0), UNEVEN)
    settled, _ = settled_as(asked(method, target_epsilon=4.0, accountant="paper"), UNEVEN)
    informed = max(one.epsilon("example", DELTA) for one in RunAccountant(plan(settled).client, UNEVEN).published)
    assert 4.0 - 1e-3 <= informed <= 4.0


# --- bad input, through the command line ---


def with_batch_norm(shape: tuple[int, ...], classes: int) -> Net:
    extractor = nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    return Net(extractor, nn.Linear(2 * 6 * 6, classes))


def with_running_statistics(shape: tuple[int, ...], classes: int) -> Net:
    """No parameters of its own, and yet something that is sent."""
    extractor = nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten())
    return Net(extractor, nn.Linear(2 * 6 * 6, classes))


@pytest.fixture
def nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    for name, builder in (("batchnorm", with_batch_norm), ("running", with_running_statistics)):
        monkeypatch.setitem(nets._CARDS, name, nets.NetCard(builder))
    known = (*early.networks(), "batchnorm", "running")
    monkeypatch.setattr(early, "networks", lambda: known)
    return tmp_path / "there"


BAD = [
    *(
        (f"--method {method} --set {setting}", message)
        for method in ("fed_cdp", "fed_sdp", "dp_fedavg", "centaur", "ppsgd")
        for setting, message in (
            ("noise_multiplier=nan", "Expected 0 <= noise_multiplier < inf, got noise_multiplier=nan."),
            ("clip=0", "Expected 0 < clip < inf, got clip=0.0."),
        )
    ),
    *(
        (f"--method fed_cdp --expert delta={delta}", f"Expected 0 < delta < 1, got delta={delta}.")
        for delta in ("-0.1", "nan", "0.0", "1.0", "inf")
    ),
    ("--method fed_cdp --target-epsilon nan", "Expected 0 <= target-epsilon < inf, got target_epsilon=nan."),
    ("--method fed_cdp --expert epsilon_budget=inf", "Expected 0 <= epsilon-budget < inf, got epsilon_budget=inf."),
    ("--method fed_cdp --expert patient_examples=-1", "N or NxCLIENTS, each >= 1, got patient_examples=-1."),
    (
        "--method fedavg --target-epsilon 1",
        "Expected a method that claims privacy for --target-epsilon, got method=fedavg; dp_fedavg does, which",
    ),
    ("--method fed_cdp --target-epsilon 1 --set noise_multiplier=2", "got both, and with these settings 1 needs"),
    ("--method fed_cdp --expert epsilon_budget=0.001", "epsilon-budget"),
    ("--method fed_cdp --sampling sometimes", "sampling"),
    *(
        (f"--method {method} --net batchnorm", "got BatchNorm2d at extractor.1")
        for method in ("fed_cdp", "dp_fedavg", "centaur", "ppsgd")
    ),
    ("--method fed_sdp --net batchnorm", "BatchNorm2d"),
    *((f"--method {method} --net running", "InstanceNorm2d") for method in ("fed_cdp", "fed_sdp", "dp_fedavg")),
    ("--method dp_fedavg --net running --set unit=client", "InstanceNorm2d"),
]


@pytest.mark.parametrize(("flags", "message"), BAD)
def test_bad_input_is_one_line_and_nothing_is_written(
    nobodys: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    assert sim.main([*flags.split(), "--engine", "inproc", "--attack", "none"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("sim.py: ") and printed.err.count("\n") == 1
    assert message in printed.err
    assert list(nobodys.iterdir()) == []


def test_batch_norm_that_no_gradient_is_sent_of_is_refused_by_nobody(nobodys: Path) -> None:
    checked(plan(asked("fedavg", net="batchnorm")))


def test_poisson_batches_count_the_rounds_in_which_a_client_takes_part() -> None:
    known = ClientSchedule(30, 10, 2, {"a.weight": 1}, rounds=10, max_participations=3)
    result: Any = DPSGDSettings(batches="poisson").mechanism(known, ("*",))
    assert (result.steps, result.sampling_rate, result.max_participations) == (3 * 2 * 3, 1 / 3, None)
    assert result.amplified
