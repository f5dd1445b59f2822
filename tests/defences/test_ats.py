"""ATS: each operation against PIL's, policies in batches, what is refused, and what clients see."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

import sim
from flfw.clients.defences.ats import ATS, ATSSettings
from flfw.data.transformations import (
    OPERATIONS,
    Operation,
    Step,
    forward,
    patterns,
    replayed,
    sequences,
    transformed,
    undo,
)
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import torch_generator
from tests.support.method_rounds import make_client
from tests.support.planned import checked

FIRST = "invert contrast6 rotate2 translateX9 sharpness1 sharpness3 shearY2 translateY2 autocontrast equalize"
SECOND = "shearY5 posterize5 color3 brightness5 sharpness9 brightness9 equalize equalize contrast7 sharpness5"
THIRD = "color5 translateX5 equalize autocontrast translateY3 sharpness6 brightness6 color8 solarize0 invert"
FOURTH = "equalize autocontrast equalize equalize color5 equalize autocontrast solarize4 brightness3 color0"
LAST = "solarize1 autocontrast translateY3 translateY3 autocontrast solarize1 equalize invert translateY3 autocontrast"
PUBLISHED = [name for part in (FIRST, SECOND, THIRD, FOURTH, LAST) for name in part.split(" ")]
EXACT = {"invert", "rotate", "translateX", "translateY", "shearY", "equalize", "posterize", "solarize", "brightness"}
ROUNDED = {"contrast", "sharpness", "color", "autocontrast"}  # PIL rounds the grey image or the factors first


def by_pil(operation: Operation, sign: int, image: Image.Image) -> Image.Image:
    """The authors' operation, as their code calls PIL."""
    (name, _), size, (width, height) = operation, operation.magnitude, image.size
    shifts = {"translateX": (sign * size * width, 0.0), "translateY": (0.0, sign * size * height)}
    if name in shifts:
        across, down = shifts[name]
        return image.transform(image.size, Image.Transform.AFFINE, (1, 0, across, 0, 1, down))
    if name == "shearY":
        matrix = (1, 0, 0, sign * size, 1, 0)
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    if name == "rotate":
        turned = image.convert("RGBA").rotate(size)
        return Image.composite(turned, Image.new("RGBA", image.size, (128,) * 4), turned).convert(image.mode)
    if name in ("color", "contrast", "sharpness", "brightness"):
        return getattr(ImageEnhance, name.capitalize())(image).enhance(1 + sign * size)
    if name in ("posterize", "solarize"):
        return getattr(ImageOps, name)(image, int(size) if name == "posterize" else size)
    return getattr(ImageOps, name)(image)


def pictures(channels: int, height: int, width: int) -> Tensor:
    """One image of noise, and a dull one whose histogram is narrow: bytes (2, C, H, W)."""
    noise = torch.randint(256, (channels, height, width), generator=torch_generator(0, "pictures")).float()
    dull = 0.2 * noise + torch.linspace(30, 150, width)
    return torch.stack([noise, dull]).round().to(torch.uint8)


def test_the_table_is_the_published_one() -> None:
    names = [f"{one.name}{one.grade if one.name + str(one.grade) in PUBLISHED else ''}" for one in OPERATIONS]
    assert names == PUBLISHED and len(names) == 50
    assert sum(len(one.signs) == 2 for one in OPERATIONS) == 24
    sizes = {(one.name, one.grade): one.magnitude for one in OPERATIONS}
    assert sizes["translateX", 9] == pytest.approx(150 / 331) and sizes["shearY", 5] == pytest.approx(1 / 6)
    assert sizes["rotate", 2] == pytest.approx(20 / 3) and sizes["contrast", 6] == pytest.approx(1 / 3)
    assert sizes["posterize", 5] == 6 and sizes["solarize", 1] == pytest.approx(227.56, abs=0.01)


