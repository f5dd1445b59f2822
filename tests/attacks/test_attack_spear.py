"""SPEAR: batches read off exactly, and no false example where that is impossible."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from flfw import nets
from flfw.adversary.attack import NotApplicableError
from flfw.adversary.sums import Protocol, pooled
from flfw.attacks.spear import SPEAR, SPEARSettings
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.rectified import separate, separate_rectified
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Knowledge, Reconstruction
from flfw.rng import initialising, torch_generator
from tests.support.attackable import attackable, digit_inputs, digits, generators, gradient, seen


def largest_errors(x: Tensor, result: Reconstruction) -> Tensor:
    """Compute for each example the largest error of the reconstruction that is nearest to it."""
    return (x[:, None] - result.samples[None]).abs().flatten(2).amax(2).amin(1)


@pytest.mark.parametrize("count", [1, 2, 4, 8, pytest.param(12, marks=pytest.mark.nightly)])
def test_a_batch_is_read_off_exactly_without_labels(count: int) -> None:
    x, y = digits(5, count=count)
    observations, knowledge = attackable("mlp", 28, (x, y))
    result = SPEAR().run(observations, [dataclasses.replace(knowledge[0], labels=None)], generators(1))[0]
    assert float(largest_errors(x, result).max()) < 1e-4
    assert result.matching_loss is None


def of_rows(act: nn.Module, x: Tensor, y: Tensor, units: int = 40) -> tuple[nets.Tensors, Knowledge, nets.Tensors]:
    """Return the gradient, the knowledge and the weights of a network on rows of numbers."""
    inputs = InputSpec.from_constants((x.shape[1],), (0.4,) * x.shape[1], (0.3,) * x.shape[1])
    with initialising(3, "rows"):
        net = nets.Net(nn.Sequential(nn.Linear(x.shape[1], units), act), nn.Linear(units, 3))
    weights = nets.tensors(net)
    return gradient(net, inputs, x, y), Knowledge(PlainVictim(net, weights, ("*",), inputs), len(y), None), weights


def rows(count: int) -> tuple[Tensor, Tensor]:
    """Draw rows of 20 numbers, and labels."""
    return torch.rand((count, 20), generator=torch_generator(1, "rows")), torch.arange(count) % 3


def test_rows_of_a_table_are_read_off_and_clipping_of_each_example_does_not_help() -> None:
    x, y = rows(6)
    sent, knowledge, weights = of_rows(nn.ReLU(), x, y)
    assert float(largest_errors(x, SPEAR().run([seen(sent, weights)], [knowledge], generators(1))[0]).max()) < 1e-4
    each = [of_rows(nn.ReLU(), x[k : k + 1], y[k : k + 1])[0] for k in range(6)]
    lengths = [torch.stack([value.norm() for value in one.values()]).norm() for one in each]
    clipped = {
        n: torch.stack([one[n] / length for one, length in zip(each, lengths, strict=True)]).mean(0) for n in sent
    }
    result = SPEAR().run([seen(clipped, weights)], [knowledge], generators(1))[0]
    assert float(largest_errors(x, result).max()) < 1e-4


def test_an_example_that_is_there_twice_is_read_off_once_and_the_rest_is_grey() -> None:
    x, y = rows(4)
    sent, knowledge, weights = of_rows(nn.ReLU(), x[[0, 1, 1, 2]], y[[0, 1, 1, 2]])
    result = SPEAR().run([seen(sent, weights)], [knowledge], generators(1))[0]
    assert float(largest_errors(x[:3], result).max()) < 1e-4
    assert bool((result.samples[3] == 0.5).all())


def test_noise_dropped_entries_and_more_examples_than_are_known_leave_all_grey() -> None:
    x, y = rows(6)
    sent, known, weights = of_rows(nn.ReLU(), x, y)
    noisy = {n: v + 0.1 * v.std() * torch.randn(v.shape, generator=torch_generator(0, n)) for n, v in sent.items()}
    pruned = {n: torch.where(v.abs() < v.abs().median(), 0.0, v) for n, v in sent.items()}
    fewer = dataclasses.replace(known, batch=5)
    few = SPEAR(SPEARSettings(sets=2000))
    for seen_sent, knowledge in ((noisy, known), (pruned, known), (sent, fewer)):
        result = few.run([seen(seen_sent, weights)], [knowledge], generators(1))[0]
        assert bool((result.samples == 0.5).all())


@pytest.mark.parametrize(
    "act",
    [nn.LeakyReLU(0.1), nn.Sigmoid(), nn.Identity(), nn.Sequential(nn.BatchNorm1d(40), nn.ReLU())],
    ids=["leaky", "sigmoid", "none", "normalised"],
)
def test_it_does_not_apply_behind_another_nonlinearity(act: nn.Module) -> None:
    x, y = rows(2)
    sent, knowledge, weights = of_rows(act, x, y)
    if "extractor.1.0.running_mean" in weights:  # the ReLU's signs are no longer those of the layer's outputs
        weights = {**weights, "extractor.1.0.running_mean": torch.full((40,), 0.5)}
        knowledge = dataclasses.replace(
            knowledge, model=PlainVictim(knowledge.model.model, weights, ("*",), knowledge.model.inputs)
        )
    with pytest.raises(NotApplicableError, match=r"needs a ReLU right after extractor\.0 \(Linear\)"):
        SPEAR().run([seen(sent, weights)], [knowledge], generators(1))


def test_it_needs_a_known_fully_connected_first_layer_and_a_known_network() -> None:
    observations, knowledge = attackable("cnn1", 28, digits(0))
    with pytest.raises(
        NotApplicableError, match=r"fully connected first layer with a bias, got extractor\.0 \(Conv2d\)"
    ):
        SPEAR().run(observations, knowledge, generators(1))
    observations, knowledge = attackable("mlp", 8, digits(0, side=8))
    victim = knowledge[0].model
    known = {name: value for name, value in victim.known.items() if name.startswith("extractor.")}
    hidden = PlainVictim(victim.model, known, ("extractor.*",), digit_inputs(8))
    with pytest.raises(NotApplicableError, match=r"known as a whole, got unknown classifier\.weight"):
        SPEAR().run(observations, [Knowledge(hidden, 1, None)], generators(1))
    with pytest.raises(InputError, match="Expected sets >= 1, got sets=0"):
        SPEARSettings(sets=0)


# --- proofs ---


def alike() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor]:
    """Build three examples, two of which switch on the same units: gradient, layer, inputs, and rows of D."""
    generator = torch_generator(0, "alike")
    weight, bias = torch.randn((60, 12), generator=generator).double(), torch.randn(60, generator=generator).double()
    first, third = torch.randn((2, 12), generator=generator).double()
    second = first + 1e-3 * torch.randn(12, generator=generator).double()
    inputs = torch.stack([first, second, third])
    on = inputs @ weight.T + bias > 0
    assert torch.equal(on[0], on[1]) and not torch.equal(on[0], on[2])
    outputs = torch.where(on, torch.randn((3, 60), generator=generator).double(), 0.0)
    return (outputs.T @ inputs, outputs.sum(0)), (weight, bias), inputs, outputs


def test_mixtures_of_examples_that_switch_on_the_same_units_are_refused_by_the_network() -> None:
    observed, layer, inputs, outputs = alike()

    def responses(trial: Tensor) -> Tensor:
        """Answer as a network does: with an example's gradient there, with another one elsewhere."""
        near = torch.cdist(trial, inputs) < 1e-6
        on = trial @ layer[0].T + layer[1] > 0
        other = torch.randn((len(trial), 60), generator=torch_generator(1, "other")).double() * on
        return torch.where(near.any(1, keepdim=True), near.double() @ outputs, other)[:, None]

    result = separate_rectified(observed, layer, 3, torch_generator(0, "sets"), responses, sets=2000)
    assert result is not None and (len(result.inputs), result.present) == (1, 3)
    torch.testing.assert_close(result.inputs[0], inputs[2], rtol=0, atol=1e-6)


