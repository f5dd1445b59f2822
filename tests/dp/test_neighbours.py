"""Neighbouring data sets of a claim: what one example more or less changes beside its own gradient."""

from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flfw import data
from flfw.client.context import ClientContext
from flfw.dp.budget import BudgetExceededError
from flfw.dp.client import DPClient
from flfw.dp.message_cost import TRAIN, cost
from flfw.dp.run_accountant import RunAccountant
from flfw.experiment import Experiment
from flfw.plans.run_plan import RunPlan, plan, without_auto
from flfw.privacy.claims import claim
from flfw.privacy.mechanism import Mechanism
from tests.support.method_rounds import initial_tensors, make_client
from tests.support.outside_parts import CARD_NAME, WITH_PLANS, WITHOUT_CONSTANTS
from tests.support.pictures import save

BATCH, LR, SIGMA, CLIP = 20, 0.1, 10.0, 0.01


def private(**changes: Any) -> RunPlan:
    """A client of DP-FedAvg that reports no numbers."""
    chosen = ("noise_source=secure", f"noise_multiplier={SIGMA:g}", f"clip={CLIP:g}", "momentum=0", "weight_decay=0")
    fields: dict[str, Any] = {"method": "dp_fedavg", "net": "linear", "clients": 1, "local_epochs": 1, "lr": LR}
    fields |= {"batch_size": BATCH, "metrics": "none", "attack": ("none",), "engine": "inproc", **changes}
    return plan(without_auto(Experiment(**{**fields, "set": (*fields.pop("set", ()), *chosen)})))


# --- the number of examples ---


def size_of_change(examples: int, batches: str) -> float:
    """Deviation of a client's change of the model over its 8970 entries; the client has so many examples."""
    run_plan = private(net="mlp", split="sampled", set=("sampled.train=100", f"batches={batches}"))
    task = run_plan.task.load(None)
    task = replace(task, split=replace(task.split, train=(task.split.train[0][:examples],)))
    client = run_plan.client_class(ClientContext(run_plan.client, task, 0, 1, None, None))
    start = initial_tensors(run_plan.experiment)
    sent, metrics = client.fit_named(start, 0)
    assert metrics == {}
    return float(torch.cat([(sent[name] - torch.tensor(value)).flatten() for name, value in start.items()]).std())


def steps_tell(examples: int, batches: str) -> float:
    """The size as the settings give it: noise is divided by each batch, or by the expected one."""
    whole, rest = divmod(examples, BATCH)
    sizes = [BATCH] * whole + [rest if batches == "shuffled" else BATCH] * bool(rest)
    return LR * SIGMA * CLIP * sqrt(sum(1 / size**2 for size in sizes))


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["shuffled", "poisson"])
def test_the_size_of_the_noise_tells_40_examples_from_41(batches: str) -> None:
    """With metrics=none, and a batch that is full with 40: in 60 of 60 messages.

    Of 8970 Gaussian entries the deviation is off by 10% or 9%, half the way to the other size, in less than 1 of 10^32.
    """
    sizes = {examples: steps_tell(examples, batches) for examples in (40, 41)}
    for examples in sizes:
        for _ in range(30):
            size = size_of_change(examples, batches)
            assert min(sizes, key=lambda n: abs(sizes[n] - size)) == examples


def test_a_claim_for_examples_says_that_their_number_is_known() -> None:
    for unit in ("example", "patient", "client"):
        words = " ".join(claim(Mechanism(8.0, 10), unit, "server", 1e-5, 1, examples=3, metrics="none").assumptions)
        assert "Everybody is taken to know each client's number of training examples" in words
    words = " ".join(claim(Mechanism(8.0, 10, clipped="client"), "client", "server", 1e-5, 1).assumptions)
    assert "number of training examples" not in words


def test_a_claim_for_patients_says_at_how_many_clients_one_is() -> None:
    """A patient of two clients changes two updates, and its examples would count together."""
    for unit in ("example", "client"):
        run_plan = private(set=(f"unit={unit}",), patient_examples="3")
        for one in RunAccountant(run_plan.client, run_plan.task.load(None).split).claims():
            assert any("examples at no more than 1 of the clients" in words for words in one.assumptions) == (
                one.unit == "patient" and one.epsilon < inf
            )


# --- the constants of normalisation ---


@pytest.fixture
def pictures(tmp_path: Path) -> dict[bool, Path]:
    """Folders of 41 images, 39 of them of one class: all are black, or one of them is white."""
    folders = {}
    for white in (False, True):
        root = folders[white] = tmp_path / f"white-{white}"
        for label, count in (("a", 39), ("b", 2)):
            for index in range(count):
                level = 255 if white and (label, index) == ("a", 0) else 0
                save(root / "train" / label / f"{index:02}.png", np.full((28, 28), level, np.uint8))
            save(root / "test" / label / "0.png", np.zeros((28, 28), np.uint8))
    return folders


