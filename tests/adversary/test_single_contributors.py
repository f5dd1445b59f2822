"""Coordinates with one contributor, counted by hand and against independent supports."""

import pytest
import torch

from flfw.adversary.secure_aggregation import contributors, expected_exposed_share, exposed_share
from flfw.errors import InputError
from flfw.rng import torch_generator


def test_contributors_by_hand():
    first = {"a": torch.tensor([[1.0, 0.0], [0.0, -2.0]]), "b": torch.tensor([0.0])}
    second = {"a": torch.tensor([[1.0, 0.0], [3.0, 0.0]]), "b": torch.tensor([0.0])}
    counts = contributors([first, second])
    assert counts["a"].tolist() == [[2, 0], [1, 1]]
    assert counts["b"].tolist() == [0]
    assert exposed_share([first, second]) == 2 / 5


def test_independent_supports_have_the_expected_share():
    rng = torch_generator(0, "supports")
    updates = [{"w": (torch.rand(100_000, generator=rng) < 0.1).float()} for _ in range(10)]
    assert exposed_share(updates) == pytest.approx(expected_exposed_share(0.1, 10), abs=0.01)


def test_one_client_alone_is_exposed_where_it_is_not_zero():
    assert exposed_share([{"w": torch.tensor([0.0, 4.0])}]) == 0.5


def test_what_is_no_round_is_refused():
    with pytest.raises(InputError, match="Expected at least one update"):
        contributors([])
    with pytest.raises(InputError, match="Expected the same tensors in all updates"):
        contributors([{"w": torch.zeros(2)}, {"w": torch.zeros(3)}])
    with pytest.raises(InputError, match="Expected 0 <= kept <= 1"):
        expected_exposed_share(1.5, 2)
