"""Scores: against scikit-image, against an SSIM written here, against brute force and against numbers by hand."""

import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from flfw import data
from flfw.audit.measures.metrics import psnr, rmsd, ssim
from flfw.audit.measures.public import PublicData
from flfw.audit.measures.recovery import (
    assign,
    assignment_null,
    column_matches,
    exact_match,
    gain,
    identification,
    matched_features,
    recovered,
    succeeded,
)
from flfw.rng import numpy_generator


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return numpy_generator(0, "noise", seed).random(shape, dtype=np.float32)


def public(samples: np.ndarray) -> PublicData:
    return PublicData.from_arrays(samples, np.zeros(len(samples), dtype=np.int64))


def digit(index: int = 0) -> np.ndarray:
    return data.load("digits", None, 28).train_x[index].astype(np.float32) / 255


# --- distances ---


def test_rmsd_is_the_root_of_the_mean_square() -> None:
    assert rmsd(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.6, 1.0, 0.2])) == pytest.approx(0.5)  # (.36+.64)/4
    assert rmsd(np.zeros((3, 2, 2)), np.zeros((3, 2, 2))) == 0.0


@pytest.mark.parametrize(("difference", "db"), [(1.0, 0.0), (0.5, 6.0206), (0.1, 20.0), (0.01, 40.0), (1e-6, 120.0)])
def test_psnr_of_a_constant_difference_by_hand(difference: float, db: float) -> None:
    assert psnr(np.zeros((1, 4, 4)), np.full((1, 4, 4), difference)) == pytest.approx(db, abs=1e-4)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (30,)])
def test_psnr_is_scikit_images_with_peak_one(shape: tuple[int, ...]) -> None:
    a, b = noise(*shape), noise(*shape, seed=1)
    assert psnr(a, b) == pytest.approx(peak_signal_noise_ratio(a, b, data_range=1.0), abs=1e-4)


def test_psnr_does_not_take_its_peak_from_the_image() -> None:
    dark = 0.25 * noise(1, 8, 8)
    assert psnr(dark, dark + 0.1) == pytest.approx(20.0, abs=1e-4)


def test_found_values_outside_the_box_are_clamped_before_they_are_compared() -> None:
    truth = np.array([[[0.0, 1.0]]])
    wild = np.array([[[-5.0, 7.0]]])
    assert rmsd(truth, wild) == 0.0 and psnr(truth, wild) == 200.0
    image = digit()
    stretched = np.where(image > 0.99, 3.0, np.where(image < 0.01, -3.0, image))
    clamped = np.clip(stretched, 0, 1)
    assert psnr(image, stretched) == psnr(image, clamped) > 40
    assert ssim(image, stretched) == ssim(image, clamped)


def test_psnr_of_an_exact_find_is_capped_at_200() -> None:
    assert psnr(digit(), digit()) == 200.0


# --- structural similarity ---


def scikit_images(a: np.ndarray, b: np.ndarray, **options: object) -> float:
    return float(np.asarray(structural_similarity(a, b, data_range=1.0, **options)))  # type: ignore[arg-type]


def ssim_written_here(a: np.ndarray, b: np.ndarray) -> float:
    """Wang et al. (2004): an 11-pixel Gaussian window of deviation 1.5, K = (0.01, 0.03), where the window fits."""
    values = []
    for x, y in zip(a.astype(np.float64), b.astype(np.float64), strict=True):

        def local(image: np.ndarray) -> np.ndarray:
            return gaussian_filter(image, 1.5, truncate=5 / 1.5)[5:-5, 5:-5]

        mx, my = local(x), local(y)
        vx, vy, cov = local(x * x) - mx**2, local(y * y) - my**2, local(x * y) - mx * my
        c1, c2 = 0.01**2, 0.03**2
        values.append((((2 * mx * my + c1) * (2 * cov + c2)) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean())
    return float(np.mean(values))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 11, 14)])
def test_ssim_is_that_of_the_paper(shape: tuple[int, ...]) -> None:
    a = noise(*shape)
    for strength in (0.02, 0.3, 1.0):
        b = (1 - strength) * a + strength * noise(*shape, seed=1)
        assert ssim(a, b) == pytest.approx(ssim_written_here(a, b), abs=1e-9)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 11, 14)])
