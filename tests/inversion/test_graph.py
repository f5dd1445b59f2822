"""Functions as flat lists of operations: the same numbers together, one by one and compiled; and their memory."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import conv2d

from flfw.errors import InputError
from flfw.inversion import graph
from flfw.inversion.client_models.batch_statistics import normalise_by_batch
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.compute import ComputeLimits, compiler
from flfw.inversion.graph import Graph, peak_bytes
from flfw.inversion.matching import Guess, cosine_distance
from flfw.inversion.search import SearchConfig, SearchResult, SearchTarget, invert
from flfw.inversion.search_optimisers import AdamSearch, Best, Evaluate, SearchOptimiser
from flfw.nets import Net, Tensors, tensors
from flfw.nets.backbones.freezing import freeze
from flfw.nets.inputs import InputSpec
from flfw.rng import initialising, torch_generator
from tests.support.attackable import digit_inputs, digits

HERE = ComputeLimits()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_generator(0, "graph", seed))


# --- the same numbers ---


def bent(at: Tensors, by: dict[str, Tensors]) -> tuple[Tensors, Tensor]:
    """A gradient and a value, of nested records, as an objective has them."""

    def value(at: Tensors) -> Tensor:
        return (at["x"] @ by["constants"]["a"]).sin().sum() + (at["y"] ** 3).sum()

    return grad_and_value(value)(at)


def records(count: int) -> tuple[Tensors, dict[str, Tensors]]:
    at = {"x": randn(count, 2, 3), "y": randn(count, 4, seed=1)}
    return at, {"constants": {"a": randn(count, 3, 5, seed=2)}}


def one(many: tuple[Tensors, dict[str, Tensors]], i: int) -> tuple[Tensors, dict[str, Tensors]]:
    at, by = many
    return {n: v[i] for n, v in at.items()}, {"constants": {n: v[i] for n, v in by["constants"].items()}}


@pytest.mark.parametrize("light", [True, False])
def test_problems_together_one_by_one_and_by_a_call_of_the_function_are_the_same(
    light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "LIGHT", 1e9 if light else -1)
    made = Graph(bent, one(records(1), 0), HERE)
    assert made.light == light
    for count in (3, 1, 2):  # one graph for all of them
        many = records(count)
        gradients, values = made(*many)
        assert values.shape == (count,) and not values.requires_grad
        for i in range(count):
            expected_gradients, expected = bent(*one(many, i))
            torch.testing.assert_close(values[i], expected)
            for name in ("x", "y"):
                torch.testing.assert_close(gradients[name][i], expected_gradients[name])


@pytest.mark.parametrize("light", [True, False])
def test_a_graph_is_traced_once_for_each_count_or_where_it_is_not_light_once(
    light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "LIGHT", 0 if light else -1)
    calls = []

    def noted(x: Tensor, y: Tensor) -> Tensor:
        calls.append(tuple(x.shape))
        return x * y

    made = Graph(noted, (randn(3), randn(3)), HERE)
    for count in (2, 2, 1, 1, 2):
        x, y = randn(count, 3), randn(count, 3, seed=1)
        assert torch.equal(made(x, y), x * y)
        assert torch.equal(made.given(y)(x), x * y)
    assert len(calls) == 1 + light  # one problem, and two together


@pytest.mark.parametrize("spare", [0, -1])
def test_what_is_light_is_counted_in_products(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # (2, 3) @ (3, 4): 2 * 2 * 3 * 4 = 48, and 2 images x 5 filters x 16 places x 9 weights x 2 = 2880.
    def products(a: Tensor, b: Tensor, images: Tensor, filters: Tensor) -> Tensor:
        return (a @ b).sum() + torch.conv2d(images, filters).sum()

    monkeypatch.setattr(graph, "LIGHT", 48 + 2880 + spare)
    made = Graph(products, (randn(2, 3), randn(3, 4), randn(2, 1, 6, 6), randn(5, 1, 3, 3)), HERE)
    assert made.light == (spare == 0)


@pytest.mark.parametrize("spare", [0, -1])
def test_on_a_cpu_a_problem_larger_than_the_cache_is_not_light(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "CACHED", 4 * 8 + spare)
    assert Graph(lambda x, a: x @ a, (randn(2, 3), randn(3, 4)), HERE).light == (spare == 0)


def test_operations_without_a_reader_are_dropped_and_the_bits_stay() -> None:
    weights = {"first": randn(3, 1, 3, 3), "second": randn(2, 3, 3, 3, seed=1)}

    def loss(x: Tensor, weights: Tensors) -> Tensor:
        return conv2d(torch.tanh(conv2d(x, weights["first"])), weights["second"]).square().sum()

    def matched(x: Tensor) -> Tensor:
        return sum((part.square().sum() for part in grad(lambda w: loss(x, w))(weights).values()), torch.zeros(()))

    function = grad_and_value(matched)
    x = randn(1, 1, 6, 6, seed=2)
    whole = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    lean = graph._listed(function, (x,)).operations
    unread = [len([n for n in made.graph.nodes if n.op == "call_function" and not n.users]) for made in (whole, lean)]
    assert unread[0] > 0 == unread[1]
    assert all(torch.equal(a, b) for a, b in zip(whole(x), lean(x), strict=True))


# --- memory ---


def peak(function: Callable[..., Any], *given: Tensor) -> int:
    return peak_bytes(make_fx(function, tracing_mode="fake")(*given))


def test_peak_of_two_products_by_hand() -> None:
    x, a, b = randn(2, 3), randn(3, 4), randn(4, 5)
    assert peak(lambda x, a, b: (x @ a) @ b, x, a, b) == 4 * (8 + 10)  # both are there; what was given does not count
    assert peak(lambda x, a, b: (x @ a) @ b, x.double(), a.double(), b.double()) == 8 * (8 + 10)
    assert peak(lambda x, a, b: x @ a, x, a, b) == 4 * 8


def test_peak_forgets_what_is_no_longer_needed_and_not_what_is() -> None:
    x, a, b, c = randn(2, 3), randn(3, 4), randn(4, 5), randn(5, 6)
    assert peak(lambda x, a, b, c: ((x @ a) @ b) @ c, x, a, b, c) == 4 * (10 + 12)  # the first 8 are gone

    def kept(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        first = x @ a
        return (first @ b) @ c, first

    assert peak(kept, x, a, b, c) == 4 * (8 + 10 + 12)


def test_peak_lies_where_it_was_and_not_at_the_end() -> None:
    a, b = randn(1, 10), randn(10, 1)
    assert peak(lambda a, b: (b @ a).sum(), a, b) == 4 * (100 + 1)
    assert peak(lambda a, b: (b @ a).sum() + (a @ b).sum(), a, b) == 4 * (100 + 1)


def test_a_view_takes_no_memory() -> None:
    x, a = randn(2, 3), randn(3, 4)
    assert peak(lambda x, a: x.t()[0] @ a.view(-1)[:2], x, a) == 4


def test_a_view_keeps_what_it_shows() -> None:
    x, a, b = randn(2, 3), randn(3, 4), randn(2, 5)
    assert peak(lambda x, a, b: (x @ a).t() @ b, x, a, b) == 4 * (8 + 20)


INPUTS = InputSpec.from_constants((1, 6, 6), (0.5,), (0.25,))


def victim() -> PlainVictim:
    """6x6 pixels -> 2 channels of 4x4 -> 3 classes."""
    with initialising(0, "graph"):
        net = Net(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten()), nn.Linear(32, 3))
    return PlainVictim(net, tensors(net), ("*",), INPUTS)


def targets(given: PlainVictim, count: int) -> list[SearchTarget]:
    many = []
    for i in range(count):
        x, y = torch.rand((2, 1, 6, 6), generator=torch_generator(0, "images", i)), torch.tensor([i % 3, 0])
        sent = {name: value.detach() for name, value in given.gradient(x, y, {}, {}).items()}
        many.append(SearchTarget(sent, y, torch_generator(0, "start", i)))
    return many


@final
@dataclass(frozen=True)
class Counted(SearchOptimiser):
    """Another descent, and how many problems it was given at a time."""

    inner: SearchOptimiser
    iterations: int = 1
    counts: list[int] = field(default_factory=list)

    def descend(self, evaluate: Evaluate, guess: Guess, box: tuple[Tensor, Tensor] | None, solved: float) -> Best:
        self.counts.append(len(guess["x"]))
        return self.inner.descend(evaluate, guess, box, solved)


def searched(count: int, compute: ComputeLimits) -> tuple[list[SearchResult], Sequence[int]]:
    model, descent = victim(), Counted(AdamSearch(5, 0.1))
    return invert(model, targets(model, count), SearchConfig(cosine_distance, descent), compute=compute), descent.counts


def small_machine() -> AbstractContextManager[Any]:
    return patch("flfw.inversion.evaluation.machine_gb", return_value=1e-9)


def needed() -> float:
    """GB of one search's step, as the refusal of a smaller bound says."""
    with pytest.raises(InputError) as refused, small_machine():
        searched(1, HERE)
    return float(str(refused.value).split(" takes ")[1].split(" GB")[0])


