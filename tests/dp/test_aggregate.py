"""Who sees sums alone: noise that adds up, counted against loops, in what clients send, and over drop-outs."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import exp, inf, isinf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import Tensor

import sim
from flfw.clients.fed_sdp import FedSDPClient
from flfw.deploy.rehearsal import plan_rehearsal
from flfw.dp.client import DPClient
from flfw.dp.message_cost import TRAIN, cost
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import least_summed, schedules
from flfw.dp.settings import clipped_change
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.nets.net import Tensors
from flfw.nets.training.gaussian import MARGIN, PER_STEP, SecureNoise, grid_step, shared_step
from flfw.plans.run_plan import plan
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.claims import ADVERSARIES, claim
from flfw.privacy.mechanism import GaussianEvent, Mechanism, Others
from flfw.privacy.rounding import at_most
from flfw.runs import run
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy
from flfw.task.defence import Defence
from tests.dp.test_run_accountant import DELTA, OTHERS, apart, asked, claims, held
from tests.support.method_rounds import dp_client, initial_tensors
from tests.support.resumed_runs import killed
from tests.support.small_runs import result_of

TEN = apart(*[20] * 10)
TRIES = 300


def of_ten(*assignments: str, **changes: Any) -> Experiment:
    """Ten clients, all in each of five rounds."""
    chosen = {"clients": 10, **changes}
    return asked("fed_sdp", "noise_multiplier=6", "grouping=flat", *assignments, **chosen)


def gaussian(multiplier: float, steps: int) -> float:
    return compute_epsilon((GaussianEvent(multiplier, 1.0, steps),), DELTA).epsilon


def failing(epsilon: float, mu: float) -> float:
    """The delta of Gaussian noise at an epsilon, in closed form (Balle and Wang, ICML 2018, theorem 8)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


# --- how much is claimed ---


@pytest.mark.parametrize(
    ("changes", "surely"),
    [
        ({}, 10),
        ({"sample": 4}, 4),
        ({"on_client_failure": "drop"}, 1),
        ({"on_client_failure": "drop:7"}, 7),
        ({"on_client_failure": "fail:7"}, 10),  # who fails ends the run
        ({"sample": 4, "sampling": "poisson"}, 1),
        (
            {"sample": 4, "sampling": "poisson", "on_client_failure": "fail:3"},
            3,
        ),  # with fewer the run ends, whoever failed
        ({"sampling": "poisson"}, 10),  # everybody
    ],
)
def test_the_noise_of_all_that_are_surely_in_a_sum_counts(changes: dict[str, Any], surely: int) -> None:
    experiment = of_ten(**changes)
    assert least_summed(experiment, experiment.colluding_clients) == surely
    result, rounds = claims(experiment, TEN), schedules(plan(experiment).client, TEN)[0].max_participations
    assert rounds == 5 or "sample" in changes
    assert {result["client", adversary].epsilon for adversary in ("server", *OTHERS)} == {gaussian(6, rounds)}
    epsilon = result["client", "aggregate"].epsilon
    assert epsilon == pytest.approx(gaussian(6 * sqrt(surely), rounds), rel=1e-9)
    assert failing(epsilon, sqrt(rounds) / 6 / sqrt(surely)) == pytest.approx(DELTA)


@pytest.mark.parametrize("colluding", [1, 3])
def test_noise_that_is_given_away_is_not_counted(colluding: int) -> None:
    """By hand: ten updates of noise sigma C / sqrt(5) each, less those whose noise the adversary knows."""
    result = claims(of_ten("noise_shares=5", colluding_clients=colluding), TEN)
    alone, together = 6 / sqrt(5), 6 / sqrt(5) * sqrt(10 - colluding)
    assert result["client", "aggregate"].epsilon == pytest.approx(gaussian(together, 5), rel=1e-9)
    assert result["client", "server"].epsilon == pytest.approx(gaussian(alone, 5), rel=1e-9)
    assert f"the noise of {10 - colluding} clients or more" in " ".join(result["client", "aggregate"].assumptions)