def test_ssim_is_scikit_images_with_the_papers_options(shape: tuple[int, ...]) -> None:
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    for given in range(1, 4):
        a = noise(*shape)
        b = (a + noise(*shape, seed=given)) / 2
        by_channel = [
            scikit_images(x.astype(np.float64), y.astype(np.float64), **options) for x, y in zip(a, b, strict=True)
        ]
        assert ssim(a, b) == pytest.approx(np.mean(by_channel), abs=1e-9)


def test_ssim_takes_population_covariances() -> None:
    # Faint, so that the factor shows.
    a, b = (0.05 * noise(1, 20, 20, seed=given).astype(np.float64) for given in range(2))
    sample = scikit_images(a, b, channel_axis=0, gaussian_weights=True, sigma=1.5)
    assert ssim(a, b) == pytest.approx(ssim_written_here(a, b), abs=1e-9)
    assert abs(ssim_written_here(a, b) - sample) > 1e-6


def test_ssim_differs_from_scikit_images_default_window() -> None:
    a, b = digit(0), digit(1)
    default = scikit_images(a, b, channel_axis=0)
    assert ssim(a, b) == pytest.approx(ssim_written_here(a, b), abs=1e-4)
    assert abs(ssim_written_here(a, b) - default) > 0.01


def test_ssim_identities() -> None:
    a, b = digit(0), digit(1)
    assert ssim(a, a) == pytest.approx(1.0)
    assert ssim(a, b) == pytest.approx(ssim(b, a))
    assert (ssim(a, 1 - a) or 0) < 0
    flat, other = np.full((1, 16, 16), 0.2), np.full((1, 16, 16), 0.6)
    # No variance: only the means speak, (2 * .2 * .6 + 1e-4) / (.04 + .36 + 1e-4).
    assert ssim(flat, other) == pytest.approx(0.2401 / 0.4001, abs=1e-6)


@pytest.mark.parametrize(("shape", "fits"), [((1, 8, 8), False), ((3, 10, 32), False), ((1, 11, 11), True)])
def test_ssim_needs_room_for_its_window(shape: tuple[int, ...], fits: bool) -> None:
    assert (ssim(noise(*shape), noise(*shape)) is not None) == fits


# --- assignment ---


def test_assignment_undoes_a_permutation() -> None:
    truth = noise(5, 1, 4, 4)
    order = np.array([3, 0, 4, 1, 2])
    result = (truth + 0.01 * noise(5, 1, 4, 4, seed=1))[order]
    chosen = assign(truth, result)
    assert chosen.tolist() == np.argsort(order).tolist()
    assert float(np.abs(result[chosen] - truth).max()) <= 0.01 + 1e-6


@pytest.mark.parametrize("given", range(5))
def test_assignment_has_the_least_squares_of_all_permutations(given: int) -> None:
    truth, result = noise(4, 3, seed=given), noise(4, 3, seed=100 + given)
    costs = {p: float(((truth - result[list(p)]) ** 2).sum()) for p in permutations(range(4))}
    assert tuple(assign(truth, result)) == min(costs, key=costs.__getitem__)


def test_assignment_is_one_to_one_even_where_one_guess_fits_all() -> None:
    truth = np.array([[0.0], [0.2]])
    result = np.array([[0.1], [0.9]])  # 0.1 is nearest to both; as a pair 0 <- .1, .2 <- .9 costs .50, the other .82
    assert assign(truth, result).tolist() == [0, 1]


def test_assignment_compares_clamped_values() -> None:
    truth = np.array([[1.0, 0.0], [0.9, 0.2]])
    result = np.array([[10.0, 1.0], [1.0, 0.0]])
    # Clamped to (1, 1) the first costs 1.00 + .05 in order and .65 + 0 swapped; unclamped the order would win.
    assert assign(truth, result).tolist() == [1, 0]


