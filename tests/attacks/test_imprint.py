"""Imprint: bins by hand, shares of real batches beside theory, and what the readings of a gradient are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flfw import data, nets
from flfw.adversary.attack import NotApplicableError
from flfw.attacks.imprint import Imprint, ImprintSettings
from flfw.audit.measures.metrics import psnr
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.closed_form.imprint import (
    ImprintModule,
    bin_sums,
    crafted,
    dct_query,
    expected_alone,
    mean_query,
    read_bins,
    thresholds,
)
from flfw.recording.observation import Knowledge, Observation
from flfw.rng import initialising, numpy_generator
from tests.support.attackable import attackable, db, digit_inputs, digits, fresh_net, generators, gradient, seen

PLACE = "extractor.imposed.measure"


def imprinted(attack: Imprint, net: str = "mlp", side: int = 8) -> nets.Net:
    """A fresh network with the attack's module, whose quantiles are those of public digits."""
    inputs = digit_inputs(side)
    with initialising(1, "net"):
        model = attack.network(nets.build(net, inputs.shape, 10))
    public = torch.tensor(data.load("digits", None, side).test_x).float() / 255
    model.load_state_dict({**model.state_dict(), **attack.crafted(nets.tensors(model), inputs.normalise(public))})
    return model


def observed(model: nets.Net, x: Tensor, y: Tensor) -> tuple[list[Observation], list[Knowledge]]:
    """What the server sees of a batch; it is granted no labels."""
    inputs, received = digit_inputs(x.shape[-1]), {n: v.clone() for n, v in nets.tensors(model).items()}
    victim = PlainVictim(model, received, ("*",), inputs)
    return [seen(gradient(model, inputs, x, y), received)], [Knowledge(victim, len(y), None)]


def closest(x: Tensor, samples: Tensor) -> list[float]:
    """The PSNR of each example to the sample that is closest to it."""
    return [max(psnr(true.numpy(), guess.numpy()) for guess in samples) for true in x]


# --- bins by hand ---


