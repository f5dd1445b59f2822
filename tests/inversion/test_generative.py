"""A generator's spaces, the L1 ball, and the evolution strategy, against independent computations."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from flfw.clients.defences.low_precision import LowPrecision, LowPrecisionSettings
from flfw.errors import InputError
from flfw.inversion.automatic import DifferentiableDefence
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.evolution import CMAES
from flfw.inversion.fit import fits
from flfw.inversion.image_generator import (
    LABELS,
    GeneratedImages,
    ImageGenerator,
    Latent,
    LatentAndWeights,
    Learning,
    Lesson,
    Maps,
    OfImages,
    Space,
    learnt,
    unlike_normal,
)
from flfw.inversion.matching import squared_distance
from flfw.inversion.priors import total_variation, within
from flfw.inversion.search import SearchConfig, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.net import Tensors
from flfw.rng import initialising, torch_generator
from tests.support.attackable import attackable, digits


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(0, "generative", seed))


def generator(shape: tuple[int, ...] = (1, 8, 8)) -> ImageGenerator:
    with initialising(0, "generator"):
        return ImageGenerator(shape, 10, 5, 4).eval().requires_grad_(False)


# --- the ball ---


def test_the_projection_is_the_nearest_point_of_the_ball() -> None:
    change, radius = randn(2, 3, 2, 2), torch.tensor([[0.1, 1.0, 100.0], [2.0, 0.0, 0.5]])
    for row, limit, result in zip(
        change.view(6, 4).numpy(), radius.flatten(), within(change, radius).view(6, 4).numpy(), strict=True
    ):
        # Written as a difference of two vectors >= 0, the ball is a simplex.
        nearest = minimize(
            lambda parts, row=row: float(np.sum((parts[:4] - parts[4:] - row) ** 2)),
            np.zeros(8),
            bounds=[(0, None)] * 8,
            constraints={"type": "ineq", "fun": lambda parts, limit=limit: float(limit) - parts.sum()},
        ).x
        np.testing.assert_allclose(result, nearest[:4] - nearest[4:], atol=2e-3)


def test_adam_stays_in_the_ball_around_its_start() -> None:
    goal, start = randn(1, 2, 6, seed=1), randn(1, 2, 6, seed=2)

    def evaluate(guess: Tensors) -> tuple[Tensors, Tensor, Tensor]:
        off = guess["x"] - goal
        value = (off**2).flatten(1).sum(1)
        return {"x": 2 * off}, value, value

    best = AdamSearch(400, 0.05, schedule="cosine", ball=0.2).descend(evaluate, {"x": start}, None, 0.0)
    moved, radius = (best.guess["x"] - start).abs().sum(-1), 0.2 * start.abs().sum(-1)
    assert bool((moved <= radius + 1e-4).all()) and bool((moved > 0.9 * radius).all())
    assert bool((best.objective < 0.9 * best.first).all())
    with pytest.raises(InputError, match="ball >= 0"):
        AdamSearch(1, 0.1, ball=-1.0)


# --- the generator ---


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 9, 13), (3, 5, 40)])
def test_images_of_any_size_are_the_same_from_each_layer(shape: tuple[int, ...]) -> None:
    made, z, y = generator(shape), randn(2, 5), torch.tensor([3, 9])
    images = made(z, y)
    assert images.shape == (2, *shape) and float(images.min()) > 0 and float(images.max()) < 1
    place = z
    for layer in range(1, len(made.layers)):
        space = Maps(made, layer, randn(4, 5), torch.arange(4))
        place = space.begun(place, y)
        assert tuple(place.shape[1:]) == space.shape
        torch.testing.assert_close(space.images(place, y), images)
    weights = LatentAndWeights(made, 0.5)
    torch.testing.assert_close(weights.images(weights.begun(z, y), y), images)


def test_coordinates_after_z_change_each_images_own_weights() -> None:
    made, z, y = generator(), randn(2, 5), torch.tensor([3, 3])
    space = LatentAndWeights(made, 0.5)
    place = space.begun(z, y)
    place[0, -1] = 2.0  # the last layer's bias, of one image only
    changed = space.images(place, y)
    last = made.layers[-1][0]  # type: ignore[index]
    before, last.bias.data[:] = last.bias.data.clone(), last.bias.data + 1.0
    expected = made(z, y)
    last.bias.data[:] = before
    torch.testing.assert_close(changed[0], expected[0])
    torch.testing.assert_close(changed[1], made(z, y)[1])


@pytest.mark.slow
def test_a_lesson_teaches_the_same_generator_again_and_its_classes() -> None:
    x, y = digits(0, 300, side=8)
    lesson = Lesson(x, y, 10, Learning(latent=8, width=4, learning_iterations=150, learning_rate=1e-2))
    assert learnt(lesson) is learnt(Lesson(x.clone(), y.clone(), 10, lesson.learning))
    again = learnt.__wrapped__(lesson)
    z, labels = randn(200, 8), torch.arange(200) % 10
    torch.testing.assert_close(again(z, labels), learnt(lesson)(z, labels), rtol=0, atol=0)
    assert Lesson(1 - x, y, 10, lesson.learning) != lesson
    means = torch.stack([x[y == c].mean(0) for c in range(10)])
    of_classes = torch.stack([learnt(lesson)(z, labels)[labels == c].mean(0) for c in range(10)])
    nearest = torch.cdist(of_classes.flatten(1), means.flatten(1)).argmin(1)
    assert int((nearest == torch.arange(10)).sum()) >= 9  # draws of a class are like the class
    with pytest.raises(InputError, match="at least one public image"):
        Lesson(x[:0], y[:0], 10, lesson.learning)


def test_the_moments_prior_is_the_divergence_of_normals() -> None:
    z = 2 * randn(3, 50) + 0.3
    expected = kl_divergence(Normal(z.mean(1), z.std(1, correction=0)), Normal(0.0, 1.0)).mean()
    torch.testing.assert_close(unlike_normal(z), expected)


def spaces() -> list[Space]:
    made = generator()
    return [Latent(made), Maps(made, 1, randn(4, 5), torch.arange(4)), LatentAndWeights(made, 0.1)]


@pytest.mark.parametrize("space", spaces(), ids=["latent", "maps", "weights"])
def test_the_gradient_and_the_prior_of_coordinates_are_those_of_their_images(space: Space) -> None:
    _, (knowledge,) = attackable("mlp", 8, digits(0, 2, side=8))
    client, y = knowledge.model, torch.tensor([3, 4])
    victim, x = GeneratedImages(client, space), 0.3 * randn(2, *space.shape, seed=5)
    images = space.images(x, y)
    torch.testing.assert_close(victim.gradient(x, y, {}, {}), client.gradient(images, y, {}, {}))
    units = victim.inputs.normalise(x)
    value = OfImages(total_variation)(victim, units, {}, {LABELS: y})
    torch.testing.assert_close(value, total_variation(client.inputs.normalise(images)))


# --- the evolution strategy ---


def bowl(x: Tensor) -> Tensor:
    """A rotated and stretched bowl with its lowest point at 0.3."""
    turn = torch.linalg.qr(randn(6, 6, seed=7)).Q.to(x)
    off = (x.flatten(1) - 0.3) @ turn
    return (off**2 * torch.logspace(0, 3, 6).to(x)).sum(1)


def evaluated(guess: Tensors) -> tuple[Tensors, Tensor, Tensor]:
    value = bowl(guess["x"])
    return {}, value, value


def test_it_finds_the_lowest_point_of_a_bowl_in_each_problem_on_its_own() -> None:
    starts = randn(2, 1, 6, seed=3)
    state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    both = CMAES(80, 12).descend(evaluated, {"x": starts}, None, 0.0)
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
    assert float((both.guess["x"] - 0.3).abs().max()) < 0.02
    alone = CMAES(80, 12).descend(evaluated, {"x": starts[1:]}, None, 0.0)
    assert torch.equal(alone.guess["x"], both.guess["x"][1:])
    early = CMAES(80, 12).descend(evaluated, {"x": starts}, None, 1e-2)
    assert bool((early.iterations < both.iterations).all()) and bool((early.matched <= 1e-2).all())


def test_it_keeps_to_the_box_and_survives_values_that_are_not_finite() -> None:
    ends = torch.tensor(-1.0), torch.tensor(0.1)

    def cracked(guess: Tensors) -> tuple[Tensors, Tensor, Tensor]:
        assert float(guess["x"].min()) >= -1 - 1e-6 and float(guess["x"].max()) <= 0.1 + 1e-6
        value = bowl(guess["x"]).where(guess["x"].flatten(1)[:, 0] < 0, torch.nan)
        return {}, value, value

    best = CMAES(40, 12).descend(cracked, {"x": torch.full((1, 1, 6), -0.5)}, ends, 0.0)
    assert bool(best.objective.isfinite().all()) and float(best.objective) < float(best.first)


@pytest.mark.parametrize("through", [False, True])
def test_candidates_have_the_objective_that_a_fit_has(through: bool) -> None:
    """Through ``invert``: the distance at its result is that of `fits`, which evaluates one guess at a time."""
    observations, (knowledge, _) = attackable("mlp", 8, digits(0, side=8), digits(1, side=8))
    operator = DifferentiableDefence(LowPrecision(LowPrecisionSettings(2))) if through else None
    victim, recipe = GeneratedImages(knowledge.model, Latent(generator())), SearchConfig(squared_distance, CMAES(3, 6))
    targets = [
        SearchTarget(o.sent, torch.tensor([i]), torch_generator(0, "start", i)) for i, o in enumerate(observations)
    ]
    results = invert(victim, targets, recipe, operator=operator, box=(-3, 3), compute=ComputeLimits())
    for target, result in zip(targets, results, strict=True):
        (expected,) = fits(victim, target, recipe, [(result.samples, target.labels)], mechanism=operator)
        assert result.matching_loss == pytest.approx(expected.distance, rel=1e-4)


def test_its_generations_are_as_different_as_their_deviation() -> None:
    seen: list[Tensor] = []

    def noted(guess: Tensors) -> tuple[Tensors, Tensor, Tensor]:
        seen.append(guess["x"].clone())
        return evaluated(guess)

    CMAES(1, 500, 0.7).descend(noted, {"x": torch.zeros(1, 1, 6)}, None, 0.0)
    assert float(seen[1].std()) == pytest.approx(0.7, rel=0.05)
    assert seen[0].eq(0).all() and len(seen) == 2
