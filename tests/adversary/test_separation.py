"""Separation of clients' updates in sums: how noisy each is, and refused where groups never change."""

import numpy as np
import pytest

from flfw.adversary.secure_aggregation import separation
from flfw.errors import InputError
from flfw.rng import numpy_generator


def _drawn(rounds: int, clients: int, cohort: int, seed: int = 0) -> np.ndarray:
    rng, rows = numpy_generator(seed, "participation"), np.zeros((rounds, clients))
    for row in rows:
        row[rng.choice(clients, cohort, replace=False)] = 1
    return rows


def test_two_rounds_that_differ_by_one_client_isolate_it():
    groups = separation(np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]))
    assert (groups.rank, groups.smallest) == (2, 0.0)
    assert groups.noise[2] == pytest.approx(2**0.5)  # a difference of two sums
    assert np.isinf(groups.noise[:2]).all()


@pytest.mark.parametrize("participation", [np.ones((50, 4)), np.repeat(np.eye(2), 2, axis=1).repeat(20, axis=0)])
def test_the_same_groups_in_every_round_separate_nobody(participation):
    groups = separation(participation)
    assert groups.smallest == 0
    assert np.isinf(groups.noise).all()


def test_the_noise_of_an_estimate_is_what_the_participation_says():
    participation, rng = _drawn(60, 12, 5), numpy_generator(1, "noise")
    errors = np.linalg.lstsq(participation, rng.normal(size=(60, 10_000)))[0]
    measured = errors.std(1)
    np.testing.assert_allclose(measured, separation(participation).noise, rtol=0.03)


def test_with_30_of_100_clients_a_round_the_separation_is_well_posed_from_about_120_rounds():
    medians = [np.median([separation(_drawn(t, 100, 30, seed)).noise.mean() for seed in range(5)]) for t in (120, 200)]
    assert 0.35 < medians[0] < 0.65
    assert 0.18 < medians[1] < 0.26


def test_shapes_that_do_not_belong_together_are_refused():
    for call in (lambda: separation(np.zeros((0, 2))), lambda: separation(np.array([[np.nan]]))):
        with pytest.raises(InputError, match="Expected "):
            call()
