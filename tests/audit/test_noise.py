"""The law of a defence's noise: what is normal and independent passes, and each thing that it is not is told."""

import re
from collections.abc import Callable
from typing import final

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from flfw.audit.measures import noise
from flfw.audit.measures.noise import Act, departure_from_normal, departure_of_residuals, p_of_normal, share_of_repeats
from flfw.nets import Tensors

Draw = Callable[[Tensor, torch.Generator], Tensor]

LINEAR = {"weight": torch.zeros(10, 64), "bias": torch.zeros(10)}
CONVOLUTION = {
    "conv.weight": torch.zeros(6, 1, 5, 5),
    "conv.bias": torch.zeros(6),
    "fc.weight": torch.zeros(10, 150),
    "fc.bias": torch.zeros(10),
}
SIZE = 30.0


def seeded(draw: int) -> torch.Generator:
    return torch.Generator().manual_seed(draw)


def normal(value: Tensor, rng: torch.Generator) -> Tensor:
    return SIZE * torch.randn(value.shape, generator=rng)


def even(value: Tensor, rng: torch.Generator) -> Tensor:
    return torch.rand(value.shape, generator=rng)


def each(change: Draw) -> Act:
    return lambda message, rng: {name: change(value, rng) for name, value in message.items()}


def adds(draw: Draw) -> Act:
    return each(lambda value, rng: value + draw(value, rng))


def lattice(step: float, jitter: float = 0.0) -> Act:
    return adds(lambda v, rng: step * (normal(v, rng) / step).round() + jitter * normal(v, rng))


def larger_by_tensor(message: Tensors, rng: torch.Generator) -> Tensors:
    return {name: value + (2 + at) * normal(value, rng) for at, (name, value) in enumerate(message.items())}


# What is done to values before the noise, or to all that is sent after it, leaves the noise what it is.
SOUND: dict[str, Act] = {
    "normal noise": adds(normal),
    "faint noise": adds(lambda v, rng: 1e-7 * normal(v, rng)),
    "two normal noises": adds(lambda v, rng: normal(v, rng) + 2 * normal(v, rng)),
    "a size for each tensor": larger_by_tensor,
    "a bound before it": each(lambda v, rng: v / max(1.0, float(v.norm())) + normal(v, rng)),
    "a sign before it": each(lambda v, rng: -v + normal(v, rng)),
    "a key before it": each(lambda v, rng: v.flatten().flip(0).view_as(v) + normal(v, rng)),
    "a factor after it": each(lambda v, rng: 0.1 * (v + normal(v, rng))),
    "drawn in double precision": adds(lambda v, rng: torch.randn(v.shape, generator=rng, dtype=torch.float64).float()),
    "sent as float16": each(lambda v, rng: (v + normal(v, rng)).half().float()),
    "sent as bfloat16": each(lambda v, rng: (v + normal(v, rng)).bfloat16().float()),
    "rounded after it": each(lambda v, rng: ((v + normal(v, rng)) / 0.6).round() * 0.6),
    "whole numbers on whole numbers": each(
        lambda v, rng: ((v / 0.01).round() + (normal(v, rng) / 0.01).round()) * 0.01
    ),
}


def laplace(value: Tensor, rng: torch.Generator) -> Tensor:
    centred = even(value, rng) - 0.5
    return -SIZE * centred.sign() * torch.log1p(-2 * centred.abs().clamp(max=0.4999999))


def student(value: Tensor, rng: torch.Generator) -> Tensor:
    seed = int(torch.randint(0, 2**31, (), generator=rng))
    return torch.from_numpy(np.random.default_rng(seed).standard_t(5, value.shape)).float()


def on_sphere(value: Tensor, rng: torch.Generator) -> Tensor:
    drawn = normal(value, rng)
    return 100 * drawn / drawn.norm()


