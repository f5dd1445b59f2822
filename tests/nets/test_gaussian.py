"""Gaussian noise: its scale in every tensor, tensors that have nothing in common, and the same from the same state."""

from math import inf, nan, prod

import pytest
import torch
from scipy.stats import chi2

from flfw.errors import InputError
from flfw.nets.training.gaussian import gaussian
from flfw.rng import torch_generator

SHAPES = {"weight": (40, 50), "bias": (300,), "kernel": (8, 4, 3, 3)}
DEVIATION = 24.0


def drawn(std: float = DEVIATION, seed: int = 0) -> dict[str, torch.Tensor]:
    return gaussian(SHAPES, std, torch_generator(seed, "noise"))


def accepted(values: torch.Tensor, std: float) -> bool:
    """Whether the sum of squares over the variance is one of chi-square's, but for one in a million."""
    result, freedom = float(values.double().square().sum()) / std**2, values.numel()
    return float(chi2.ppf(5e-7, freedom)) < result < float(chi2.ppf(1 - 5e-7, freedom))


@pytest.mark.parametrize("name", SHAPES)
def test_each_tensor_has_its_deviation_and_neither_two_thirds_nor_three_halves_of_it(name: str) -> None:
    values = drawn()[name]
    assert (values.shape, values.dtype) == (SHAPES[name], torch.float32)
    assert accepted(values, DEVIATION)
    assert not accepted(values, DEVIATION * 2 / 3)
    assert not accepted(values, DEVIATION * 3 / 2)
    assert abs(float(values.mean())) < 5 * DEVIATION / values.numel() ** 0.5


def test_the_shares_within_one_two_and_three_deviations_are_a_gaussians() -> None:
    values = gaussian({"many": (200, 500)}, 0.5, torch_generator(0, "noise"))["many"].abs()
    for stds, share in ((1, 0.682689), (2, 0.954500), (3, 0.997300)):
        result = float((values < 0.5 * stds).double().mean())
        assert abs(result - share) < 5 * (share * (1 - share) / values.numel()) ** 0.5


def test_tensors_have_nothing_in_common() -> None:
    """Correlations of 288 pairs are below 5 / sqrt(288), and no number is drawn twice."""
    result = drawn()
    many = torch.stack([values.flatten()[:288] for values in result.values()])
    others = torch.corrcoef(many)[~torch.eye(3, dtype=torch.bool)]
    assert float(others.abs().max()) < 5 / 288**0.5
    assert all(
        not set(result["weight"].flatten().tolist()) >= set(result[name].flatten().tolist())
        for name in SHAPES
        if name != "weight"
    )


def test_changing_one_tensor_leaves_the_others() -> None:
    result, same = drawn(), drawn()
    result["bias"].zero_()
    assert torch.equal(result["weight"], same["weight"]) and torch.equal(result["kernel"], same["kernel"])


def test_the_same_state_gives_the_same_and_then_moves_on() -> None:
    rng = torch_generator(0, "noise")
    one, next_one = gaussian(SHAPES, DEVIATION, rng), gaussian(SHAPES, DEVIATION, rng)
    again, other = drawn(), drawn(seed=1)
    for name in SHAPES:
        assert torch.equal(one[name], again[name])
        assert not torch.equal(one[name], next_one[name])
        assert not torch.equal(one[name], other[name])


def test_no_deviation_is_zeros_and_draws_nothing() -> None:
    rng = torch_generator(0, "noise")
    before = rng.get_state()
    result = gaussian(SHAPES, 0.0, rng)
    assert {name: tuple(values.shape) for name, values in result.items()} == SHAPES
    assert not any(bool(values.any()) for values in result.values())
    assert torch.equal(rng.get_state(), before)


def test_scalars_empty_tensors_and_none_at_all() -> None:
    result = gaussian({"one": (), "none": (0, 3), "two": (2,)}, 1.0, torch_generator(0, "noise"))
    assert [values.numel() for values in result.values()] == [prod(shape) for shape in ((), (0, 3), (2,))]
    assert gaussian({}, 1.0, torch_generator(0, "noise")) == {}


@pytest.mark.parametrize("std", [-1.0, inf, nan])
def test_deviations_that_are_none(std: float) -> None:
    with pytest.raises(InputError) as refused:
        drawn(std)
    assert str(refused.value) == f"Expected 0 <= std < inf, got std={std}."