def by_hand(examples: Tensor, slopes: Tensor, query: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the measuring layer for given derivatives of the loss by a unit that is on: loops alone."""
    weight, bias = torch.zeros(len(ends), examples.shape[1]), torch.zeros(len(ends))
    for example, slope in zip(examples, slopes, strict=True):
        for unit, end in enumerate(ends):
            if float(example @ query) > float(end):
                weight[unit] += slope * example
                bias[unit] += slope
    return weight, bias


def test_a_bin_is_the_difference_of_neighbours_and_the_last_one_has_no_upper_end() -> None:
    """Means 0.5, 2.5, 3.5 and 9 in the bins (-9, 1], (1, 3], (3, 5] and above 5: all of them are read."""
    examples = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 3.0], [8.0, 10.0]])
    slopes, query, ends = torch.tensor([0.5, -1.0, 2.0, 0.25]), mean_query(2), torch.tensor([-9.0, 1.0, 3.0, 5.0])
    weight, bias = by_hand(examples, slopes, query, ends)
    sums = bin_sums(bias)
    assert sums.tolist() == slopes.tolist()
    readings = read_bins(weight, bias, query[None].repeat(4, 1), -ends)
    torch.testing.assert_close(readings.inputs, examples)
    assert readings.bins.tolist() == [0, 1, 2, 3] and bool(readings.consistent.all())


def test_neighbours_in_one_bin_are_mixed_and_empty_bins_give_nothing() -> None:
    examples, slopes = torch.tensor([[0.0, 1.0], [1.0, 0.5]]), torch.tensor([1.0, 3.0])
    query, ends = mean_query(2), torch.tensor([-9.0, 1.0, 3.0])
    readings = read_bins(*by_hand(examples, slopes, query, ends), query[None].repeat(3, 1), -ends)
    assert readings.inputs.tolist() == [[0.75, 0.625]] and readings.bins.tolist() == [0]


def test_a_reading_that_lies_outside_of_its_bin_comes_last_whatever_its_size() -> None:
    """Slopes of opposite signs throw the mixture of the first bin out of it: (3 * 0.9 - 2.9 * 0.1) / 0.1 = 24.1."""
    examples = torch.tensor([[0.9, 0.9], [0.1, 0.1], [2.0, 2.0]])
    slopes, query, ends = torch.tensor([3.0, -2.9, 0.01]), mean_query(2), torch.tensor([-9.0, 1.0])
    readings = read_bins(*by_hand(examples, slopes, query, ends), query[None].repeat(2, 1), -ends)
    assert readings.inputs[0].tolist() == pytest.approx([24.1, 24.1], rel=1e-4)
    assert readings.consistent.tolist() == [False, True] and readings.shares[0] > readings.shares[1]
    assert readings.best(1).tolist()[0] == pytest.approx([2.0, 2.0], rel=1e-4)


def test_the_module_and_its_gradient_are_those_of_the_loop() -> None:
    """The module's own backward pass, against the loop with the derivatives of the loss by one unit."""
    query, ends = mean_query(6), torch.tensor([-5.0, -0.5, 0.0, 0.5])
    module = ImprintModule((1, 2, 3), 4, added=False)
    module.load_state_dict(crafted(query, ends, gain=0.5))
    x = torch.randn(5, 1, 2, 3, generator=torch.Generator().manual_seed(0))
    target = torch.randn(5, 1, 2, 3, generator=torch.Generator().manual_seed(1))
    (module(x) * target).sum().backward()
    slopes = target.flatten(1).sum(1) / 0.5
    weight, bias = by_hand(x.flatten(1), slopes, query, ends)
    assert module.measure.weight.grad is not None and module.measure.bias.grad is not None
    torch.testing.assert_close(module.measure.weight.grad, weight)
    torch.testing.assert_close(module.measure.bias.grad, bias)
    units = (0.5 * ((x.flatten(1) @ query)[:, None] - ends)).clamp(min=0)
    torch.testing.assert_close(module(x)[:, 0, 0, 0], units.sum(1) / 0.5 - ends.mean())


def test_an_added_input_passes_through() -> None:
    module, x = ImprintModule((4,), 3, added=True), torch.rand(2, 4)
    module.load_state_dict({name: torch.zeros_like(value) for name, value in module.state_dict().items()})
    assert torch.equal(module(x), x)


def test_quantiles_of_distributions_are_those_of_large_samples() -> None:
    rng = torch.Generator().manual_seed(0)
    normal = 3 + 2 * torch.randn(200_000, generator=rng)
    exponential = -torch.log(torch.rand(2, 200_000, generator=rng))
    laplace = 3 + exponential[0] - exponential[1]
    for measured, name in ((normal, "normal"), (laplace, "laplace")):
        public = thresholds(measured, 8, "public")
        torch.testing.assert_close(thresholds(measured, 8, name)[1:], public[1:], atol=0.05, rtol=0)  # type: ignore[arg-type]
        assert float(public[0]) < float(measured.min())
        counts = torch.bucketize(measured.double(), public).bincount(minlength=9)
        assert counts[0] == 0 and float(counts[1:].float().std()) < 2
    other = thresholds(laplace, 8, "normal")
    assert float((other[1:] - thresholds(laplace, 8, "public")[1:]).abs().max()) > 0.15


def test_the_cosine_query_is_the_transform() -> None:
    from scipy.fft import dct

    x = torch.rand(20, generator=torch.Generator().manual_seed(0))
    modes = [float(x @ dct_query(20, mode)) for mode in range(1, 20)]
    assert modes == pytest.approx(list(np.asarray(dct(x.numpy(), norm="ortho"))[1:]), abs=1e-5)


# --- batches of digits ---


@pytest.mark.parametrize("net", ["linear", "mlp", "cnn1", "lenet"])
def test_it_reads_single_digits_in_front_of_any_network(net: str) -> None:
    side, attack = 28 if net == "cnn1" else 8, Imprint()
    x, y = digits(40, 4, side)
    (result,) = attack.run(*observed(imprinted(attack, net, side), x, y), generators(1))
    assert sum(value > 40 for value in closest(x, result.samples)) >= 3


SORTED = [(128, {"quantiles": "normal"}), *((k, {"query": "dct", "quantiles": "laplace"}) for k in (128, 512))]


@pytest.mark.parametrize(("bins", "settings"), SORTED)
def test_as_many_are_alone_as_theory_expects(bins: int, settings: dict[str, Any]) -> None:
    """Within four deviations of sampling and 0.05 for quantiles that fit the digits roughly; and as many as a loop
    over the examples' own measurements counts."""
    attack = Imprint(ImprintSettings(bins=bins, **settings))
    model, rng, held = imprinted(attack), numpy_generator(0, "imprint"), data.load("digits", None, 8)
    for batch, repeats in ((8, 12), (32, 6), (64, 4)):
        alone, counted = 0, 0
        for _ in range(repeats):
            indices = rng.choice(len(held.train_y), batch, replace=False)
            x, y = torch.from_numpy(held.train_x[indices]).float() / 255, torch.from_numpy(held.train_y[indices])
            (result,) = attack.run(*observed(model, x, y), generators(1))
            distance = (result.samples[None] - x[:, None]).flatten(2).square().mean(2).min(1).values
            alone += int((distance < 1e-4).sum())  # 40 dB
            counted += lonely(model, x)
        expected, total = expected_alone(bins, batch), batch * repeats
        assert attack.expected_share(batch) == expected
        assert counted <= alone <= counted + 0.02 * total  # a neighbour in the bin may have almost no gradient
        std = (expected * (1 - expected) / total) ** 0.5
        assert abs(alone / total - expected) < 4 * std + 0.05, (batch, alone / total)


@pytest.mark.slow
def test_digits_that_are_equally_bright_share_a_bin_however_many_there_are() -> None:
    """A limit: the brightness of images of 64 pixels takes few values, and theory knows nothing of equal ones."""
    attack = Imprint(ImprintSettings(bins=4096, quantiles="normal"))
    x, y = digits(0, 200, 8)
    (result,) = attack.run(*observed(imprinted(attack), x, y), generators(1))
    brightness = [round(float(value), 6) for value in x.flatten(1).mean(1)]
    unique = sum(brightness.count(value) == 1 for value in brightness)
    assert sum(value > 40 for value in closest(x, result.samples)) <= unique + 4 < 0.75 * 200
    assert expected_alone(4096, 200) > 0.95


def lonely(model: nets.Net, x: Tensor) -> int:
    """The number of examples above the same thresholds as no other example, one by one."""
    layer = model.get_submodule(PLACE)
    measured = layer(digit_inputs(x.shape[-1]).normalise(x).flatten(1)).detach()
    places = [int((row > 0).sum()) for row in measured]
    return sum(places.count(index) == 1 for index in places)


def test_what_is_found_is_exact_and_what_is_not_is_the_mean_colour() -> None:
    attack = Imprint(ImprintSettings(bins=8))
    x, y = digits(0, 16, 8)
    (result,) = attack.run(*observed(imprinted(attack), x, y), generators(1))
    values = closest(x, result.samples)
    alone = [value for value in values if value > 40]
    assert 1 <= len(alone) < 12 and min(alone) > 80
    mean = digit_inputs(8).mean.expand(1, 8, 8)
    filled = [torch.allclose(sample, mean, atol=1e-6) for sample in result.samples]
    assert filled == sorted(filled) and sum(filled) >= 8  # eight bins hold no more than eight readings


def test_one_bin_less_than_the_last_would_miss_the_brightest() -> None:
    """The brightest digit of a batch lies above the last quantile of public ones, and is read off alone."""
    attack = Imprint(ImprintSettings(bins=4))
    everything = digits(0, 200, 8)[0]
    order = everything.flatten(1).mean(1).argsort()
    x, y = everything[order[[-1, 0]]], torch.tensor([1, 2])
    observations, knowledge = observed(imprinted(attack), x, y)
    sent_bias = observations[0].received[f"{PLACE}.bias"]
    flat = digit_inputs(8).normalise(x[:1]).flatten(1)
    assert float(flat @ observations[0].received[f"{PLACE}.weight"][-1] + sent_bias[-1]) > 0
    (result,) = attack.run(observations, knowledge, generators(1))
    assert min(closest(x, result.samples)) > 80


def test_an_honest_network_is_refused_as_is_a_private_module() -> None:
    with pytest.raises(NotApplicableError, match="--malicious-server imprint"):
        Imprint().run(*attackable("lenet", 8, digits(0, side=8)), generators(1))
    attack = Imprint()
    observations, knowledge = observed(imprinted(attack), *digits(0, 2, 8))
    kept = {name: value for name, value in observations[0].sent.items() if not name.startswith(PLACE)}
    with pytest.raises(NotApplicableError, match="in a shared part"):
        attack.run([replace(observations[0], sent=kept)], knowledge, generators(1))


def test_a_mode_that_an_input_does_not_have_is_refused() -> None:
    attack = Imprint(ImprintSettings(query="dct", mode=64))
    with pytest.raises(InputError, match=r"Expected imprint.mode < 64, got mode=64\."):
        attack.network(fresh_net("linear", (1, 8, 8)))


def test_the_rest_of_the_network_keeps_its_numbers() -> None:
    honest, changed = fresh_net("mlp", (1, 8, 8)), Imprint().network(fresh_net("mlp", (1, 8, 8)))
    named = {name.replace(".honest", ""): value for name, value in nets.tensors(changed).items()}
    assert all(torch.equal(named[name], value) for name, value in nets.tensors(honest).items())
    assert isinstance(changed.extractor, nn.Sequential) and changed.shape == (1, 8, 8)


def test_an_honest_attack_of_one_image_is_what_it_was() -> None:
    """A batch of one is alone in its bin, whichever it is."""
    attack = Imprint(ImprintSettings(connection="added", query="dct"))
    x, y = digits(9, 1, 8)
    (result,) = attack.run(*observed(imprinted(attack), x, y), generators(1))
    assert db(x, result) > 80