def test_assignment_of_a_large_batch_of_large_images_needs_no_cube() -> None:
    truth = np.repeat(noise(60, 1, 1, 1), 3 * 64 * 64, axis=1).reshape(60, 3, 64, 64)
    order = numpy_generator(0, "order").permutation(60)
    assert (order[assign(truth, truth[order])] == np.arange(60)).all()


def test_assignment_by_itself_lifts_unrelated_images_above_their_order() -> None:
    truth, others = noise(40, 1, 2, 2), noise(500, 1, 2, 2, seed=1)
    null = assignment_null(truth, public(others).samples, numpy_generator(0, "null"))
    in_order = np.mean([psnr(t, o) for k in range(8) for t, o in zip(truth, others[40 * k :], strict=False)])
    best_of_batch = np.mean([max(psnr(t, o) for o in others[40 * k : 40 * k + 40]) for k in range(8) for t in truth])
    assert in_order + 2 < null < best_of_batch


def test_assignment_null_is_that_of_a_naive_loop() -> None:
    truth, others = noise(3, 2), noise(7, 2, seed=1)
    rng, values = numpy_generator(0, "null"), []
    for _ in range(5):
        drawn = others[rng.choice(7, 3, replace=False)]
        best = min(permutations(range(3)), key=lambda p: float(((truth - drawn[list(p)]) ** 2).sum()))
        values += [psnr(t, drawn[j]) for t, j in zip(truth, best, strict=True)]
    result = assignment_null(truth, public(others).samples, numpy_generator(0, "null"), draws=5)
    assert result == pytest.approx(np.mean(values))


def test_assignment_null_of_one_example_is_the_mean_of_random_public_ones() -> None:
    truth, others = noise(1, 4), noise(5, 4, seed=1)
    result = assignment_null(truth, public(others).samples, numpy_generator(0, "null"), draws=2000)
    assert result == pytest.approx(np.mean([psnr(truth[0], o) for o in others]), abs=0.2)


def test_assignment_null_repeats_examples_only_where_there_are_too_few() -> None:
    truth, others = noise(4, 3), np.stack([noise(3, seed=k) for k in (1, 2, 3, 4)])
    by_hand = np.mean([psnr(t, others[j]) for t, j in zip(truth, assign(truth, others), strict=True)])
    # Four of four without repetition are always the same four.
    assert assignment_null(truth, public(others).samples, numpy_generator(0, "null")) == pytest.approx(by_hand)
    assert assignment_null(truth, public(others[:1]).samples, numpy_generator(0, "null")) == pytest.approx(
        np.mean([psnr(t, others[0]) for t in truth])
    )


# --- what counts as recovered ---


@pytest.mark.parametrize(
    ("off", "nearest", "counts"),
    [(0.099, 10.0, True), (0.101, 10.0, False), (0.099, 20.2, False), (0.05, 20.2, True), (0.05, 30.0, False)],
)
def test_an_image_is_recovered_from_20_db_if_nothing_public_is_closer(off: float, nearest: float, counts: bool) -> None:
    truth = np.full((1, 4, 4), 0.5)
    assert recovered(truth, truth + off, {"nearest_public": nearest}) is counts


@pytest.mark.parametrize(
    ("off", "nearest", "counts"), [(0.099, 10.0, True), (0.101, 10.0, False), (0.099, 20.2, False), (0.0, 30.0, True)]
)
def test_a_row_is_recovered_within_a_deviation_of_a_tenth(off: float, nearest: float, counts: bool) -> None:
    truth = np.full(30, 0.5)
    assert recovered(truth, truth + off, {"nearest_public": nearest}) is counts


def test_a_row_that_matches_exactly_is_recovered_whatever_lies_near() -> None:
    truth = np.array([1.0, 0.0, 0.50, 0.20])
    binary, floors = np.array([True, True, False, False]), {"nearest_public": 45.0}
    close = truth + np.array([0, 0, 0.02, -0.02])  # 37 dB
    assert not recovered(truth, close, floors)
    assert recovered(truth, close, floors, binary)
    assert recovered(truth, close, floors, binary, guessable=False)
    assert not recovered(truth, close, floors, binary, guessable=True)
    rounded = np.array([0.6, 0.4, 0.5, 0.2])  # off by more than a tenth, but both categories are right
    assert rmsd(truth, rounded) > 0.2 and recovered(truth, rounded, floors, binary)
    assert not recovered(truth, np.array([1.0, 0.0, 0.56, 0.20]), floors, binary)  # one number is off by more than .05
    assert not recovered(truth, np.array([1.0, 0.51, 0.50, 0.20]), floors, binary)


