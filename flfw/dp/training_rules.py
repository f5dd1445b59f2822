"""Rules that choose the training of an example-level private run from the budget, the data's size and the network.

They read no example and no result, so they cost no privacy. The method is DP-FedAvg with ``unit=example``: each client
clips and adds noise itself, so an example is protected against the server and everybody else.

    T         steps = (m / N_1)^2, N_1 being N of one step: then the error of few steps, m / sqrt(T), equals that of the
              noise, which more steps do not lower (Bassily et al.); from 64, for usual networks, to 256, for time
    clipping  automatic with C = 1: each example counts by its direction, and no bound is tuned (Bu et al.)
    z         noise multiplier of T steps on all examples; it grows as sqrt(T)
    q         share of a client's examples in a batch: as large as the noise of sampling asks for, see below (De et al.)
    rounds    T over the local steps of one pass, at most 8, in which clients' models move apart (McMahan et al.)
    N         length of the noise in the mean over K clients, over C: z sqrt(d K) / n, for d weights and n examples
    m         length of the mean of unit gradients: 1 / sqrt(c), as those of c classes point different ways
    lr        R / sqrt(T (m^2 + N^2)), the best step of SGD that travels R with gradients of that size (Bassily et al.)
    R         twice the length of the first weights: no two points of a ball of their length are farther apart

No momentum and no weight decay, by which noise lasts; GroupNorm for BatchNorm, which mixes examples (De et al.).

Batches: a step on a share q has q z of noise, times the price of sampling s = w sqrt(exp(1 / w^2) - 1) with w = q z
(Dong et al., central limit). q is the least with s <= 1.1, that is w >= 1.65: larger ones cost time and gain little.

Sources: De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022.
Bu et al., "Automatic Clipping", NeurIPS 2023. Ponomareva et al., "How to DP-fy ML", JAIR 2023.
McMahan et al., "Communication-Efficient Learning", AISTATS 2017.
Bassily et al., "Private Empirical Risk Minimization", FOCS 2014. Dong et al., "Gaussian Differential Privacy", 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, final

from flfw.privacy.accountants import Accountant
from flfw.privacy.calibration import calibrate_noise_multiplier
from flfw.privacy.mechanism import Mechanism

STEPS = 64, 256  # least and most
LEAST_NOISE = 1.65  # w: noise multiplier of a step, at which sampling costs a tenth more noise
MOST_LOCAL_STEPS = 8
_AT_ONCE = 2**26  # numbers of per-example gradients in memory

SETTINGS = {
    "batches": "poisson", "clipping": "automatic", "clip": "1", "grouping": "flat",
    "momentum": "0", "weight_decay": "0",
}  # fmt: skip
"""Settings of the method that no size changes."""

FIELDS = ("local_epochs", "batch_size", "rounds", "lr")
"""Fields of an experiment that `chosen` chooses."""


@final
@dataclass(frozen=True)
class Sizes:
    """Public sizes of a run.

    Attributes:
        examples: of all clients of a round together, >= 1.
        clients: in a round.
        share: of all clients that are in a round.
        weights: number of trained weights.
        length: L2 norm of the first weights.
        classes: number of classes; 1: a regression.
    """

    examples: int
    clients: int
    share: float
    weights: int
    length: float
    classes: int


def unit_signal(classes: int) -> float:
    """Return m, the length that the mean of unit gradients is expected to have; of a regression as of two classes."""
    return 1 / sqrt(max(2, classes))


def noise_of_one_step(epsilon: float, delta: float, accountant: Accountant) -> float:
    """Compute the noise multiplier with which one step on all examples keeps a budget."""
    return calibrate_noise_multiplier(epsilon, [[Mechanism(1.0, steps=1)]], delta, accountant)


def chosen(one: float, sizes: Sizes, given: Mapping[str, Any]) -> dict[str, Any]:
    """Choose passes, batch size, rounds and learning rate by the rules above.

    Args:
        one: noise multiplier of one step on all examples.
        sizes: of the run.
        given: fields of the experiment that a user set, which stay.

    >>> chosen(1.65, Sizes(8000, 10, 1.0, 640, 4.0, 4), {})
    {'local_epochs': 1, 'batch_size': 100, 'rounds': 32, 'lr': 0.88}
    """
    mean, steps = sizes.examples / sizes.clients, round((unit_signal(sizes.classes) / noise_length(one, sizes, 1)) ** 2)
    steps = min(max(steps, STEPS[0]), STEPS[1])
    epochs = given.get("local_epochs", 1)
    share = min(1.0, max(LEAST_NOISE / (one * sqrt(steps * sizes.share)), epochs / MOST_LOCAL_STEPS))
    batch = given.get("batch_size", ceil(share * mean))
    local = epochs * ceil(mean / batch)
    rounds = given.get("rounds", ceil(steps / local))
    steps, noise = rounds * local, noise_length(one, sizes, rounds * local)
    lr = 2 * sizes.length / sqrt(steps * (unit_signal(sizes.classes) ** 2 + noise**2))
    return {"local_epochs": epochs, "batch_size": batch, "rounds": rounds, "lr": float(f"{lr:.2g}")} | dict(given)


def physical_batch(batch: int, weights: int) -> int:
    """Return the examples whose gradients are in memory at once; 0: a whole batch fits."""
    return 0 if batch * weights <= _AT_ONCE else max(1, _AT_ONCE // weights)


def noise_length(one: float, sizes: Sizes, steps: int) -> float:
    """Compute N, the length of the noise in the mean of all clients over the bound."""
    return one * sqrt(steps * sizes.share * sizes.weights * sizes.clients) / sizes.examples


def reasons(one: float, sizes: Sizes, values: Mapping[str, Any]) -> list[str]:
    """Return what was chosen and why, in lines.

    Args:
        one: noise multiplier of one step on all examples.
        sizes: of the run.
        values: as chosen, or as a user set them.
    """
    steps = values["rounds"] * values["local_epochs"] * ceil(sizes.examples / sizes.clients / values["batch_size"])
    noise, signal = noise_length(one, sizes, steps), unit_signal(sizes.classes)
    return [
        f"chosen from sizes and epsilon, not from data: method dp_fedavg, {values['rounds']} rounds of "
        f"{steps // values['rounds']} local steps on about {values['batch_size']} examples each, lr {values['lr']:g}",
        "each client clips every example to length 1 and adds noise: an example is protected against the server, too",
        f"noise of a step {noise:.2g}, its gradient about {signal:.2g}, for {sizes.weights:,} weights and "
        f"{sizes.examples:,} examples of {sizes.clients} clients",
    ]
