"""Scores: against scikit-image, against an SSIM written here, against brute force and against numbers by hand."""

from itertools import permutations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from flfw import data
from flfw.audit.score import Public, assign, psnr, recovered, rmsd, ssim
from flfw.rng import numpy_generator


def noise(*shape: int, of: int = 0) -> np.ndarray:
    return numpy_generator(0, "noise", of).random(shape, dtype=np.float32)


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
    a, b = noise(*shape), noise(*shape, of=1)
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
        b = (1 - strength) * a + strength * noise(*shape, of=1)
        assert ssim(a, b) == pytest.approx(ssim_written_here(a, b), abs=1e-4)


def test_ssim_takes_population_covariances() -> None:
    a, b = (0.05 * noise(1, 20, 20, of=of).astype(np.float64) for of in range(2))  # faint, so that the factor shows
    sample = structural_similarity(a, b, data_range=1.0, channel_axis=0, gaussian_weights=True, sigma=1.5)
    assert ssim(a, b) == pytest.approx(ssim_written_here(a, b), abs=1e-9)
    assert abs(ssim_written_here(a, b) - sample) > 1e-6


def test_ssim_differs_from_scikit_images_default_window() -> None:
    a, b = digit(0), digit(1)
    default = structural_similarity(a, b, data_range=1.0, channel_axis=0)
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
    found = (truth + 0.01 * noise(5, 1, 4, 4, of=1))[order]
    chosen = assign(truth, found)
    assert chosen.tolist() == np.argsort(order).tolist()
    assert float(np.abs(found[chosen] - truth).max()) <= 0.01 + 1e-6


@pytest.mark.parametrize("of", range(5))
def test_assignment_has_the_least_squares_of_all_permutations(of: int) -> None:
    truth, found = noise(4, 3, of=of), noise(4, 3, of=100 + of)
    costs = {p: float(((truth - found[list(p)]) ** 2).sum()) for p in permutations(range(4))}
    assert tuple(assign(truth, found)) == min(costs, key=costs.__getitem__)


def test_assignment_is_one_to_one_even_where_one_guess_fits_all() -> None:
    truth = np.array([[0.0], [0.2]])
    found = np.array([[0.1], [0.9]])  # 0.1 is nearest to both; as a pair 0 <- .1, .2 <- .9 costs .50, the other .82
    assert assign(truth, found).tolist() == [0, 1]


def test_assignment_compares_clamped_values() -> None:
    truth = np.array([[1.0, 0.0], [0.9, 0.2]])
    found = np.array([[10.0, 1.0], [1.0, 0.0]])
    # Clamped to (1, 1) the first costs 1.00 + .05 in order and .65 + 0 swapped; unclamped the order would win.
    assert assign(truth, found).tolist() == [1, 0]


# --- floors ---

PUBLIC = Public(
    samples=np.array([[0.0, 0.0], [0.2, 0.4], [1.0, 1.0], [0.8, 0.6]], dtype=np.float32), labels=np.array([0, 0, 1, 1])
)


def test_floors_by_hand() -> None:
    floors = PUBLIC.floors(np.array([0.2, 0.2]), 0, numpy_generator(0, "floors"))
    assert set(floors) == {"noise", "grey", "mean", "class_mean", "random_public", "nearest_public"}
    assert floors["grey"] == pytest.approx(-20 * np.log10(0.3), abs=1e-4)
    assert floors["mean"] == pytest.approx(-20 * np.log10(0.3), abs=1e-4)  # the mean of all is (.5, .5)
    assert floors["class_mean"] == pytest.approx(-10 * np.log10(0.01 / 2), abs=1e-4)  # (.1, .2) is off by (.1, 0)
    assert floors["nearest_public"] == pytest.approx(-10 * np.log10(0.04 / 2), abs=1e-4)  # (.2, .4) is off by (0, .2)


def test_a_class_without_public_examples_falls_back_to_the_mean_of_all() -> None:
    floors = PUBLIC.floors(np.array([0.2, 0.2]), 7, numpy_generator(0, "floors"))
    assert floors["class_mean"] == floors["mean"]


def test_the_nearest_public_example_is_the_best_that_a_random_one_can_be() -> None:
    truth, all_db = noise(2, of=3), set()
    for of in range(40):
        floors = PUBLIC.floors(truth, 0, numpy_generator(0, "floors", of))
        all_db.add(floors["random_public"])
        assert floors["random_public"] <= floors["nearest_public"]
    assert all_db == {psnr(truth, sample) for sample in PUBLIC.samples}
    assert max(all_db) == floors["nearest_public"]


def test_noise_floor_is_that_of_uniform_noise() -> None:
    truth = np.full((3, 64, 64), 0.5)
    floors = PUBLIC_IMAGES.floors(truth, 0, numpy_generator(0, "floors"))
    assert floors["noise"] == pytest.approx(-10 * np.log10(1 / 12), abs=0.1)
    assert floors["grey"] == 200.0


PUBLIC_IMAGES = Public(samples=noise(6, 3, 64, 64), labels=np.zeros(6, dtype=np.int64))


def test_nearest_of_images_is_over_all_their_pixels() -> None:
    truth = PUBLIC_IMAGES.samples[4] * 0.9
    distances = [float(((sample - truth) ** 2).mean()) for sample in PUBLIC_IMAGES.samples]
    assert int(np.argmin(distances)) == 4
    floors = PUBLIC_IMAGES.floors(truth, 0, numpy_generator(0, "floors"))
    assert floors["nearest_public"] == psnr(truth, PUBLIC_IMAGES.samples[4])


def test_an_example_that_is_public_cannot_count_as_recovered() -> None:
    truth = PUBLIC_IMAGES.samples[2]
    floors = PUBLIC_IMAGES.floors(truth, 0, numpy_generator(0, "floors"))
    assert floors["nearest_public"] == 200.0 and not recovered(truth, truth, floors)


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
