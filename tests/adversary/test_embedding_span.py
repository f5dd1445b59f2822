"""Span of embeddings from a summed gradient: exact up to the width, and nothing of the individual ones."""

from math import pi

import pytest
import torch

from flfw.adversary.secure_aggregation import largest_angles, span_of
from flfw.errors import InputError
from flfw.rng import torch_generator


def _summed(clients: int, parameters: int = 500, width: int = 16):
    rng = torch_generator(0, "embeddings", clients)
    d = torch.randn(clients, parameters, generator=rng)
    v = torch.randn(clients, width, generator=rng)
    return d.T @ v, v


@pytest.mark.parametrize("clients", [1, 3, 10])
def test_the_rank_is_the_number_of_clients_and_their_embeddings_lie_in_the_span(clients):
    gradient, v = _summed(clients)
    span = span_of(gradient)
    assert span.rank == clients
    assert float(largest_angles(span, v).max()) < 1e-4
    assert float(largest_angles(span, torch.randn(1, 16, generator=torch_generator(1, "other")))) > 0.2


def test_with_as_many_clients_as_numbers_the_span_tells_nothing():
    gradient, _ = _summed(30)
    span = span_of(gradient)
    assert span.rank == 16
    assert float(largest_angles(span, torch.eye(16)).max()) < 1e-6


def test_angles_by_hand():
    span = span_of(torch.tensor([[0.0, 2.0, 0.0]]))
    angles = largest_angles(span, torch.tensor([[0.0, 5.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 3.0]]))
    torch.testing.assert_close(angles, torch.tensor([0.0, pi / 4, pi / 2], dtype=torch.float64))


def test_a_gradient_of_zeros_spans_nothing():
    span = span_of(torch.zeros(4, 3))
    assert span.rank == 0
    assert largest_angles(span, torch.eye(3)).tolist() == pytest.approx([pi / 2] * 3)


def test_what_is_no_gradient_is_refused():
    span = span_of(torch.eye(3))
    for call in (
        lambda: span_of(torch.zeros(3)),
        lambda: largest_angles(span, torch.ones(2, 4)),
        lambda: largest_angles(span, torch.zeros(1, 3)),
    ):
        with pytest.raises(InputError, match="Expected "):
            call()