def test_a_guessable_row_still_counts_if_it_is_closer_than_every_floor() -> None:
    truth, binary = np.full(4, 0.5), np.zeros(4, bool)
    assert recovered(truth, truth + 0.001, {"nearest_public": 45.0}, binary, guessable=True)  # 60 dB


@pytest.mark.parametrize("shape", [(1, 4, 4), (30,)])
@pytest.mark.parametrize("high", ["noise", "grey", "mean", "class_mean", "random_public", "nearest_public"])
def test_every_floor_must_be_passed(high: str, shape: tuple[int, ...]) -> None:
    truth = np.full(shape, 0.5)
    floors = dict.fromkeys(["noise", "grey", "mean", "class_mean", "random_public", "nearest_public"], 12.0)
    assert recovered(truth, truth + 0.05, floors)  # 26.02 dB
    assert recovered(truth, truth + 0.05, floors | {high: 25.0})
    assert not recovered(truth, truth + 0.05, floors | {high: 25.1})  # closer by less than 1 dB


def test_a_guess_that_is_a_floor_is_not_recovered() -> None:
    truth, grey = np.full((1, 4, 4), 0.55), np.full((1, 4, 4), 0.5)
    assert psnr(truth, grey) > 20
    assert not recovered(truth, grey, {"grey": psnr(truth, grey)})


def test_nothing_is_recovered_from_a_guess_that_is_no_number() -> None:
    for shape in ((1, 2, 2), (4,)):
        truth = np.full(shape, 0.5)
        assert not recovered(truth, np.full(shape, np.nan), {"grey": 5.0})
        assert not succeeded(truth, np.full(shape, np.nan))


def test_gain_is_above_the_best_floor() -> None:
    floors = {"noise": 8.5, "nearest_public": 15.0, "grey": 12.7}
    assert gain(21.0, floors) == 6.0
    assert gain(13.0, floors) == -2.0


@pytest.mark.parametrize(("off", "counts"), [(0.0, True), (0.299, True), (0.301, False), (0.5, False)])
def test_success_is_a_deviation_below_three_tenths(off: float, counts: bool) -> None:
    truth = np.full((1, 4, 4), 0.25)
    assert succeeded(truth, truth + off) is counts


# --- features of rows ---

BINARY = np.array([True, True, True, False, False])


def test_features_match_by_hand() -> None:
    truth = np.array([1.0, 0.0, 1.0, 0.50, 0.20])
    result = np.array([0.5, 0.6, 3.0, 0.54, 0.26])  # 1 (from .5 up), not 0, 1 (clamped), within .05, not within
    assert matched_features(truth, result, BINARY) == pytest.approx(3 / 5)
    assert not exact_match(truth, result, BINARY)
    assert exact_match(truth, np.array([0.7, 0.4, 0.9, 0.46, 0.24]), BINARY)


def test_columns_match_by_hand_and_their_mean_is_the_share() -> None:
    truth = np.array([1.0, 0.0, 1.0, 0.50, 0.20])
    result = np.array([0.5, 0.6, 3.0, 0.54, 0.26])
    assert column_matches(truth, result, BINARY).tolist() == [True, False, True, True, False]
    assert matched_features(truth, result, BINARY) == column_matches(truth, result, BINARY).mean()
    both = column_matches(np.stack([truth, truth]), np.stack([result, truth]), BINARY)
    assert both.tolist() == [[True, False, True, True, False], [True] * 5]
    assert (column_matches(truth, np.stack([result, truth]), BINARY) == both).all()  # one truth, two guesses


