"""Variational bottleneck: its draws, its divergence against torch's, and the noise that one example gives away."""

from math import log

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from flfw import nets
from flfw.errors import InputError
from flfw.nets import Net
from flfw.nets.bottleneck import bottlenecks, divergence, draws, penalty, with_bottleneck

WIDTH, PREFIX = 5, "classifier.bottleneck."


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def network(scale: float = 1.0, beta: float = 0.1, drawn: bool = True) -> Net:
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Flatten(), nn.Linear(6, 7), nn.Sigmoid()), nn.Linear(7, 3))
    return with_bottleneck(net, "", WIDTH, beta, scale, drawn)


def inputs(batch: int) -> Tensor:
    return torch.rand(batch, 1, 2, 3, generator=generator(1))


def gradient(net: Net, batch: int) -> dict[str, Tensor]:
    named = dict(net.named_parameters())
    loss = cross_entropy(net(inputs(batch)), torch.arange(batch) % 3) + penalty(net)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def test_training_draws_from_the_generator_as_in_the_paper() -> None:
    net, x = network(scale=0.5).train(), inputs(4)
    (one,) = bottlenecks(net)
    one.rng = generator(3)
    h = net.extractor(x)
    statistics = one.encoder(h)
    mean, std = statistics[:, :WIDTH], softplus(statistics[:, WIDTH:])
    z = mean + 0.5 * std * torch.randn(4, WIDTH, generator=generator(3))
    torch.testing.assert_close(net(x), net.get_submodule("classifier.layer")(one.decoder(z)))
    expected = kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).sum(1).mean() / log(2)
    torch.testing.assert_close(penalty(net), 0.1 * expected)
    assert penalty(net) == 0.0  # it is taken once


def test_without_a_generator_training_takes_the_mean() -> None:
    net, silent = network().train(), network(scale=0.0).train()
    torch.testing.assert_close(net(inputs(3)), silent(inputs(3)))


def test_evaluation_draws_anew_for_each_example_but_the_same_in_each_call() -> None:
    net, x = network().eval(), inputs(1).expand(3, -1, -1, -1)
    assert torch.equal(net(x), net(x)) and len({tuple(row.tolist()) for row in net(x)}) == 3
    still = network(drawn=False).eval()
    torch.testing.assert_close(still(x)[0], still(x)[1])
    assert abs(float(bottlenecks(net)[0].noise.std()) - 1) < 0.15
    assert not any("noise" in name for name in net.state_dict())


def test_divergence_of_the_standard_normal_distribution_from_itself_is_zero() -> None:
    assert float(divergence(torch.zeros(2, 3), torch.ones(2, 3))) == 0
    assert float(divergence(torch.full((1, 1), 2.0), torch.ones(1, 1))) == pytest.approx(2 / log(2))


@pytest.mark.parametrize("scale", [1.0, 0.01, 0.0])
def test_one_example_gives_its_noise_away_and_several_do_not(scale: float) -> None:
    net = network(scale).train()
    (one,) = bottlenecks(net)
    one.rng = generator(5)
    known = {name: value.detach() for name, value in net.named_parameters()}
    noise = draws(gradient(net, 1), known, PREFIX, scale)
    wanted = torch.randn(1, WIDTH, generator=generator(5)) * (scale > 0)
    assert noise is not None
    torch.testing.assert_close(noise, wanted, atol=1e-3 if scale == 0.01 else 1e-4, rtol=1e-3)
    assert draws(gradient(net, 3), known, PREFIX, scale) is None
    silent = {name: torch.zeros_like(value) for name, value in known.items()}
    assert draws(silent, known, PREFIX, scale) is None


def test_any_fully_connected_layer_can_be_chosen_and_no_other() -> None:
    plain = Net(nn.Sequential(nn.Flatten(), nn.Linear(6, 7), nn.Sigmoid()), nn.Linear(7, 3))
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    net = with_bottleneck(plain, "extractor.1", 4, 0.1, 1.0)
    assert net.get_submodule("extractor.1.bottleneck").decoder.out_features == 6
    assert torch.equal(net.state_dict()["extractor.1.layer.weight"], before["extractor.1.weight"])
    assert net(inputs(2)).shape == (2, 3)
    with pytest.raises(InputError, match=r"among extractor.1, classifier; got layer=extractor.0"):
        with_bottleneck(Net(nn.Sequential(nn.Flatten(), nn.Linear(6, 7)), nn.Linear(7, 3)), "extractor.0", 4, 0.1, 1.0)
    with pytest.raises(InputError, match="among none; got layer="):
        with_bottleneck(Net(nn.Flatten(), nn.Flatten()), "", 4, 0.1, 1.0)


@pytest.mark.parametrize(
    ("name", "shape", "layer"), [("gpt_next", (3,), ""), ("vit_norm", (1, 8, 8), "extractor.patch")]
)
def test_features_of_places_are_refused_also_where_there_are_as_many_as_examples(
    name: str, shape: tuple[int, ...], layer: str
) -> None:
    net = with_bottleneck(nets.build(name, shape, 256), layer, WIDTH, 0.1, 1.0).eval()
    for batch in (1, 3, 4):
        with pytest.raises(
            InputError, match=r"Expected one row of features for each example before the bottleneck, got"
        ):
            net(torch.rand(batch, *shape))
