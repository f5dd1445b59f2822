"""Likelihood ratios from few shadow models, trained with an example in and with it out.

LiRA (Carlini et al., S&P 2022) fits a normal distribution for each example and side; with the 4 to 16 shadows that one
has for a federation, a variance of each example's own is the weak point. With a normal-inverse-gamma prior from the
pooled data the predictive distribution is Student's t, which stays stable for any number of shadows (Brannvall,
"BaVarIA", arXiv 2603.11799). With no shadow of a side it is the prior alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flfw.errors import require
from flfw.nets.net import are_numbers, loss

MOST_COUNTS = 1e6
"""Most shadows that a prior mean is worth: in all practical cases it stands for every candidate."""


@dataclass(frozen=True)
class Prior:
    """Prior of the mean and variance of one side, in or out.

    Attributes:
        mean: (N,) expected value of each candidate.
        variance: pooled variance within candidates, > 0.
        counts: shadows that the mean is worth, kappa_0 > 0.
        freedom: degrees of freedom that the variance is worth, nu_0 > 0.
    """

    mean: np.ndarray
    variance: float
    counts: float = 1.0
    freedom: float = 4.0


_LEAST_ERROR = 1e-12  # squared errors below it are alike


def confidence(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute log p_y - log(1 - p_y) (N,) of class scores (N, classes): LiRA's logit, without loss of digits.

    Of labels that are numbers, which have no such logit, it is less the logarithm of the squared error.
    """
    if are_numbers(labels):
        return -loss(scores.double(), labels.double(), "none").clamp(min=_LEAST_ERROR).log()
    logs = torch.log_softmax(scores.double(), 1)
    logarithm = logs.gather(1, labels[:, None])[:, 0]
    others = logs.scatter(1, labels[:, None], -torch.inf)
    return logarithm - torch.logsumexp(others, 1)


