"""Traced operations: the same numbers for other arguments, what is computed once, and convolutions in other forms."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, conv_transpose2d

from flfw import nets
from flfw.nets import Tensors
from flfw.nets.training import traced as small_convolutions
from flfw.nets.training.traced import Traced
from flfw.rng import initialising, torch_generator
from tests.support import rounds


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(0, "traced", seed, *shape), dtype=torch.float64)


def test_what_does_not_depend_on_x_is_computed_once_for_all_calls() -> None:
    def function(x: Tensor, by: Tensors) -> tuple[Tensor, Tensor]:
        return x * by["a"].exp().sum(), by["a"].cos()

    traced = Traced(function, draw(3), {"a": draw(5)})
    called = [node.target for node in traced._step.graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.aten.mul.Tensor]
    for seed in (1, 2):
        a = draw(5, seed=seed)
        given = traced.given({"a": a})
        for again in (3, 4):
            x = draw(3, seed=again)
            result, other = given(x)
            torch.testing.assert_close(result, x * a.exp().sum())
            torch.testing.assert_close(other, a.cos())


def test_equal_operations_are_done_once_and_needless_ones_not_at_all() -> None:
    def function(x: Tensor) -> tuple[Tensor]:
        x.tan()
        grown = torch.zeros_like(x)
        grown.add_(x.exp()).add_(x.exp())  # in place, which must not count as equal
        return (grown,)

    traced, x = Traced(function, draw(4)), draw(4, seed=1)
    names = [str(node.target) for node in traced._step.graph.nodes if node.op == "call_function"]
    assert names.count("aten.exp.default") == 1 and "aten.tan.default" not in names
    torch.testing.assert_close(traced.given()(x)[0], 2 * x.exp())


@pytest.mark.slow
@pytest.mark.parametrize("maximum", [0, 10**12], ids=["phases", "products"])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (5, 4)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 2), (3, 1)])
def test_convolutions_and_their_gradients_are_torch_s(
    monkeypatch: pytest.MonkeyPatch,
    maximum: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    monkeypatch.setattr(small_convolutions, "_SMALL", maximum)
    for examples, extra in ((1, 0), (2, 1)):
        x, weight, bias = draw(examples, 3, 7, 8), draw(4, 3, *kernel), draw(4)
        d = draw(*conv2d(x, weight, bias, stride, padding).shape, seed=1)
        spread = 0 if stride == (1, 1) else extra  # smaller than the stride

        def function(x: Tensor, w: Tensor, b: Tensor, d: Tensor, spread: int = spread) -> tuple[Tensor, ...]:
            x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
            output = conv2d(x, w, b, stride, padding)
            slopes = torch.autograd.grad(output, [x, w], d, create_graph=True)
            again = torch.autograd.grad([slope.square().sum() for slope in slopes], [x, w])
            if any(size < 1 for size in conv_transpose2d(d, w, None, stride, padding, spread).shape):
                return output, *slopes, *again
            return output, *slopes, *again, conv_transpose2d(d, w, draw(3), stride, padding, spread)

        results = Traced(function, x, weight, bias, d).given(weight, bias, d)(x)
        torch.testing.assert_close(results, function(x, weight, bias, d), rtol=1e-10, atol=1e-10)


def test_groups_holes_and_lines_stay_as_they_are() -> None:
    x, line = draw(2, 4, 9, 9), draw(2, 4, 9)
    grouped, holed, flat = draw(6, 2, 3, 3), draw(5, 4, 3, 3), draw(5, 4, 3)

    def function(x: Tensor, line: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        outputs = conv2d(x, grouped, groups=2), conv2d(x, holed, dilation=2), nn.functional.conv1d(line, flat)
        slopes = torch.autograd.grad([output.square().sum() for output in outputs[:2]], [x])
        return *(output.detach() for output in outputs), *slopes

    torch.testing.assert_close(Traced(function, x, line).given(line)(x), function(x, line))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn1", "lenet5", pytest.param("resnet18", marks=pytest.mark.nightly)])
def test_networks_with_pooling_and_normalisation_are_traced(name: str) -> None:
    shape = {"cnn1": (1, 28, 28), "lenet5": (3, 32, 32), "resnet18": (3, 8, 8)}[name]
    with rounds.exactly(), initialising(0, name):
        net = nets.build(name, shape, 10).eval()
        x, y = draw(2, *shape), torch.tensor([1, 2])
        weights = {key: value.detach() for key, value in net.state_dict().items()}
        moved = [key for key, _ in net.named_parameters()]

        def function(x: Tensor, weights: Tensors) -> tuple[Tensor, ...]:
            x, leaves = x.detach().requires_grad_(), {key: weights[key].detach().requires_grad_() for key in moved}
            loss = nn.functional.cross_entropy(functional_call(net, {**weights, **leaves}, (x,)), y)
            slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
            return torch.autograd.grad([slope.square().sum() for slope in slopes], [x])

        (result,) = Traced(function, x, weights).given(weights)(x)
        torch.testing.assert_close(result, function(x, weights)[0], rtol=1e-8, atol=1e-12)
