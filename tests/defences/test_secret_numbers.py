"""Numbers for a defence that follow from no state of a generator, however many of them somebody knows."""

from typing import Any

import pytest
import torch

from flfw.clients.defences.dp_gaussian import DPGaussian, DPGaussianSettings
from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.nets.bottleneck import VariationalBottleneck
from flfw.rng import is_secret, normal, secret_generator, uniform
from flfw.task.defence import Defence


def twins() -> tuple[torch.Generator, torch.Generator]:
    """Two secret generators of one state, as somebody has it who computed it from some numbers."""
    one, other = secret_generator(), secret_generator()
    other.set_state(one.get_state())
    return one, other


@pytest.mark.parametrize(
    "defence",
    [DPGaussian(DPGaussianSettings(std=1)), LowPrecision(LowPrecisionSettings(bits=2, rounding="stochastic"))],
    ids=lambda defence: type(defence).__name__,
)
def test_what_is_sent_does_not_follow_from_the_generators_state(defence: Defence) -> None:
    sent = {"w": torch.linspace(-1, 1, 1001)}
    one, other = (defence.update(sent, rng)["w"] for rng in twins())
    assert not torch.equal(one, other)
    assert torch.equal(*[defence.update(sent, torch.Generator().manual_seed(3))["w"] for _ in range(2)])


def test_a_bottlenecks_noise_does_not_either() -> None:
    layer = VariationalBottleneck(4, 8)
    passed = []
    for rng in twins():
        layer.rng = rng
        passed.append(layer(torch.ones(3, 4)))
    assert not torch.equal(*passed)


@pytest.mark.parametrize("draw", [uniform, normal])
def test_nothing_follows_from_a_secret_generators_state(draw: Any) -> None:
    """Else whoever computes the state from some numbers, as of a Mersenne Twister, would have all others."""
    one, other = twins()
    assert torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=other))
    assert not torch.isin(*(draw((99,), rng, torch.float64) for rng in (one, other))).any()
    alike = [torch.Generator().manual_seed(3) for _ in range(2)]
    by_torch = torch.rand if draw is uniform else torch.randn
    assert torch.equal(draw((5, 7), alike[0]), by_torch((5, 7), generator=alike[1]))


def test_no_two_secret_generators_begin_alike() -> None:
    assert is_secret(secret_generator()) and not is_secret(torch.Generator())
    starts = [torch.randint(2**62, (3,), generator=secret_generator()).tolist() for _ in range(20)]
    assert len({number for one in starts for number in one}) == 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_secret_uniform_numbers_fill_their_range(dtype: torch.dtype) -> None:
    drawn = uniform((200, 1000), secret_generator(), dtype)
    assert drawn.dtype == dtype and drawn.shape == (200, 1000)
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    counts = torch.histc(drawn.double(), 20, 0, 1) / drawn.numel()
    assert float((counts - 0.05).abs().max()) < 0.005
    assert uniform((0, 3), secret_generator()).shape == (0, 3) and uniform((), secret_generator()).shape == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secret_normal_numbers_are_normal(dtype: torch.dtype) -> None:
    drawn = normal((1501, 999), secret_generator(), dtype)
    assert drawn.dtype == dtype and drawn.shape == (1501, 999) and bool(drawn.isfinite().all())
    values = drawn.double().flatten()
    shares = [float((values.abs() < bound).double().mean()) for bound in (0.5, 1, 2, 3)]
    assert shares == pytest.approx([0.3829, 0.6827, 0.9545, 0.9973], abs=0.005)
    assert float(values.mean()) == pytest.approx(0, abs=0.01) and float(values.std()) == pytest.approx(1, abs=0.01)
    half = len(values) // 2
    assert abs(float(torch.corrcoef(torch.stack([values[:half], values[-half:]]))[0, 1])) < 0.02
    assert normal((0,), secret_generator()).shape == (0,) and normal((3,), secret_generator()).shape == (3,)
