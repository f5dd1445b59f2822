"""Calibration to a budget: the least noise for an epsilon, and the training of an example-level private run.

`training_for` goes by the budget, the data's size and the network. It reads no example and no result, and so costs
no privacy. The method is DP-FedAvg with ``unit=example``: each client clips and adds noise itself, so an example is
protected against the server and everybody else.

    T         steps = (m / N_1)^2, N_1 being N of one step: then the error of few steps, m / sqrt(T), equals that of the
              noise, which more steps do not lower (Bassily et al.); from 64, for usual networks, to 256, for time
    clipping  to C = 1 (De et al.): an example that is learnt counts less. By automatic clipping it goes on to count in
              full; of two classes and a linear model only the class sets its gradient's sign then, and the larger wins
    z         noise multiplier of T steps on all examples; it grows as sqrt(T)
    q         share of a client's examples in a batch: as large as the noise of sampling asks for, see below (De et al.)
    rounds    T over the local steps of one pass. In them clients' models move apart: at most 8 (McMahan et al.), and at
              most T (1 + (m / N)^2) / K, as a client's own noise is sqrt(K) times that of the mean, but at most R
    N         length of the noise in the mean over K clients, over C: z sqrt(d K) / n, for d weights and n examples
    m         length of the mean of unit gradients: 1 / sqrt(c), as those of c classes point different ways
    lr        R / sqrt(T (m^2 + N^2)), the best step of SGD that travels R with gradients of that size (Bassily et al.)
    R         2 sqrt(S), S = sqrt(T / (m^2 + N^2)): SGD ends at a loss of R / S above the best within R, which itself is
              below 4 / R, as log(1 + exp(-v R)) is for margins v from 0.08; the sum is least there (Song et al.). At
              least 3 times the length of first weights that are noise themselves, as those of a linear model are
    ema       the model is the average of the rounds' models, for which that lr holds; weights as De et al. have them

No momentum and no weight decay, by which noise lasts; GroupNorm for BatchNorm, which mixes examples (De et al.).

Batches: a step on a share q has q z of noise, times the price of sampling s = w sqrt(exp(1 / w^2) - 1) with w = q z
(Dong et al., central limit). q is the least with s <= 1.1, that is w >= 1.65: larger ones cost time and gain little.

Sources: De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022.
Song et al., "Evading the Curse of Dimensionality in Unconstrained Private GLMs", AISTATS 2021: a loss of clipped
gradients, and unknown lengths. McMahan et al., "Communication-Efficient Learning", AISTATS 2017.
Bassily et al., "Private Empirical Risk Minimization", FOCS 2014. Dong et al., "Gaussian Differential Privacy", 2022.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, isfinite, log, sqrt
from typing import Any, final

from flfw.errors import require
from flfw.privacy.accountants import LARGEST, Accountant, epsilon, largest
from flfw.privacy.mechanism import SeenMechanism

_GOAL = 1e-3  # calibrate_noise_multiplier ends at most this far below its target
_STEPS = 64, 256  # least and most
_LEAST_NOISE = 1.65  # w: noise multiplier of a step, at which sampling costs a tenth more noise
_MOST_LOCAL_STEPS = 8
_AT_ONCE = 2**26  # numbers of per-example gradients in memory


def calibrate_noise_multiplier(
    target_epsilon: float, clients: Sequence[Sequence[SeenMechanism]], delta: float, accountant: Accountant = "prv"
) -> float:
    """Return the smallest noise multiplier with which no client exceeds a target, or ends 0.001 below it at most.

    Args:
        target_epsilon: target, > 0 and finite.
        clients: for each client its mechanism, whose noise is replaced, and further ones that count beside it.
        delta: as for `compute_epsilon`.
        accountant: as for `compute_epsilon`.

    Raises:
        InputError: a value out of range, no clipping, or a target below the least epsilon of the accountant.
    """
    require(0 < target_epsilon < inf, "0 < target_epsilon < inf", target_epsilon=target_epsilon)

    def spent(sigma: float, client: Sequence[SeenMechanism], by: Accountant) -> float:
        (mechanism, others), *beside = client
        return epsilon([SeenMechanism(replace(mechanism, noise_multiplier=sigma), others), *beside], delta, by)

    sigma, (exceeding, _) = 0.0, largest(partial(spent, clients[0][0].mechanism.noise_multiplier), clients, accountant)
    while True:
        part = exceeding[0].mechanism
        require(part.clipping_norm < inf, "clip < inf", clip=part.clipping_norm)
        require(part.steps >= 1, "steps >= 1", steps=part.steps)
        require(part.max_participations != 0, "participations >= 1", participations=part.max_participations)
        near, factor = 1.0, 2.0
        if accountant == "prv" and target_epsilon >= 0.05:  # below, its error is a large share of its epsilon
            # RDP is fast, and close to the result of PRV.
            near, factor = _bisected(target_epsilon, partial(spent, client=exceeding, by="rdp"), near, factor), 1.1
        enough = _bisected(target_epsilon, partial(spent, client=exceeding, by=accountant), near, factor)
        sigma = enough if enough > sigma else 1.001 * sigma  # a numerical error of the accountant would go round
        exceeding, maximum = largest(partial(spent, sigma), clients, accountant)
        if maximum <= target_epsilon:
            return sigma


def _bisected(target: float, spent: Callable[[float], float], start: float, factor: float) -> float:
    """Search by bisection for the least sufficient noise; two of three tries are interpolated by a power law."""
    high, enough = start, spent(start)
    while enough > target:
        minimum, high = enough, 2 * high
        require(high <= LARGEST, "a target_epsilon that the accountant can show", target_epsilon=target, least=minimum)
        enough = spent(high)
    low = high / factor
    while (lower := spent(low)) <= target:
        low, high, enough = low / factor, low, lower
    tries = 0
    while target - enough > _GOAL and high / low - 1 > 1e-12:
        part, tries = 0.5, tries + 1
        if tries % 3 and isfinite(lower) and enough > 0:
            part = log(lower / (target - _GOAL / 2)) / log(lower / enough)
        middle = low * (high / low) ** min(max(part, 0.01), 0.99)
        tried = spent(middle)
        if tried <= target:
            high, enough = middle, tried
        else:
            low, lower = middle, tried
    return high


@final
@dataclass(frozen=True)
class PublicSizes:
    """Public sizes of a run.

    Attributes:
        noise: noise multiplier of one step on all examples that keeps the budget.
        examples: of all clients of a round together, >= 1.
        clients: in a round.
        share: of all clients that are in a round.
        weights: number of trained weights.
        classes: number of classes; 1: a regression.
        first: length of random first weights that only add noise; 0: there are none, as in hidden layers.
    """

    noise: float
    examples: int
    clients: int
    share: float
    weights: int
    classes: int
    first: float = 0.0

    def noise_length(self, steps: int) -> float:
        """Compute N, the length of the noise in the mean of all clients over the bound."""
        return self.noise * sqrt(steps * self.share * self.weights * self.clients) / self.examples


def unit_signal(classes: int) -> float:
    """Return m, the length that the mean of unit gradients is expected to have; of a regression as of two classes."""
    return 1 / sqrt(max(2, classes))


def training_for(sizes: PublicSizes, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Choose fields of an experiment by the rules above.

    Args:
        sizes: of the run.
        given: fields that a user set, which stay.

    Returns:
        The fields; settings of the method; lines that say what was chosen and why.

    >>> training_for(PublicSizes(1.65, 8000, 10, 1.0, 640, 4), {})[0]
    {'local_epochs': 1, 'batch_size': 100, 'rounds': 32, 'lr': 1.2, 'ema': 0.9999}
    """
    mean, signal = sizes.examples / sizes.clients, unit_signal(sizes.classes)
    aim = min(max(round((signal / sizes.noise_length(1)) ** 2), _STEPS[0]), _STEPS[1])
    apart = aim * (1 + (signal / sizes.noise_length(aim)) ** 2) / sizes.clients
    most, epochs = min(max(1, int(apart)), _MOST_LOCAL_STEPS), given.get("local_epochs", 1)
    share = min(1.0, max(_LEAST_NOISE / (sizes.noise * sqrt(aim * sizes.share)), epochs / most))
    batch = given.get("batch_size", ceil(share * mean))
    local = epochs * ceil(mean / batch)
    rounds = given.get("rounds", ceil(aim / local))
    steps, noise = rounds * local, sizes.noise_length(rounds * local)
    length = sqrt(steps * (signal**2 + noise**2))
    lr = max(2 * sqrt(steps / length), 3 * sizes.first) / length
    values = {"local_epochs": epochs, "batch_size": batch, "rounds": rounds, "lr": float(f"{lr:.2g}"), "ema": 0.9999}
    values = {name: given.get(name, value) for name, value in values.items()}
    settings = {
        "batches": "poisson", "clipping": "abadi", "clip": 1, "grouping": "flat", "momentum": 0, "weight_decay": 0,
        "physical_batch": 0 if batch * sizes.weights <= _AT_ONCE else max(1, _AT_ONCE // sizes.weights),
    }  # fmt: skip
    reasons = [
        f"chosen from sizes and epsilon, not from data: method dp_fedavg, {rounds} rounds of {local} local steps on "
        f"about {batch} examples each, lr {values['lr']:g}",
        "each client clips every example to length 1 and adds noise: an example is protected against the server, too",
        f"noise of a step {noise:.2g}, its gradient about {signal:.2g}, for {sizes.weights:,} weights and "
        f"{sizes.examples:,} examples of {sizes.clients} clients",
    ]
    return values, settings, reasons
