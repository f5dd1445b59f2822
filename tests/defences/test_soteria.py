"""Soteria: its scores against one backward pass for each unit, its columns, its clients, and who knows of it."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flfw import nets
from flfw.attacks.adaptations.soteria import SoteriaAdaptation
from flfw.clients.defences.soteria import Soteria, SoteriaSettings, scores
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.matching import cosine_distance
from flfw.inversion.priors import total_variation, weighted
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets import tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.representation import representation
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import initialising, torch_generator
from flfw.task.defence import LocalStep
from tests.support.attackable import gradient
from tests.support.method_rounds import make_client
from tests.support.planned import checked

INPUTS = InputSpec.from_constants((1, 12, 12), (0.5,), (0.25,))


def network(name: str = "lenet") -> nn.Module:
    with initialising(0, name):
        return nets.build(name, INPUTS.shape, 10)


def example(net: nn.Module, batch: int = 3) -> LocalStep:
    rng = torch_generator(0, "soteria")
    x, y = torch.rand(batch, *INPUTS.shape, generator=rng), torch.randint(10, (batch,), generator=rng)
    return LocalStep(gradient(net, INPUTS, x, y), x, y, net, INPUTS)


def by_units(net: nn.Module, below: nn.Module, x: Tensor) -> Tensor:
    """The scores as in the authors' code: one backward pass for each unit, example by example."""
    total = torch.zeros(below(x).shape[1])
    for one in x:
        at = one[None].clone().requires_grad_()
        r = below(at)[0]
        for unit in range(len(r)):
            (slope,) = torch.autograd.grad(r[unit], at, retain_graph=True)
            total[unit] += (slope.norm() / (r[unit] + 0.1)).detach()
    return total


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.7])
def test_the_columns_below_the_percentile_of_the_scores_are_zero_and_nothing_else_changes(ratio: float) -> None:
    net = network()
    step = example(net)
    below = nn.Sequential(net.extractor, nn.Flatten()).eval()  # type: ignore[arg-type]
    expected = by_units(net, below, INPUTS.normalise(step.x))
    torch.testing.assert_close(scores(net, "classifier", INPUTS.normalise(step.x)), expected, rtol=1e-4, atol=1e-6)
    sent = Soteria(SoteriaSettings(ratio)).step(step, torch.Generator())
    hidden = np.abs(expected.numpy()) < np.percentile(np.abs(expected.numpy()), 100 * ratio)
    assert abs(hidden.sum() - ratio * len(hidden)) < 1
    weight = step.gradients["classifier.weight"].clone()
    weight[:, torch.from_numpy(hidden)] = 0
    assert torch.equal(sent.pop("classifier.weight"), weight)
    assert all(torch.equal(value, step.gradients[name]) for name, value in sent.items())


def test_the_layer_can_be_chosen_and_the_model_is_left_as_it_was() -> None:
    net = network("lenet5" if INPUTS.shape[1] == 32 else "mlp").train()
    step = example(net)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    sent = Soteria(SoteriaSettings(0.5, "extractor.3")).step(step, torch.Generator())
    zero = {name for name, value in sent.items() if value.dim() == 2 and not torch.equal(value, step.gradients[name])}
    assert zero == {"extractor.3.weight"} and net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_pre_hooks for module in net.modules())
    r = representation(net, "extractor.3", INPUTS.normalise(step.x))
    torch.testing.assert_close(r, net.extractor[:3](INPUTS.normalise(step.x)))  # type: ignore[index]


def test_a_step_on_other_tensors_is_left_alone() -> None:
    step = example(network())
    rest = {name: value for name, value in step.gradients.items() if name != "classifier.weight"}
    head = LocalStep(rest, step.x, step.y, step.model, step.inputs)
    assert Soteria(SoteriaSettings(0.5, "classifier")).step(head, torch.Generator()) is rest