def test_who_colludes_may_not_be_everybody_nor_without_effect(capsys: pytest.CaptureFixture[str]) -> None:
    run = "--net linear --clients 4 --rounds 1 --attack none --engine inproc --expert colluding_clients="
    for flags, line in (
        ("4 --method fed_sdp", "colluding-clients < 4, the updates that are surely in a round's sum"),
        ("2 --method fed_sdp --set noise_shares=3", "noise_shares <= 2, the updates of clients that do not collude"),
        ("1 --method fed_cdp", "colluding-clients=0 with method=fed_cdp"),
        ("1 --method fedavg", "colluding-clients=0 with method=fedavg"),
        ("1 --method fed_sdp --defence low_precision", "colluding-clients=0 with defence=low_precision"),
        ("-1 --method fed_sdp", "colluding-clients >= 0"),
    ):
        assert sim.main((run + flags).split()) == 2
        errors = capsys.readouterr().err
        assert line in errors and errors.count("\n") == 1


def test_shares_of_the_noise_make_it_whole_in_the_sum_and_small_in_each_update() -> None:
    for shares, surely in ((10, 10), (7, 7), (4, 10)):
        changes = {"on_client_failure": f"drop:{surely}"}
        result = claims(of_ten(f"noise_shares={shares}", **changes), TEN)
        whole = sqrt(surely / shares)
        assert result["client", "aggregate"].epsilon == pytest.approx(gaussian(6 * whole, 5), rel=1e-9)
        for adversary in ("server", *OTHERS):
            assert result["client", adversary].epsilon == gaussian(6 / sqrt(shares), 5)
        assert any(
            f"A sum has the noise of {surely} clients or more" in one
            for one in result["client", "aggregate"].assumptions
        )
        assert not any("A sum has the noise" in one for one in result["client", "another client"].assumptions)


def test_an_example_exchanges_an_update_also_in_a_sum() -> None:
    result = claims(of_ten(), TEN)
    assert result["example", "aggregate"].epsilon == pytest.approx(gaussian(6 * sqrt(10) / 2, 5), rel=1e-9)
    assert result["example", "server"].epsilon == gaussian(6 / 2, 5)


def worst(copies: int, participations: int, rounds: int, surely: int, clients: int, colluding: int = 0) -> float:
    """Largest sum of k^2 / m over the rounds, by trying all rounds of each copy.

    k copies are among m >= surely updates with noise and up to so many colluding ones without.
    """
    chosen = list(combinations(range(rounds), participations))
    largest = 0.0
    for rounds_of in product(chosen, repeat=copies):
        k = [sum(r in mine for mine in rounds_of) for r in range(rounds)]
        counted = (max(n * n / m for m in range(max(surely, n - colluding), clients + 1)) for n in k)
        largest = max(largest, sum(counted))
    return largest


@pytest.mark.parametrize("surely", [1, 2, 3, 5])
@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_copies_in_one_sum_are_never_more_than_is_counted(copies: int, surely: int) -> None:
    """Multiplier 1: the sum of squared shifts is the number of steps over the multiplier's square."""
    for participations, rounds in ((1, 1), (1, 3), (2, 3)):
        one = Mechanism(1.0, rounds, clipped="client", max_participations=participations)
        phase = one.phase(others=Others(copies, surely))
        counted = phase.steps / phase.noise_multiplier**2
        assert counted == pytest.approx(worst(copies, participations, rounds, surely, 6))
        assert counted <= one.phase(others=Others(copies)).steps + 1e-9  # never more than for who sees each update


@pytest.mark.parametrize("colluding", [1, 2, 3])
@pytest.mark.parametrize("surely", [1, 2, 3])
@pytest.mark.parametrize("copies", [1, 2, 3, 4, 5])
def test_copies_at_clients_that_add_no_noise_are_counted(copies: int, surely: int, colluding: int) -> None:
    """Of a copy there the sum has no noise: with one honest client, three copies in one sum count 9, not 3."""
    others = Others(copies, surely, colluding)
    for participations, rounds in ((1, 1), (1, 3), (2, 3)):
        phase = Mechanism(1.0, rounds, clipped="client", max_participations=participations).phase(others=others)
        counted = phase.steps / phase.noise_multiplier**2
        minimum = worst(copies, participations, rounds, surely, 8, colluding)
        assert counted >= minimum - 1e-9
        if copies <= surely + colluding:
            assert counted == pytest.approx(minimum)  # all copies may be in one sum


