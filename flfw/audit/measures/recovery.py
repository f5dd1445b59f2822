"""Closeness of a reconstruction to the truth, and of a guess without knowledge; pure functions of arrays.

All measures are on raw inputs in [0, 1] in float64, with reconstructions clamped, one example at a time; those of text
are on its tokens (`flfw.audit.measures.metrics.is_text`).
"""

from collections.abc import Mapping

import numpy as np

from flfw.audit.measures.metrics import is_text, psnr, rmsd, squared_distances
from flfw.data.files.columns import TableSchema

_ROUNDING = 1e-6  # inputs are float32

IMAGE_RECOVERED_DB = 20.0
ROW_RECOVERED_RMSD = 0.1
TEXT_RECOVERED_SHARE = 0.9
SUCCESS_RMSD = 0.3
FEATURE_TOLERANCE = 0.05
AGREED = 0.9
GAIN_DB = 1.0  # above every guess without the update; a constant that happens to fit a flat image gains less


def assign(truth: np.ndarray, reconstructions: np.ndarray) -> np.ndarray:
    """Match true examples (B, ...) with reconstructions one to one by least squares; return the latter's indices.

    >>> assign(np.array([[0.0], [1.0]]), np.array([[0.9], [0.2]])).tolist()
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(squared_distances(truth, reconstructions))[1]


def assignment_null(truth: np.ndarray, samples: np.ndarray, rng: np.random.Generator, draws: int = 8) -> float:
    """Compute the mean PSNR in dB of random public examples that are matched by `assign`.

    In a batch of many, unrelated images score better matched than in order: compare a batch's PSNR with this value.
    For one example it is the mean PSNR of a random public one.

    Args:
        truth: the batch (B, ...).
        samples: (N, ...) public examples, the guesses; a draw repeats an example only where there are fewer than B.
        rng: generator of the draws.
        draws: number of batches of guesses to average over.
    """
    count = len(samples)
    values = []
    for _ in range(draws):
        guesses = samples[rng.choice(count, len(truth), replace=len(truth) > count)]
        values += [psnr(true, guess) for true, guess in zip(truth, guesses[assign(truth, guesses)], strict=True)]
    return float(np.mean(values))


def gain(db: float, floors: Mapping[str, float]) -> float:
    """Return the difference of a PSNR to the best floor, in dB; negative below it.

    >>> gain(21.0, {"grey": 12.5, "nearest_public": 15.0})
    6.0
    """
    return db - max(floors.values())


def recovered(
    truth: np.ndarray,
    reconstruction: np.ndarray,
    floors: Mapping[str, float],
    binary: np.ndarray | None = None,
    guessable: bool = False,
    schema: TableSchema | None = None,
) -> bool:
    """Return whether an example counts as reconstructed: recognisable, and closer than any guess without the update.

    An image is recognisable from 20 dB on, a row of numbers up to a deviation of 0.1, a text if nine tokens in ten are
    right, in all and among those before the zero bytes that fill it up; closer means by 1 dB or more.
    A row also counts where every feature matches (`exact_match`) and no public row does: among many public rows, one
    often lies as close to the truth as an attack that is off by 0.01 in each number, but differs in a category.

    Args:
        truth: (C, H, W) or (d,).
        reconstruction: array of the same shape.
        floors: PSNR in dB of the guesses, from `flfw.audit.measures.public.PublicData.floors`.
        binary: for rows, (d,) of bool: the features that are 0 or 1. None: an exact match is not considered.
        guessable: for rows, whether a guess without the update matches every feature too, as
            `flfw.audit.measures.public.PublicData.guessable` tells. Then an exact match by itself does not count.
        schema: the columns of a table: its row has to be within 0.1 by cells as well. Among the many zeros of
            categories a row without a right category would be close.
    """
    db = psnr(truth, reconstruction)
    if is_text(truth):
        right = truth == reconstruction
        written = right[: int(truth.nonzero()[0].max(initial=-1)) + 1]  # without the bytes that fill it up
        close = min(right.mean(), written.mean() if len(written) else 1.0) >= TEXT_RECOVERED_SHARE
    else:
        close = db >= IMAGE_RECOVERED_DB if truth.ndim > 1 else rmsd(truth, reconstruction) <= ROW_RECOVERED_RMSD
    if schema is not None:
        close = close and schema.deviation(truth, reconstruction) <= ROW_RECOVERED_RMSD
    exact = binary is not None and not guessable and exact_match(truth, reconstruction, binary)
    return bool(exact or (close and gain(db, floors) >= GAIN_DB))


def succeeded(truth: np.ndarray, reconstruction: np.ndarray) -> bool:
    """Return whether an attack counts as successful by distance alone: a deviation below 0.3.

    This is for comparison with Table VII of Fed-CDP (Wei et al.), which counts attack successes beside this distance.
    The paper states no threshold: 0.3 is this project's choice. A constant guess may pass it; see `recovered`.

    >>> succeeded(np.zeros(4), np.full(4, 0.2)), succeeded(np.zeros(4), np.full(4, 0.4))
    (True, False)
    """
    return rmsd(truth, reconstruction) < SUCCESS_RMSD


def column_matches(truth: np.ndarray, reconstruction: np.ndarray, binary: np.ndarray) -> np.ndarray:
    """Return a mask (d,) of the features of a row that were recovered; of many rows (n, d), a mask (n, d).

    A binary feature is recovered if rounding gives the true one (0.5 rounds up), a number if it is off by at most
    0.05, where its range is [0, 1], and a token if it is the true one.

    Args:
        truth: (d,) or (n, d).
        reconstruction: (d,) or (n, d); values outside [0, 1] are clamped, and NaN matches nothing. One row may be
            compared with many.
        binary: (d,) of bool; the features that are 0 or 1.

    >>> column_matches(np.array([1.0, 0.0, 0.5]), np.array([0.6, 0.1, 0.6]), np.array([True, True, False])).tolist()
    [True, True, False]
    """
    if is_text(truth):
        return truth == reconstruction
    guess = np.clip(reconstruction, 0, 1).astype(np.float64)
    same = (guess >= 0.5) == (truth >= 0.5)
    return np.where(binary, same & ~np.isnan(guess), np.abs(guess - truth) <= FEATURE_TOLERANCE + _ROUNDING)


def matched_features(truth: np.ndarray, reconstruction: np.ndarray, binary: np.ndarray) -> float:
    """Return the share of a row's features that were recovered, in [0, 1]; arguments as for `column_matches`.

    >>> matched_features(np.array([1.0, 0.0, 0.5]), np.array([0.6, 0.1, 0.6]), np.array([True, True, False])) == 2 / 3
    True
    """
    return float(np.mean(column_matches(truth, reconstruction, binary)))


def agreed_features(
    truth: np.ndarray, reconstruction: np.ndarray, binary: np.ndarray, agreement: np.ndarray
) -> dict[str, float | None]:
    """Return how many of a row's features several searches agree on, and how many of these were recovered.

    Args:
        truth: (d,).
        reconstruction: (d,).
        binary: as for `column_matches`.
        agreement: (d,) share of the searches that agree; from 0.9 on they do.

    Returns:
        ``agreed``, the share of such features, and ``agreed_exact``, the share of recovered ones among them; None where
        there are none.
    """
    agreed = agreement >= AGREED
    right = column_matches(truth, reconstruction, binary)[agreed]
    return {"agreed": float(agreed.mean()), "agreed_exact": float(right.mean()) if len(right) else None}


def exact_match(truth: np.ndarray, reconstruction: np.ndarray, binary: np.ndarray) -> bool:
    """Return whether every feature of a row was recovered, as `matched_features` counts."""
    return matched_features(truth, reconstruction, binary) == 1.0


def identification(truth: np.ndarray, reconstruction: np.ndarray, lookalikes: np.ndarray) -> tuple[int, int]:
    """Rank the true example among itself and N look-alikes by its distance; return (rank, candidates).

    Rank 1 is the least squared distance to the reconstruction, and means identified; candidates is N + 1. A look-alike
    as far away as the truth ranks before it, so that a guess equally close to all identifies nobody. Where truth and
    look-alikes are exchangeable and the guess does not depend on which of them is true, rank 1 has a probability of
    at most 1 / (N + 1).

    Args:
        truth: one input.
        reconstruction: array of the same shape.
        lookalikes: (N, ...), from `flfw.audit.measures.public.PublicData.lookalike_indices`.

    >>> identification(np.array([0.5]), np.array([0.6]), np.array([[0.0], [0.65], [1.0]]))
    (2, 4)
    """
    candidates = np.concatenate([truth[None], lookalikes])
    distances = squared_distances(candidates, reconstruction[None])[:, 0]
    return 1 + int((~(distances[1:] > distances[0])).sum()), len(candidates)


def nearest(truth: np.ndarray, guesses: np.ndarray | None) -> float | None:
    """Return the closeness in dB of the guess (G, ...) that is nearest to the truth (...); None: there is none."""
    if guesses is None or guesses.shape[1:] != truth.shape or not len(guesses):
        return None
    errors = np.nan_to_num(np.square(guesses - truth).reshape(len(guesses), -1).mean(1), nan=1.0)
    return psnr(truth, guesses[errors.argmin()])