def clipped_sum(folder: Path, normalise: str) -> Tensor:
    run_plan = private(dataset=f"folder:{folder}", split="iid", normalise=normalise)
    client = make_client(run_plan.experiment, 0, folder)
    assert isinstance(client, DPClient)
    client.load_received(initial_tensors(run_plan.experiment), 0)
    sums = client.clipped_sum(*client.examples("train", client.indices("train")), CLIP).sums
    return torch.cat([value.flatten() for value in sums.values()])


def test_an_example_changes_all_gradients_by_the_constants_of_its_own_data(pictures: dict[bool, Path]) -> None:
    """One image for another may change a sum by twice the bound: here it is more than thirty times the bound."""
    changed = {n: clipped_sum(pictures[True], n) - clipped_sum(pictures[False], n) for n in ("own", "half", "none")}
    assert float(changed["own"].norm()) > 30 * CLIP
    assert max(float(changed[normalise].norm()) for normalise in ("half", "none")) < 2.00001 * CLIP


def test_nothing_is_claimed_or_counted_with_constants_of_the_same_data(pictures: dict[bool, Path]) -> None:
    run_plans = {n: private(dataset=f"folder:{pictures[True]}", split="iid", normalise=n) for n in ("own", "half")}
    split = run_plans["own"].task.load(None).split
    epsilons = {
        n: {one.epsilon for one in RunAccountant(chosen.client, split).claims()} for n, chosen in run_plans.items()
    }
    assert epsilons["own"] == {inf} and max(epsilons["half"]) < inf
    with pytest.raises(
        BudgetExceededError, match=r"^this site's budget: inputs are normalised with the mean and deviation of"
    ):
        cost(run_plans["own"].client, TRAIN, {}, 40)
    assert cost(run_plans["half"].client, TRAIN, {}, 40)[0] is not None


@pytest.mark.parametrize("colour", ["auto", "grey"])
def test_a_claim_says_that_the_colour_of_images_is_known(pictures: dict[bool, Path], colour: str) -> None:
    """An image in colour among grey ones decides on the shape of all inputs, unless a flag does."""
    channels = []
    for folder, shape in ((pictures[False], (28, 28)), (pictures[True], (3, 28, 28))):
        save(folder / "train" / "a" / "00.png", np.zeros(shape, np.uint8))
        run_plan = private(
            dataset=f"folder:{folder}", split="iid", normalise="half", own_images=colour.removeprefix("auto")
        )
        channels.append(run_plan.task.input_space[0][0])
        claims = RunAccountant(run_plan.client, run_plan.task.load(None).split).claims()
        every = [" ".join(one.assumptions) for one in claims if one.epsilon < inf]
        known = "Everybody is taken to know the classes, the size and colour of images, and the split"
        assert every and all(known in words for words in every)
    assert channels == ([1, 3] if colour == "auto" else [1, 1])


def test_a_card_of_ones_own_without_constants_has_those_of_its_examples() -> None:
    for name, public in ((CARD_NAME, True), (WITHOUT_CONSTANTS, False)):
        run_plans = {n: private(dataset=name, split="iid", normalise=n) for n in ("own", "half")}
        split = run_plans["own"].task.load(None).split
        epsilons = {
            n: {one.epsilon for one in RunAccountant(chosen.client, split).claims()} for n, chosen in run_plans.items()
        }
        assert (epsilons["own"] == {inf}) != public and max(epsilons["half"]) < inf
        assert data.has_public_constants(name) == public


@pytest.mark.parametrize(("name", "public"), WITH_PLANS.items())
@pytest.mark.parametrize("normalise", ["own", "none"])
def test_a_table_of_ones_own_card_claims_nothing_by_a_plan_that_may_be_of_its_rows(
    name: str, public: bool, normalise: str
) -> None:
    run_plan = private(dataset=name, split="iid", normalise=normalise)
    claims = RunAccountant(run_plan.client, run_plan.task.load(None).split).claims()
    assert ({one.epsilon for one in claims} == {inf}) != public
    assert all("Take a plan of the columns that was known beforehand" in one.assumptions[0] for one in claims) != public


def test_published_sets_and_those_of_sites_have_public_constants() -> None:
    assert all(map(data.has_public_constants, ("mnist", "digits", "digit5:usps,mnist", "site:1x28x28:10")))
    assert not any(map(data.has_public_constants, ("folder:/data/scans", "hf:someone/something")))