def test_a_claim_counts_copies_at_colluding_clients() -> None:
    """Three clients hold the same examples; of two the noise is known: a sum has three changes and one noise."""
    same = held(*[range(20)] * 3)
    three = claims(of_ten(clients=3, colluding_clients=2), same)["example", "aggregate"]
    assert three.epsilon == pytest.approx(gaussian(6 / 6, 5), rel=1e-9)
    assert "the noise of 1 client or more" in " ".join(three.assumptions)
    alone = claims(of_ten(clients=3, colluding_clients=2), same)["client", "aggregate"]
    assert alone.epsilon == pytest.approx(gaussian(6, 5), rel=1e-9)
    four = claims(of_ten(clients=4, colluding_clients=2), held(*[range(20)] * 3, range(20, 40)))["example", "aggregate"]
    assert four.epsilon == pytest.approx(gaussian(6 * sqrt(2) / 6, 5), rel=1e-9)


def test_what_colluding_clients_report_has_no_noise_and_the_claim_says_so() -> None:
    chosen = ("noise_source=secure",)
    for colluding in (0, 1):
        result = claims(of_ten(*chosen, metrics="private", colluding_clients=colluding), TEN)
        stated = ["holds nothing of the unit" in " ".join(result["client", one].assumptions) for one in ADVERSARIES]
        assert stated == [False, bool(colluding), False, False]


def test_the_other_claims_rest_on_the_noise_of_all_that_hold_the_data() -> None:
    """Who sees the models sees the sums in them, too."""
    for colluding in (0, 1):
        result = claims(of_ten(colluding_clients=colluding), TEN)
        stated = [
            "holds data of the unit adds its noise" in " ".join(result["example", a].assumptions) for a in ADVERSARIES
        ]
        assert stated == [bool(colluding), False, bool(colluding), bool(colluding)]


def test_copies_of_an_example_meet_in_a_sum_only_as_far_as_there_is_noise() -> None:
    copies = held(*[range(20)] * 3, *[range(20 * k, 20 * (k + 1)) for k in range(3, 10)])  # three clients hold the same
    many = claims(of_ten(), copies)
    assert many["example", "aggregate"].epsilon == pytest.approx(gaussian(6 * sqrt(10) / 6, 5), rel=1e-9)
    assert many["client", "aggregate"].epsilon == pytest.approx(gaussian(6 * sqrt(10), 5), rel=1e-9)
    few = claims(of_ten(on_client_failure="drop:3"), copies)
    assert few["example", "aggregate"].epsilon == few["example", "server"].epsilon == gaussian(6 / 2, 15)


@pytest.mark.parametrize(
    ("method", "chosen"),
    [("fed_cdp", ()), ("fed_cdp", ("batches=poisson",)), ("dp_fedavg", ()), ("fed_cdp", ("bound=median",))],
)
def test_noise_in_local_steps_counts_as_against_who_sees_each_update(method: str, chosen: tuple[str, ...]) -> None:
    result = claims(asked(method, "noise_multiplier=6", *chosen, clients=10), TEN)
    for unit in ("example", "client"):
        assert result[unit, "aggregate"].epsilon == result[unit, "server"].epsilon
        assert not any("A sum has the noise" in one for one in result[unit, "aggregate"].assumptions)


@pytest.mark.parametrize(
    ("method", "chosen"), [("fed_sdp", "noised_by=server"), ("dp_fedavg", "unit=client"), ("ppsgd", "unit=client")]
)
def test_who_adds_the_noise_to_the_sum_has_seen_it_without(method: str, chosen: str) -> None:
    for sampling in ("fixed", "poisson"):
        result = claims(asked(method, chosen, clients=10, sample=4, sampling=sampling), TEN)
        for unit in ("example", "client"):
            one = result[unit, "aggregate"]
            assert isinf(one.epsilon) and one.assumptions[0].startswith("The server adds the noise to the sum")
            assert result[unit, "outsider"].epsilon < inf


def test_no_noise_adds_up_to_none() -> None:
    one = claims(of_ten("noise_multiplier=0"), TEN)["client", "aggregate"]
    assert isinf(one.epsilon) and "There is no noise" in one.assumptions[0]


class Halved(Defence):
    """Acts before the clipping and the noise."""

    def gradients(self, gradients: Tensors, rng: torch.Generator) -> Tensors:
        return {name: value / 2 for name, value in gradients.items()}


