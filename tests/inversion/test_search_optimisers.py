"""Adam and L-BFGS on many problems at once, against torch's own on each alone."""

from collections.abc import Callable
from typing import Literal, final

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from flfw.errors import InputError
from flfw.inversion.matching import Guess
from flfw.inversion.search_optimisers import LBFGS, AdamSearch, Best, SearchOptimiser
from flfw.nets.net import Tensors
from flfw.rng import torch_generator

Function = Callable[[Guess], Tensor]
SIZES = {"x": (2, 15), "w": (30,)}


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(0, "descent", seed), dtype=torch.float64)


def guesses(count: int) -> Guess:
    return {name: randn(count, *shape, seed=i) for i, (name, shape) in enumerate(SIZES.items())}


def alone(guess: Guess, i: int) -> Guess:
    return {name: value[i : i + 1] for name, value in guess.items()}


SIZE = sum(shape.numel() for shape in map(torch.Size, SIZES.values()))
TURN = torch.linalg.qr(randn(SIZE, SIZE, seed=9))[0]
STEEPNESS = torch.logspace(-1.5, 1.5, SIZE, dtype=torch.float64)


def valley(guess: Guess) -> Tensor:
    """At least 0, nearly quadratic, and a thousand times as steep one way as another; all variables hang together.

    Convex, so that two ways which differ by rounding do not part.
    """
    turned = TURN @ torch.cat([value.flatten() for value in guess.values()]) - 0.3
    return (STEEPNESS * (turned**2 / 2 + 0.3 * (1 - turned.cos()))).sum()


def bowl(guess: Guess) -> Tensor:
    return (guess["x"] ** 2).sum()


@final
class Walk:
    """Evaluates a function for stacked guesses and notes where it was asked."""

    def __init__(self, function: Function) -> None:
        self._function = vmap(grad_and_value(function))
        self.path: list[Guess] = []

    def __call__(self, guess: Guess) -> tuple[Tensors, Tensor, Tensor]:
        self.path.append({name: value.clone() for name, value in guess.items()})
        gradients, value = self._function(guess)
        return gradients, value, value

    def of(self, name: str) -> Tensor:
        """(steps, P, ...) where a variable was."""
        return torch.stack([guess[name] for guess in self.path])


def walked(descent: SearchOptimiser, guess: Guess, function: Function = valley) -> Walk:
    walk = Walk(function)
    descent.descend(walk, guess, None, 0.0)
    return walk


# --- Adam ---


def torchs_adam(guess: Guess, descent: AdamSearch) -> Guess:
    """One problem's path by ``torch.optim.Adam`` and its schedulers, (steps, ...) by name."""
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in guess.items()}
    optimiser = torch.optim.Adam(parameters.values(), lr=descent.lr)
    steps = [max(1, int(fraction * descent.iterations)) for fraction in descent.drops]
    schedule = {
        "step": lambda: torch.optim.lr_scheduler.MultiStepLR(optimiser, steps, gamma=0.1),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, descent.iterations),
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0),
    }[descent.schedule]()
    path = [{name: value.detach().clone() for name, value in parameters.items()}]
    for _ in range(descent.iterations):
        optimiser.zero_grad()
        valley(dict(parameters)).backward()
        if descent.signed and parameters["x"].grad is not None:
            parameters["x"].grad.sign_()
        optimiser.step()
        schedule.step()
        path.append({name: value.detach().clone() for name, value in parameters.items()})
    return {name: torch.stack([place[name] for place in path]) for name in guess}


@pytest.mark.parametrize("schedule", ["step", "cosine", "constant"])
@pytest.mark.parametrize("signed", [False, True])
def test_adam_goes_torchs_way(schedule: Literal["step", "cosine", "constant"], signed: bool) -> None:
    descent, start = AdamSearch(40, 0.05, signed, schedule), guesses(2)
    walk = walked(descent, start)
    for i in range(2):
        theirs = torchs_adam({name: value[i] for name, value in start.items()}, descent)
        for name, path in theirs.items():
            assert float((path[-1] - path[0]).abs().max()) > 0.1
            torch.testing.assert_close(walk.of(name)[:, i], path, rtol=0, atol=1e-10)