@pytest.mark.parametrize("size", [(1, 8, 8), (1, 17, 24), (3, 32, 32)], ids=str)
def test_each_operation_is_pils_to_one_level_of_255(size: tuple[int, int, int]) -> None:
    assert {one.name for one in OPERATIONS} <= EXACT | ROUNDED
    images = pictures(*size)
    for operation, sign in ((one, sign) for one in OPERATIONS for sign in one.signs):
        given = forward(images, Step(operation, sign))
        assert given.dtype == torch.uint8 and given.shape == images.shape
        for image, result in zip(images, given, strict=True):
            pil = Image.fromarray((image[0] if size[0] == 1 else image.permute(1, 2, 0)).numpy())
            theirs = np.asarray(by_pil(operation, sign, pil)).astype(int).reshape(*size[1:], size[0])
            off = np.abs(result.permute(1, 2, 0).numpy().astype(int) - theirs).max()
            assert off <= (0 if operation.name in EXACT else 1), (operation, sign)


def test_operations_by_hand() -> None:
    row = torch.tensor([[0, 51, 102, 204]], dtype=torch.uint8).expand(1, 1, 4, 4)

    def first(number: int, sign: int = 1) -> list[int]:
        return forward(row, Step(OPERATIONS[number], sign))[0, 0, 0].tolist()

    assert first(0) == [255, 204, 153, 51]
    assert first(3) == [102, 204, 0, 0] and first(3, -1) == [0, 0, 0, 51]  # 0.453 of 4 pixels: nearest to 1.8
    assert first(15) == [0, 76, 153, 255] and first(15, -1) == [0, 25, 51, 102]
    assert first(11) == [0, 48, 100, 204]  # 6 bits
    assert first(37) == [0, 51, 102, 51]  # from 142.2 on
    assert first(31) in ([0, 63, 127, 255], [0, 63, 127, 254])  # one level of 255 for rounding
    assert first(28) == first(39) == first(12) == [0, 51, 102, 204]  # color acts on no grey image


# --- policies ---


def test_a_hybrid_gives_each_image_one_sequence_uniformly_and_one_sign_an_operation() -> None:
    x = torch.rand(1, 1, 8, 8, generator=torch_generator(0, "image")).expand(3000, -1, -1, -1)
    policy = sequences("3-24+0+28-0-24")
    result = transformed(x, policy, torch_generator(1, "policy"))
    known = [replayed(x[:1], steps) for steps in patterns(policy)]
    counts = [int((result == one).flatten(1).all(1).sum()) for one in known]
    assert len(known) == 4 + 1 + 2 and sum(counts) == 3000
    for count, share in zip(counts, [1 / 12] * 4 + [1 / 3] + [1 / 6] * 2, strict=True):
        assert abs(count - 3000 * share) < 4 * (3000 * share * (1 - share)) ** 0.5


def test_a_batch_is_its_images_one_by_one_and_repeats_with_its_generator() -> None:
    x = torch.rand(12, 3, 9, 9, generator=torch_generator(0, "images"))
    y, defence = torch.arange(12), ATS(ATSSettings("3-1-7+43-18-18"))
    before = x.clone()
    once, again, other = (defence.batch(x, y, torch_generator(seed, "batch"))[0] for seed in (0, 0, 1))
    assert torch.equal(once, again) and not torch.equal(once, other) and torch.equal(x, before)
    assert defence.batch(x, y, torch_generator(0, "batch"))[1] is y
    assert once.dtype == torch.float32 and float(once.min()) >= 0 and float(once.max()) <= 1
    known = torch.stack([replayed(x, steps) for steps in patterns(sequences("3-1-7+43-18-18"))])
    assert bool((known == once).flatten(2).all(2).any(0).all())


def test_the_mildest_policy_is_undone_exactly_and_an_identity_stays() -> None:
    mild = ATS.weakest_settings(ATSSettings())
    x = pictures(3, 8, 8).float() / 255
    torch.testing.assert_close(ATS(mild).batch(x, torch.zeros(2), torch.Generator())[0], 1 - x)
    assert ATS.weakest_settings(ATSSettings(policy="28-39+28")).policy == "28-39+28"
    assert torch.equal(transformed(x, sequences("28-39"), torch.Generator()), x)