def test_after_a_defence_noises_do_not_add_up() -> None:
    """Of entries that one client alone sends, a sum has one client's noise."""
    for defence, adds_up in (("prune", False), ("dp_gaussian", False), (f"{__name__}:Halved", True)):
        result = claims(of_ten(defence=defence), TEN)
        better = result["client", "aggregate"].epsilon < result["client", "server"].epsilon
        assert better is adds_up and result["client", "server"].epsilon == gaussian(6, 5)
    assert claims(of_ten(defence="prune", defended="3"), TEN)["client", "aggregate"].epsilon == gaussian(6, 5)


def test_a_claim_on_sums_says_what_it_rests_on() -> None:
    one = claims(of_ten("noise_source=secure", "noise_shares=10", metrics="none"), TEN)["client", "aggregate"]
    words = " ".join(one.assumptions)
    assert one.assumptions[0].startswith("The server is taken to see nothing of a round's updates but their sum")
    assert "each update in one sum alone" in words and "No secure aggregation runs here" in words
    assert "A sum has the noise of 10 clients or more in it, also where clients drop out" in words
    assert "together 6 times the bound" in words and "noise of 1.89737 times the bound" in words
    assert "Clients that add none, or that work together with the adversary, are not among these" in words
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in one.assumptions)
    assert len(set(one.assumptions)) == len(one.assumptions)
    seeded = claims(of_ten(), TEN)["client", "aggregate"]
    assert seeded.assumptions[0].startswith("The noise of this run comes from its seed")


def test_numbers_beside_the_sums_are_treated_as_the_servers(tmp_path: Path) -> None:
    assert any(one.startswith("The server ignores") for one in claims(of_ten(), TEN)["client", "aggregate"].assumptions)
    silent = claims(of_ten(metrics="none"), TEN)["client", "aggregate"].assumptions
    assert any(one.startswith("Clients report no number") for one in silent)
    for metrics in ("all", "none"):
        sites = of_ten("noise_source=secure", federation=tmp_path, metrics=metrics)
        result = claims(sites, TEN)
        for adversary in ("server", "aggregate"):
            assert isinf(result["client", adversary].epsilon) == (metrics == "all")
    seeded = claims(of_ten("noise_source=seed", federation=tmp_path, metrics="none"), TEN)
    assert isinf(seeded["client", "aggregate"].epsilon)


def test_noise_that_is_not_on_whole_updates_has_no_shares_and_no_sums() -> None:
    for wrong in ({"clipped": "example"}, {"clipped": "client", "noised_by": "server"}):
        with pytest.raises(InputError, match="noise_divisor=1 where clients do not add noise"):
            Mechanism(6.0, 1, **{**wrong, "noise_divisor": 2})
        for others in (Others(1, 2), Others(1, 1, 1)):
            with pytest.raises(InputError, match="min_summed_updates=1 where clients do not add noise"):
                Mechanism(6.0, 1, **{**wrong, "noise_divisor": 1}).phase(others=others)
    with pytest.raises(InputError, match="a whole number min_summed_updates >= 1"):
        Others(min_summed_updates=0)
    in_turn = [Mechanism(noise, 1, clipped="client") for noise in (6.0, 3.0)]
    result = claim(in_turn, "client", "aggregate", DELTA, 2, others=[Others(1, 4), Others(1, 9)])
    assert failing(result.epsilon, sqrt(1 / 12**2 + 1 / 9**2)) == pytest.approx(DELTA)
    assert any("A sum has the noise of 4 to 9 clients or more" in one for one in result.assumptions)


# --- what a site and a rehearsal make of it ---


def test_a_site_counts_its_own_message_and_no_sum() -> None:
    for shares in (1, 100):
        set_ = ("noise_source=secure", "noise_multiplier=6", "grouping=flat", f"noise_shares={shares}")
        experiment = Experiment(method="fed_sdp", set=set_, net="mlp", split="iid", attack=("none",), clients=100)
        result, _ = cost(plan(dataclasses.replace(experiment, metrics="none")).client, TRAIN, {}, 25)
        assert result is not None
        assert result.phase() == GaussianEvent(6 / sqrt(shares), 1.0, 1)


