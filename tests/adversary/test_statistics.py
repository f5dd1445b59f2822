"""Statistics of a candidate, with numbers that can be checked by hand."""

import numpy as np
import pytest
import torch

from flfw.adversary.membership.gradients import Products
from flfw.adversary.membership.statistics import (
    against_others,
    cosine,
    excess_loss_drop,
    fedmia,
    gradient_difference,
    label_only,
    trajectory,
)
from flfw.errors import InputError

PRODUCTS = Products(torch.zeros(3), torch.tensor([6.0, -2.0, 0.0]), torch.tensor([2.0, 1.0, 0.0]), 3.0)


def test_cosine_and_gradient_difference():
    torch.testing.assert_close(cosine(PRODUCTS), torch.tensor([1.0, -2 / 3, 0.0]))
    assert gradient_difference(PRODUCTS).tolist() == [8.0, -5.0, 0.0]


def test_gradient_difference_is_the_difference_of_two_squared_lengths():
    g, u = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    seen = Products(torch.zeros(1), (g @ u)[None], g.norm()[None], float(u.norm()))
    torch.testing.assert_close(gradient_difference(seen)[0], u @ u - (u - g) @ (u - g))


def test_excess_loss_drop_leaves_out_what_all_clients_learn():
    before, after = torch.tensor([2.0, 2.0]), torch.tensor([0.5, 1.5])
    others = torch.tensor([[1.5, 1.5], [1.3, 1.7]])
    torch.testing.assert_close(excess_loss_drop(before, after, others), torch.tensor([0.9, 0.1]))


def test_against_others_with_each_candidates_own_variance():
    others = torch.tensor([[0.0, 10.0], [2.0, 14.0]])  # means 1 and 12, variances 2 and 8
    scores = against_others(torch.tensor([3.0, 12.0]), others)
    torch.testing.assert_close(scores, torch.tensor([2 / 2**0.5, 0.0]))


def test_a_trajectory_of_independent_z_scores_is_a_z_score():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 20_000, generator=rng)
    assert float(trajectory(scores).std()) == pytest.approx(1, abs=0.02)
    assert trajectory(torch.tensor([[3.0], [1.0]])).item() == pytest.approx(4 / 2**0.5)


def test_fedmia_against_a_small_loop():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    target, others = rng.normal(size=3), rng.normal(size=(4, 3))
    z = fedmia(torch.from_numpy(target), torch.from_numpy(others))
    for n in range(3):
        column = others[:, n]
        expected = norm.cdf((target[n] - column.mean()) / (column.var(ddof=1) + 1e-8) ** 0.5)
        assert float(z[n]) == pytest.approx(expected)


def test_label_only_is_the_share_of_members_in_a_class():
    z = label_only(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1]))
    torch.testing.assert_close(z, torch.tensor([0.75, 0.5, 0.0], dtype=torch.float64))


def test_shapes_that_do_not_belong_together_are_refused():
    two, three = torch.zeros(2), torch.zeros(3)
    for call in (
        lambda: excess_loss_drop(two, two, torch.zeros(0, 2)),
        lambda: excess_loss_drop(two, three, torch.zeros(1, 2)),
        lambda: against_others(two, torch.zeros(1, 2)),
        lambda: against_others(two, torch.zeros(3, 3)),
        lambda: trajectory(torch.zeros(0, 2)),
    ):
        with pytest.raises(InputError, match="Expected "):
            call()
