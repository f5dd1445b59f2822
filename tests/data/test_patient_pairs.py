"""Pairs of patients, and an attack's scores of examples as a score of a patient."""

import numpy as np
import pytest

from flfw.data.membership_pairs import draw_patient_pairs, patient_scores
from flfw.errors import InputError

# patients 1 and 4: two of class 0; 2 and 3: one of each; 5: one of class 0
LABELS = np.array([0, 0, 0, 0, 0, 1, 0, 1, 0])
PATIENTS = np.array([1, 1, 4, 4, 2, 2, 3, 3, 5])


def test_patients_are_paired_with_the_nearest_mix_and_no_one_twice() -> None:
    for seed in range(20):
        pairs = draw_patient_pairs(LABELS, PATIENTS, np.random.default_rng(seed))
        both = np.concatenate([pairs.members, pairs.held_out])
        assert len(np.unique(both)) == len(both) == 4
        if 5 not in both:
            alike = {frozenset(pair) for pair in zip(pairs.members.tolist(), pairs.held_out.tolist(), strict=True)}
            assert alike == {frozenset({1, 4}), frozenset({2, 3})}
            assert pairs.unlike.tolist() == [0, 0]
        best = draw_patient_pairs(LABELS, PATIENTS, np.random.default_rng(seed), maximum=1)
        assert (len(best.members), best.unlike.tolist()) == (1, [pairs.unlike.min()])


def test_the_coin_of_a_pair_is_fair() -> None:
    labels, patients = np.zeros(3, np.int64), np.array([7, 7, 9])  # of other sizes, so that only the coin hides which
    drawn = [int(draw_patient_pairs(labels, patients, np.random.default_rng(seed)).members[0]) for seed in range(400)]
    assert 160 <= drawn.count(7) <= 240  # four deviations
    assert draw_patient_pairs(labels, patients, np.random.default_rng(0)).unlike.tolist() == [1]


def test_a_patients_score_is_the_mean_of_z_scores_within_classes() -> None:
    """Class 0 has 1, 3 (mean 2), class 1 has 10, 14 (mean 12): differences -1, 1, -2, 2, deviation sqrt(2.5)."""
    each, scores = patient_scores(np.array([1.0, 3.0, 10.0, 14.0]), np.array([0, 0, 1, 1]), np.array([5, 5, 5, 8]))
    assert each.tolist() == [5, 8]
    assert scores.tolist() == pytest.approx([-2 / 3 / np.sqrt(2.5), 2 / np.sqrt(2.5)])
    assert patient_scores(np.ones(3), np.zeros(3, int), np.array([1, 1, 2]))[1].tolist() == [0.0, 0.0]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="finite scores"):
        patient_scores(np.array([np.nan]), np.zeros(1, int), np.zeros(1, int))
    with pytest.raises(InputError, match="a patient for each label"):
        draw_patient_pairs(LABELS, PATIENTS[1:], np.random.default_rng(0))
    with pytest.raises(InputError, match="most >= 1"):
        draw_patient_pairs(LABELS, PATIENTS, np.random.default_rng(0), maximum=0)
