"""Shares of classes read off the last bias, and their comparison with guesses that saw no message."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flfw.adversary.attack import Upload
from flfw.attacks.label_distribution import LabelDistribution
from flfw.audit.measures.class_inference import alike, findings, of_presence, of_shares, rates
from flfw.audit.verdict import verdict_on
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.labels import class_shares, effective_lr
from flfw.nets import build
from flfw.nets.inputs import InputSpec
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples, Observation, Vantage
from flfw.runs import run as whole
from tests.support.rounds import descend

RUN: dict[str, Any] = {
    "dataset": "digits", "net": "mlp", "image_size": 8, "clients": 10, "rounds": 1, "local_epochs": 3, "lr": 0.05,
    "engine": "inproc", "images": 1, "audit_rounds": "1", "attack": ("label_distribution",), "split": "dirichlet",
}  # fmt: skip


def test_the_effective_rate_is_that_of_a_constant_gradient() -> None:
    for momentum in (0.0, 0.5, 0.9):
        place, velocity = 0.0, 0.0
        for _ in range(7):
            velocity = momentum * velocity + 1
            place += 0.1 * velocity
        assert effective_lr(0.1, 7, momentum) == pytest.approx(place)


def test_shares_are_found_that_a_bias_s_rate_was_made_of() -> None:
    softmax = torch.tensor([[[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]]])
    true = torch.tensor([0.7, 0.0, 0.3])
    rate = true - true @ softmax[0]
    assert (class_shares(rate, softmax, torch.full((3,), 1 / 3)) - true).abs().max() < 0.01


def test_estimates_of_different_clients_leak_and_constant_ones_do_not() -> None:
    counts, rng = 20 * np.eye(10, dtype=int) + 1, np.random.default_rng(0)
    truth, public = counts / counts.sum(1, keepdims=True), np.full(10, 0.1)
    near = of_shares(truth, counts, public, rng)
    assert near.mean == 0 and near.better == 10 and near.leaks(2) and not alike(counts, rng)
    assert not near.leaks(20)  # p = 1/1024 is not below 1 % of twenty tests
    same = of_shares(np.tile(public, (10, 1)), counts, public, rng)
    assert same.gain == 0 and same.p == 1 and not same.leaks(1)
    assert verdict_on(findings({"shares": near}, 2, True, None, None))[:2] == ("undecided", "alike")
    assert verdict_on(findings({"shares": same}, 2, False, "noise", None))[1] == "static"
    few = of_shares(truth[:3], counts[:3], public, rng)
    assert verdict_on(findings({"shares": few}, 2, False, None, None))[1] == "few"


@pytest.mark.slow
def test_random_draws_of_one_population_are_alike() -> None:
    rng = np.random.default_rng(3)
    verdicts = [alike(rng.multinomial(100, np.full(10, 0.1), size=10), rng) for _ in range(30)]
    assert sum(verdicts) >= 28


def test_rates_of_presence_are_counted() -> None:
    held, counts = np.array([[True, False], [True, True]]), np.array([[3, 1], [0, 2]])
    rated = rates(held, counts)
    assert (rated["true_positives"], rated["true_cases"]) == (2, 3) and rated["false_rate"] == 1
    assert of_presence(held, counts, np.random.default_rng(0)).mean == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("method", "verdict"), [("fedavg", "leaks"), ("hyperfl", "undecided")])
def test_an_audit_says_what_uploads_tell_of_the_classes(tmp_path: Path, method: str, verdict: str) -> None:
    whole.run(Experiment(**RUN, method=method, out=tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (one,) = result["inference"]
    assert one["verdict"] == verdict and result["audit"] == []
    assert one["shares"] is None if method == "hyperfl" else one["shares"]["mean"] < 0.15
    assert "What classes a client holds" in (tmp_path / "run" / "report.html").read_text()


def test_weight_decay_of_the_last_bias_is_taken_off() -> None:
    """A client of one class trains softmax regression from large biases, which decay as much as they learn."""
    rng = torch.Generator().manual_seed(0)
    inputs = InputSpec.from_constants((1, 2, 2), (0.0,), (1.0,))
    net = build("linear", (1, 2, 2), 3)
    samples = torch.rand(60, 1, 2, 2, generator=rng)
    labels = torch.arange(60) % 3
    with torch.no_grad():
        for name, value in net.named_parameters():
            value.copy_(torch.tensor([2.0, -2.0, 1.0]) if name.endswith("bias") else torch.zeros_like(value))
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, weight_decay=0.3)
    for _ in range(10):
        descend(optimiser, cross_entropy(net(samples[:20]), torch.zeros(20, dtype=torch.int64)))
    after = {name: value.detach().clone() for name, value in net.named_parameters()}
    observation = Observation(Vantage.SERVER, "update", "target", 1, 0, 0, after, before)
    local = LocalSteps(0.01, 10, weight_decay=0.3)
    upload = Upload(observation, PlainVictim(net, before, ("*",), inputs), local, Examples(samples, labels))
    (shares,) = LabelDistribution().shares([upload])
    assert shares[0] > 0.97
    (without,) = LabelDistribution().shares([replace(upload, local=replace(local, weight_decay=0.0))])
    assert without[0] < 0.8