def test_steps_drop_where_they_are_told_to() -> None:
    descent = AdamSearch(10, 0.5, drops=(0.25, 0.6))  # after 2 and after 6 of 10
    assert [descent.rate(done) for done in (0, 1, 2, 5, 6, 9)] == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005])
    early = AdamSearch(3, 1.0, drops=(0.1,))  # never before the first step
    assert [early.rate(done) for done in range(3)] == pytest.approx([1.0, 0.1, 0.1])
    half_a_wave = AdamSearch(4, 1.0, schedule="cosine", drops=(0.5,))
    expected = [1.0, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5]
    assert [half_a_wave.rate(done) for done in range(4)] == pytest.approx(expected)
    to_a_tenth = AdamSearch(4, 1.0, schedule="cosine", least=0.1)
    assert [to_a_tenth.rate(done) for done in (0, 2, 4)] == pytest.approx([1.0, 0.55, 0.1])
    constant = AdamSearch(4, 0.3, schedule="constant")
    assert [constant.rate(done) for done in range(4)] == [0.3] * 4


# --- L-BFGS ---


def torchs_lbfgs(guess: Guess, descent: LBFGS) -> Guess:
    """One problem's evaluations by ``torch.optim.LBFGS``, and where it ends, (steps, ...) by name."""
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in guess.items()}
    optimiser = torch.optim.LBFGS(
        parameters.values(), lr=descent.lr, max_iter=descent.inner, history_size=descent.history
    )
    path: list[Guess] = []

    def closure() -> Tensor:
        path.append({name: value.detach().clone() for name, value in parameters.items()})
        optimiser.zero_grad()
        loss = valley(dict(parameters))
        loss.backward()
        return loss

    for _ in range(descent.iterations):
        optimiser.step(closure)
    path.append({name: value.detach().clone() for name, value in parameters.items()})
    return {name: torch.stack([place[name] for place in path]) for name in guess}


@pytest.mark.parametrize(
    "descent",
    [LBFGS(3), LBFGS(3, lr=0.5), LBFGS(3, history=4), LBFGS(6, inner=7), LBFGS(2, history=1)],
    ids=["as DLG has it", "lr 0.5", "history 4", "inner 7", "history 1"],
)
def test_lbfgs_goes_torchs_way(descent: LBFGS) -> None:
    start = guesses(2)
    walk = walked(descent, start)
    for i in range(2):
        theirs = torchs_lbfgs({name: value[i] for name, value in start.items()}, descent)
        for name, path in theirs.items():
            assert len(path) == descent.iterations * descent.inner + 1  # torch saw no reason to stop on the way
            assert float((path[-1] - path[0]).abs().max()) > 0.1
            torch.testing.assert_close(walk.of(name)[:, i], path, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_lbfgs_ends_where_torch_ends() -> None:
    start = guesses(1)
    best = LBFGS(12).descend(Walk(valley), start, None, 0.0)
    theirs = torchs_lbfgs({name: value[0] for name, value in start.items()}, LBFGS(12))
    for name, path in theirs.items():
        torch.testing.assert_close(best.guess[name][0], path[-1], rtol=0, atol=1e-4)
    assert len(theirs["x"]) < 12 * 20  # torch had stopped before


def test_lbfgs_stops_when_nothing_moves_any_more() -> None:
    walk = walked(LBFGS(300), guesses(2), bowl)
    assert len(walk.path) == 51  # it looks after 50 evaluations
    assert float(walk.of("x")[-1].abs().max()) < 1e-7


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0])
def test_lbfgs_finds_the_bottom_of_an_objective_of_any_scale(scale: float) -> None:
    start = {"x": torch.tensor([[5.0], [-0.3]], dtype=torch.float64)}
    walk = walked(LBFGS(1, inner=6), start, lambda guess: scale * bowl(guess))
    assert float(walk.of("x")[-1].abs().max()) < 1e-6  # PyTorch's tolerances would end the search where it began


# --- many problems at once ---


