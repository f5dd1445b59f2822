"""What a search computes once: everything that the guess does not change, with the same bits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.utils._python_dispatch import TorchDispatchMode

from flfw.inversion import graph
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.graph import Graph, kept_bytes

HERE = ComputeLimits()
WEIGHT = torch.arange(12.0).view(3, 4) / 7


class Counting(TorchDispatchMode):
    """Mode that counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function).split(".")[1])
        return function(*args, **(kwargs or {}))


def distance(guess: dict[str, Tensor], given: dict[str, Tensor]) -> Tensor:
    """Compute a distance with parts that only the weight (exp), and only the observation (sqrt), determine."""
    at = torch.tanh(guess["x"] @ WEIGHT.exp())
    return (at - given["observed"]).square().sum() / given["observed"].square().sum().sqrt()


def stacked(count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    rng = torch.Generator().manual_seed(3)
    return {"x": torch.randn(count, 2, 3, generator=rng)}, {"observed": torch.randn(count, 2, 4, generator=rng)}


def made(light: bool, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.setattr(graph, "LIGHT", 1e9 if light else -1)
    guess, given = stacked(1)
    return Graph(grad_and_value(distance), ({"x": guess["x"][0]}, {"observed": given["observed"][0]}), HERE)


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_it_is_the_whole_function_to_the_bit(light: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    each = made(light, monkeypatch)
    guess, given = stacked(count)
    function = each.given(given)
    for scale in (1, 2):  # the second call uses what the first one kept
        at = {"x": scale * guess["x"]}
        whole, part = each(at, given), function(at)
        assert torch.equal(part[0]["x"], whole[0]["x"]) and torch.equal(part[1], whole[1])
        for i in range(count):
            alone = distance({"x": at["x"][i]}, {"observed": given["observed"][i]})
            assert torch.allclose(part[1][i], alone)


@pytest.mark.parametrize("light", [True, False])
def test_what_the_guess_does_not_change_is_computed_once(light: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    guess, given = stacked(3)
    each = made(light, monkeypatch)
    function = each.given(given)
    function(guess)
    with Counting() as counting:
        function(guess)
    assert "tanh" in counting.seen and "sqrt" not in counting.seen and "exp" not in counting.seen
    with Counting() as counting:
        each.given({"observed": 2 * given["observed"]})(guess)
    assert counting.seen.count("sqrt") == (1 if light else 3)  # a norm for each observation
    assert "exp" not in counting.seen  # the weight is that of all problems


def test_operations_in_place_change_no_kept_result() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        kept = y * 2
        kept.add_(1)
        return x + kept.mul_(x)

    x, y = torch.tensor([[3.0]]), torch.tensor([[5.0]])
    both = Graph(function, (x[0], y[0]), HERE).given(y)
    assert [float(both(x)), float(both(x)), float(both(2 * x))] == [36.0, 36.0, 72.0]  # x + (2 y + 1) x


def test_another_order_of_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    each = Graph(lambda guess, y: guess["a"] - guess["b"] * y, ({"a": WEIGHT, "b": WEIGHT}, WEIGHT), HERE)
    function = each.given(WEIGHT[None])
    function({"a": WEIGHT[None], "b": WEIGHT[None]})
    with pytest.raises(AssertionError, match="in their order"):
        function({"b": WEIGHT[None], "a": WEIGHT[None]})


def test_memory_of_kept_results_is_that_of_other_inputs_without_views() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x @ (y.exp() * 2)).sum() + (x @ y.t().t()).sum() + (x @ WEIGHT.exp()).sum()

    traced = graph._listed(function, (torch.zeros(2, 3), torch.zeros(3, 4))).operations
    assert kept_bytes(traced, 1) == 4 * 12  # y.exp() * 2; the weight's are not of a problem
    assert kept_bytes(traced, 2) == 0
