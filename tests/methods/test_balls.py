"""Batches in which each example chooses its step of a pass: who is drawn, a round against a loop, what is claimed."""

import dataclasses
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2

from flfw.dp.run_accountant import RunAccountant
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.mechanism import GaussianEvent
from flfw.rng import secret_choices, torch_generator
from tests.dp.test_run_accountant import DELTA, apart, asked, claims
from tests.methods.test_noisy_methods import clipped_sum, follow, noise_in, own_examples, scale_is
from tests.support.method_rounds import assert_equal, dp_client, initial_tensors, of, plain_net


@pytest.fixture
def tiny(small: Experiment) -> Experiment:
    """Three clients of 20 digits each, in batches of 8: three bins, two passes of a small dense network."""
    changes = {"net": "mlp", "split": "sampled", "local_epochs": 2, "batch_size": 8, "lr": 0.3}
    return dataclasses.replace(small, **changes, set=("sampled.train=20", "batches=balls"))


@pytest.mark.parametrize("source", ["seed", "secure"])
def test_each_example_is_once_in_a_pass_by_a_uniform_choice(tiny: Experiment, tmp_path: Path, source: str) -> None:
    client = dp_client(of(tiny, "fed_cdp", f"noise_source={source}"), 0, tmp_path)
    passes = np.stack([np.stack(list(client._drawn(20, 8))) for _ in range(1500)])
    assert passes.shape == (1500, 3, 20) and bool((passes.sum(1) == 1).all())
    for index in range(3):  # each step has an example as often as each other
        assert all(1e-13 < binom.cdf(count, 1500, 1 / 3) < 1 - 1e-13 for count in passes[:, index].sum(0))
    sizes = passes[:, 0].sum(1)
    assert 15 * 0.7 < 3.375 * sizes.var() < 15 * 1.35  # independent choices: 20 / 3 * 2 / 3; fixed sizes have 0
    pairs = np.corrcoef(passes[:, 0].astype(float).T)[np.triu_indices(20, 1)]
    assert np.abs(pairs).max() < 7.5 / sqrt(1500)
    again = np.corrcoef(passes[:-1, 0].sum(1), passes[1:, 0].sum(1))[0, 1]
    assert abs(again) < 7 / sqrt(1500)  # a new choice in each pass


def test_choices_are_as_secret_as_the_noise(tiny: Experiment, tmp_path: Path) -> None:
    for source in ("seed", "secure"):
        many = [dp_client(of(tiny, "fed_cdp", f"noise_source={source}"), 0, tmp_path) for _ in range(2)]
        one, two = ([client.choices(20, 3).tolist() for _ in range(3)] for client in many)
        assert (one == two) == (source == "seed")
    counts = np.bincount(secret_choices(30_000, 7), minlength=7)
    assert chi2.sf(float(np.square(counts - 30_000 / 7).sum() / (30_000 / 7)), 6) > 1e-12


@pytest.mark.parametrize("method", ["fed_cdp", "dp_fedavg"])
def test_a_round_equals_a_loop(tiny: Experiment, tmp_path: Path, method: str) -> None:
    """A step's sum is divided by 20 / 3, the mean size of a batch, whoever is in it."""
    plain = ("noise_multiplier=0", "clip=0.5", "grouping=layer", "momentum=0", "weight_decay=0")
    experiment = of(tiny, method, *plain)
    net, (x, y) = plain_net(experiment), own_examples(experiment, 0)
    names = [name for name, _ in net.named_parameters()]
    optimiser, rng = torch.optim.SGD(net.parameters(), lr=0.3), torch_generator(experiment.seed, "coins", 1, 0)
    for _ in range(2):
        choices = torch.randint(3, (20,), generator=rng)
        for index in range(3):
            total = clipped_sum(net, x[choices == index], y[choices == index], names, 0.5, "layer")
            follow(optimiser, net, {name: value / (20 / 3) for name, value in total.items()})
    sent, _ = dp_client(experiment, 0, tmp_path).fit_named(initial_tensors(experiment), version=0)
    assert_equal(sent, {name: value.detach() for name, value in net.state_dict().items()}, 1e-5)


def test_the_noise_of_a_step(tiny: Experiment, tmp_path: Path) -> None:
    """One pass of one bin: the whole client, sum divided by 20; the right scale passes, and 2/3 and 3/2 do not."""
    experiment = of(tiny, "fed_cdp", "noise_multiplier=3", "clip=0.5", batch_size=20, local_epochs=1, lr=1.0)
    scale_is(noise_in(experiment, tmp_path), 3 * 0.5 / 20)


def test_a_step_that_nobody_chose_is_noise_alone(tiny: Experiment, tmp_path: Path) -> None:
    experiment = of(tiny, "fed_cdp", "noise_multiplier=3", "clip=0.5", batch_size=1)
    client = dp_client(experiment, 0, tmp_path)
    empty = [(x, y) for x, y in client.batches(torch.Generator()) if not len(y)]
    assert 2 <= len(empty) < 15  # of 20 steps each is empty with probability 0.36
    loss, step = client.loss_and_direction(client.trainable_parameters(), *empty[0])
    assert loss == 0.0
    scale_is(step, 1.5)


def test_what_is_claimed() -> None:
    """Five rounds of two passes; the smaller client, of 20 examples in batches of 10, has two bins."""
    experiment = asked("fed_cdp", "noise_multiplier=12", "batches=balls", "grouping=flat")
    claim = claims(experiment)["example", "server"]
    assert claim.epsilon == compute_epsilon((GaussianEvent(12, 1.0, 10, 2),), DELTA).epsilon
    assert claim.accountant == "pld" and claim.epsilon < compute_epsilon((GaussianEvent(12, 1.0, 10),), DELTA).epsilon
    alone = claims(experiment, apart(25, 10))["example", "server"]  # whose smaller client has one bin
    assert alone.epsilon == compute_epsilon((GaussianEvent(12, 1.0, 10),), DELTA).epsilon
    assert alone.accountant == "exact"
    mechanism = RunAccountant(plan(experiment).client, apart(25, 10)).mechanism
    # All 25 may be in one step.
    assert mechanism is not None and mechanism.phase(copies=25) == GaussianEvent(12 / 25, 1.0, 10)