def student_ratio(target: np.ndarray, inside: np.ndarray, outside: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Compute log t_in - log t_out (N,) of the target model's values; higher for members.

    Args:
        target: (N,) a value of each candidate in the attacked model, as from `confidence`.
        inside: (N, S) the same in S shadow models; NaN where the candidate was out.
        outside: (N, S) likewise; NaN where it was in. Without a value in ``inside`` at all the score is offline: how
            far in the upper tail of "out" the target's value is.
        labels: (N,) classes, for the prior means of "out".

    Raises:
        InputError: shapes that do not belong together, or no value with a candidate out.
    """
    fitting = target.ndim == 1 and inside.ndim == outside.ndim == 2 and len(target) == len(inside) == len(outside)
    shapes = f"{target.shape}, {inside.shape}, {outside.shape}"
    require(fitting and len(labels) == len(target), "values (N,), (N, S), (N, S) and labels (N,)", shapes=shapes)
    require(bool(np.isfinite(outside).any()), "a shadow model without a candidate", values="none")
    out = predictive(outside, prior_of(outside, labels))
    if not np.isfinite(inside).any():
        return -np.log(np.clip(_tail(target, out), 1e-300, 1.0))
    into = predictive(inside, prior_of(inside, np.zeros(len(target), np.int64)))
    return log_density(target, into) - log_density(target, out)


def excess_ratio(target: Tensor, shadows: Tensor, inside: Tensor, labels: Tensor) -> Tensor:
    """Compute the ratio of `student_ratio` (N,), of values less the candidate's mean over its shadows.

    How high a candidate's values are by themselves differs more than membership moves them. And with few shadows the
    difference of a candidate's two sides is mostly noise, of either sign. So the priors are fitted, see `fitted`.

    Args:
        target: (N,) a value of each candidate at the attacked client.
        shadows: (S, N) the same at shadow clients.
        inside: (S, N) whether a candidate was in a shadow's training set; each must have been in and out once.
        labels: (N,) classes.

    Returns:
        (N,) float64, higher for members; NaN if a shadow training ended in values that are not finite.

    Raises:
        InputError: shapes that do not belong together, or a candidate that was always in, or always out.
    """
    fitting = shadows.dim() == 2 and shadows.shape == inside.shape and shadows.shape[1:] == target.shape == labels.shape
    shapes = f"{tuple(target.shape)}, {tuple(shadows.shape)}, {tuple(inside.shape)}"
    require(fitting, "values (N,), (S, N), (S, N) and labels (N,)", shapes=shapes)
    both = bool((inside.any(0) & ~inside.all(0)).all())
    require(both, "each candidate in some shadow's training set and out of another's", shadows=len(shadows))
    if not bool(shadows.isfinite().all()):
        return torch.full_like(target, torch.nan, dtype=torch.float64)
    centre = shadows.double().mean(0)
    above, values = (target.double() - centre).numpy(force=True), (shadows.double() - centre).T.numpy(force=True)
    within = inside.T.numpy(force=True)
    sides = np.where(within, values, np.nan), np.where(within, np.nan, values)
    into, out = (predictive(side, fitted(side, prior_of(side, np.zeros(len(above), np.int64)))) for side in sides)
    return torch.from_numpy(log_density(above, into) - log_density(above, out))


def fitted(values: np.ndarray, prior: Prior) -> Prior:
    """Return a prior whose mean is worth as many shadows as the data say: the variance within candidates over the one
    between their means.

    The variance between means is what is left of theirs when that of their few values is taken away (moments). If
    nothing is left, candidates do not differ, and the prior's mean stands for all.

    Args:
        values: (N, S) of one side, NaN where a candidate is of the other one.
        prior: of this side.
    """
    counts = np.isfinite(values).sum(1)
    there = counts > 0
    apart = np.nanmean(values[there], 1) - prior.mean[there]
    between = float((apart**2).mean()) - prior.variance * float((1 / counts[there]).mean())
    return replace(prior, counts=min(prior.variance / between, MOST_COUNTS) if between > 0 else MOST_COUNTS)


def prior_of(values: np.ndarray, groups: np.ndarray) -> Prior:
    """Return the prior of one side: the mean of each group (of all, where it has none), the variance of all pooled.

    Args:
        values: (N, S), NaN where a candidate is of the other side.
        groups: (N,) such as classes.
    """
    whole = float(np.nanmean(values))
    mean = np.full(len(values), whole)
    for group in np.unique(groups):
        same = values[groups == group]
        if np.isfinite(same).any():
            mean[groups == group] = np.nanmean(same)
    counts = np.isfinite(values).sum(1)
    repeated = counts >= 2
    freedom = int((counts[repeated] - 1).sum())
    centred = values[repeated] - np.nanmean(values[repeated], 1, keepdims=True) if freedom else values - mean[:, None]
    variance = float(np.nansum(centred**2)) / max(freedom or int(counts.sum()), 1)
    return Prior(mean, max(variance, np.finfo(float).tiny))


def predictive(values: np.ndarray, prior: Prior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the predictive Student-t of each candidate: degrees of freedom, centre and scale, (N,) each.

    kappa = kappa_0 + n, nu = nu_0 + n, centre = (kappa_0 mu_0 + n mean) / kappa, and

        nu s^2 = nu_0 s_0^2 + sum (value - mean)^2 + kappa_0 n / kappa (mean - mu_0)^2,    scale = s sqrt(1 + 1/kappa)

    Args:
        values: (N, S), NaN for values that are not there.
        prior: of this side.
    """
    there = np.isfinite(values)
    n = there.sum(1)
    filled = np.where(there, values, 0.0)
    mean = np.where(n > 0, filled.sum(1) / np.maximum(n, 1), prior.mean)
    squares = (np.where(there, values - mean[:, None], 0.0) ** 2).sum(1)
    counts, freedom = prior.counts + n, prior.freedom + n
    centre = (prior.counts * prior.mean + n * mean) / counts
    apart = prior.counts * n / counts * (mean - prior.mean) ** 2
    variance = (prior.freedom * prior.variance + squares + apart) / freedom
    return freedom, centre, np.sqrt(variance * (1 + 1 / counts))


def log_density(x: np.ndarray, at: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Compute the log density of Student's t, also where the square of its argument is beyond all floats."""
    from scipy.special import gammaln

    freedom, centre, scale = at
    with np.errstate(divide="ignore"):  # at the centre
        squares = 2 * np.log(np.abs(x - centre) / scale) - np.log(freedom)
    constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - np.log(np.pi * freedom) / 2 - np.log(scale)
    with np.errstate(invalid="ignore"):  # a loss that is not a number has no density, and counts as a failure
        return constant - (freedom + 1) / 2 * np.logaddexp(0, squares)


def _tail(x: np.ndarray, at: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    from scipy.stats import t

    return t.sf(x, at[0], loc=at[1], scale=at[2])