def test_a_rehearsal_at_one_site_keeps_the_small_noise() -> None:
    changes = {"clients": 4, "batch_size": 2, "attack": ("ig",), "split": "iid", "images": 1, "local_epochs": 1}
    for colluding in (0, 2):
        shares = 4 - colluding
        experiment = asked("fed_sdp", f"noise_shares={shares}", colluding_clients=colluding, **changes)
        given = plan(plan_rehearsal(experiment, 1).experiment)
        assert given.experiment.clients == 1 and given.client.settings.update_deviation == pytest.approx(
            24 / sqrt(shares)
        )


# --- what clients send ---


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """Four clients of 20 digits, one step each on a dense network."""
    changes = {"method": "fed_sdp", "net": "mlp", "split": "sampled", "batch_size": 20, "lr": 1.0, "clients": 4}
    secure = ("noise_source=secure", "noise_multiplier=3", "clip=0.5", "noise_shares=4")
    return dataclasses.replace(small, **changes, set=("sampled.train=20", *secure))


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([value.double().flatten() for value in tensors.values()])


def answer(experiment: Experiment, partition: int, folder: Path) -> tuple[Tensor, Tensor]:
    """A client's message, and its clipped change, both flat; computed by its own code."""
    sent = initial_tensors(experiment)
    client = dp_client(experiment, partition, folder)
    client.load_received(sent, 0)
    client.train()
    before = {name: torch.tensor(value) for name, value in sent.items()}
    change = {n: client.model.state_dict()[n] - value for n, value in before.items()}
    clipped = clipped_change(change, client.noise_settings.clip, client.noise_settings.grouping)
    return flat(client.upload_tensors()) - flat(before), flat(clipped)


def accepted(noise: Tensor, std: float) -> bool:
    """Whether a sum of squares is one of this deviation, but for one in 10^12."""
    return bool(chi2.ppf(5e-13, len(noise)) < float(noise @ noise) / std**2 < chi2.isf(5e-13, len(noise)))


@pytest.mark.parametrize(("source", "more"), [("secure", 1 + MARGIN), ("seed", 1.0)])
def test_the_sum_has_the_whole_noise_and_each_update_its_share(
    tiny: Experiment, tmp_path: Path, source: str, more: float
) -> None:
    chosen = dataclasses.replace(tiny, set=(*tiny.set, f"noise_source={source}"))
    noises = [sent - change for sent, change in (answer(chosen, k, tmp_path) for k in range(4))]
    for count, std in ((1, 1.5 / 2), (3, 1.5 * sqrt(3 / 4)), (4, 1.5)):  # also where one has dropped out
        noise = torch.stack(noises[:count]).sum(0)
        assert accepted(noise, std * more)
        assert not accepted(noise, std * 2 / 3) and not accepted(noise, std * 3 / 2)
    pairs = torch.corrcoef(torch.stack(noises))[~torch.eye(4, dtype=torch.bool)]
    assert float(pairs.abs().max()) < 7 / sqrt(len(noises[0]))


def test_that_a_client_stays_away_is_told_by_its_noise_and_the_claim_says_so(tiny: Experiment, tmp_path: Path) -> None:
    """In all of 20 sums of three messages or four: a threshold between their sums of squares."""
    faint = dataclasses.replace(tiny, lr=1e-6)  # so that the changes are nothing beside the noise
    truths = np.random.default_rng(0).integers(3, 5, 20)
    for truth in truths:
        total = torch.stack([answer(faint, k, tmp_path)[0] for k in range(truth)]).sum(0)
        guess = 4 if float(total @ total) / len(total) / (1.5 / 2) ** 2 > 3.5 else 3
        assert guess == truth
    result = claims(of_ten(), TEN)
    for adversary in ("server", "aggregate", *OTHERS):
        assert any("That a client takes part is known" in one for one in result["client", adversary].assumptions)
        assert not any("takes part is known" in one for one in result["example", adversary].assumptions)
    trusted = claims(of_ten("noised_by=server"), TEN)["client", "outsider"]
    assert any("one client more or less" in one for one in trusted.assumptions)


