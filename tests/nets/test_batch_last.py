"""Convolutions as products of matrices give what torch's own give, forwards, backwards and in what they remember."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from flfw.nets.batch_last import BatchLast, overlaid, use_batch_last, windows
from flfw.nets.conditional_gan import Discriminator, Generator
from flfw.rng import initialising, torch_generator

CLASSES = 3


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(0, "maps", *shape), dtype=torch.float64)


def test_windows_of_a_small_map_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])[None, ..., None]  # one channel, one example
    seen = windows(x, (2, 2), (1, 1), (0, 0))
    assert seen.shape == (1, 2, 2, 1, 2, 1)
    assert seen[0, :, :, 0, 0, 0].tolist() == [[1, 2], [4, 5]] and seen[0, :, :, 0, 1, 0].tolist() == [[2, 3], [5, 6]]
    assert overlaid(seen, (1, 1), (0, 0))[0, ..., 0].tolist() == [[1, 4, 3], [4, 10, 6]]  # the middle is in both


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(1, 1, 0), (2, 1, 0), (3, 2, 1), (4, 2, 1), (3, 3, 0)])
@pytest.mark.parametrize("side", [1, 4, 5])
def test_layers_are_torch_s(kernel: int, stride: int, padding: int, side: int) -> None:
    x, shape = draw(6, 5, side, side), (kernel, stride, padding)
    with initialising(0, "model"):
        layers: list[nn.Module] = [nn.ConvTranspose2d(5, 4, *shape)]
        if side + 2 * padding >= kernel:
            layers.append(nn.Conv2d(5, 4, *shape, bias=False))
    for layer in layers:
        layer.double()
        given = x.clone().requires_grad_()
        subject = [given, *layer.parameters()]
        expected, result = layer(given), BatchLast(layer)(given)
        weighing = draw(*expected.shape)
        wanted = torch.autograd.grad(expected, subject, weighing)
        for one, other in zip(
            (result, *torch.autograd.grad(result, subject, weighing)), (expected, *wanted), strict=True
        ):
            assert torch.allclose(one, other, rtol=1e-10, atol=1e-10)


def test_a_gradient_of_a_gradient() -> None:
    x, w = draw(2, 3, 4, 4).requires_grad_(), draw(5, 3, 3, 3)

    def by_products(x: Tensor) -> Tensor:
        seen = windows(x.permute(1, 2, 3, 0), (3, 3), (2, 2), (1, 1))
        return (w.flatten(1) @ seen.flatten(0, 2).flatten(1)).square()

    assert torch.autograd.gradgradcheck(by_products, (x,))
    assert torch.allclose(by_products(x).sum(), conv2d(x, w, stride=2, padding=1).square().sum())


@pytest.mark.parametrize("features", [(16, 5, 5), (4, 8, 8), (3, 1, 1), (2, 6, 6)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_a_swift_gan_is_the_same_gan(features: tuple[int, int, int], training: bool) -> None:
    with initialising(0, "model"):
        pair = nn.ModuleList([Generator(features, CLASSES), Discriminator(features, CLASSES)]).double().train(training)
        other = nn.ModuleList([Generator(features, CLASSES), Discriminator(features, CLASSES)]).double().train(training)
    other.load_state_dict(deepcopy(pair.state_dict()))
    parameters = list(other.parameters())
    assert use_batch_last(other) is other and all(a is b for a, b in zip(other.parameters(), parameters, strict=True))
    assert isinstance(other[0].layers, BatchLast) and isinstance(other[1].layers, BatchLast)
    assert other[0].layers.training == training
    z, y, result = draw(4, 100), torch.tensor([0, 2, 2, 1]), []
    for generator, judge in (pair, other):
        features_made = generator(z, y)
        judged = judge(features_made, y).mean()
        gradient = torch.autograd.grad(judged, [*generator.parameters(), *judge.parameters()])
        result.append([features_made, judged, *gradient])
    state, wanted = other.state_dict(), pair.state_dict()
    assert list(state) == list(wanted)
    for one, expected in zip([*result[1], *state.values()], [*result[0], *wanted.values()], strict=True):
        assert torch.allclose(one, expected, rtol=1e-9, atol=1e-12)


def test_other_stacks_are_left_alone() -> None:
    pooling = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2))
    holes = nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2))
    groups = nn.Sequential(nn.ConvTranspose2d(2, 2, 3, groups=2))
    flat = nn.Sequential(nn.ReLU())
    assert all(type(stack) is nn.Sequential for stack in use_batch_last(nn.ModuleList([pooling, holes, groups, flat])))
    with pytest.raises(AssertionError, match="Expected a layer that is written out"):
        BatchLast(nn.AvgPool2d(2))


def test_the_check_can_fail() -> None:
    x, w = draw(2, 3, 2, 2), draw(3, 4, 2, 2)
    seen = (w.flatten(1).t() @ x.permute(1, 2, 3, 0).flatten(1)).view(4, 2, 2, 2, 2, 2)
    right = overlaid(seen, (1, 1), (0, 0)).permute(3, 0, 1, 2)
    assert torch.allclose(right, conv_transpose2d(x, w))
    wrong = overlaid(seen.transpose(1, 2), (1, 1), (0, 0)).permute(3, 0, 1, 2)
    assert not torch.allclose(wrong, conv_transpose2d(x, w), rtol=1e-2)