def mirrored(value: Tensor, rng: torch.Generator) -> Tensor:
    half = normal(value[: len(value) // 2], rng)
    return torch.cat([half, -half])


def of_rank_three(value: Tensor, rng: torch.Generator) -> Tensor:
    flat = value.view(len(value), -1)
    return (torch.randn(len(flat), 3, generator=rng) @ torch.randn(3, flat.shape[1], generator=rng)).view_as(value)


def without_mean(*axes: int) -> Draw:
    def draw(value: Tensor, rng: torch.Generator) -> Tensor:
        drawn = normal(value, rng)
        return drawn - drawn.mean(axes, keepdim=True) if value.dim() > 1 else drawn

    return draw


def copied(message: Tensors, rng: torch.Generator) -> Tensors:
    """The last bias has the noise of the first column of its weights."""
    sent = adds(normal)(message, rng)
    *_, weight, bias = message
    return {**sent, bias: message[bias] + (sent[weight] - message[weight])[:, 0]}


def common(message: Tensors, rng: torch.Generator) -> Tensors:
    return {name: value + SIZE * torch.randn((), generator=rng) for name, value in message.items()}


def one_size(message: Tensors, rng: torch.Generator) -> Tensors:
    """A new size for each message."""
    size = even(torch.zeros(()), rng).rsqrt()
    return {name: value + size * normal(value, rng) for name, value in message.items()}


def of_short_seed(message: Tensors, rng: torch.Generator) -> Tensors:
    return adds(normal)(message, torch.Generator().manual_seed(int(torch.randint(0, 1 << 17, (), generator=rng))))


@final
class Remembers:
    """Noise of which each message has the negative of the last one's."""

    def __init__(self) -> None:
        self._sign = 1

    def __call__(self, message: Tensors, rng: torch.Generator) -> Tensors:
        self._sign = -self._sign
        return {name: value + self._sign * normal(value, rng) for name, value in message.items()}


UNSOUND: dict[str, tuple[Act, str]] = {
    "whole steps": (adds(lambda v, rng: 1.5 * torch.randint(-50, 50, v.shape, generator=rng)), "lattice"),
    "rounded noise": (lattice(1.5), "lattice"),
    "finely rounded noise": (lattice(SIZE / 10_000), "lattice"),
    "noise rounded to 1e-6 of it": (lattice(SIZE / 1e6), "lattice"),
    "rounded noise with a jitter": (lattice(1.5, 1e-5), "lattice"),
    "noise in float16": (adds(lambda v, rng: normal(v, rng).half().float()), "lattice"),
    "a coin": (adds(lambda v, rng: 3 * (2 * (even(v, rng) < 0.5).float() - 1)), "lattice"),
    "a tenth left bare": (adds(lambda v, rng: normal(v, rng) * (even(v, rng) < 0.9)), "repeat"),
    "a hundredth left bare": (adds(lambda v, rng: normal(v, rng) * (even(v, rng) < 0.99)), "repeat"),
    "a hundredth faint": (adds(lambda v, rng: normal(v, rng) * (even(v, rng) < 0.99).float().clamp(2e-4)), "repeat"),
    "large values left bare": (
        each(lambda v, rng: torch.where(v.abs() > 0.5, v, v + normal(v, rng) / SIZE)),
        "without",
    ),
    "a bare tensor": (each(lambda v, rng: v + normal(v, rng) if v.dim() > 1 else v), "without noise"),
    "uniform": (adds(lambda v, rng: 20 * (even(v, rng) - 0.5)), "lattice|normal"),
    "Laplace": (adds(laplace), "normal"),
    "Student": (adds(student), "less of it|normal"),
    "a mixture": (
        adds(lambda v, rng: torch.where(even(v, rng) < 0.5, 0.03, 1.0) * normal(v, rng)),
        "lattice|less of it|normal",
    ),
    "a size for each message": (one_size, "less of it|normal"),
    "a size for each row": (
        adds(lambda v, rng: normal(v, rng) * torch.linspace(1, 2, len(v)).view(-1, *[1] * (v.dim() - 1))),
        "less of it",
    ),
    "on a sphere": (adds(on_sphere), "normal|unlike"),
    "mirrored": (adds(mirrored), "repeat|sums|follow"),
    "of a low rank": (adds(of_rank_three), "normal|fewer"),
    "rows that cancel": (adds(without_mean(-1)), "sums"),
    "columns that cancel": (adds(without_mean(0)), "sums"),
    "a copy": (copied, "follow"),
    "common to a tensor": (common, "repeat|normal|follow|sums"),
    "a share of the values": (each(lambda v, rng: v * (even(v, rng) < 0.5)), "depends"),
    "signs": (each(lambda v, rng: v * (2 * (even(v, rng) < 0.5).float() - 1)), "depends"),
    "factors": (each(lambda v, rng: v * (1 + normal(v, rng))), "depends"),
    "as large as the message": (each(lambda v, rng: v + v.norm() * normal(v, rng)), "depends"),
    "a new order": (
        each(lambda v, rng: v.flatten()[torch.randperm(v.numel(), generator=rng)].view_as(v) + 1e-3 * normal(v, rng)),
        "depends",
    ),
    "rounded at random": (each(lambda v, rng: torch.floor(v / 0.5 + even(v, rng)) * 0.5), "without|depends"),
    "one of 131,072": (of_short_seed, "come again"),
    "opposite to the last": (Remembers(), "remembers"),
    "a generator of its own": (each(lambda v, rng: v + SIZE * torch.randn(v.shape)), "remembers"),
}


@pytest.fixture(autouse=True)
def _fewer_messages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no noise comes again, most of the time is spent on thousands of messages."""
    if not any(name in request.node.name for name in ("[normal noise]", "131,072")):
        monkeypatch.setattr(noise, "_MESSAGES", 50)


@pytest.mark.parametrize("act", SOUND.values(), ids=SOUND)
def test_normal_noise_departs_in_nothing(act: Act) -> None:
    assert not departure_from_normal(act, LINEAR)


@pytest.mark.parametrize(("act", "found"), UNSOUND.values(), ids=UNSOUND)
def test_other_noise_is_told(act: Act, found: str) -> None:
    departure = departure_from_normal(act, LINEAR)
    assert any(word in departure for word in found.split("|")), departure


def rests(act: Act, messages: int = 8) -> Tensors:
    """What messages without data leave, in deviations of the noise in all of them."""
    sent = [act({name: v.clone() for name, v in LINEAR.items()}, seeded(draw)) for draw in range(messages)]
    stacked = {name: torch.stack([one[name] for one in sent]).double() for name in LINEAR}
    whole = torch.cat([value.flatten() for value in stacked.values()])
    return {name: value / whole.square().mean().sqrt() for name, value in stacked.items()}


# One message has one draw: what is as rare as a repeated seed, or finer than float32's own steps, leaves no trace.
UNSEEN = {"noise rounded to 1e-6 of it", "one of 131,072", "opposite to the last", "a generator of its own"}
WITH_DATA = {"large values left bare", "a new order"}


@pytest.mark.parametrize("kind", [kind for kind in UNSOUND if kind not in UNSEEN | WITH_DATA])
def test_eight_messages_tell_other_noise_from_the_described_one(kind: str) -> None:
    assert departure_of_residuals(rests(UNSOUND[kind][0]))


def test_eight_messages_of_the_described_noise_depart_in_nothing() -> None:
    for draw in range(40):
        rng = seeded(1000 + draw)
        drawn = {name: torch.randn((8, *v.shape), generator=rng) for name, v in LINEAR.items()}
        assert not departure_of_residuals(drawn)
    for factor in (0.9, 1.1):
        other = departure_of_residuals({name: factor * value for name, value in drawn.items()})
        (found,) = re.findall(r"in weight its deviation is ([\d.]+) times", other)
        assert float(found) == pytest.approx(factor, rel=0.03)


def test_steps_of_what_is_sent_are_no_lattice_of_the_noise() -> None:
    coarse = {name: (v * 2**12).round() / 2**12 for name, v in rests(adds(normal)).items()}
    assert "lattice" in departure_of_residuals(coarse)
    assert not departure_of_residuals(coarse, dict.fromkeys(coarse, 2.0**-12))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_steps_of_a_float_are_no_lattice_in_many_entries(count: int) -> None:
    many = {"weight": torch.zeros(64, 64)}
    assert not departure_from_normal(adds(lambda v, rng: sum((normal(v, rng) for _ in range(count)), 0 * v)), many)
    assert "lattice" in departure_from_normal(lattice(count * SIZE / 5e6), many)


@pytest.mark.nightly
@pytest.mark.parametrize("act", [*SOUND.values(), *(act for act, _ in UNSOUND.values())], ids=[*SOUND, *UNSOUND])
def test_noise_on_kernels_is_judged_alike(act: Act) -> None:
    assert bool(departure_from_normal(act, CONVOLUTION)) == bool(departure_from_normal(act, LINEAR))


def test_hardly_any_stream_of_normal_numbers_departs() -> None:
    def after(skipped: int) -> Act:
        def act(message: Tensors, rng: torch.Generator) -> Tensors:
            torch.randn(skipped, generator=rng)
            return adds(normal)(message, rng)

        return act

    assert not [skipped for skipped in range(1, 5) if departure_from_normal(after(16 * skipped), LINEAR)]


def test_repeats_are_counted_by_hand() -> None:
    alike, unlike = torch.zeros(4, 100), torch.arange(400.0).view(4, 100)
    assert share_of_repeats(alike, unlike + 1000, 1.0) == 1.0  # all six pairs of draws, in each entry
    assert share_of_repeats(alike, alike, 1.0) is None  # as rounding after the noise does, for any message


def test_the_law_is_judged_as_scipy_judges_it() -> None:
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randn(50, 200, generator=rng, dtype=torch.float64)
    few = drawn.flatten().numpy()
    expected = 2 * min(stats.kstest(few, "norm").pvalue, stats.kurtosistest(few).pvalue)
    assert p_of_normal(drawn) == pytest.approx(min(1.0, expected))
    assert p_of_normal(drawn.sign()) < noise.LEVEL


@pytest.mark.nightly
def test_of_a_large_network_all_tensors_are_tried() -> None:
    large = {"weight": torch.zeros(1000, 1000), "bias": torch.zeros(1000)}
    assert not departure_from_normal(adds(normal), large)
    assert "bias" in departure_from_normal(each(lambda v, rng: v + normal(v, rng) if v.dim() > 1 else v), large)
    assert "lattice" in departure_from_normal(lattice(1.5), large)