def test_all_clients_send_on_one_grid(tiny: Experiment, tmp_path: Path) -> None:
    """Whatever they have learnt: the theorem on sums of rounded noise needs nothing else."""
    for multiplier in (3.0, 1e-4):  # with little noise the digits of the weights end above its own grid
        experiment = dataclasses.replace(tiny, set=(*tiny.set, f"noise_multiplier={multiplier}"))
        std, sent = multiplier * 0.5 / 2 * (1 + MARGIN), initial_tensors(experiment)
        largest = max(float(np.abs(value).max()) for value in sent.values())
        step = shared_step(largest + 0.5 * (1 + MARGIN), std, torch.float32)
        assert (step > grid_step(std)) is (multiplier < 1) and step <= std / PER_STEP
        for partition, longer in enumerate((0.0, 1.0, 1e3, 1e-3)):
            client = dp_client(experiment, partition, tmp_path)
            client.received = sent
            with torch.no_grad():
                for name, value in client.model.state_dict().items():
                    value.copy_(torch.tensor(sent[name]) * (1 + longer))
            places = flat(client.upload_tensors()) / step
            assert torch.equal(places, places.round())


def test_weights_whose_digits_end_above_the_noise_are_refused_whatever_the_data(
    tiny: Experiment, tmp_path: Path
) -> None:
    sent = {name: value * 1e8 for name, value in initial_tensors(tiny).items()}
    for partition in range(2):
        client = dp_client(tiny, partition, tmp_path)
        client.load_received(sent, 0)
        with pytest.raises(InputError, match=r"values within 2.1e\+06 deviations of the noise"):
            client.upload_tensors()


def last_digit(total: Tensor) -> float:
    """Mean place of the last binary digit of numbers that are not 0."""
    places = (total[total != 0] * 2.0**40).long()
    return float((places & -places).double().log2().mean())


def two_worlds(experiment: Experiment, folder: Path, send: Callable[[DPClient], Tensor]) -> float:
    """Share of pairs of messages of which the digits of their sum tell whether the changes were x and -x, or none.

    The sums of real Gaussian noise have the same distribution in both: the server is to guess by a coin. It has seen 20
    pairs of either kind before.
    """
    sent = initial_tensors(experiment)
    clients = [dp_client(experiment, partition, folder) for partition in range(2)]
    three = 3 * clients[0].noise_settings.update_deviation

    def statistic(truth: int) -> float:
        messages = []
        for client, sign in zip(clients, (1, -1), strict=True):
            client.received = sent
            with torch.no_grad():
                for name, value in client.model.state_dict().items():
                    value.copy_(torch.tensor(sent[name]) + sign * truth * three)
            messages.append(send(client))
        return last_digit(messages[0] + messages[1])

    seen = [float(np.mean([statistic(truth) for _ in range(20)])) for truth in (0, 1)]
    truths = np.random.default_rng(0).integers(0, 2, TRIES)
    return float(np.mean([np.argmin(np.abs(np.subtract(seen, statistic(truth)))) == truth for truth in truths]))


def rounded_as_usual(client: DPClient) -> Tensor:
    """The same noise, and then the sum with the weights in float32, as a client without a shared grid sends it."""
    before = {name: torch.tensor(value) for name, value in client.received.items()}
    change = {n: client.model.state_dict()[n] - value for n, value in before.items()}
    noisy = SecureNoise().add(change, client.noise_settings.update_deviation)
    return flat({n: value + noisy[n] for n, value in before.items()})


@pytest.mark.slow
@pytest.mark.usefixtures("held_keys")
def test_the_last_digits_of_a_sum_tell_nothing_of_its_parts(tiny: Experiment, tmp_path: Path) -> None:
    """A client's own message may show its digits; a sum of messages is claimed to show the sum of the noises alone."""
    settings = ("noise_multiplier=0.002", "clip=1000", "grouping=flat", "noise_shares=4")  # a deviation of 1
    experiment = dataclasses.replace(tiny, set=(*tiny.set, *settings))
    assert two_worlds(experiment, tmp_path / "usual", rounded_as_usual) > 0.95
    assert 0.4 < two_worlds(experiment, tmp_path / "shared", lambda client: flat(client.upload_tensors())) < 0.6


# --- runs ---


@pytest.fixture
def running(tiny: Experiment) -> Experiment:
    return dataclasses.replace(tiny, rounds=2, audit_rounds="0", set=(*tiny.set, "grouping=flat"))


def entries(folder: Path, adversary: str = "aggregate", unit: str = "client") -> dict[str, Any]:
    (entry,) = (e for e in result_of(folder)["privacy"] if (e["unit"], e["adversary"]) == (unit, adversary))
    return entry


