"""Flow matching as a prior: denoisers with a closed form, the trained network, and the steps of a search."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw.errors import InputError
from flfw.inversion.flow import (
    FlowSettings,
    FlowTraining,
    GuidedFlow,
    PlugAndPlay,
    PublicImages,
    Velocity,
    VelocityNet,
    denoiser,
    flow_loss,
    flow_recipes,
    trained_flow,
)
from flfw.inversion.matching import Guess, squared_distance
from flfw.inversion.search import Closing, SearchConfig, Stage
from flfw.inversion.search_optimisers import LBFGS, AdamSearch
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.rng import torch_generator
from tests.support.attackable import digits

PLAIN = InputSpec((1, 2, 2), torch.full((1, 1, 1), 0.5), torch.full((1, 1, 1), 0.25))  # 2 normalised units from 0 to 1
TINY = FlowTraining(width=8, iterations=120, batch=16, lr=5e-3)


def to_point(point: float) -> Velocity:
    """The best velocity of data that are one point."""
    return lambda x, t, labels: (point - x) / (1 - t.view(-1, 1, 1, 1))


def of_gaussian(mean: float, std: float) -> Velocity:
    """The best velocity of independent pixels from N(mean, deviation^2): E[x - e | x_t]."""

    def velocity(x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
        late = t.view(-1, 1, 1, 1)
        variance = late**2 * std**2 + (1 - late) ** 2
        return mean + (late * std**2 - (1 - late)) / variance * (x - late * mean)

    return velocity


# --- denoisers in closed form ---


@pytest.mark.parametrize("t", [0.0, 0.5, 0.9])
def test_the_denoiser_of_one_point_returns_it(t: float) -> None:
    x = torch.tensor([-3.0, 0.2, 7.0]).view(1, 1, 1, 3)
    returned = denoiser(to_point(0.25))(x, torch.tensor([t]), None)
    torch.testing.assert_close(returned, torch.full_like(x, 0.25))


@pytest.mark.parametrize("t", [0.2, 0.5, 0.9])
def test_the_denoiser_of_gaussian_data_is_the_regression_of_the_data_on_the_noisy_ones(t: float) -> None:
    """A line through 200,000 draws of (x_t, x) is an independent estimate of E[x | x_t]."""
    rng, mean, std = torch_generator(0, "draws"), 0.3, 0.4
    x = mean + std * torch.randn(200_000, generator=rng)
    noisy = (1 - t) * torch.randn(200_000, generator=rng) + t * x
    slope = float(torch.cov(torch.stack([noisy, x]))[0, 1] / noisy.var())
    indices = torch.tensor([-1.0, 0.0, 1.0])
    line = x.mean() + slope * (indices - noisy.mean())
    returned = denoiser(of_gaussian(mean, std))(indices.view(1, 1, 1, 3), torch.tensor([t]), None)
    torch.testing.assert_close(returned.flatten(), line, atol=1e-2, rtol=0)


def test_no_other_velocity_has_a_lower_loss_than_the_closed_form() -> None:
    rng = torch_generator(0, "loss")
    x, noise = 0.3 + 0.4 * torch.randn(20_000, 1, 1, 1, generator=rng), torch.randn(20_000, 1, 1, 1, generator=rng)
    t = torch.rand(20_000, generator=rng)
    losses = [float(flow_loss(of_gaussian(*p), x, t, noise, None)) for p in ((0.3, 0.4), (0.5, 0.4), (0.3, 0.6))]
    assert losses[0] < min(losses[1:]) - 0.005, losses


# --- the trained network ---


@pytest.mark.slow
def test_a_network_trained_on_gaussian_pixels_is_near_the_closed_form() -> None:
    mean, std, t, rng = 0.2, 0.3, 0.7, torch_generator(1, "pixels")
    drawn = mean + std * torch.randn((500, 1, 8, 8), generator=rng)
    net = trained_flow(PublicImages.of((drawn[:400] + 1) / 2, torch.zeros(400, dtype=torch.int64)), 1, TINY)
    x, times = drawn[400:], torch.full((100,), t)
    noisy = (1 - t) * torch.randn(x.shape, generator=rng) + t * x
    best = denoiser(of_gaussian(mean, std))(noisy, times, None)
    error = (denoiser(net)(noisy, times, None) - best).square().mean().sqrt()
    assert float(error) < 0.5 * float(best.std()), (float(error), float(best.std()))


@pytest.mark.slow
def test_a_network_trained_on_two_digits_tells_them_by_their_labels() -> None:
    (zero, _), (one, _) = digits(0, side=8), digits(1, side=8)
    net = trained_flow(PublicImages.of(torch.cat([zero, one]), torch.tensor([0, 1])), 2, TINY)
    noise = torch.randn((1, 1, 8, 8), generator=torch_generator(0, "noise"))
    for label in (0, 1):
        returned = denoiser(net)(noise, torch.zeros(1), torch.tensor([label]))  # from noise alone
        errors = [float((returned - (2 * x - 1)).square().mean()) for x in (zero, one)]
        assert errors[label] < 0.5 * errors[1 - label], errors


def test_a_network_is_trained_once_for_the_same_images_and_again_for_others() -> None:
    x, y = digits(0, 3, side=8)
    few = FlowTraining(width=8, iterations=2, batch=2)
    first, again = (trained_flow(PublicImages.of(x.clone(), y.clone()), 10, few) for _ in range(2))
    assert first is again
    assert trained_flow(PublicImages.of(1 - x, y), 10, few) is not first
    trained_flow.cache_clear()
    repeated = trained_flow(PublicImages.of(x, y), 10, few)
    assert repeated is not first
    torch.testing.assert_close(first.state_dict(), repeated.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (2, 7, 5)])
def test_the_network_takes_images_of_any_side(shape: tuple[int, ...]) -> None:
    net = VelocityNet(shape[0], 8, 10)
    assert net(torch.zeros(2, *shape), torch.tensor([0.0, 1.0]), torch.tensor([3, 10])).shape == (2, *shape)


def test_the_full_size_has_a_million_parameters() -> None:
    assert 1e6 < sum(p.numel() for p in VelocityNet(3, 32, 10).parameters()) < 2e6


# --- the plug-and-play step ---


def constant(value: float, seen: list[tuple[Tensor, Tensor, Tensor | None]] | None = None) -> Any:
    def denoise(x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
        if seen is not None:
            seen.append((x, t, labels))
        return torch.full_like(x, value)

    return denoise


def generators(count: int) -> Sequence[torch.Generator]:
    return [torch_generator(0, "flow test", i) for i in range(count)]


def test_a_plug_and_play_step_goes_a_share_of_the_way_to_the_denoised_image() -> None:
    """Raw 0.75 is 1 normalised unit and the image value 0.5; a white image is 1. At half of the descent w = 0.3:
    0.5 + 0.3 * 0.5 = 0.65 is raw 0.825, which is 1.3 units."""
    step = PlugAndPlay(constant(1.0), PLAIN, weights=(0.5, 0.1)).bound(None, generators(1))
    torch.testing.assert_close(step.moved(torch.ones(1, 3, 1, 2, 2), 0.5), torch.full((1, 3, 1, 2, 2), 1.3))


def test_a_plug_and_play_step_draws_times_above_a_rising_bound_and_noise_of_the_rest() -> None:
    seen: list[tuple[Tensor, Tensor, Tensor | None]] = []
    labels = torch.arange(400).view(2, 200)
    step = PlugAndPlay(constant(0.0, seen), PLAIN, times=(0.5, 0.9)).bound(labels, generators(2))
    x = torch.zeros(2, 200, 1, 2, 2)  # the image 0: what the denoiser sees is noise alone
    step.moved(x, 0.5)
    noisy, t = torch.stack([one[0] for one in seen]), torch.stack([one[1] for one in seen])
    assert float(t.min()) > 0.7 and float(t.min()) < 0.72 and float(t.max()) > 0.98
    scaled = noisy / (1 - t)[..., None, None, None]
    assert abs(float(scaled.std()) - 1) < 0.05 and abs(float(scaled.mean())) < 0.05
    assert all(torch.equal(part, labels[i]) for i, (_, _, part) in enumerate(seen) if part is not None)
    assert not torch.equal(noisy[0], noisy[1])


def test_a_problem_moves_alike_whichever_others_are_beside_it() -> None:
    net = VelocityNet(1, 8, 10)
    torch.nn.init.normal_(net.last[-1].weight, std=0.1)  # type: ignore[arg-type]
    step = PlugAndPlay(denoiser(net), PLAIN)
    x, labels = torch.randn((3, 2, 1, 2, 2), generator=torch_generator(0, "x")), torch.arange(6).view(3, 2)
    together = step.bound(labels, generators(3)).moved(x, 0.1)
    alone = step.bound(labels[1:2], generators(3)[1:2]).moved(x[1:2], 0.1)
    assert torch.equal(together[1:2], alone)


def flat(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
    """An objective without a slope."""
    zero = torch.zeros(len(guess["x"]))
    return {name: torch.zeros_like(value) for name, value in guess.items()}, zero, zero


def test_a_descent_takes_the_step_every_so_often_and_clamps_afterwards() -> None:
    """Without a slope only the two steps of ten move the guess: w = 0.4 at 5 of 10 and 0.3 at 10 of 10."""
    places: list[float] = []

    def watched(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
        places.append(float(guess["x"].mean()))
        return flat(guess)

    step = PlugAndPlay(constant(1.0), PLAIN, every=5, weights=(0.5, 0.3))
    adam = AdamSearch(10, 0.1, proximal=step).bind(None, generators(1))
    adam.descend(watched, {"x": torch.zeros(1, 1, 1, 2, 2)}, None, 0.0)
    assert places == pytest.approx([0.0] * 5 + [0.8] * 5 + [0.8 + 0.3 * 1.2])  # of 2 units to white
    places.clear()
    box = (torch.full((1, 2, 2), -1.0), torch.full((1, 2, 2), 0.5))
    adam.descend(watched, {"x": torch.zeros(1, 1, 1, 2, 2)}, box, 0.0)
    assert places == pytest.approx([0.0] * 5 + [0.5] * 6)


def test_descents_without_a_step_are_bound_to_nothing() -> None:
    for descent in (AdamSearch(3, 0.1), LBFGS(1)):
        assert descent.bind(torch.zeros(1, 1), generators(1)) is descent


# --- the guided flow ---


def end_of(flow: GuidedFlow, start: Tensor) -> Tensor:
    """Where the flow asks last, while nothing guides it."""
    ends: list[Tensor] = []

    def watched(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
        ends.append(guess["x"])
        return flat(guess)

    flow.descend(watched, {"x": start}, None, 0.0)
    return ends[-1]


def test_the_flow_to_one_point_ends_there() -> None:
    start = torch.randn((2, 1, 1, 2, 2), generator=torch_generator(0, "start"))
    end = end_of(GuidedFlow(to_point(0.5), PLAIN, 7), start)
    torch.testing.assert_close(end, torch.ones_like(start))  # the image value 0.5 is raw 0.75, 1 unit


def test_the_flow_to_gaussian_data_keeps_the_place_of_the_noise() -> None:
    """The exact flow of N(m, s^2) leads e to m + s e; 200 Euler steps come within a hundredth."""
    start = torch.tensor([-1.0, 0.0, 0.5, 2.0]).view(1, 1, 1, 2, 2)
    end = end_of(GuidedFlow(of_gaussian(0.2, 0.3), PLAIN, 200), start)
    torch.testing.assert_close(end, 2 * (0.2 + 0.3 * start), atol=0.02, rtol=0)


def test_guidance_leads_to_the_observation_within_what_the_prior_allows() -> None:
    wanted = torch.tensor([0.6, -0.4, 0.2, 0.9]).view(1, 1, 1, 2, 2)

    def towards(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
        off = guess["x"] - wanted
        score = off.square().sum((1, 2, 3, 4))
        return {"x": 2 * off}, score, score

    start = torch.randn(wanted.shape, generator=torch_generator(0, "start"))
    wide, narrow = of_gaussian(0.0, 0.5), to_point(0.0)
    scores = [
        float(GuidedFlow(velocity, PLAIN, 50, guidance).descend(towards, {"x": start}, None, 0.0).matched)
        for velocity, guidance in ((wide, 0.0), (wide, 0.1), (narrow, 0.1))
    ]
    assert scores[1] < 0.1 * scores[0] and scores[1] < scores[2], scores


def test_where_no_gradient_is_finite_the_flow_goes_on_unguided() -> None:
    def broken(guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
        return {"x": torch.full_like(guess["x"], torch.nan)}, torch.zeros(1), torch.zeros(1)

    best = GuidedFlow(to_point(0.5), PLAIN, 3).descend(broken, {"x": torch.zeros(1, 1, 1, 2, 2)}, None, 0.0)
    assert bool(best.guess["x"].isfinite().all())


# --- recipes and settings ---


def test_the_recipes_with_a_flow_end_in_the_same_searches() -> None:
    adam = AdamSearch(3, 0.1)
    closing = Closing((Stage(squared_distance, AdamSearch(2, 0.1)),), 0.5)
    opening = Stage(squared_distance, AdamSearch(4, 0.1)), Stage(squared_distance, LBFGS(1))
    plain = SearchConfig(squared_distance, adam, opening=opening, closing=(closing,))
    plugged, guided = flow_recipes(plain, to_point(0.0), PLAIN, FlowSettings(flow_every=2, flow_weight=0.4))
    steps = [stage.descent.proximal for stage in plugged.stages if isinstance(stage.descent, AdamSearch)]
    assert [step is not None for step in steps] == [True, True, False]
    (step, _, _) = steps
    assert isinstance(step, PlugAndPlay) and step.every == 2 and step.weights == pytest.approx((0.4, 0.04))
    assert isinstance(guided.stages[0].descent, GuidedFlow) and guided.stages[1:] == plain.stages
    assert plugged.stages[-1] == plain.stages[-1]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"flow_width": 12}, "Expected a width that is a multiple of 8, got width=12."),
        ({"flow_iterations": 0}, "Expected iterations >= 1, got iterations=0."),
        ({"flow_batch": 0}, "Expected batch >= 1, got batch=0."),
        ({"flow_lr": 0.0}, "Expected 0 < lr < inf, got lr=0.0."),
        ({"flow_tv": -1.0}, "Expected 0 <= flow_tv < inf, got flow_tv=-1.0."),
        ({"flow_every": 0}, "Expected flow_every >= 1, got flow_every=0."),
        ({"flow_weight": 1.5}, "Expected 0 <= flow_weight <= 1, got flow_weight=1.5."),
        ({"flow_steps": 0}, "Expected flow_steps >= 1, got flow_steps=0."),
        ({"flow_guidance": -1.0}, "Expected 0 <= flow_guidance < inf, got flow_guidance=-1.0."),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        FlowSettings(**wrong)
    assert str(caught.value) == line
