"""Tensors that all problems of a graph share: where they are larger than the results, problems run together."""

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn.functional import conv2d

from flfw.inversion import graph
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.graph import Graph, constant_bytes
from flfw.rng import torch_generator

SHARED = torch.randn(40, 8, generator=torch_generator(0, "shared tensor"))  # 1,280 bytes


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "CACHED", 64)


def generated(x: Tensor) -> Tensor:
    return (SHARED @ x).sin()


def test_constants_are_counted_once_and_inputs_are_none() -> None:
    x = SHARED[0]
    twice = graph._listed(lambda x: (SHARED @ x) * (SHARED @ (x + 1)), (x,)).operations
    assert constant_bytes(twice) == 40 * 8 * 4
    assert constant_bytes(graph._listed(lambda x, shared: shared @ x, (x, SHARED)).operations) == 0


def test_problems_that_read_a_large_shared_tensor_run_together_and_those_with_one_each_do_not() -> None:
    x = SHARED[0]
    assert Graph(generated, (x,), ComputeLimits()).light
    assert not Graph(lambda x, tensor: (tensor @ x).sin(), (x, SHARED), ComputeLimits()).light
    few = SHARED[:, :2].contiguous()  # 320 bytes, no more than the results
    assert not Graph(lambda x: (few @ x).sin(), (x[:2],), ComputeLimits()).light


def test_convolutions_beside_a_shared_tensor_keep_problems_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def convolved(x: Tensor) -> Tensor:
        kernel, image = generated(x)[:4].view(1, 1, 2, 2), x.view(1, 1, 2, 4)
        return conv2d(image, kernel)  # 3 places of 4 products: 24 operations, beside 640 of the product

    monkeypatch.setattr(graph, "LIGHT", 24)
    assert Graph(convolved, (SHARED[0],), ComputeLimits()).light
    monkeypatch.setattr(graph, "LIGHT", 23)
    assert not Graph(convolved, (SHARED[0],), ComputeLimits()).light


def test_gradients_together_are_those_one_by_one() -> None:
    made = Graph(grad_and_value(lambda x: generated(x).square().sum()), (SHARED[0],), ComputeLimits())
    many = SHARED[:3]
    gradients, values = made(many)
    for i in range(3):
        gradient, value = grad_and_value(lambda x: generated(x).square().sum())(many[i])
        torch.testing.assert_close(gradients[i], gradient)
        torch.testing.assert_close(values[i], value)