def rectified(count: int, units: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Build the gradient of a layer before a ReLU, for random examples."""
    generator = torch_generator(2, "rectified")
    weight, bias, inputs = (torch.randn(s, generator=generator).double() for s in ((units, 40), (units,), (count, 40)))
    above = torch.randn((count, units), generator=generator).double()
    outputs = torch.where(inputs @ weight.T + bias > 0, above, 0.0)
    return (outputs.T @ inputs, outputs.sum(0)), (weight, bias), inputs


def test_the_layer_alone_proves_a_batch_of_fourteen() -> None:
    (of_weight, of_bias), (weight, bias), inputs = rectified(14, 300)
    result = separate(of_weight, of_bias, weight, bias, 14, torch_generator(0, "sets"))
    assert result is not None and result.agreement == 1.0
    nearest = torch.cdist(result.inputs.double(), inputs).argmin(1)
    assert sorted(nearest.tolist()) == list(range(14))
    torch.testing.assert_close(result.inputs, inputs[nearest].float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(result.outputs.sum(0), of_bias.float(), rtol=0, atol=1e-4)


def test_the_weights_of_another_layer_prove_nothing() -> None:
    observed, (weight, bias), _ = rectified(4, 60)
    assert separate_rectified(observed, (weight, bias), 4, torch_generator(0, "sets"), sets=1000) is not None
    assert separate_rectified(observed, (weight.flip(0), bias), 4, torch_generator(0, "sets"), sets=1000) is None


def test_gradients_without_zeros_are_refused_at_once() -> None:
    generator = torch_generator(0, "dense")
    weight, bias, inputs, outputs = (torch.randn(s, generator=generator) for s in ((90, 40), (90,), (14, 40), (14, 90)))
    observed = outputs.T @ inputs, outputs.sum(0)
    assert separate(*observed, weight, bias, 14, torch_generator(0, "sets")) is None


@pytest.mark.parametrize(("protocol", "maximum"), [(None, 1e-4), (Protocol(5), 1e-2)], ids=["exact", "SecAgg+"])
def test_a_sum_over_two_clients_of_four_is_read_off_as_one_batch_of_eight(
    protocol: Protocol | None, maximum: float
) -> None:
    x, y = digits(5, count=8)
    observations, knowledge = attackable("mlp", 28, (x, y))
    parts = [attackable("mlp", 28, (x[k : k + 4], y[k : k + 4]))[0][0] for k in (0, 4)]
    clients = [dataclasses.replace(part, client=k, slot=k) for k, part in enumerate(parts)]
    one, two = (
        SPEAR().run([o], knowledge, generators(1))[0] for o in (observations[0], pooled(clients, False, protocol))
    )
    assert float(largest_errors(x, one).max()) < 1e-4 and float(largest_errors(x, two).max()) < maximum