def assert_alike(many: Sequence[SearchResult], others: Sequence[SearchResult]) -> None:
    assert len(many) == len(others)
    for result, other in zip(many, others, strict=True):
        torch.testing.assert_close(result.samples, other.samples, rtol=0, atol=1e-4)
        assert result.matching_loss == pytest.approx(other.matching_loss, abs=1e-5)


@pytest.mark.slow
def test_one_search_that_does_not_fit_is_refused_in_one_line() -> None:
    line = (
        r"Expected a search whose step fits into 1e-09 GB, got a batch of 2 that takes \S+ GB; "
        r"lower --victim-batch or --victim-steps\."
    )
    with pytest.raises(InputError, match=f"^{line}$"), small_machine():
        searched(1, HERE)
    pictures = 2 * 6 * 6 * 4  # bytes of a guess: its step takes several times that, and not thousands of times
    assert 4 * pictures < needed() * 1e9 < 100 * pictures


@pytest.mark.slow
def test_searches_that_do_not_fit_together_are_done_in_like_chunks_with_the_same_result() -> None:
    whole, counts = searched(5, HERE)
    assert counts == [5]
    parts, counts = searched(5, ComputeLimits(memory_gb=4.5 * needed()))
    assert counts == [3, 2]  # where four would fit
    assert_alike(parts, whole)


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="Expected memory_gb > 0, got memory_gb=0"):
        ComputeLimits(memory_gb=0)


