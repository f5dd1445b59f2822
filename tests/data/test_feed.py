"""From stored pixels to a batch: augmentation against torchvision's, constants, and what a client trains on."""

from dataclasses import replace

import pytest
import torch

from flfw.data import feed
from flfw.errors import InputError
from flfw.plans.run_plan import plan

RAMP = torch.arange(3 * 6 * 5, dtype=torch.uint8).view(1, 3, 6, 5) + 1  # no pixel is black, none occurs twice


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def every_outcome() -> dict[bytes, tuple[int, int, bool]]:
    """By torchvision's own functions: what each shift and mirroring makes of the ramp."""
    from torchvision.transforms.functional import crop, hflip, pad

    wide = pad(RAMP[0], [4, 4, 4, 4])
    outcomes = {}
    for down in range(9):
        for right in range(9):
            cut = crop(wide, down, right, 6, 5)
            outcomes[cut.numpy().tobytes()] = (down, right, False)
            outcomes[hflip(cut).numpy().tobytes()] = (down, right, True)
    return outcomes


def test_crop_flip_is_torchvisions_and_uniform() -> None:
    outcomes = every_outcome()
    result = feed.augment(RAMP.repeat(20_000, 1, 1, 1), "crop_flip", rng())
    # A KeyError would be an image torchvision cannot make.
    seen = [outcomes[image.numpy().tobytes()] for image in result]
    for axis in range(2):
        counts = torch.bincount(torch.tensor([outcome[axis] for outcome in seen]), minlength=9)
        assert abs(counts / 20_000 - 1 / 9).max() < 0.012  # five deviations
    assert sum(outcome[2] for outcome in seen) / 20_000 == pytest.approx(0.5, abs=0.018)
    assert len({outcome[:2] for outcome in seen}) == 81  # both shifts are drawn, and each image has its own


def test_flip_mirrors_whole_images_and_leaves_its_input_alone() -> None:
    images = RAMP.repeat(40, 1, 1, 1)
    result = feed.augment(images, "flip", rng())
    mirrored = [bool((image == RAMP[0].flip(2)).all()) for image in result]
    kept = [bool((image == RAMP[0]).all()) for image in result]
    assert [a != b for a, b in zip(mirrored, kept, strict=True)] == [True] * 40
    assert 8 < sum(mirrored) < 32
    assert (images == RAMP).all()


def test_none_draws_nothing() -> None:
    generator = rng()
    before = generator.get_state()
    assert feed.augment(RAMP, "none", generator) is RAMP
    assert (generator.get_state() == before).all()


def test_the_same_generator_makes_the_same_batch() -> None:
    images = RAMP.repeat(10, 1, 1, 1)
    one, two, other = (feed.augment(images, "crop_flip", rng(seed)) for seed in (1, 1, 2))
    assert (one == two).all() and not (one == other).all()


def test_raw_is_in_the_box() -> None:
    assert feed.raw(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    rows = torch.rand(3)
    assert feed.raw(rows) is rows


def test_constants() -> None:
    assert feed.constants("half", (1, 28, 28)) == ((0.5,), (0.5,))
    assert feed.constants("imagenet", (3, 32, 32)) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with pytest.raises(InputError, match=r"colour images for normalise=imagenet, got inputs of 1x28x28"):
        feed.constants("imagenet", (1, 28, 28))
    with pytest.raises(InputError, match=r"Expected images for normalise=half, got inputs of 30"):
        feed.constants("half", (30,))


def test_a_task_varies_and_normalises_as_it_is_told(small) -> None:
    plain, varied = (plan(replace(small, augment=how, normalise="half")).task.load(None) for how in ("none", "flip"))
    indices = plain.split.train[0][:8]
    x, y = plain.examples("train", indices)
    assert (varied.examples("train", indices)[0] == x).all()  # without a generator: as a probe or a test needs them
    flipped, same = varied.examples("train", indices, rng())
    assert (same == y).all()
    assert (flipped == feed.augment(x, "flip", rng())).all() and not (flipped == x).all()
    assert (plain.examples("train", indices, rng())[0] == x).all()
    assert float(plain.inputs.normalise(torch.ones(1, 1, 28, 28)).max()) == 1.0  # (1 - 0.5) / 0.5
