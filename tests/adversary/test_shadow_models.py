"""Likelihood ratios from shadow models: the posterior by hand, and few shadows."""

import numpy as np
import pytest
import torch
from scipy import stats

from flfw.adversary.membership.shadow_models import Prior, confidence, excess_ratio, log_density, predictive, prior_of


def test_confidence_is_the_logit_of_the_labels_probability():
    scores = torch.tensor([[1.0, 2.0, 0.0], [50.0, 0.0, 0.0]])
    p = torch.softmax(scores.double(), 1)
    ratios = confidence(scores, torch.tensor([1, 0]))
    assert float(ratios[0]) == pytest.approx(float((p[0, 1] / (1 - p[0, 1])).log()))
    assert float(ratios[1]) == pytest.approx(50 - np.log(2))  # 1 - p is 0 in float32


def test_predictive_by_hand():
    prior = Prior(np.array([0.0, 5.0]), 2.0, counts=1.0, freedom=4.0)
    values = np.array([[2.0, 4.0, np.nan], [np.nan, np.nan, np.nan]])
    freedom, centre, scale = predictive(values, prior)
    # kappa 3, nu 6, mean 3: (4*2 + 2 + 1*2/3 * 9) / 6 = 16/6
    assert freedom.tolist() == [6, 4]
    assert centre.tolist() == [2, 5]
    np.testing.assert_allclose(scale, [(16 / 6 * (1 + 1 / 3)) ** 0.5, (2 * 2) ** 0.5])


def test_the_prior_is_of_all_with_the_variance_within_candidates():
    values = np.array([[1.0, 3.0], [5.0, np.nan], [9.0, 11.0], [np.nan, np.nan]])
    prior = prior_of(values)
    assert prior.mean.tolist() == [29 / 5] * 4
    assert prior.variance == pytest.approx((2 + 2) / 2)


def test_few_shadows_do_not_make_a_candidate_certain():
    """Two equal values have variance 0: a normal distribution of their own would be certain of anything."""
    values = torch.tensor([[1.0, 0.0, 0.5], [1.0, 2.0, 1.5], [1.1, 0.1, 0.6], [1.1, 2.1, 1.6]])
    inside = torch.tensor([False, False, True, True])[:, None].expand(4, 3)
    ratios = excess_ratio(torch.tensor([1.2, 1.0, 1.0]), values, inside)
    assert bool(ratios.isfinite().all())
    assert abs(float(ratios[0])) < 1


def test_a_density_far_from_its_centre_is_that_of_scipy_and_finite_beyond() -> None:
    at = tuple(np.array([value]) for value in (5.0, 1.0, 2.0))
    near = np.array([1.0, 1.5, -40.0])
    assert log_density(near, at) == pytest.approx(stats.t.logpdf(near, 5.0, 1.0, 2.0), rel=1e-12)  # type: ignore[arg-type]
    tiny = tuple(np.array([value]) for value in (5.0, 0.0, 1e-154))
    assert np.isfinite(log_density(np.array([1e10]), tiny)).all()  # type: ignore[arg-type]
    assert np.isnan(log_density(np.array([np.nan]), at)).all()  # type: ignore[arg-type]
