"""Group consistency: registration, the mean of several starts, and its pull in a search."""

from math import pi

import pytest
import torch
from torch import Tensor, nn

from flfw.attacks.gradinversion import GroupConsistency, registered
from flfw.errors import InputError
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.matching import Guess, squared_distance
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch
from flfw.nets.inputs import InputSpec
from flfw.nets.net import tensors
from flfw.rng import initialising, torch_generator


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(seed, "images"))


@pytest.mark.parametrize("shift", [(0, 0), (2, -3), (-4, 4)])
def test_a_shifted_image_is_shifted_back(shift: tuple[int, int]) -> None:
    onto = images(2, 3, 16, 12)
    moved = onto.roll(shift, (2, 3))
    torch.testing.assert_close(registered(moved + 0.1 * images(2, 3, 16, 12, seed=1), onto, 4), onto, rtol=0, atol=0.6)
    assert torch.equal(registered(moved, onto, 4), onto)


def test_each_image_of_a_batch_has_its_own_shift() -> None:
    onto = images(2, 1, 9, 9)
    moved = torch.stack([onto[0].roll((1, 2), (1, 2)), onto[1].roll((-3, 0), (1, 2))])
    assert torch.equal(registered(moved, onto, 4), onto)


def test_beyond_its_reach_rows_and_tiny_images_are_left_where_they_are() -> None:
    onto = images(1, 1, 16, 16)
    far = onto.roll(7, 3)
    assert not torch.equal(registered(far, onto, 4), onto)
    assert torch.equal(registered(far, onto, 7), onto)
    assert torch.equal(registered(far, onto, 0), far)
    rows = images(2, 5)
    assert registered(rows, images(2, 5, seed=1), 4) is rows
    pixel = images(1, 1, 1, 1)
    assert torch.equal(registered(pixel, pixel, 4), pixel)


def test_the_mean_is_of_the_same_images_in_each_starts_own_order() -> None:
    one = images(3, 1, 8, 8)
    order = torch.tensor([2, 0, 1])
    group = torch.stack([one + 0.1, one[order] - 0.1])
    means = GroupConsistency(starts=2, weight=1).means(group, None)
    torch.testing.assert_close(means, torch.stack([one, one[order]]))


def test_images_of_other_labels_are_not_taken_for_each_other() -> None:
    one = images(2, 1, 8, 8)
    group, labels = torch.stack([one, one.flip(0)]), torch.tensor([[3, 5], [3, 5]])
    apart = GroupConsistency(starts=2, weight=1, reach=0)
    torch.testing.assert_close(apart.means(group, None), group)
    middle = one.mean(0, keepdim=True).expand(2, 2, 1, 8, 8)
    torch.testing.assert_close(apart.means(group, labels), middle)
    torch.testing.assert_close(apart.means(group, torch.full((2, 2), 3)), group)


def test_a_start_that_left_the_finite_numbers_does_not_spoil_the_others() -> None:
    guesses = images(6, 2, 1, 8, 8)
    guesses[0, 0, 0, 0, 0] = torch.nan
    guesses[3:] = torch.inf
    means = GroupConsistency(starts=3, weight=1, reach=0).means(guesses, torch.tensor([[0, 1]] * 6))
    torch.testing.assert_close(means[1:3], guesses[1:3].mean(0).expand(2, 2, 1, 8, 8))
    assert torch.equal(means[3:], guesses[3:])


def test_targets_do_not_influence_each_other() -> None:
    guesses = images(4, 2, 1, 8, 8)
    means = GroupConsistency(starts=2, weight=1, reach=0).means(guesses, torch.tensor([[0, 1]] * 4))
    torch.testing.assert_close(means[:2], guesses[:2].mean(0).expand(2, 2, 1, 8, 8))
    torch.testing.assert_close(means[2:], guesses[2:].mean(0).expand(2, 2, 1, 8, 8))


