"""LPIPS from a file of weights: against the package's own way of building it, by identities, and with bad files."""

import hashlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from flfw.audit.measures import perceptual
from flfw.audit.measures.perceptual import Perceptual, load
from flfw.errors import InputError
from flfw.rng import numpy_generator, torch_generator

SHAPES = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}


def backbone() -> dict[str, Tensor]:
    """AlexNet's convolutions under torchvision's names, random but so scaled that no layer goes silent."""
    rng, state = torch_generator(0, "backbone"), {}
    for layer, shape in SHAPES.items():
        scale = (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        state[f"features.{layer}.weight"] = torch.randn(shape, generator=rng) * scale
        state[f"features.{layer}.bias"] = torch.randn(shape[0], generator=rng) * 0.1
    return state


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "alexnet.pth"
    torch.save(backbone(), path)
    return path


@pytest.fixture(scope="module")
def metric(weights: Path) -> Perceptual:
    return load(weights)


@pytest.fixture(scope="module")
def reference(weights: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """LPIPS as the package builds it for its users, pretrained backbone and all; only the download is ours."""
    import lpips
    import torchvision

    def pretrained(**_: object) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            net = torchvision.models.AlexNet()
        assert not net.load_state_dict(torch.load(weights, weights_only=True), strict=False).unexpected_keys
        return net

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.models, "alexnet", pretrained)
        return lpips.LPIPS(net="alex", pretrained=True, verbose=False)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return numpy_generator(0, "noise", seed).random(shape, dtype=np.float32)


def pair(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    a = noise(*shape)
    return a, 0.7 * a + 0.3 * noise(*shape, seed=1)


# --- values ---


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((3, 64, 64), None),
        ((3, 80, 70), None),
        ((3, 32, 32), (64, 64)),
        ((1, 28, 28), (64, 64)),
        ((3, 32, 48), (64, 96)),
        ((1, 90, 60), (96, 64)),
    ],
)
def test_lpips_is_the_packages_on_images_resized_by_the_rule(
    metric: Perceptual, reference: Callable, shape: tuple[int, ...], size: tuple[int, int] | None
) -> None:
    a, b = pair(*shape)
    tensors = [torch.from_numpy(np.stack([x[0]] * 3) if shape[0] == 1 else x)[None] for x in (a, b)]
    if size:
        tensors = [interpolate(x, size=size, mode="bilinear", align_corners=False) for x in tensors]
    with torch.no_grad():
        expected = float(reference(tensors[0] * 2 - 1, tensors[1] * 2 - 1))
    assert expected > 0.01
    assert metric(a, b) == pytest.approx(expected, abs=1e-6)


def test_many_pairs_give_what_each_gives(metric: Perceptual, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perceptual, "_AT_ONCE", 2)
    a = noise(5, 3, 32, 32)
    b = a + np.linspace(0.1, 0.5, 5, dtype=np.float32).reshape(5, 1, 1, 1) * (noise(5, 3, 32, 32, seed=1) - a)
    together = metric.many(a, b)
    assert together.shape == (5,) and (np.diff(together) > 1e-3).all()  # so that an exchange would show
    assert together == pytest.approx([metric(x, y) for x, y in zip(a, b, strict=True)], abs=1e-6)
    assert metric.many(a[:0], b[:0]).shape == (0,)


def test_equal_images_are_at_distance_zero_and_the_order_does_not_matter(metric: Perceptual) -> None:
    a, b = pair(3, 32, 32)
    assert metric(a, a) == 0.0
    assert metric(a, b) == pytest.approx(metric(b, a), abs=1e-6)


def test_more_noise_is_further_away(metric: Perceptual) -> None:
    a, other = noise(3, 32, 32), noise(3, 32, 32, seed=1)
    values = [metric(a, (1 - share) * a + share * other) for share in (0.05, 0.2, 0.8)]
    assert values == sorted(values)


def test_a_grey_image_counts_as_three_equal_channels(metric: Perceptual) -> None:
    a, b = pair(1, 28, 28)
    assert metric(a, b) == metric(np.repeat(a, 3, axis=0), np.repeat(b, 3, axis=0))