@pytest.mark.parametrize("descent", [AdamSearch(30, 0.05), LBFGS(2)], ids=["adam", "lbfgs"])
def test_each_problem_goes_its_way_as_if_alone(descent: SearchOptimiser) -> None:
    start = guesses(3)
    together = walked(descent, start)
    for i in range(3):
        by_itself = walked(descent, alone(start, i))
        for name in SIZES:
            torch.testing.assert_close(together.of(name)[:, [i]], by_itself.of(name), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("descent", [AdamSearch(30, 0.05), LBFGS(2)], ids=["adam", "lbfgs"])
def test_what_is_not_finite_in_one_problem_touches_no_other(descent: SearchOptimiser) -> None:
    def cliff(guess: Guess) -> Tensor:
        return valley(guess) * torch.where(guess["x"][0, 0] > 4, torch.nan, 1.0)

    start = guesses(3)
    start["x"][1, 0, 0] = 4.05 if isinstance(descent, AdamSearch) else 9.0  # not a number from the start
    start["x"][0, 0, 0] = start["x"][2, 0, 0] = -1.0
    walk, best = Walk(cliff), None
    best = descent.descend(walk, start, None, 0.0)
    assert bool(best.objective[1].isinf()) and torch.equal(best.guess["x"][1], start["x"][1])
    for i in (0, 2):
        by_itself = walked(descent, alone(start, i))
        torch.testing.assert_close(walk.of("x")[:, [i]], by_itself.of("x"), rtol=1e-7, atol=1e-7)
        assert float(best.objective[i]) < float(best.first[i]) - 0.1


@pytest.mark.parametrize("descent", [AdamSearch(30, 0.3, schedule="constant"), LBFGS(2)], ids=["adam", "lbfgs"])
def test_a_problem_that_breaks_down_keeps_its_best_guess_before(descent: SearchOptimiser) -> None:
    def cliff(guess: Guess) -> Tensor:
        return bowl(guess) * torch.where(guess["x"].abs().sum() < 1, torch.nan, 1.0)

    start = {"x": torch.full((1, 2), 5.0, dtype=torch.float64)}
    walk = Walk(cliff)
    best = descent.descend(walk, start, None, 0.0)
    values = torch.stack([cliff(alone({"x": place}, 0)) for place in walk.of("x")])
    assert bool(values.isnan().any()) and float(best.objective) == float(values.nan_to_num(nan=torch.inf).min()) < 50
    assert float(bowl(best.guess)) == float(best.objective)


def test_the_best_is_by_the_objective_and_brings_its_own_distance() -> None:
    best = Best({"x": torch.tensor([[9.0], [9.0]])}, solved=0.0)
    for at, objective, matched in (
        (1.0, [3.0, torch.nan], [0.3, 0.1]),
        (2.0, [2.0, 7.0], [0.8, 0.7]),
        (3.0, [2.5, torch.inf], [0.2, 0.0]),
    ):
        best.see({"x": torch.full((2, 1), at)}, torch.tensor(objective), torch.tensor(matched))
    assert best.guess["x"].tolist() == [[2.0], [2.0]]
    assert best.objective.tolist() == [2.0, 7.0] and best.first.tolist() == [3.0, torch.inf]
    assert best.matched.tolist() == pytest.approx([0.8, 0.7])


# --- the end of a search ---


def test_adam_ends_once_all_are_solved_and_counts_for_each() -> None:
    # By steps of 0.1 from 1 and 3, the squares are below 0.02 at 0.1: after 9 and 29 steps.
    start = {"x": torch.tensor([[1.0], [3.0]], dtype=torch.float64)}
    walk = Walk(bowl)
    best = AdamSearch(1000, 0.1, signed=True, schedule="constant").descend(walk, start, None, 0.02)
    assert best.iterations.tolist() == [9, 29]
    assert len(walk.path) == 50
    assert bool((best.matched < 0.02).all())


def test_adam_goes_on_while_one_is_not_solved() -> None:
    start = {"x": torch.tensor([[1.0], [7.0]], dtype=torch.float64)}
    walk = Walk(bowl)
    best = AdamSearch(120, 0.1, signed=True, schedule="constant").descend(walk, start, None, 0.02)
    assert (best.iterations.tolist(), len(walk.path)) == ([9, 69], 100)
    walk = Walk(bowl)
    best = AdamSearch(60, 0.1, signed=True, schedule="constant").descend(walk, start, None, 0.02)
    assert (best.iterations.tolist(), len(walk.path)) == ([9, 60], 61)


def test_lbfgs_ends_once_all_are_solved_and_counts_outer_steps() -> None:
    start = guesses(2)
    start["x"][1] *= 4  # farther to go
    values = torch.stack([vmap(valley)(place) for place in walked(LBFGS(3), start).path])  # (evaluations, 2)
    solved = float(values[25, 1])
    first = [int((values[:, i] <= solved).nonzero()[0]) for i in range(2)]
    assert first[0] <= 20 < first[1] <= 25
    walk = Walk(valley)
    best = LBFGS(10).descend(walk, start, None, solved)
    assert best.iterations.tolist() == [1, 2]
    assert len(walk.path) == 51  # it looks after 50 evaluations


@pytest.mark.parametrize("descent", [AdamSearch(70, 0.1), LBFGS(4)], ids=["adam", "lbfgs"])
def test_without_a_distance_at_which_to_stop_a_search_goes_on_to_its_end(descent: SearchOptimiser) -> None:
    def below_zero(guess: Guess) -> Tensor:
        return valley(guess) - 1e4

    walk = Walk(below_zero)
    best = descent.descend(walk, guesses(1), None, 0.0)
    assert len(walk.path) == (71 if isinstance(descent, AdamSearch) else 81)
    assert best.iterations.tolist() == [descent.iterations]


# --- the box ---


LOW, HIGH = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)