# --- the compiler ---


@pytest.mark.nightly
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler is here: install g++")
@pytest.mark.parametrize("light", [True, False])
def test_compiled_is_uncompiled(light: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "LIGHT", 1e9 if light else -1)
    compiled, _ = searched(2, ComputeLimits(compiled=True))
    assert_alike(compiled, searched(2, HERE)[0])


@pytest.mark.slow
def test_a_search_in_bfloat16_is_near_that_in_float32_and_another() -> None:
    rough, exact = (searched(2, ComputeLimits(precision=precision))[0] for precision in ("bf16", "float32"))
    for a, b in zip(rough, exact, strict=True):
        assert a.samples.dtype == torch.float32
        assert 0 < float((a.samples - b.samples).abs().mean()) < 0.2


def test_tensorfloat_is_refused_where_no_gpu_searches() -> None:
    line = "Expected --expert attack_precision=float32 or bf16 where no GPU searches, got attack_precision=tf32."
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        searched(2, ComputeLimits(precision="tf32"))


@pytest.mark.parametrize("held", [True, False])
def test_a_frozen_layer_computes_in_bfloat16_as_well(held: bool) -> None:
    """Frozen tensors are in no ``state_dict``, as are the running statistics that no attacker holds."""
    with initialising(0, "net"):
        layers = [nn.Conv2d(1, 4, 8), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten()]
        net = Net(nn.Sequential(*layers), nn.Linear(4, 10))
    if held:
        freeze(net.extractor)
    known = {name: value for name, value in tensors(net).items() if "running" not in name}
    exact = PlainVictim(net, known, ("*",), digit_inputs(8))
    normalise_by_batch(exact)
    x, y = digits(0, 1, 8)
    close, rough = (one.gradient(x, y, {}, {}) for one in (exact, exact.reduced(torch.bfloat16)))
    assert close.keys() == rough.keys() and (len(close) == 2) == held
    for name, value in rough.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, close[name], rtol=0.1, atol=0.02 * float(close[name].abs().max()))


@pytest.mark.slow
def test_without_a_compiler_a_search_says_so_and_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected, _ = searched(2, HERE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(RuntimeWarning, match=r"Expected a C\+\+ compiler \(g\+\+, clang\+\+ or \$CXX\)"):
        result, _ = searched(2, ComputeLimits(compiled=True))
    assert_alike(result, expected)


def test_the_compiler_is_the_one_that_is_named_or_a_usual_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("g++", "clang++", "other"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiler() == os.fspath(tmp_path / "g++")
    monkeypatch.setenv("CXX", "other")
    assert compiler() == os.fspath(tmp_path / "other")
    monkeypatch.setenv("CXX", "none such")
    assert compiler() is None
    monkeypatch.delenv("CXX")
    (tmp_path / "g++").unlink()
    assert compiler() == os.fspath(tmp_path / "clang++")