def test_a_found_image_is_clamped(metric: Perceptual) -> None:
    a, b = pair(3, 32, 32)
    wild = np.where(b > 0.6, 7.0, b)
    assert metric(a, wild) == metric(a, np.clip(wild, 0, 1))


@pytest.mark.parametrize(
    ("truth", "result", "complaint"),
    [
        ((3, 32, 32), (1, 32, 32), "Expected images of one shape"),
        ((2, 32, 32), (2, 32, 32), "Expected images of 1 or 3 channels"),
        ((30,), (30,), "Expected images of 1 or 3 channels"),
    ],
)
def test_what_is_no_pair_of_images_is_refused(metric: Perceptual, truth, result, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        metric(np.zeros(truth), np.zeros(result))


# --- files ---


def test_the_file_is_named_by_its_digest(metric: Perceptual, weights: Path) -> None:
    assert metric.sha256 == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert metric.official is False


@pytest.mark.slow
def test_the_official_file_is_known_by_its_digest(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perceptual, "_OFFICIAL", hashlib.sha256(weights.read_bytes()).hexdigest()[:8])
    assert load(weights).official is True


@pytest.mark.slow
def test_safetensors_give_the_same_values(metric: Perceptual, tmp_path: Path) -> None:
    safetensors.torch.save_file(backbone(), tmp_path / "alexnet.safetensors")
    other = load(tmp_path / "alexnet.safetensors")
    assert other(*pair(3, 32, 32)) == metric(*pair(3, 32, 32))
    assert other.official is None and other.sha256 != metric.sha256


@pytest.mark.slow
def test_the_classifier_may_be_there(metric: Perceptual, tmp_path: Path) -> None:
    torch.save(backbone() | {"classifier.1.weight": torch.zeros(2, 2)}, tmp_path / "whole.pth")
    assert load(tmp_path / "whole.pth")(*pair(3, 32, 32)) == metric(*pair(3, 32, 32))


def test_loading_disturbs_no_global_random_state_and_prints_nothing(weights: Path, capfd) -> None:
    before, numbers = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        load(weights)
    assert torch.equal(torch.get_rng_state(), before) and str(np.random.get_state()) == numbers  # noqa: NPY002
    assert capfd.readouterr() == ("", "") and not heard


@pytest.mark.slow
def test_nothing_is_downloaded(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    load(weights)


def broken(**changes: Tensor | None) -> dict[str, Tensor]:
    state = backbone() | {key.replace("_", "."): value for key, value in changes.items()}
    return {key: value for key, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (broken(features_6_bias=None), r"Expected features.6.bias of shape \(384,\) in .*, got none: give"),
        (
            broken(features_0_weight=torch.zeros(64, 3, 3, 3)),
            r"Expected features.0.weight of shape \(64, 3, 11, 11\) in .*, got \(64, 3, 3, 3\): give",
        ),
        (broken(features_3_bias=torch.full((192,), torch.nan)), "features.3.bias .* got values that are not finite"),
        (broken(features_3_bias=torch.ones(192, dtype=torch.int64)), "features.3.bias .* got values that are not"),
        ({"state_dict": backbone()}, "Expected features.0.weight .* got none"),
        ([torch.zeros(1)], "Expected a state dict in .*, got a list"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(content: object, complaint: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=complaint) as raised:
        load(tmp_path / "weights.pt")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a file of weights"])
def test_a_file_that_cannot_be_read_is_refused(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"Expected a state dict in .*, got a file that cannot be read: give"):
        load(tmp_path / name)


class Hostile:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return sys.exit, ("code in a file of weights has run",)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save(backbone() | {"classifier.1.weight": Hostile()}, tmp_path / "hostile.pth")
    with pytest.raises(InputError, match="got a file that cannot be read"):
        load(tmp_path / "hostile.pth")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"Expected AlexNet weights at .*none.pth, got No such file or directory: give"
    ):
        load(tmp_path / "none.pth")
    with pytest.raises(InputError, match="got Is a directory"):
        load(tmp_path)


def test_without_the_package_the_way_out_is_named(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(InputError, match=r"Expected the package lpips, got none: pip install lpips\.$"):
        load(weights)