def corner(guess: Guess) -> Tensor:
    """Least at x = (3, 0.5, -3), which in the box is (1, 0.5, 0), and at w = 3."""
    return ((guess["x"] - torch.tensor([3.0, 0.5, -3.0])) ** 2).sum() + ((guess["w"] - 3.0) ** 2).sum()


@pytest.mark.parametrize("descent", [AdamSearch(200, 0.1), LBFGS(3)], ids=["adam", "lbfgs"])
def test_the_lowest_point_in_the_box_is_found(descent: SearchOptimiser) -> None:
    start = {"x": torch.tensor([[0.1, 0.9, 1.5]], dtype=torch.float64), "w": torch.full((1, 2), 2.5).double()}
    walk = Walk(corner)
    best = descent.descend(walk, start, (LOW, HIGH), 0.0)
    for place in (best.guess["x"][0], walk.of("x")[-1, 0]):
        torch.testing.assert_close(place, torch.tensor([1.0, 0.5, 0.0]).double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(best.guess["w"][0], torch.full((2,), 3.0).double(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("descent", [AdamSearch(20, 0.1), LBFGS(1)], ids=["adam", "lbfgs"])
def test_the_data_never_leave_the_box_and_what_was_given_stays_as_it_is(descent: SearchOptimiser) -> None:
    start = {"x": torch.tensor([[0.1, 0.9, 8.0]], dtype=torch.float64), "w": torch.full((1, 2), 2.5).double()}
    given = {name: value.clone() for name, value in start.items()}
    walk = Walk(corner)
    descent.descend(walk, start, (LOW, HIGH), 0.0)
    torch.testing.assert_close(start, given, rtol=0, atol=0)
    assert bool((walk.of("x") >= LOW).all()) and bool((walk.of("x") <= HIGH).all())


# --- settings ---


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: AdamSearch(0, 0.1), "Expected iterations >= 1, got iterations=0."),
        (lambda: AdamSearch(1, 0.0), "Expected 0 < lr < inf, got lr=0.0."),
        (lambda: LBFGS(0), "Expected iterations >= 1, got iterations=0."),
        (lambda: LBFGS(1, lr=-1.0), "Expected 0 < lr < inf, got lr=-1.0."),
        (lambda: LBFGS(1, inner=0), "Expected inner >= 1, got inner=0."),
        (lambda: LBFGS(1, history=0), "Expected history >= 1, got history=0."),
    ],
)
def test_settings_that_lead_nowhere_are_refused(make: Callable[[], SearchOptimiser], line: str) -> None:
    with pytest.raises(InputError, match=line):
        make()
