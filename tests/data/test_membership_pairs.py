"""Pairs of the membership game: classes match, coins are fair, guesses are counted."""

import numpy as np
import pytest

from flfw.data.membership_pairs import correct_pairs, draw_pairs
from flfw.errors import InputError
from flfw.privacy.lower_bound import lower_bound
from flfw.rng import numpy_generator


def test_pairs_are_of_one_class_and_no_example_is_in_two():
    labels = np.array([0, 0, 0, 1, 1, 2, 0, 1, 1])
    pairs = draw_pairs(np.arange(9) + 100, labels, numpy_generator(0, "pairs"))
    assert len(pairs.members) == len(pairs.held_out) == 4  # two of class 0, two of class 1; class 2 has one example
    assert (labels[pairs.members - 100] == labels[pairs.held_out - 100]).all()
    assert len(np.unique(np.concatenate([pairs.members, pairs.held_out]))) == 8


def test_each_example_is_a_member_half_of_the_time():
    count = np.zeros(10)
    for seed in range(2000):
        count[draw_pairs(np.arange(10), np.zeros(10, int), numpy_generator(seed, "pairs")).members] += 1
    assert (np.abs(count / 2000 - 0.5) < 0.05).all()


def test_few_pairs_are_a_random_part_of_them():
    pairs = draw_pairs(np.arange(100), np.arange(100) % 2, numpy_generator(0, "pairs"), maximum=7)
    assert len(pairs.members) == 7
    assert 0 < (pairs.members % 2).sum() < 7


def test_right_guesses_by_hand_and_the_epsilon_they_show():
    members, held_out = np.array([5.0, 1.0, 3.0, 0.1]), np.array([1.0, 3.0, 3.0, 0.0])
    assert [correct_pairs(members, held_out, guesses) for guesses in range(5)] == [0, 1, 1, 2, 2]
    assert lower_bound(300, 100, 100) > 3


def test_chance_is_right_half_of_the_time():
    rng = numpy_generator(0, "chance")
    right = [correct_pairs(rng.random(100), rng.random(100), 50) for _ in range(400)]
    assert np.mean(right) == pytest.approx(25, abs=1)


def test_what_is_no_game_is_refused():
    with pytest.raises(InputError, match="Expected distinct places"):
        draw_pairs(np.array([1, 1]), np.array([0, 0]), numpy_generator(0, "pairs"))
    with pytest.raises(InputError, match="Expected most >= 1, got most=0"):
        draw_pairs(np.array([1, 2]), np.array([0, 0]), numpy_generator(0, "pairs"), maximum=0)
    with pytest.raises(InputError, match="Expected 0 <= guesses <= 1, got guesses=2"):
        correct_pairs(np.zeros(1), np.zeros(1), 2)
