"""Banded matrices: their sensitivity by trying everything, their error by whole matrices and by jax_privacy."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import ceil, sqrt

import numpy as np
import pytest

from flfw.errors import InputError
from flfw.privacy.accountants import compute_epsilon
from flfw.privacy.banded import inverse_coefficients, optimised_coefficients, root_coefficients, running_deviations
from flfw.privacy.mechanism import GaussianEvent, Mechanism, Others


def matrix(coefficients: np.ndarray, rounds: int) -> np.ndarray:
    """C, entry by entry."""
    result = np.zeros((rounds, rounds))
    for row in range(rounds):
        for ago, coefficient in enumerate(coefficients[: row + 1]):
            result[row, row - ago] = coefficient
    return result


def patterns(rounds: int, apart: int) -> Iterator[tuple[int, ...]]:
    """Every set of rounds of which no two are nearer."""
    for count in range(1, rounds + 1):
        for chosen in combinations(range(rounds), count):
            if all(later - earlier >= apart for earlier, later in pairwise(chosen)):
                yield chosen


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
def test_a_client_with_k_rounds_changes_what_is_released_by_sqrt_k_and_no_more(bands: int) -> None:
    rounds, rng = 8, np.random.default_rng(0)
    for coefficients in (root_coefficients(bands), np.array(optimised_coefficients(bands, rounds))):
        strategy, largest = matrix(coefficients, rounds), dict[int, float]()
        for chosen in patterns(rounds, bands):
            for _ in range(5):
                changes = np.zeros((rounds, 3))  # what the client changes each round's sum by: any direction
                for server_round in chosen:
                    direction = rng.normal(size=3)
                    changes[server_round] = direction / np.linalg.norm(direction)
                count, length = len(chosen), float(np.linalg.norm(strategy @ changes))
                assert length <= sqrt(count) + 1e-12
                largest[count] = max(largest.get(count, 0.0), length)
        assert max(largest) == ceil(rounds / bands)
        whole = [chosen for chosen in patterns(rounds, bands) if chosen[-1] + bands <= rounds]
        assert all(np.linalg.norm(strategy[:, chosen].sum(1)) == pytest.approx(sqrt(len(chosen))) for chosen in whole)


@pytest.mark.parametrize("bands", [2, 3, 4])
def test_rounds_that_are_nearer_are_not_covered(bands: int) -> None:
    """Why clients take turns: with the same direction in both rounds the change is longer than sqrt(2)."""
    strategy = matrix(root_coefficients(bands), 8)
    assert np.linalg.norm(strategy[:, 0] + strategy[:, bands - 1]) > sqrt(2) + 0.05


def test_what_the_accountant_is_told() -> None:
    """Sigma 3 in each entry, two groups of tensors, four rounds: one Gaussian of multiplier 3 / sqrt(2 * 4)."""
    mechanism = Mechanism(3.0, 20, clipped="client", groups=2, noised_by="server", max_participations=4, bands=5)
    (whole,) = (GaussianEvent(3 / sqrt(8), 1.0, 1),)
    assert compute_epsilon((mechanism.phase(),), 1e-5).epsilon == pytest.approx(
        compute_epsilon((whole,), 1e-5).epsilon, rel=1e-12
    )
    coins = Mechanism(3.0, 20, clipped="client", noised_by="server", bands=5, sampling_rate=0.1, poisson=True)
    assert not coins.amplified and coins.phase() == GaussianEvent(3.0, 1.0, 20)
    with pytest.raises(InputError, match="a whole number bands >= 1, got bands=0"):
        Mechanism(3.0, 20, bands=0)


def test_copies_in_several_clients_add_up_even_if_their_rounds_are_neighbours() -> None:
    """Two clients with the same example in rounds that share noisy sums: at most twice the length of one's."""
    strategy, rounds = matrix(root_coefficients(3), 9), ((0, 3, 6), (1, 4, 7))
    together = np.linalg.norm(sum(strategy[:, chosen].sum(1) for chosen in rounds))
    one = Mechanism(1.0, 9, clipped="client", noised_by="server", max_participations=3, bands=3)
    phase = one.phase(others=Others(max_copies=2))
    assert sqrt(2 * 3) < together <= sqrt(phase.steps) / phase.noise_multiplier == pytest.approx(2 * sqrt(3))


def test_the_roots_square_is_the_matrix_of_running_sums() -> None:
    square = matrix(root_coefficients(8) / root_coefficients(8)[0], 8)
    assert np.allclose(square @ square, np.tril(np.ones((8, 8))))


def test_errors_are_those_of_whole_matrices() -> None:
    for coefficients in (np.ones(1), root_coefficients(3), np.array([1.0, 0.7, -0.2, 0.1])):
        strategy = matrix(coefficients, 9)
        inverse = np.linalg.inv(strategy)
        assert np.allclose(inverse_coefficients(coefficients, 9), inverse[:, 0])
        rows = np.linalg.norm(np.tril(np.ones((9, 9))) @ inverse, axis=1)
        assert np.allclose(running_deviations(coefficients, 9), rows * np.linalg.norm(strategy, axis=0).max())


# python -c "import jax, jax.numpy as np; jax.config.update('jax_enable_x64', True)
# from jax_privacy.matrix_factorization import toeplitz
# for b, n in ((4, 16), (10, 100), (16, 1000)):
#     for c in (toeplitz.optimal_max_error_strategy_coefs(b), toeplitz.optimize_banded_toeplitz(n, b)):
#         e = toeplitz.per_query_error(strategy_coef=c / np.linalg.norm(c), n=n)
#         print(b, n, float(np.sqrt(e.mean())), float(np.sqrt(e[-1])))"         with jax_privacy 2.0.0
BY_JAX_PRIVACY = {
    (4, 16): ((1.9411953784226, 2.4692668860928673), (1.9375302749535372, 2.451207314125847)),
    (10, 100): ((3.039264840408444, 4.04720758504156), (2.9465019766793414, 3.832482488011961)),
    (16, 1000): ((7.1373711464619465, 9.96771892946903), (6.278161934263987, 8.566789606559169)),
}


@pytest.mark.parametrize(("bands", "rounds"), BY_JAX_PRIVACY)
def test_the_error_is_that_of_jax_privacy(bands: int, rounds: int) -> None:
    """Root mean square over all running sums, and that of the last; independent noise has sqrt((rounds + 1) / 2)."""
    columns = (root_coefficients(bands), np.array(optimised_coefficients(bands, rounds)))
    for coefficients, (mean, last) in zip(columns, BY_JAX_PRIVACY[bands, rounds], strict=True):
        assert np.linalg.norm(coefficients) == pytest.approx(1)
        stds = running_deviations(coefficients, rounds)
        assert sqrt(np.square(stds).mean()) == pytest.approx(mean, rel=1e-6)
        assert stds[-1] == pytest.approx(last, rel=1e-5)
        assert mean < 0.7 * sqrt((rounds + 1) / 2)


def test_more_bands_than_rounds_are_of_no_use_and_do_no_harm() -> None:
    assert optimised_coefficients(1, 5) == (1.0,)
    assert optimised_coefficients(6, 3) == (*optimised_coefficients(3, 3), 0.0, 0.0, 0.0)
    assert optimised_coefficients(4, 1) == (1.0, 0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="bands >= 1"):
        root_coefficients(0)
