"""Banded matrix mechanism: noise that is correlated over rounds, so that sums over many rounds have little of it.

Let x_t be round t's sum of clipped updates, and C a lower-triangular Toeplitz matrix with b bands: row t of C x is

    c_0 x_t + c_1 x_(t-1) + ... + c_(b-1) x_(t-b+1)

The mechanism releases y = C x + z, with z independent Gaussian noise. All else is computed from y: the estimate of the
sums, C^-1 y = x + C^-1 z, and the model, which is their running sum. Kairouz et al., "Practical and Private (Deep)
Learning without Sampling or Shuffling", ICML 2021; Choquette-Choo et al., "(Amplified) Banded Matrix Factorization",
NeurIPS 2023.

Sensitivity: a client that takes part in round t changes x_t by a vector u_t of length 1 or less, and C x by column t of
C times u_t. Columns that are b rounds or more apart share no row. So with k rounds, any two at least b apart, the
squares add up: sqrt(k) times the length of (c_0, ..., c_(b-1)), which is 1 here. It holds for u_t that follow from the
y before: the rounds are fixed beforehand, and C is lower-triangular (Denisov et al., "Improved Differential Privacy for
SGD via Optimal Private Linear Operators on Adaptive Streams", NeurIPS 2022, theorem 2.1).
"""

from functools import cache

import numpy as np

from flfw.errors import require


def root_coefficients(bands: int) -> np.ndarray:
    """Return c (bands,) of unit length: the first terms of (1 - x)^(-1/2), best for the largest error without a band.

    Fichtenberger, Henzinger and Upadhyay, "Constant Matters", ICML 2023: C C is then the matrix of running sums.

    >>> (root_coefficients(3) / root_coefficients(3)[0]).round(6).tolist()
    [1.0, 0.5, 0.375]
    """
    require(bands >= 1, "bands >= 1", bands=bands)
    indices = np.arange(1, bands)
    coefficients = np.concatenate([[1.0], np.cumprod((2 * indices - 1) / (2 * indices))])
    return coefficients / np.linalg.norm(coefficients)


@cache
def optimised_coefficients(bands: int, rounds: int) -> tuple[float, ...]:
    """Return c (bands,) of unit length with the least mean square error of the running sums over all rounds.

    It is found by BFGS from `root_coefficients`; McKenna, "Scaling up the Banded Matrix Factorization Mechanism for
    Differentially Private ML", ICLR 2025, has the objective.
    """
    from scipy.optimize import minimize

    require(rounds >= 1, "rounds >= 1", rounds=rounds)
    start = root_coefficients(min(bands, rounds))
    if len(start) == 1:
        return (1.0, *(0.0,) * (bands - 1))

    def error(later: np.ndarray) -> float:
        coefficients = np.concatenate([[1.0], later])
        return float(np.log(np.square(running_deviations(coefficients, rounds)).mean()))

    best = np.concatenate([[1.0], minimize(error, start[1:] / start[0], method="BFGS").x])
    best = np.pad(best, (0, bands - len(best)))
    return tuple((best / np.linalg.norm(best)).tolist())


def inverse_coefficients(coefficients: np.ndarray, rounds: int) -> np.ndarray:
    """Return the first column (rounds,) of C^-1, by substitution."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], coefficients, np.eye(1, rounds)[0]))


def running_deviations(coefficients: np.ndarray, rounds: int) -> np.ndarray:
    """Return the deviation (rounds,) of the noise in each running sum, over that of z times the length of c.

    Row t of A C^-1, with A the matrix of running sums, holds the first t running sums of the column of C^-1.
    """
    columns = np.cumsum(inverse_coefficients(coefficients, rounds))
    return np.linalg.norm(coefficients) * np.sqrt(np.cumsum(np.square(columns)))