@pytest.mark.slow
def test_result_and_report_have_both_claims(running: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run.run(running)
    assert entries(folder)["epsilon"] == pytest.approx(gaussian(3, 2), rel=1e-9)
    assert entries(folder, "server")["epsilon"] == gaussian(1.5, 2)
    adversaries = ["server", "aggregate", "another client", "outsider"]
    assert [entry["adversary"] for entry in result_of(folder)["privacy"]] == adversaries * 2
    page = (folder / "report.html").read_text()
    assert '<td class="text">aggregate</td>' in page and "A sum has the noise of 4 clients or more" in page
    assert sim.main(["--resume", str(folder)]) == 0
    claim = f"epsilon at most {at_most(gaussian(3, 2))} for one client against aggregate (who sees"
    assert claim in capsys.readouterr().out


def dropping(monkeypatch: pytest.MonkeyPatch, partitions: Sequence[int]) -> None:
    def failing(self: FedSDPClient) -> dict[str, float]:
        if self.ctx.partition in partitions:
            raise ValueError("has dropped out for the test")
        return DPClient.train(self)

    monkeypatch.setattr(FedSDPClient, "train", failing)


def sums(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Tensor]]:
    """The number of updates and the sum of their changes, in each round."""
    seen: list[tuple[int, Tensor]] = []
    whole = FederatedStrategy.aggregate_train

    def watched(self: FederatedStrategy, flower_round: int, replies: Any) -> Any:
        round_sum: list[Tensor] = []

        def add(sent: Tensors, update: Update) -> None:
            round_sum.append(flat(update.tensors) - flat(sent))

        self.on_update = add
        result = whole(self, flower_round, replies)
        seen.append((len(round_sum), torch.stack(round_sum).sum(0)))
        return result

    monkeypatch.setattr(FederatedStrategy, "aggregate_train", watched)
    return seen


