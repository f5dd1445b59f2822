"""Likelihood ratios from shadow models: the posterior by hand, and the limits of many shadows and of one."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import norm

from flfw.adversary.membership.shadow_models import Prior, confidence, log_density, predictive, prior_of, student_ratio
from flfw.errors import InputError
from flfw.rng import numpy_generator


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


def test_the_prior_is_of_groups_with_the_variance_within_candidates():
    values = np.array([[1.0, 3.0], [5.0, np.nan], [9.0, 11.0], [np.nan, np.nan]])
    prior = prior_of(values, np.array([0, 0, 1, 2]))
    assert prior.mean.tolist() == [3, 3, 10, 29 / 5]
    assert prior.variance == pytest.approx((2 + 2) / 2)


def test_with_many_shadows_it_is_the_ratio_of_two_normal_densities():
    rng, n, shadows = numpy_generator(0, "shadows"), 5, 40_000
    centre, spread = np.arange(n) + 1.0, np.linspace(0.5, 2, n)
    inside = centre[:, None] + 1 + spread[:, None] * rng.normal(size=(n, shadows))
    outside = centre[:, None] + spread[:, None] * rng.normal(size=(n, shadows))
    target = centre + 0.3
    exact = norm.logpdf(target, centre + 1, spread) - norm.logpdf(target, centre, spread)
    np.testing.assert_allclose(student_ratio(target, inside, outside, np.zeros(n, int)), exact, atol=0.06)


def test_with_one_shadow_and_no_insider_the_order_is_that_of_the_excess_over_the_shadow():
    # RMIA's offline order with one reference: by target over reference, here a difference of logarithms.
    target, outside = np.array([2.0, 4.0, 3.0]), np.array([[2.0], [3.5], [1.0]])
    ratios = student_ratio(target, np.full((3, 1), np.nan), outside, np.arange(3))
    assert np.argsort(ratios).tolist() == np.argsort(target - outside[:, 0]).tolist()


def test_few_shadows_do_not_make_a_candidate_certain():
    """Two equal values have variance 0: a normal distribution of their own would be certain of anything."""
    outside = np.array([[1.0, 1.0], [0.0, 2.0], [0.5, 1.5]])
    inside = outside + 0.1
    ratios = student_ratio(np.array([1.2, 1.0, 1.0]), inside, outside, np.zeros(3, int))
    assert np.isfinite(ratios).all()
    assert abs(ratios[0]) < 1


def test_the_ratio_separates_members_from_four_shadows():
    rng, n = numpy_generator(1, "shadows"), 2000
    hard = rng.normal(size=n) * 3  # how hard each candidate is, which drowns membership without shadows
    member = np.arange(n) < n // 2
    target = hard + rng.normal(size=n) + 1.5 * member
    sides = np.tile([True, True, False, False], (n, 1))
    values = hard[:, None] + rng.normal(size=(n, 4)) + 1.5 * sides
    ratios = student_ratio(target, np.where(sides, values, np.nan), np.where(sides, np.nan, values), np.zeros(n, int))
    auc = (ratios[member][:, None] > ratios[~member][None]).mean()
    plain = (target[member][:, None] > target[~member][None]).mean()
    assert auc > 0.72 > 0.65 > plain


def test_no_shadow_without_a_candidate_is_refused():
    with pytest.raises(InputError, match="Expected a shadow model without a candidate"):
        student_ratio(np.zeros(1), np.zeros((1, 1)), np.full((1, 1), np.nan), np.zeros(1, int))
    with pytest.raises(InputError, match="Expected values"):
        student_ratio(np.zeros(2), np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(2, int))


def test_a_density_far_from_its_centre_is_that_of_scipy_and_finite_beyond() -> None:
    at = tuple(np.array([value]) for value in (5.0, 1.0, 2.0))
    near = np.array([1.0, 1.5, -40.0])
    assert log_density(near, at) == pytest.approx(stats.t.logpdf(near, 5.0, 1.0, 2.0), rel=1e-12)  # type: ignore[arg-type]
    tiny = tuple(np.array([value]) for value in (5.0, 0.0, 1e-154))
    assert np.isfinite(log_density(np.array([1e10]), tiny)).all()  # type: ignore[arg-type]
    assert np.isnan(log_density(np.array([np.nan]), at)).all()  # type: ignore[arg-type]