@pytest.mark.slow
def test_a_client_sends_and_follows_the_defended_gradient(tmp_path: Path) -> None:
    given = {"method": "fedavg", "net": "lenet", "clients": 2, "local_epochs": 1, "batch_size": 1000, "lr": 0.5}
    experiment = without_auto(
        Experiment(dataset="digits", defence="soteria", set=("momentum=0", "weight_decay=0"), attack=("none",), **given)  # type: ignore[arg-type]
    )
    defence = plan(experiment).client.defences.of_client(0)
    client = plan(experiment).client_class(replace(make_client(experiment, 0, tmp_path).ctx, defence=defence))
    x, y = client.examples("train", client.indices("train"))
    start = {name: value.clone() for name, value in client.model.state_dict().items()}
    sent = client.local_gradient(x, y, torch_generator(0, "probe"))
    hidden = (sent["classifier.weight"] == 0).all(0)
    assert int(hidden.sum()) == len(hidden) // 2
    uploads, _ = client.fit_named({name: value.numpy().copy() for name, value in start.items()}, version=0)
    moved = uploads["classifier.weight"] - start["classifier.weight"]
    assert torch.equal((moved == 0).all(0), hidden)  # one step over all examples: these columns stood still
    torch.testing.assert_close(moved, -0.5 * sent["classifier.weight"], atol=1e-6, rtol=1e-4)


def test_an_adaptation_agrees_with_the_truth_and_keeps_what_was_sent() -> None:
    step = example(network(), 1)
    sent = Soteria(SoteriaSettings(0.6)).step(step, torch.Generator())
    for settings in ({"ratio": 0.6, "layer": ""}, {"ratio": 0.6, "layer": "classifier"}):
        operator = SoteriaAdaptation(settings)
        again = operator.apply(step.gradients, sent, operator.read(sent))
        assert all(torch.equal(again[name], value) for name, value in sent.items())
    other = example(network(), 2).gradients
    kept = operator.apply(other, sent, operator.read(sent))["classifier.weight"]
    assert torch.equal(kept != 0, (other["classifier.weight"] != 0) & (sent["classifier.weight"] != 0).any(0))


def reconstructed(net: nn.Module, ratio: float, knows: bool) -> float:
    """Root mean square deviation of a search for one image of two greys."""
    x = torch.rand(1, 1, 2, 1, 1, generator=torch_generator(2, "greys")).expand(1, 1, 2, 6, 12).reshape(1, 1, 12, 12)
    y, chosen = torch.tensor([3]), SoteriaSettings(ratio)
    sent = Soteria(chosen).step(LocalStep(gradient(net, INPUTS, x, y), x, y, net, INPUTS), torch.Generator())
    victim, target = PlainVictim(net, tensors(net), ("*",), INPUTS), SearchTarget(sent, y, torch_generator(0, "start"))
    operator = SoteriaAdaptation(asdict(chosen)) if knows else None
    recipe = SearchConfig(cosine_distance, AdamSearch(300, 0.1, schedule="cosine"), weighted((1e-3, total_variation)))
    (result,) = invert(victim, [target], recipe, operator=operator)
    return float((result.samples - x).square().mean().sqrt())


@pytest.mark.nightly
def test_a_search_that_is_told_comes_as_close_as_without_the_defence() -> None:
    bare, unknowing = reconstructed(network(), 0.0, False), reconstructed(network(), 0.8, False)
    knowing = [reconstructed(network(), ratio, True) for ratio in (0.0, 0.8)]  # weakened to nothing, and not
    assert bare < 0.05 and max(knowing) < 1.5 * bare + 0.02
    assert unknowing > 2 * max(knowing)


@pytest.mark.slow
def test_where_the_representation_is_the_image_hiding_all_of_it_defeats_the_search() -> None:
    assert reconstructed(network("linear"), 0.0, True) < 0.05
    assert reconstructed(network("linear"), 0.99, True) > 0.15


def asked(**changes: object) -> Experiment:
    return without_auto(Experiment(dataset="digits", defence="soteria", attack=("none",), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"method": "fedper", "net": "lenet"},
            "a fully connected layer among the shared tensors for soteria, got none",
        ),
        ({"method": "hyperfl"}, "a fully connected layer among the shared tensors for soteria, got none"),
        (
            {"method": "fedavg", "net": "lenet", "set": ("soteria.layer=extractor.0",)},
            "soteria.layer among classifier; got extractor.0",
        ),
        ({"set": ("soteria.ratio=1",)}, "0 <= ratio < 1, got ratio=1"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(changes: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        checked(plan(asked(**changes)))


def test_no_epsilon_is_claimed_beside_it() -> None:
    given = asked(method="fed_cdp", net="mlp")
    claims = RunAccountant(plan(given).client, plan(given).task.load(None).split).claims()
    assert claims and all(claim.epsilon is None or claim.epsilon == float("inf") for claim in claims)
    assert any("looks at the batch again" in str(claim.as_dict()) for claim in claims)