def test_where_clients_drop_out_their_noise_is_missing_and_not_counted(
    running: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = (*running.set, "noise_shares=3", "noise_multiplier=3e4")  # beside which the changes are nothing
    experiment = dataclasses.replace(running, on_client_failure="drop:3", set=chosen)
    dropping(monkeypatch, [2])
    seen = sums(monkeypatch)
    folder = run.run(experiment)
    assert [count for count, _ in seen] == [3, 3]
    for _, noise in seen:
        assert accepted(noise, 1.5e4 * (1 + MARGIN))
        assert not accepted(noise, 1e4) and not accepted(noise, 2.25e4)
    assert entries(folder)["epsilon"] == pytest.approx(gaussian(3e4, 2), rel=1e-9)


def test_with_fewer_than_the_least_nothing_is_summed(running: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = dataclasses.replace(running, on_client_failure="drop:4")
    dropping(monkeypatch, [2])
    with pytest.raises(RunError, match="Expected at least 4 clients in round 1, got 3"):
        run.run(experiment)


@pytest.mark.slow
def test_the_least_that_any_attempt_allowed_is_counted(running: Experiment) -> None:
    """A round under the lower number may have been summed, though nothing of it is kept."""
    strict = dataclasses.replace(running, set=(*running.set, "noise_shares=2"))
    killed(strict, 1)
    killed(dataclasses.replace(strict, on_client_failure="drop:2"), 1, resumed=True)
    folder = run.resume(strict)
    assert result_of(folder)["provenance"]["requested_rounds"] == [1, 1, 1, 2]
    assert entries(folder)["epsilon"] == pytest.approx(gaussian(3, 4), rel=1e-9)
    assert any("A sum has the noise of 2 clients or more" in one for one in entries(folder)["assumptions"])


@pytest.mark.slow
def test_rounds_of_which_nobody_noted_the_least_count_as_of_single_updates(running: Experiment) -> None:
    """As of a run that older code began: its rounds may have allowed for any number."""
    strict = dataclasses.replace(running, set=(*running.set, "noise_shares=1"))
    (noted,) = (killed(strict, 2) / "checkpoint").glob("summed-*")
    noted.unlink()
    folder = run.resume(strict)
    assert entries(folder)["epsilon"] == entries(folder, "server")["epsilon"] == gaussian(3, 3)


@pytest.mark.slow
def test_a_resumed_run_that_allows_fewer_claims_less(running: Experiment) -> None:
    strict = dataclasses.replace(running, set=(*running.set, "noise_shares=1"))
    killed(strict, 2)
    folder = run.resume(dataclasses.replace(strict, on_client_failure="drop:3"))
    assert entries(folder)["epsilon"] == pytest.approx(gaussian(3 * sqrt(3), 3), rel=1e-9)


@pytest.mark.slow
def test_a_budget_of_sums_does_not_go_on_with_smaller_ones(running: Experiment) -> None:
    """Five rounds of sums of four fit, and fewer of sums of two."""
    budget = (gaussian(3 * sqrt(2), 5) + gaussian(3 * sqrt(2), 6)) / 2
    strict = dataclasses.replace(running, rounds=9, epsilon_budget=budget, set=(*running.set, "noise_shares=2"))
    stored = run.stored(killed(strict, 2))
    with pytest.raises(InputError, match="Expected rounds=5 as in"):
        run.resume(dataclasses.replace(stored, on_client_failure="drop:2"))
    folder = run.resume(stored)
    assert result_of(folder)["provenance"]["requested_rounds"] == [1, 2, 2, 3, 4]
    assert entries(folder)["epsilon"] == pytest.approx(gaussian(3 * sqrt(2), 5), rel=1e-9)


# --- targets, budgets and refusals ---


def test_a_target_is_for_the_sum_where_clients_add_shares() -> None:
    for shares, adversary in ((10, "aggregate"), (1, "server")):
        experiment = asked("fed_sdp", f"noise_shares={shares}", clients=10, target_epsilon=2.0)
        run_plan, notes = resolve_noise(plan(experiment), TEN)
        result = claims(run_plan.experiment, TEN)
        assert 2.0 - 1e-3 <= result["client", adversary].epsilon <= 2.0
        assert any("is kept against who sees sums alone" in note for note in notes) is (shares > 1)
    assert result["client", "aggregate"].epsilon < 1


def test_no_target_is_said_to_be_kept_against_sums_where_none_count() -> None:
    """Beside a defence on updates, and of a single client, the target is kept against the server."""
    for changes, split in (({"clients": 10, "defence": "low_precision"}, TEN), ({"clients": 1}, apart(20))):
        experiment = asked("fed_sdp", "noise_shares=8", target_epsilon=2.0, **changes)
        run_plan, notes = resolve_noise(plan(experiment), split)
        assert claims(run_plan.experiment, split)["client", "server"].epsilon <= 2.0
        assert not any("sums alone" in note for note in notes)


def test_a_budget_is_for_the_sum_where_clients_add_shares() -> None:
    for shares, adversary in ((10, "aggregate"), (1, "server")):
        experiment = of_ten(f"noise_shares={shares}", rounds=60, epsilon_budget=4.0)
        run_plan, _ = resolve_noise(plan(experiment), TEN)
        last = run_plan.experiment.rounds

        def spent(rounds: int, adversary: str = adversary, given: Experiment = experiment) -> float:
            return claims(dataclasses.replace(given, rounds=rounds), TEN)["client", adversary].epsilon

        assert 1 < last < 60 and spent(last) <= 4.0 < spent(last + 1)


BAD = [
    ("noise_shares=0", "", "Expected noise_shares >= 1, got noise_shares=0."),
    ("noise_shares=2.5", "", "noise_shares"),
    ("noise_shares=2 noised_by=server", "", "Expected noise_shares=1 with noised_by=server, got noise_shares=2."),
    ("noise_shares=5", "", "Expected noise_shares <= 4, the updates that are surely in a round's sum"),
    ("noise_shares=3", "--sample 2", "Expected noise_shares <= 2, the updates"),
    ("noise_shares=3", "--expert on_client_failure=drop:2", "Expected noise_shares <= 2, the updates"),
    ("noise_shares=2", "--expert on_client_failure=drop", "Expected noise_shares <= 1, the updates"),
    ("noise_shares=2", "--sample 3 --sampling poisson", "Expected noise_shares <= 1, the updates"),
]


@pytest.mark.parametrize(("chosen", "flags", "message"), BAD)
def test_shares_that_no_sum_surely_holds_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    chosen: str,
    flags: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"--method fed_sdp --net mlp --clients 4 --engine inproc --attack none {flags} --set {chosen}"
    assert sim.main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and message in printed.err
    assert list(tmp_path.iterdir()) == []
