"""Whitened projection: by hand, against the likelihood ratio of normal gradients, and against its own prediction."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from flfw.adversary.membership.informed import effective_dimension
from flfw.adversary.membership.statistics import Whitening
from flfw.errors import InputError
from flfw.rng import numpy_generator

LOUD = torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64)


def _gradients(count: int, seed: int) -> torch.Tensor:
    """Gradients with one loud direction, around a mean that is not 0."""
    return torch.from_numpy(numpy_generator(seed, "gradients").normal(size=(count, 4))) * LOUD + 3


def test_scores_by_hand():
    public = torch.tensor([[4.0, 1.0], [-4.0, 1.0], [0.0, 3.0], [0.0, -1.0]])  # mean (0, 1), variances 32/3 and 8/3
    fitted = Whitening.fit(public, ridge=1e-12)
    scores = fitted.scores(torch.tensor([[4.0, 1.0], [0.0, 5.0], [0.0, 1.0]]), torch.tensor([2.0, 2.0]))
    # (g - m) / (variances) (u - m), over sqrt((g - m)^2 / variance)
    expected = [8 * 3 / 32 / (16 * 3 / 32) ** 0.5, 4 * 3 / 8 / (16 * 3 / 8) ** 0.5, 0.0]
    np.testing.assert_allclose(scores, expected, rtol=1e-9)


def test_it_finds_members_where_the_cosine_is_drowned_by_one_loud_direction():
    fitted, n = Whitening.fit(_gradients(4000, 0)), 8
    whitened, plain = [], []
    for trial in range(400):
        members, others = _gradients(n, 2 * trial + 1), _gradients(n, 2 * trial + 2)
        update = members.mean(0)
        for scores, areas in (
            (fitted.scores(torch.cat([members, others]), update), whitened),
            (torch.cosine_similarity(torch.cat([members, others]), update[None]), plain),
        ):
            areas.append(float((scores[:n, None] > scores[None, n:]).double().mean()))
    assert np.mean(whitened) > np.mean(plain) + 0.05
    assert abs(np.mean(whitened) - NormalDist().cdf((4 / (2 * n)) ** 0.5)) < 0.03


def test_the_effective_dimension_is_that_of_the_space_for_normal_gradients():
    fitted = Whitening.fit(_gradients(4000, 0))
    assert effective_dimension(fitted, _gradients(2000, 1), 0.0) == pytest.approx(4, rel=0.05)


def test_the_effective_dimension_of_few_examples_by_a_loop_over_pairs():
    fitted, others = Whitening.fit(_gradients(50, 0)), _gradients(3, 1)
    rows = fitted.whitened(others)
    shares = [float(rows[i] @ rows[j]) ** 2 / float(rows[i] @ rows[i]) for i in range(3) for j in range(3) if i != j]
    expected = float((rows * rows).sum(1).mean()) / np.mean(shares)
    assert effective_dimension(fitted, others, 0.0) == pytest.approx(expected)


def test_the_effective_dimension_is_small_where_few_examples_are_loud():
    tails = torch.from_numpy(numpy_generator(0, "tails").standard_t(2.5, size=(4000, 1)))
    heavy = _gradients(4000, 1) * tails
    assert effective_dimension(Whitening.fit(heavy[:2000]), heavy[2000:], 0.0) < 4


def test_known_noise_makes_directions_quiet_that_it_drowns():
    public = _gradients(4000, 0) - 3
    fitted = Whitening.fit(public, ridge=1e-12, noise=99.0)
    variances = torch.diagonal(fitted.factor @ fitted.factor.T)
    torch.testing.assert_close(variances, public.var(0) + 99, rtol=1e-6, atol=0)


def test_gradients_that_are_all_alike_give_no_score_and_no_error():
    assert Whitening.fit(torch.ones(3, 2)).scores(torch.ones(2, 2), torch.ones(2)).tolist() == [0, 0]


def test_values_out_of_range_are_refused():
    for call, words in (
        (lambda: Whitening.fit(torch.ones(1, 2)), "at least 2 public examples, got public=1"),
        (lambda: Whitening.fit(torch.ones(2, 2), ridge=0.0), "ridge > 0, got ridge=0.0"),
        (lambda: Whitening.fit(torch.ones(2, 2), noise=-1.0), "noise >= 0, got noise=-1.0"),
        (
            lambda: effective_dimension(Whitening.fit(_gradients(9, 0)), _gradients(1, 1), 0.0),
            "at least 2 public examples",
        ),
    ):
        with pytest.raises(InputError, match=words):
            call()
