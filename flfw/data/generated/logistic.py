"""Synthetic(alpha, beta) of FedProx: clients with a logistic model and inputs of their own, ``--dataset synthetic``.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, section 5.1, as in their code: a client
draws u and v of N(0, 1), the weights W (10, 60) and the offsets b (10) of N(alpha u, 1), and the means m (60) of
N(beta v, 1). Its inputs are x ~ N(m, S) with a diagonal S, S_jj = j^-1.2, and the label of x is argmax(W x + b). So
alpha says how much models differ between clients, beta how much inputs do. ``synthetic:iid`` has one W and b for all,
of N(0, 1), and m = 0.

Departures: generators of their own make each client's examples, all clients have equally many (``natural.train``) and
not a power law's numbers, and x is stored as 1/2 + x / (2 R), float32 in [0, 1], with R six deviations of the widest
feature. Mean and deviation are such that networks get x itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import final

import numpy as np

from flfw.data.files.dataset import DatasetCard
from flfw.data.files.population import Part, Population
from flfw.data.generated.words import no_files, whole, within
from flfw.errors import InputError
from flfw.rng import numpy_generator

_FEATURES, _CLASSES = 60, 10
_DEVIATIONS = np.arange(1, _FEATURES + 1) ** -0.6  # of the features around a client's means
_MOST = 100.0
_NAME = "synthetic"


@final
@dataclass(frozen=True)
class LogisticClients(Population):
    """Population of Synthetic(alpha, beta).

    Attributes:
        alpha: deviation of the clients' mean weights, 0 to 100.
        beta: deviation of the clients' mean inputs, 0 to 100.
        seed: seed of all that is drawn.
        iid: whether all clients have one model and the same inputs in the mean.
    """

    alpha: float = 1.0
    beta: float = 1.0
    seed: int = 0
    iid: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (_FEATURES,)

    @property
    def half_width(self) -> float:
        """Half of the range of x that [0, 1] stands for, six deviations of the first feature."""
        return 6.0 * (1.0 if self.iid else sqrt(2.0 + self.beta**2))

    def inputs(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate stored inputs (count, 60)."""
        x = _features(self, part, person, count)
        return (0.5 + x / (2 * self.half_width)).clip(0, 1).astype(np.float32)

    def labels(self, part: Part, person: int, count: int) -> np.ndarray:
        """Generate labels (count,) by the client's model."""
        weights, offsets, _ = _client(self, person)
        return np.argmax(_features(self, part, person, count) @ weights.T + offsets, axis=1).astype(np.int64)


@lru_cache(16)
def _client(population: LogisticClients, person: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw W (10, 60), b (10,) and m (60,) of a client."""
    if population.iid:
        rng = numpy_generator(population.seed, "synthetic model of all")
        return rng.standard_normal((_CLASSES, _FEATURES)), rng.standard_normal(_CLASSES), np.zeros(_FEATURES)
    rng = numpy_generator(population.seed, "synthetic client", person)
    u, v = population.alpha * rng.standard_normal(), population.beta * rng.standard_normal()
    weights, offsets = u + rng.standard_normal((_CLASSES, _FEATURES)), u + rng.standard_normal(_CLASSES)
    return weights, offsets, v + rng.standard_normal(_FEATURES)


@lru_cache(16)
def _features(population: LogisticClients, part: Part, person: int, count: int) -> np.ndarray:
    rng = numpy_generator(population.seed, f"synthetic {part}", person)
    return _client(population, person)[2] + _DEVIATIONS * rng.standard_normal((count, _FEATURES))


def synthetic(word: str) -> DatasetCard:
    """Return the card of ``synthetic``, ``synthetic:ALPHA,BETA``, ``synthetic:ALPHA,BETA,SEED`` or ``synthetic:iid``.

    Raises:
        InputError: the word has another form.
    """
    given = word.split(",") if word else []
    iid = given[:1] == ["iid"]
    if len(given) > (2 if iid else 3) or (len(given) == 1 and not iid):
        forms = f"{_NAME}, {_NAME}:ALPHA,BETA or {_NAME}:iid, each perhaps with ,SEED"
        raise InputError(f"Expected {forms}, got {_NAME}:{word}; for example {_NAME}:0.5,0.5.")
    if iid:
        made = LogisticClients(0.0, 0.0, whole(_NAME, "seed", given[1]) if given[1:] else 0, iid=True)
    elif given:
        alpha, beta = (within(_NAME, *one, 0, _MOST) for one in zip(("alpha", "beta"), given[:2], strict=True))
        made = LogisticClients(alpha, beta, whole(_NAME, "seed", given[2]) if given[2:] else 0)
    else:
        made = LogisticClients()
    return DatasetCard(
        shape=made.shape,
        classes=_CLASSES,
        files={},
        read=no_files,
        source="generated as Synthetic(alpha, beta) of Li et al., MLSys 2020",
        licence="none needed: generated by this program",
        citation="Li, Sahu, Zaheer et al., Federated optimization in heterogeneous networks, MLSys 2020",
        fetch="nothing to get: it is generated",
        net="linear",
        split="natural",
        mean=(0.5,) * _FEATURES,
        std=(1 / (2 * made.half_width),) * _FEATURES,
        population=made,
    )
