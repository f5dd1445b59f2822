"""Measures of a membership attack against scikit-learn, by hand, and the coverage of their intervals."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from flfw.adversary.membership.operating_points import area, at_rate, corrected, smallest_fpr
from flfw.errors import InputError
from flfw.rng import numpy_generator


def test_the_area_of_one_client_is_scikit_learns():
    rng = numpy_generator(0, "scores")
    scores, members = rng.integers(20, size=200) / 4, rng.random(200) < 0.4
    result = area(scores + members, members, np.zeros(200, int), rng)
    assert result.auc == pytest.approx(roc_auc_score(members, scores + members))
    assert result.low is not None and result.high is not None
    assert result.low < result.auc < result.high


def test_members_are_compared_within_their_client():
    scores = np.array([1.0, 0.0, 101.0, 100.0])  # the second client's scores have another scale
    members = np.array([True, False, True, False])
    assert area(scores, members, np.array([0, 0, 1, 1]), numpy_generator(0, "draws")).auc == 1


def test_clients_that_differ_make_the_interval_wide():
    """Members are all found at one client and never at the other: little is known of a third."""
    groups, members = np.repeat([0, 1], 40), np.arange(80) % 2 == 0
    scores = np.where(groups == 0, 1.0, -1.0) * members
    result = area(scores, members, groups, numpy_generator(0, "draws"))
    assert (result.low, result.auc, result.high) == (0.0, 0.5, 1.0)


def test_one_pair_has_no_interval():
    result = area(np.array([1.0, 0.0]), np.array([True, False]), np.zeros(2, int), numpy_generator(0, "draws"))
    assert (result.auc, result.low, result.high) == (1.0, None, None)


def test_scores_that_all_tie_show_nothing():
    result = area(np.ones(40), np.arange(40) < 20, np.zeros(40, int), numpy_generator(0, "draws"))
    assert (result.low, result.auc, result.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("clients", [1, 10])
def test_the_areas_interval_covers_a_half_under_the_null_in_about_95_percent(clients):
    rng, covered, trials = numpy_generator(0, "null", clients), 0, 300
    groups = np.repeat(np.arange(clients), 40)
    members = np.arange(len(groups)) % 2 == 0
    for _ in range(trials):
        result = area(rng.normal(size=len(groups)), members, groups, rng, draws=200)
        assert result.low is not None and result.high is not None
        covered += result.low <= 0.5 <= result.high
    assert 0.9 < covered / trials <= 1


def test_an_operating_point_by_hand():
    others = np.arange(1000.0)
    members = np.concatenate([np.full(30, 2000.0), np.full(70, -1.0)])
    point = at_rate(members, others, 0.01)
    assert (point.fpr, point.tpr, point.members, point.others) == (0.01, 0.3, 100, 1000)
    assert point.tpr_low < 0.3 < point.tpr_high
    assert 0.017 < point.fpr_high < 0.02


@pytest.mark.slow
def test_the_false_positive_rates_upper_end_holds_in_975_of_1000_sets():
    """The threshold is chosen on the same non-members: a Clopper-Pearson interval would not be exact."""
    rng, trials = numpy_generator(0, "thresholds"), 4000
    held = 0
    for _ in range(trials):
        others = rng.random(200)
        point = at_rate(np.ones(1), others, 0.05)
        true_rate = 1 - np.sort(others)[200 - 10 - 1]
        held += true_rate <= point.fpr_high
    assert 0.97 < held / trials < 0.98


def test_ties_do_not_make_the_rate_larger_than_asked():
    point = at_rate(np.array([1.0, 1.0]), np.array([1.0] * 50 + [0.0] * 50), 0.2)
    assert (point.fpr, point.tpr) == (0.0, 0.0)


def test_a_rate_that_the_non_members_cannot_show_is_refused():
    assert smallest_fpr(300) == pytest.approx(1 / 30)
    assert smallest_fpr(5) == 1
    with pytest.raises(InputError, match=r"Expected 0.0333 <= rate < 1 with 300 non-members, got rate=0.001"):
        at_rate(np.zeros(300), np.zeros(300), 0.001)


def test_more_tests_need_a_larger_confidence_and_show_less():
    members, others = np.full(300, 2.0), np.arange(300.0) / 300
    one, ten = (at_rate(members, others, 0.1, corrected(tests)) for tests in (1, 10))
    assert ten.tpr_low / ten.fpr_high < one.tpr_low / one.fpr_high


def test_scores_that_are_none_are_refused():
    for members, others in (([np.nan], [0.0] * 20), ([], [0.0] * 20), ([1.0], [])):
        with pytest.raises(InputError, match="Expected "):
            at_rate(np.array(members), np.array(others), 0.5)
    with pytest.raises(InputError, match="Expected members and non-members"):
        area(np.zeros(2), np.array([True, True]), np.zeros(2, int), numpy_generator(0, "draws"))
