"""Noise of a defence that comes from the run's seed: who has the seed takes it off, and audits say so."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from flfw.attacks.ig import IG
from flfw.audit.adaptation import draws_from_seed
from flfw.audit.jobs import AttackJob, ProbeSet
from flfw.audit.threat_model import threat_model_of
from flfw.client.context import ClientContext
from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.experiment import Experiment
from flfw.plans.run_plan import RunPlan, plan, without_auto
from flfw.report.recommendations import SEED_WITHHELD
from flfw.rng import torch_generator
from tests.support.method_rounds import initial_tensors
from tests.support.planned import clients_and_attacks

JOB = AttackJob(
    "ig",
    ProbeSet("target", 0, "", 1, 1, "target"),
    (),
    Path("none"),
    {},
    (1, 8, 8),
    10,
    (0.5,),
    (0.5,),
    vantage="server",
)
SEED, ROUND, PARTITION, PROBE = 7, 1, 0, (3,)


def resolved(**changes: Any) -> RunPlan:
    fields: dict[str, Any] = {
        "method": "fedavg",
        "net": "linear",
        "clients": 2,
        "seed": SEED,
        "attack": ("ig",),
        "engine": "inproc",
    }
    return plan(without_auto(Experiment(dataset="digits", rounds=1, **{**fields, **changes})))


def test_the_noise_of_dp_gaussian_is_taken_off_by_the_seed() -> None:
    defended = resolved(defence="dp_gaussian", set=("dp_gaussian.std=3",))
    task = plan(defended.experiment).task.load(None)
    x, y = task.examples("train", task.split.train[0][:1])
    sent = []
    for defence in (defended.client.defences.of_client(PARTITION), None):
        where = PARTITION, ROUND, defence, None, PROBE
        client = defended.client_class(ClientContext(defended.client, task, *where))
        client.load_received(initial_tensors(defended.experiment), 0)
        sent.append(client.gradient(x, y))
    noisy, bare = sent
    rng = torch_generator(SEED, "probe", ROUND, PARTITION, *PROBE)  # a server knows all of these
    for name, value in noisy.items():
        assert float((value - bare[name]).std()) > 1
        torch.testing.assert_close(value - 3 * torch.randn(value.shape, generator=rng), bare[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("source", ["seed", "secure"])
def test_secure_noise_is_as_large_and_no_seed_repeats_it(source: Literal["seed", "secure"]) -> None:
    defence, sent = DPGaussian(DPGaussianSettings(std=3, noise_source=source)), {"w": torch.zeros(30_000)}
    once, again = (defence.update(sent, torch_generator(SEED, "update"))["w"] for _ in range(2))
    assert 2.9 < float(once.std()) < 3.1 and abs(float(once.mean())) < 0.15
    assert torch.equal(once, again) == (source == "seed")
    correlation = float(torch.corrcoef(torch.stack([once, again]))[0, 1])
    assert source == "seed" or abs(correlation) < 0.05


@pytest.mark.parametrize(
    ("drawing", "changes"),
    [
        ("dp_gaussian", {"defence": "dp_gaussian"}),
        ("ats", {"defence": "ats", "net": "lenet5"}),
        ("fed_cdp", {"method": "fed_cdp"}),
        ("", {"method": "fed_cdp", "set": ("noise_source=secure",)}),
        ("", {"defence": "dp_gaussian", "set": ("dp_gaussian.noise_source=secure",)}),
        ("", {"defence": "dp_gaussian", "defence_randomness": "secure"}),
        ("", {"defence": "ats", "net": "lenet5", "defence_randomness": "secure"}),
        ("", {"defence": "prune"}),
        ("", {}),
    ],
)
def test_what_is_granted_names_the_seed_where_it_would_help(drawing: str, changes: dict[str, Any]) -> None:
    plan = resolved(**changes)
    if plan.client.defences.stages:
        assert draws_from_seed(plan.client, "server") == bool(drawing)
    granted = threat_model_of(*clients_and_attacks(plan), JOB, IG(), bool(plan.client.defences.stages)).granted
    named = f"{SEED_WITHHELD}, from which {drawing} may draw: who has it can take the draws off"
    assert [words for words in granted if "the run's seed" in words] == [named] * bool(drawing)
