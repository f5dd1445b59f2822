"""Cocktail party attack: images are unmixed at any activation, after several steps, and not out of noise."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw import nets
from flfw.adversary.attack import NotApplicableError
from flfw.attacks.cocktail import Cocktail, CocktailSettings, unmix
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.rng import initialising, torch_generator
from tests.support.attackable import attackable, digits, generators, gradient, seen
from tests.support.rounds import descend

INPUTS = InputSpec.from_constants((3, 32, 32), (0.5,) * 3, (0.25,) * 3)


def drawings(count: int) -> tuple[Tensor, Tensor]:
    """Draw coloured rectangles on a background, six an image, and give the images labels."""
    rng = np.random.default_rng(0)
    images = np.tile(rng.random((count, 3, 1, 1)), (1, 1, 32, 32))
    for image in images:
        for _ in range(6):
            (top, left), (height, width) = rng.integers(0, 28, 2), rng.integers(3, 16, 2)
            image[:, top : top + height, left : left + width] = rng.random((3, 1, 1))
    return torch.from_numpy(images).float(), torch.arange(count) % 10


def each_db(x: Tensor, images: Tensor) -> Tensor:
    """Measure the PSNR of each image with the reconstruction that the best assignment gives it."""
    errors = (x[:, None].double() - images[None].double()).square().flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    return -10 * errors[rows, columns].clamp_min(1e-12).log10()


def dense(act: nn.Module, inputs: InputSpec = INPUTS, units: int = 128) -> nets.Net:
    """Build a network with one hidden layer."""
    with initialising(3, "dense"):
        first = nn.Linear(int(torch.tensor(inputs.shape).prod()), units)
        return nets.Net(nn.Sequential(nn.Flatten(), first, act), nn.Linear(units, 10))


def recovered(net: nets.Net, observation: Observation, count: int, inputs: InputSpec = INPUTS) -> Reconstruction:
    knowledge = Knowledge(PlainVictim(net, nets.tensors(net), ("*",), inputs), count, None)
    return Cocktail().run([observation], [knowledge], generators(1))[0]


def test_two_images_of_sparse_edges_come_out_of_three_mixtures_with_their_sign_and_length() -> None:
    """A square and a ring, on different backgrounds."""
    images = torch.zeros(2, 1, 12, 12, dtype=torch.float64)
    images[0, 0, 2:6, 2:6], images[1, 0, 5:11, 5:11], images[1, 0, 7:9, 7:9] = 0.75, -0.5, 0.25
    mixing = torch.tensor([[1.0, 2.0], [0.5, -1.0], [-3.0, 0.3]], dtype=torch.float64)
    result = unmix(mixing @ images.flatten(1), mixing.sum(1), 2, (1, 12, 12), 500, torch_generator(0, "start"))
    assert bool((each_db(images, result) > 40).all())  # not exact: the two are not wholly independent
    pixels = mixing @ images.flatten(1) / mixing.sum(1, keepdim=True)
    assert float(each_db(images, pixels[:2].view(2, 1, 12, 12)).max()) < 30  # the mixtures themselves are no images


@pytest.mark.parametrize("act", [nn.ReLU(), nn.Sigmoid(), nn.LeakyReLU(0.2)], ids=["relu", "sigmoid", "leaky"])
def test_a_batch_is_unmixed_behind_any_activation_without_labels(act: nn.Module) -> None:
    x, y = drawings(16)
    net = dense(act)
    result = recovered(net, seen(gradient(net, INPUTS, x, y), nets.tensors(net)), 16)
    assert float((each_db(x, result.samples) > 20).double().mean()) >= 0.8
    assert float(each_db(x, torch.rand(x.shape, generator=torch_generator(0, "random"))).max()) < 12


def test_several_local_steps_on_parts_of_the_data_are_a_mixture_too() -> None:
    """Twelve examples, three steps of four; the update alone is seen."""
    x, y = drawings(12)
    net = dense(nn.Sigmoid())
    before = {name: value.clone() for name, value in nets.tensors(net).items()}
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        part = slice(4 * step, 4 * step + 4)
        descend(optimiser, cross_entropy(net((x[part] - INPUTS.mean) / INPUTS.std), y[part]))
    update = {name: (before[name] - value.detach()) / 0.1 for name, value in net.named_parameters()}
    assert float((each_db(x, recovered(net, seen(update, before), 12).samples) > 20).double().mean()) >= 0.75


def test_noise_above_the_signal_ends_it_and_equal_examples_count_once() -> None:
    x, y = drawings(8)
    net = dense(nn.Sigmoid())
    sent, rng = gradient(net, INPUTS, x, y), torch_generator(0, "noise")
    noise = {name: value + 0.1 * torch.randn(value.shape, generator=rng) for name, value in sent.items()}
    assert float(each_db(x, recovered(net, seen(noise, nets.tensors(net)), 8).samples).max()) < 15
    twice = gradient(net, INPUTS, x[[0, 0, 1, 2]], y[[0, 0, 1, 2]])
    result = recovered(net, seen(twice, nets.tensors(net)), 4)
    assert torch.equal(result.samples[3], torch.full_like(x[0], 0.5))
    assert float(each_db(x[:3], result.samples[:3]).min()) > 15


def test_one_example_is_exact() -> None:
    observations, knowledge = attackable("mlp", 28, batch := digits(5, count=1))
    result = Cocktail().run(observations, [dataclasses.replace(knowledge[0], labels=None)], generators(1))[0]
    torch.testing.assert_close(result.samples, batch[0], atol=1e-5, rtol=0)


def test_other_first_layers_rows_and_too_few_units_are_not_its_field() -> None:
    observations, knowledge = attackable("lenet", 28, digits(5, count=2))
    with pytest.raises(NotApplicableError, match="cocktail needs a shared fully connected first layer with 2 units"):
        Cocktail().run(observations, knowledge, generators(1))
    rows = InputSpec.from_constants((20,), (0.0,) * 20, (1.0,) * 20)
    x, y = torch.rand((3, 20), generator=torch_generator(0, "rows")), torch.tensor([0, 1, 2])
    with pytest.raises(NotApplicableError, match="cocktail needs images, got inputs of shape"):
        net = dense(nn.ReLU(), rows)
        recovered(net, seen(gradient(net, rows, x, y), nets.tensors(net)), 3, rows)
    few = dense(nn.ReLU(), units=3)
    batch = drawings(4)
    with pytest.raises(NotApplicableError, match="with 4 units"):
        recovered(few, seen(gradient(few, INPUTS, *batch), nets.tensors(few)), 4)
    with pytest.raises(InputError, match="Expected iterations >= 1, got iterations=0"):
        CocktailSettings(iterations=0)