def test_the_tolerance_of_a_number_includes_its_end_in_float32() -> None:
    number = np.array([False])
    for low in np.arange(0, 0.9, 0.1, dtype=np.float32):
        truth, result = np.array([low]), np.array([low + np.float32(0.05)])
        assert matched_features(truth, result, number) == matched_features(result, truth, number) == 1.0
        assert matched_features(truth, result + np.float32(1e-4), number) == 0.0


def test_a_close_value_on_the_other_side_of_a_half_is_no_match_of_a_binary_feature() -> None:
    assert matched_features(np.array([0.0]), np.array([0.51]), np.array([True])) == 0.0
    assert matched_features(np.array([0.0]), np.array([0.49]), np.array([True])) == 1.0


def test_no_feature_matches_what_is_no_number() -> None:
    assert matched_features(np.zeros(5), np.full(5, np.nan), BINARY) == 0.0


# --- identification ---


def test_identification_by_hand() -> None:
    lookalikes = np.array([[0.0, 0.0], [0.5, 0.4], [1.0, 1.0]])
    truth = np.array([0.5, 0.5])
    assert identification(truth, np.array([0.5, 0.5]), lookalikes) == (1, 4)
    assert identification(truth, np.array([0.5, 0.3]), lookalikes) == (2, 4)
    assert identification(truth, np.array([0.0, 0.1]), lookalikes) == (3, 4)
    assert identification(truth, np.array([0.5, 0.5]), lookalikes[:0]) == (1, 1)


def test_identification_is_over_all_the_pixels() -> None:
    truth, lookalikes = noise(3, 8, 8), noise(9, 3, 8, 8, seed=1)
    result = 0.9 * truth + 0.1 * noise(3, 8, 8, seed=2)
    assert identification(truth, result, lookalikes) == (1, 10)
    assert identification(truth, lookalikes[4], lookalikes)[0] > 1


def test_identification_compares_clamped_values() -> None:
    # Clamped to (1, 0): the truth is .01 away and the look-alike .25; unclamped 80.1 against 78.3.
    assert identification(np.array([0.9, 0.0]), np.array([9.85, 0.0]), np.array([[1.0, 0.5]])) == (1, 2)


def test_a_flat_guess_identifies_nobody() -> None:
    flat = np.full((1, 4, 4), 0.5)
    candidates = numpy_generator(0, "signs").choice([0.0, 1.0], (10, 1, 4, 4))  # all as far from grey
    assert identification(candidates[0], flat, candidates[1:]) == (10, 10)


def test_the_double_of_the_truth_is_not_told_from_it() -> None:
    truth = noise(1, 4, 4)
    assert identification(truth, truth, np.stack([truth, 1 - truth])) == (2, 3)


def test_a_guess_that_is_no_number_identifies_nobody() -> None:
    assert identification(np.zeros(2), np.full(2, np.nan), np.ones((4, 2))) == (5, 5)


@pytest.mark.parametrize("guess", ["noise", "mean", "another"])
def test_a_guess_that_knows_nothing_ranks_the_truth_uniformly(guess: str) -> None:
    """The rate of rank 1 is 1/5 within four deviations, and the ranks average (1 + 5)/2."""
    rng, trials, ranks = numpy_generator(0, "null", len(guess)), 4000, []
    for _ in range(trials):
        candidates = rng.random((5, 6))
        result = {"noise": rng.random(6), "mean": np.full(6, 0.5), "another": rng.random((3, 6)).mean(0)}[guess]
        ranks.append(identification(candidates[0], result, candidates[1:])[0])
    assert abs(ranks.count(1) - trials / 5) < 4 * np.sqrt(trials * 0.2 * 0.8)
    assert np.mean(ranks) == pytest.approx(3.0, abs=4 * np.sqrt(2 / trials))


# --- weight ---


def test_scores_and_public_data_import_nothing_heavy() -> None:
    code = (
        "import sys, flfw.audit.measures.recovery\n"
        "light = [m for m in ('torch', 'scipy', 'skimage') if m in sys.modules]\n"
        "import flfw.audit.measures.public\n"
        "print(light, [m for m in ('scipy', 'skimage', 'lpips', 'torchvision') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