@pytest.mark.parametrize(
    ("policy", "minimum"),
    [("0", 90), ("12", 90), ("13", 40), ("15", 40), ("1", 40), ("18", 40), ("5", 40), ("14", 30), ("11", 40)],
)
def test_what_loses_nothing_but_rounding_is_undone(policy: str, minimum: float) -> None:
    x = 0.4 + 0.2 * torch.rand(4, 1, 12, 12, generator=torch_generator(0, "no clipping"))
    x = (x * 255).round() / 255
    for (step,) in patterns(sequences(policy)):
        error = (undo(replayed(x, [step]), step) - x).square().mean()
        assert -10 * float(error.clamp(min=1e-12).log10()) > minimum


def test_a_translation_is_shifted_back_and_its_margin_gets_the_nearest_pixels() -> None:
    x = torch.arange(1, 7).float().expand(1, 1, 6, 6) / 10
    for number, shift in ((3, 3), (21, 2)):  # 0.453 and 0.252 of 6 pixels
        for sign in (1, -1):
            step = Step(OPERATIONS[number], sign)
            back = undo(replayed(x, [step]), step)[0, 0, 0]
            kept = slice(shift, 6) if sign == 1 else slice(0, 6 - shift)
            torch.testing.assert_close(back[kept], x[0, 0, 0, kept], atol=0.002, rtol=0)
            margin = back[:shift] if sign == 1 else back[6 - shift :]
            edge = x[0, 0, 0, shift if sign == 1 else 5 - shift]
            torch.testing.assert_close(margin, edge.expand(shift), atol=0.002, rtol=0)


# --- experiments ---


def asked(**changes: object) -> Experiment:
    given = {"method": "fedavg", "dataset": "digits", "net": "lenet", "defence": "ats", "attack": ("none",), **changes}
    return without_auto(Experiment(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"set": ("ats.policy=3-50",)}, "Expected policy ids from 0 to 49, got policy=3-50."),
        ({"set": ("ats.policy=3--1",)}, "such as 3-1-7.43-18-18, got policy=3--1."),
        ({"set": ("ats.policy=3-1+",)}, "got policy=3-1+"),
        ({"set": ("ats.policy=",)}, "got policy="),
        ({"set": ("ats.policy=a",)}, "got policy=a"),
        ({"dataset": "cancer", "net": "mlp"}, "Expected images of 1 or 3 channels for ats, got inputs of 30."),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(changes: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line.replace("+", "[+]")):
        checked(plan(asked(**changes)))


def test_a_bad_policy_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--method fedavg --net lenet --defence ats --set ats.policy=3-50 --engine inproc"
    assert sim.main([*words.split(), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "sim.py: Expected policy ids from 0 to 49, got policy=3-50.\n"
    assert not (tmp_path / "run").exists()


def test_a_client_computes_the_gradient_of_the_transformed_images(tmp_path: Path) -> None:
    experiment = asked(clients=2, set=("ats.policy=0-15",))
    plain = make_client(experiment, 0, tmp_path)
    ctx = replace(plain.ctx, defence=plan(experiment).client.defences.of_client(0))
    client, bare = (plan(experiment).client_class(ctx), plan(experiment).client_class(replace(ctx, defence=None)))
    x, y = client.examples("train", client.indices("train")[:1])
    sent = client.gradient(x, y)
    options = [bare.gradient(replayed(x, steps), y) for steps in patterns(sequences("0-15"))]
    assert sum(all(torch.equal(sent[name], value) for name, value in one.items()) for one in options) == 1


def test_no_epsilon_is_claimed_beside_it() -> None:
    given = asked(method="fed_cdp")
    claims = RunAccountant(plan(given).client, plan(given).task.load(None).split).claims()
    assert claims and all(claim.epsilon is None or claim.epsilon == float("inf") for claim in claims)
