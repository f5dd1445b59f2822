"""Victims in other coordinates: all but the coordinates is the client's."""

import pytest
import torch
from torch import Tensor, nn

from flfw.attacks.rog import LowResolution, LowResolutionVictim
from flfw.attacks.tableak import Categories, RelaxedRows
from flfw.errors import InputError
from flfw.inversion.client_models.batch_statistics import normalise_by_batch
from flfw.inversion.client_models.victim import PlainVictim, WrappingVictim
from flfw.inversion.image_generator import GeneratedImages, ImageGenerator, Latent
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net, Tensors, tensors
from flfw.rng import initialising


def client(shape: tuple[int, ...]) -> PlainVictim:
    """A client with BatchNorm, of which the attacker holds the weights alone."""
    size = torch.Size(shape).numel()
    with initialising(0, "client"):
        net = Net(nn.Sequential(nn.Flatten(), nn.Linear(size, 5), nn.BatchNorm1d(5), nn.Tanh()), nn.Linear(5, 3))
    known = {name: value for name, value in tensors(net).items() if name.startswith(("extractor.1", "extractor.2.w"))}
    victim = PlainVictim(net, known, ("extractor.*",), InputSpec.from_constants(shape, (0.5,), (0.25,)))
    normalise_by_batch(victim)
    return victim


def wrapped() -> list[WrappingVictim]:
    with initialising(0, "generator"):
        generator = ImageGenerator((1, 8, 8), 3, 4, 4)
    rows = client((3,))
    rows.inputs = InputSpec.from_constants((3,), (0.5,) * 3, (0.25,) * 3)
    table = Categories(groups=((1, 2),), open=(False,), numbers=(0,))
    images = client((1, 8, 8)), client((1, 8, 8))
    return [
        RelaxedRows(rows, table),
        LowResolutionVictim(images[0], LowResolution((1, 8, 8), 2)),
        GeneratedImages(images[1], Latent(generator)),
    ]


@pytest.mark.parametrize("victim", wrapped(), ids=lambda victim: type(victim).__name__)
def test_all_but_the_coordinates_is_the_clients(victim: WrappingVictim) -> None:
    other = victim._client
    assert isinstance(other, PlainVictim) and victim.classes == 3
    assert victim.unknown == other.unknown and not any("running" in name for name in victim.unknown)
    assert (victim.known, victim.shared) == (other.known, other.shared)
    with pytest.raises(InputError, match=r"Expected extractor\.1\.weight, which Net shares"):
        victim.check({})
    x, y = torch.rand(2, *victim.inputs.shape), torch.tensor([0, 2])
    sent = victim.gradient(x, y, victim.unknown, {})
    expected = other.gradient(victim.raw(x, y), y, other.unknown, {})
    assert same(sent, expected) and victim.observed(sent) == other.observed(sent)
    rough = victim.reduced(torch.bfloat16)
    assert type(rough) is type(victim) and same(rough.gradient(x, y, rough.unknown, {}), coarse(victim, x, y))
    assert not same(rough.gradient(x, y, rough.unknown, {}), expected)


def coarse(victim: WrappingVictim, x: Tensor, y: Tensor) -> Tensors:
    assert isinstance(victim._client, PlainVictim)
    return victim._client.reduced(torch.bfloat16).gradient(victim.raw(x, y), y, victim.unknown, {})


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
