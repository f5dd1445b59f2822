"""Disaggregation: clients' mean updates from sums over changing groups of clients.

If updates change slowly, the sums of T rounds are A = P U, with the weights P (T, K) of the clients in each round and
the mean updates U (K, d). Who knows P solves for U once P has rank K (Lam et al., "Gradient Disaggregation from Secure
Aggregation", ICML 2021). Sums over fixed groups never tell more than the groups' means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from flfw.errors import require

_SMALLEST = 1e-10  # singular values below so much of the largest count as 0


@final
@dataclass(frozen=True)
class Separability:
    """Separability of the clients of a participation matrix.

    Attributes:
        rank: number of independent groups.
        smallest: smallest singular value, in units of one client's weight in one round; 0 below full rank.
        noise: for each client (K,) the deviation of its estimated update per unit of deviation in each sum; infinite
            where its update cannot be told from others'.
    """

    rank: int
    smallest: float
    noise: np.ndarray


def separation(participation: np.ndarray) -> Separability:
    """Compute how well clients' updates can be separated, from the participation alone.

    Args:
        participation: (T, K) weight of each client in each round's sum, 0: it took no part.

    Raises:
        InputError: no rounds, no clients, or weights that are not finite.
    """
    _require_matrix(participation)
    u, values, rows = np.linalg.svd(participation, full_matrices=False)
    kept = values > _SMALLEST * max(values.max(), np.finfo(float).tiny)
    rank = int(kept.sum())
    inverse = (rows[kept].T / values[kept]) @ u[:, kept].T
    # A client is determined if its unit vector lies in the space of the rows.
    inside = (rows[kept] ** 2).sum(0)
    noise = np.where(inside > 1 - 1e-8, np.linalg.norm(inverse, axis=1), np.inf)
    full = rank == participation.shape[1]
    return Separability(rank, float(values[rank - 1]) if full else 0.0, noise)


def disaggregate(sums: np.ndarray, participation: np.ndarray, ridge: float = 0.0) -> np.ndarray:
    """Estimate each client's mean update (K, d) by least squares.

    Args:
        sums: (T, d) sum of each round.
        participation: (T, K) weight of each client in each of them.
        ridge: >= 0, added to the squared singular values: less noise, at the price of a bias towards 0. With 0, what
            the sums do not determine is the estimate of least length.

    Raises:
        InputError: shapes that do not belong together, values that are not finite, or a negative ridge.
    """
    _require_matrix(participation)
    fitting = sums.ndim == 2 and len(sums) == len(participation) and bool(np.isfinite(sums).all())
    require(fitting, f"finite sums (T, d) of {len(participation)} rounds", shape=sums.shape)
    require(ridge >= 0, "ridge >= 0", ridge=ridge)
    u, values, rows = np.linalg.svd(participation, full_matrices=False)
    kept = values > _SMALLEST * max(values.max(), np.finfo(float).tiny)
    shrunk = values[kept] / (values[kept] ** 2 + ridge)
    return (rows[kept].T * shrunk) @ (u[:, kept].T @ sums)


def _require_matrix(participation: np.ndarray) -> None:
    fitting = participation.ndim == 2 and min(participation.shape) >= 1 and bool(np.isfinite(participation).all())
    require(fitting, "finite weights (T, K) of T >= 1 rounds and K >= 1 clients", shape=participation.shape)