def test_the_pull_is_the_gradient_of_its_term_after_its_start() -> None:
    def flat(guess: Guess) -> tuple[Guess, Tensor, Tensor]:
        return {name: torch.zeros_like(value) for name, value in guess.items()}, torch.zeros(2), torch.ones(2)

    group = GroupConsistency(starts=2, weight=0.3, after=0.5, reach=0)
    x, labels = images(2, 4, 1, 8, 8), torch.tensor([[0, 1, 2, 3]] * 2)
    drawn = group(flat, labels, 4)
    assert [bool(drawn({"x": x})[0]["x"].any()) for _ in range(4)] == [False, False, True, True]
    gradients, objective, matched = drawn({"x": x, "model.w": x})
    free = x.clone().requires_grad_()
    term = sum(0.3 * (one - x.mean(0)).flatten(1).square().sum(1).mean() for one in free)
    assert isinstance(term, Tensor)
    torch.testing.assert_close(gradients["x"], torch.autograd.grad(term, free)[0])
    assert not bool(gradients["model.w"].any()) and objective.tolist() == [0, 0] and matched.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"starts": 0}, "Expected starts >= 1, got starts=0."),
        ({"weight": -1.0}, "Expected weight >= 0, got weight=-1.0."),
        ({"after": 1.5}, "Expected 0 <= after <= 1, got after=1.5."),
        ({"reach": -1}, "Expected reach >= 0, got reach=-1."),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float], line: str) -> None:
    with pytest.raises(InputError) as error:
        GroupConsistency(**{"starts": 2, "weight": 1.0, **wrong})  # type: ignore[arg-type]
    assert str(error.value) == line


# --- in a search ---


def searched(targets: int = 2, memory_gb: float = 4.0, **changes: float) -> list[SearchResult]:
    """Search for images of a network whose gradient tells little of them, so that starts end apart."""
    with initialising(0, "net"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Tanh(), nn.Linear(1, 2))
    victim = PlainVictim(model, tensors(model), ("*",), InputSpec.from_constants((1, 8, 8), (0.5,), (0.25,)))
    y = torch.tensor([0, 1])
    gradients = [victim.gradient(torch.rand(2, 1, 8, 8), y, {}, {}) for _ in range(targets)]
    sent = [SearchTarget(g, y, torch_generator(i, "start")) for i, g in enumerate(gradients)]
    together = GroupConsistency(starts=3, **{"weight": 0.0, **changes}) if changes else None  # type: ignore[arg-type]
    recipe = SearchConfig(squared_distance, AdamSearch(20, 0.1, schedule="cosine"), restarts=3, together=together)
    return invert(victim, sent, recipe, compute=ComputeLimits(memory_gb=memory_gb, compiled=False))


@pytest.mark.slow
def test_without_a_weight_it_changes_nothing() -> None:
    torch.manual_seed(0)
    alone = searched()
    torch.manual_seed(0)
    for one, other in zip(searched(weight=0.0), alone, strict=True):
        assert torch.equal(one.samples, other.samples)
    torch.manual_seed(0)
    assert not torch.allclose(searched(weight=1.0)[0].samples, alone[0].samples, atol=1e-3)


@pytest.mark.slow
def test_starts_of_a_target_are_never_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    means = GroupConsistency.means
    monkeypatch.setattr(
        GroupConsistency, "means", lambda self, x, labels: (seen.append(len(x)), means(self, x, labels))[1]
    )
    monkeypatch.setattr("flfw.inversion.evaluation.fitting", lambda needed, batch, compute: 4)
    searched(targets=3, weight=1.0)
    assert set(seen) == {3}  # room for four is room for one target
    monkeypatch.setattr("flfw.inversion.evaluation.fitting", lambda needed, batch, compute: 2)
    with pytest.raises(InputError, match="Expected memory for 3 starts at once, got room for 2"):
        searched(weight=1.0)


def test_the_step_size_warms_up() -> None:
    adam = AdamSearch(100, 0.4, schedule="constant", warmup=3)
    assert [adam.rate(done) for done in (0, 1, 2, 3, 99)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    falling = AdamSearch(100, 0.4, schedule="cosine", warmup=3)
    half_way = 0.4 * (1 + torch.cos(torch.tensor(pi / 2))) / 2
    assert falling.rate(50) == pytest.approx(float(half_way))
    assert AdamSearch(100, 0.4, schedule="cosine").rate(0) == 0.4
    with pytest.raises(InputError, match="Expected warmup >= 0, got warmup=-1"):
        AdamSearch(10, 0.1, warmup=-1)
