"""Enlarged small images: against torch's interpolation, their nearest images against an independent fit, the victim."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from flfw import data
from flfw.attacks.rog import LowResolution, LowResolutionVictim
from flfw.audit.measures.metrics import psnr
from flfw.errors import InputError
from tests.support.attackable import attackable, digits
from tests.support.rounds import descend

REAL = Path(os.environ.get("FLFW_DATA", "no FLFW_DATA"))


@pytest.mark.parametrize(("shape", "factor", "small"), [((1, 28, 28), 4, (7, 7)), ((3, 9, 5), 4, (3, 2))])
def test_it_enlarges_as_bicubic_interpolation_does(shape: tuple[int, int, int], factor: int, small: tuple) -> None:
    space, rng = LowResolution(shape, factor), torch.Generator().manual_seed(0)
    assert space.small == (shape[0], *small)
    images = torch.rand(2, *space.small, generator=rng)
    theirs = interpolate(images, size=shape[1:], mode="bicubic", align_corners=False)
    torch.testing.assert_close(space.enlarged(images), theirs, atol=1e-6, rtol=0)


def test_a_factor_of_one_changes_nothing_and_rows_have_no_small_images() -> None:
    images, _ = digits(0, 2, side=8)
    space = LowResolution((1, 8, 8), 1)
    torch.testing.assert_close(space.enlarged(images), images)
    torch.testing.assert_close(space.nearest(images, boxed=True, iterations=0), images)
    with pytest.raises(InputError, match=r"Expected images \(C, H, W\), got shape=\(30,\)"):
        LowResolution((30,), 2)


def test_without_iterations_the_nearest_image_is_the_least_squares_one_clamped() -> None:
    image, space = digits(3, side=8)[0], LowResolution((1, 8, 8), 3)
    basis = np.stack([space.enlarged(one.view(1, 3, 3)).numpy().ravel() for one in torch.eye(9)], 1)
    by_numpy = basis @ np.linalg.lstsq(basis, image.numpy().ravel(), rcond=None)[0]
    assert by_numpy.min() < -0.01  # the clamp has something to do
    (nearest,) = space.nearest(image, boxed=True, iterations=0).numpy()
    np.testing.assert_allclose(nearest.ravel(), by_numpy.clip(0, 1), atol=1e-6)


def _with_the_truth(space: LowResolution, x: Tensor, boxed: bool, seed: int) -> list[float]:
    """Search for the nearest image by torch's own Adam, through the clamp, from a random start."""
    small = torch.rand(len(x), *space.small, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    adam = torch.optim.Adam([small], lr=0.05)
    wave = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 200)
    for _ in range(200):
        descend(adam, (space.enlarged(small).clamp(0, 1) - x).square().sum())
        wave.step()
        if boxed:
            small.data.clamp_(0, 1)
    return _closeness(x, space.enlarged(small).clamp(0, 1).detach())


def _closeness(x: Tensor, images: Tensor) -> list[float]:
    return [psnr(a.numpy(), b.numpy()) for a, b in zip(x, images, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("boxed", [True, False])
def test_whoever_searches_with_the_truth_does_not_come_nearer(boxed: bool) -> None:
    x, _ = digits(0, 6)
    for factor in (2, 4):
        space = LowResolution((1, 28, 28), factor)
        ceiling = _closeness(x, space.nearest(x, boxed))
        for seed in (0, 1):
            reached = _with_the_truth(space, x, boxed, seed)
            assert all(one <= maximum + 0.1 for one, maximum in zip(reached, ceiling, strict=True)), (
                factor,
                reached,
                ceiling,
            )
            # Within reach.
            assert not boxed or min(maximum - one for one, maximum in zip(reached, ceiling, strict=True)) < 1


def test_a_small_image_outside_of_the_box_comes_nearer_to_black_and_white() -> None:
    """So least squares is no ceiling for a search whose small image is free, as the clamp takes away what it adds."""
    image = torch.zeros(1, 1, 8, 8)
    image[..., 2:6, 3:5] = 1.0
    space = LowResolution((1, 8, 8), 2)
    minimum, boxed, free = (space.nearest(image, *way) for way in ((True, 0), (True, 100), (False, 100)))
    values = [_closeness(image, one)[0] for one in (minimum, boxed, free)]
    assert values[0] <= values[1] < values[2] - 3


@pytest.mark.skipif(not (REAL / "MNIST" / "raw").is_dir(), reason="real data are not here: set FLFW_DATA")
@pytest.mark.parametrize(("name", "factor", "expected"), [("mnist", 4, 15.7), ("mnist", 2, 22.1)])
def test_the_ceilings_of_mnist(name: str, factor: int, expected: float) -> None:
    _check_ceiling(name, factor, expected)


@pytest.mark.filterwarnings("ignore:Expected the published cifar10 files")  # copies with the same images exist
@pytest.mark.nightly  # the first load of CIFAR-10 takes seconds
@pytest.mark.skipif(not (REAL / "cifar-10-batches-py").is_dir(), reason="real data are not here: set FLFW_DATA")
@pytest.mark.parametrize(("factor", "expected"), [(4, 21.8), (2, 27.3)])
def test_the_ceilings_of_cifar10(factor: int, expected: float) -> None:
    _check_ceiling("cifar10", factor, expected)


def _check_ceiling(name: str, factor: int, expected: float) -> None:
    """Compare the first 50 test images with figures that were computed by another program."""
    dataset = data.load(name, REAL)
    x = torch.from_numpy(dataset.test_x[:50].copy()).float() / 255
    space = LowResolution(tuple(x.shape[1:]), factor)
    for iterations in (0, 30):
        mean = float(np.mean(_closeness(x, space.nearest(x, boxed=True, iterations=iterations))))
        assert mean == pytest.approx(expected, abs=0.1)


def test_the_victim_has_the_gradient_of_the_enlarged_image() -> None:
    (x, y), space = digits(0, side=8), LowResolution((1, 8, 8), 2)
    (observation,), (knowledge,) = attackable("lenet", 8, (x, y))
    victim = LowResolutionVictim(knowledge.model, space)
    small = torch.rand(1, *space.small, generator=torch.Generator().manual_seed(0))
    mine, theirs = victim.gradient(small, y, {}, {}), knowledge.model.gradient(space.enlarged(small), y, {}, {})
    torch.testing.assert_close(mine, theirs)
    assert victim.classes == 10 and victim.inputs.shape == (1, 4, 4)
    assert victim.observed(observation.sent)[0].keys() == knowledge.model.observed(observation.sent)[0].keys()
    simulated = LowResolutionVictim(knowledge.model, space, {"a": small})
    assert simulated.observed(theirs) == (theirs, {"a": small})
    with pytest.raises(InputError, match="which Net shares"):
        victim.check({})
