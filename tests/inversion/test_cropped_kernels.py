"""Kernels without the entries that meet only padding: the same outputs, gradients and searches as with whole ones."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from flfw.errors import InputError
from flfw.inversion import search
from flfw.inversion.client_models.batch_statistics import normalise_by_batch
from flfw.inversion.client_models.cropped_kernels import KernelPart, cropped, met_part
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.inversion.matching import squared_distance
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.net import Net, Tensors, tensors
from flfw.rng import initialising
from tests.support.attackable import digit_inputs, digits


def falling() -> Net:
    """8x8 digits to maps of 2x2, of one pixel by a stride, and of one pixel again."""
    with initialising(1, "net"):
        layers = [nn.Conv2d(1, 4, 5, stride=4, padding=1), nn.BatchNorm2d(4), nn.Sigmoid()]
        layers += [nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Sigmoid(), nn.Conv2d(6, 5, 3, padding=1, bias=False)]
        return Net(nn.Sequential(*layers, nn.Flatten()), nn.Linear(5, 10))


def victim(net: nn.Module, *, training: bool = False) -> PlainVictim:
    """A client that sends all of its gradient."""
    result = PlainVictim(net, tensors(net), ("*",), digit_inputs(8))
    if training:
        normalise_by_batch(result)
    return result


def gradient(model: VictimModel, count: int = 3) -> Tensors:
    x, y = digits(0, count, 8)
    return {name: value.detach() for name, value in model.gradient(x, y, {}, {}).items()}


def kernel_shapes(model: VictimModel) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape[2:]) for name, p in model.model.named_parameters() if p.dim() == 4}


# --- one axis ---


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "wanted"),
    [
        (1, 3, 1, 1, 1, KernelPart(1, 2, 0)),
        (2, 3, 2, 1, 1, KernelPart(1, 3, 0)),  # one output, from -1 on
        (2, 3, 1, 1, 1, KernelPart(0, 3, 1)),
        (1, 7, 2, 3, 1, KernelPart(3, 4, 0)),
        (2, 5, 1, 2, 1, KernelPart(1, 4, 1)),
        (4, 3, 1, 1, 1, KernelPart(0, 3, 1)),
        (2, 3, 1, 2, 2, KernelPart(1, 2, 0)),  # places -2, 0 and 2 from each
    ],
)
def test_by_hand(size: int, kernel: int, stride: int, padding: int, dilation: int, wanted: KernelPart) -> None:
    assert met_part(size, kernel, stride, padding, dilation) == wanted


def test_the_rest_of_a_kernel_never_meets_data_and_the_smaller_one_gives_the_same_map() -> None:
    """Against the gradient of the whole kernel: all geometries of a grid, along both axes at once."""
    cut = 0
    for size, kernel, stride, padding, dilation in product((1, 2, 3), (1, 2, 3, 5), (1, 2), (0, 1, 2), (1, 2)):
        if size + 2 * padding < dilation * (kernel - 1) + 1:
            continue
        part = met_part(size, kernel, stride, padding, dilation)
        x, kept = torch.rand(1, 1, size, size) + 1, slice(part.first, part.end)
        whole = torch.rand(1, 1, kernel, kernel, requires_grad=True)
        output = conv2d(x, whole, None, stride, padding, dilation)
        (slope,) = torch.autograd.grad(output.sum(), whole)
        torch.testing.assert_close(conv2d(x, whole[..., kept, kept], None, stride, part.padding, dilation), output)
        inside = slope[..., kept, kept]
        assert slope.count_nonzero() == inside.count_nonzero()
        cut += inside.numel() < slope.numel()
    assert cut > 10


# --- a network ---


@pytest.mark.parametrize("training", [False, True])
def test_a_smaller_network_has_the_same_gradient(training: bool) -> None:
    whole = victim(falling(), training=training)
    sent = gradient(whole)
    smaller, (kept,) = cropped(whole, [sent])
    assert list(kernel_shapes(smaller).values()) == [(5, 5), (2, 2), (1, 1)]
    assert list(kernel_shapes(whole).values()) == [(5, 5), (3, 3), (3, 3)]  # as it was
    trial = gradient(smaller)
    assert trial.keys() == kept.keys() == sent.keys()
    for name, value in trial.items():
        torch.testing.assert_close(value, kept[name], rtol=1e-4, atol=1e-7)
        assert float(kept[name].square().sum()) == pytest.approx(float(sent[name].square().sum()), rel=1e-5, abs=1e-12)


def test_noise_outside_of_what_meets_data_is_kept() -> None:
    whole = victim(falling())
    clean, noisy = gradient(whole), gradient(whole)
    noisy["extractor.5.weight"] = noisy["extractor.5.weight"] + 1e-3
    smaller, kept = cropped(whole, [clean, noisy])
    assert list(kernel_shapes(smaller).values()) == [(5, 5), (2, 2), (3, 3)]
    assert torch.equal(kept[1]["extractor.5.weight"], noisy["extractor.5.weight"])


def test_nothing_is_done_where_all_kernels_meet_data() -> None:
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.Flatten()]
    whole = victim(Net(nn.Sequential(*layers), nn.Linear(128, 10)))
    sent = gradient(whole)
    same, kept = cropped(whole, [sent])
    assert same is whole and kept[0] is sent


class Twice(nn.Module):
    """One layer for maps of two sizes, and one for a single pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.alone = nn.Conv2d(1, 1, 3, 2, 1), nn.Conv2d(1, 10, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores (B, 10)."""
        for _ in range(3):  # 4, 2 and 1 pixels
            x = self.again(x)
        return self.alone(x).flatten(1)


def test_a_layer_that_sees_several_sizes_stays_whole() -> None:
    whole = victim(Twice())
    smaller, _ = cropped(whole, [gradient(whole)])
    assert kernel_shapes(smaller) == {"again.weight": (3, 3), "alone.weight": (1, 1)}


class Pair(nn.Module):
    """Two layers of which the second sees one pixel, called by the argument's name.

    Args:
        measured: whether the scores are divided by the length of the second kernel, as of a constant.
    """

    def __init__(self, measured: bool) -> None:
        super().__init__()
        self.measured = measured
        self.before, self.alone = nn.Conv2d(1, 4, 5, 4, 0), nn.Conv2d(4, 10, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores (B, 10)."""
        scores = self.alone(input=torch.sigmoid(self.before(x))).flatten(1)
        return scores / self.alone.weight.detach().norm() if self.measured else scores


@pytest.mark.parametrize(("measured", "side"), [(False, 1), (True, 3)])
def test_a_kernel_whose_numbers_are_read_elsewhere_stays_whole(measured: bool, side: int) -> None:
    with initialising(1, "net"):
        whole = victim(Pair(measured))
    sent = gradient(whole)
    assert sent["alone.weight"].count_nonzero() == sent["alone.weight"][..., 1, 1].count_nonzero()
    smaller, (kept,) = cropped(whole, [sent])
    assert kernel_shapes(smaller) == {"before.weight": (5, 5), "alone.weight": (side, side)}
    for name, value in gradient(smaller).items():
        torch.testing.assert_close(value, kept[name], rtol=1e-4, atol=1e-7)


def test_tensors_that_are_not_sent_or_not_held_stay_whole() -> None:
    net, inputs = falling(), digit_inputs(8)
    known = {name: value for name, value in tensors(net).items() if name != "extractor.3.weight"}
    partly = PlainVictim(net, known, ("extractor.0*", "extractor.3*", "classifier*"), inputs)
    sent = {name: torch.zeros_like(tensors(net)[name]) for name in partly.shared}
    same, _ = cropped(partly, [sent])
    assert same is partly


def test_an_observation_of_another_network_is_refused_by_its_own_shape() -> None:
    whole = victim(falling())
    sent = gradient(whole)
    sent["extractor.5.weight"] = sent["extractor.5.weight"][..., 1:2, 1:2]
    with pytest.raises(InputError, match=r"Expected extractor.5.weight of shape \(5, 6, 3, 3\), got \(5, 6, 1, 1\)"):
        cropped(whole, [sent])


@pytest.mark.nightly
def test_a_search_finds_the_same_with_smaller_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> Tensor:
        whole = victim(falling())
        targets = [SearchTarget(gradient(whole), digits(0, 3, 8)[1], torch.Generator().manual_seed(0))]
        return invert(whole, targets, SearchConfig(squared_distance, AdamSearch(5, 0.1)))[0].samples

    calls: list[int] = []
    real = search.cropped
    monkeypatch.setattr(search, "cropped", lambda *given: (calls.append(1), real(*given))[1])
    cut = found()
    monkeypatch.setattr(search, "cropped", lambda whole, sent: (whole, sent))
    assert calls == [1]
    torch.testing.assert_close(cut, found(), rtol=0, atol=1e-3)
