"""Private metrics: a client's loss, accuracies and number of examples, as one Gaussian release in each answer.

A part of a client's data, such as its test examples, has m numbers v in [0, 1] for each example: whether the model is
right, or the loss as a share of its bound. Each number must depend on no example but its own. An example adds to the
part's sum

    (2 v_1 - 1, ..., 2 v_m - 1, 1) / sqrt(m + 1)

This vector is never longer than 1. An example is in one part, so that 1 is the L2 sensitivity of all sums of an answer
together, and noise of deviation z on each entry is a Gaussian mechanism of multiplier z. Means follow from the noisy
sums: 1/2 + 1/2 (sum of 2 v - 1) / (number of examples), where the number counts as 1 at least, and the mean is cut to
[0, 1]. This is post-processing, which costs no privacy (Dwork and Roth, "The Algorithmic Foundations of Differential
Privacy", 2014, proposition 2.1).

Where whole clients are clipped, a client sends its means and no number of examples. With M means in all parts together
the vector of all (2 mean - 1) / sqrt(M) is never longer than 1, and a client more or less changes the answer by that.
"""

from abc import ABC
from collections.abc import Mapping
from math import log, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfw.client.gradient_client import GradientClient
from flfw.client.phases import Phases
from flfw.data.splits.lazy_parts import LazyParts, max_held, sizes
from flfw.data.splits.partition import Split
from flfw.dp.settings import DPSettings
from flfw.nets.net import Tensors, correct, losses
from flfw.nets.training.gaussian import GaussianNoise
from flfw.privacy.mechanism import Clipped

NOISE_MULTIPLIER = 10.0
"""Standard deviation of the noise over what one example, or client, can change in an answer: so much that the metrics
add little to the epsilon of any training, and means over some hundred examples still say something."""


class NoisyMeans(NamedTuple):
    """Means of a part's numbers, each in [0, 1], and its number of examples, >= 1; 1 where that is not told."""

    means: tuple[float, ...]
    examples: int


def encoded(parts: Mapping[str, Tensor], clipped: Clipped) -> dict[str, Tensor]:
    """Encode the numbers of each part as one vector; all together have the sensitivity 1.

    Args:
        parts: (n, m) float64 in [0, 1], the numbers of n >= 0 examples, by the name of the part.
        clipped: whose presence the noise is to hide.

    >>> (encoded({"test": torch.tensor([[1.0], [0.0], [1.0]])}, "example")["test"] * sqrt(2)).round()
    tensor([1., 3.])
    """
    if clipped == "example":
        counted = {name: torch.cat([2 * part - 1, torch.ones_like(part[:, :1])], 1) for name, part in parts.items()}
        return {name: part.sum(0) / sqrt(part.shape[1]) for name, part in counted.items()}
    width = sum(part.shape[1] for part in parts.values())
    return {name: (2 * part - 1).sum(0) / max(1, len(part)) / sqrt(width) for name, part in parts.items()}


def decoded(noisy: Mapping[str, Tensor], clipped: Clipped) -> dict[str, NoisyMeans]:
    """Compute the means, and the numbers of examples, from vectors of `encoded` plus noise.

    >>> decoded({"test": torch.tensor([1.0, 4.0]) / sqrt(2)}, "example")
    {'test': NoisyMeans(means=(0.625,), examples=4)}
    """
    if clipped == "example":
        return {name: _ratios(part * sqrt(len(part))) for name, part in noisy.items()}
    width = sum(map(len, noisy.values()))
    return {name: NoisyMeans(_cut(part * sqrt(width)), 1) for name, part in noisy.items()}


def released(
    parts: Mapping[str, Tensor], clipped: Clipped, multiplier: float, noise: GaussianNoise
) -> dict[str, NoisyMeans]:
    """Return the noisy means and numbers of examples of one answer; see `encoded`.

    Args:
        parts: as for `encoded`.
        clipped: as for `encoded`.
        multiplier: z > 0, deviation of the noise over the sensitivity.
        noise: source of the noise.
    """
    return decoded(noise.add(encoded(parts, clipped), multiplier), clipped)


def most_held(split: Split) -> int:
    """Return how often an example counts at most, as it may be in several vectors of `encoded`.

    An example that is c times in a part shifts the part's vector by up to c. Vectors of other parts and clients have
    noise of their own, and squares of shifts add up: so each part counts as c^2 vectors with the example in them once.
    """
    return max(max_held(split.train), max_held(split.test, split.validation))


def held_by_each(split: Split) -> list[int]:
    """Return the number of examples of each client in all its parts; one number if all have as many by construction."""
    three = split.train, split.test, split.validation
    times = 1 if all(isinstance(parts, LazyParts) for parts in three) else len(split.train)
    counts = [sizes(parts) * times if isinstance(parts, LazyParts) else sizes(parts) for parts in three]
    return [sum(mine) for mine in zip(*counts, strict=True)]


def _ratios(sums: Tensor) -> NoisyMeans:
    count = max(1.0, float(sums[-1]))
    return NoisyMeans(_cut(sums[:-1] / count), max(1, round(count)))


def _cut(shifted: Tensor) -> tuple[float, ...]:
    return tuple(((1 + shifted) / 2).clamp(0, 1).tolist())


ROWS = 64
"""Examples that are evaluated at once, never fewer: a computer may round differently for another shape, and by weights
made for it one example less would change whether the model is right on many others."""


def loss_bound(classes: int) -> float:
    """Return the largest loss of an example that counts: twice that of a guess among all classes."""
    return 2 * log(max(2, classes))


class PrivatelyReporting(GradientClient, ABC):
    """Base of clients whose settings have noise: with ``metrics=private`` all their numbers leave in one release.

    In training these are the loss of the trained model, the accuracies before and after, and the number of training
    examples. An evaluation tells the accuracy of the received model and the number of test examples. It trains nothing,
    since what a training on the private data tells would have to be paid for.
    """

    def round(self, received: Mapping[str, np.ndarray], version: int) -> Phases[tuple[Tensors, dict[str, Any]]]:
        """Do one round; see the base."""
        if self.ctx.plan.privacy.metrics != "private":
            return (yield from super().round(received, version))
        self.load_received(received, version)
        before = self.right("test")
        yield from self.train_by_phases()
        validated = self.ctx.plan.rounds.patience > 0  # not whether there are such examples, which would tell
        parts = {"train": self.losses(), "test": torch.cat([before, self.right("test")], 1)}
        parts |= {"validation": self.right("validation")} if validated else {}
        self._keep_private(version)
        noisy = self._released(parts, "metrics of training")
        (loss,), count = noisy["train"]
        (accuracy_before, accuracy_after), _ = noisy["test"]
        metrics = {"acc_global": accuracy_before, "acc_local": accuracy_after}
        metrics |= {"acc_validation": noisy["validation"].means[0]} if validated else {}
        metrics["loss"] = loss * loss_bound(self.ctx.task.dataset.classes)
        return self.build_upload(), {**metrics, "num-examples": count}

    def evaluate_named(self, received: Mapping[str, np.ndarray], version: int) -> dict[str, Any]:
        """Evaluate the received model; see the base."""
        if self.ctx.plan.privacy.metrics != "private":
            return super().evaluate_named(received, version)
        self.load_received(received, version)
        (accuracy,), count = self._released({"test": self.right("test")}, "metrics of evaluation")["test"]
        return {"acc_global": accuracy, "num-examples": count}

    def _released(self, parts: Mapping[str, Tensor], purpose: str) -> dict[str, NoisyMeans]:
        settings: Any = self.ctx.settings
        assert isinstance(settings, DPSettings)
        clipped: Clipped = "example" if settings.clips_examples else "client"
        noise = settings.noise(self.ctx.plan.seed, purpose, self.ctx.round, self.ctx.partition)
        return released(parts, clipped, NOISE_MULTIPLIER, noise)

    def right(self, part: str) -> Tensor:
        """Tell of each of n examples whether the model is right, of a text at which share of places: (n, 1)."""
        return self.measured(part, correct)

    def losses(self) -> Tensor:
        """Compute the loss of each of n training examples, as a share (n, 1) of its bound; 1 where it is no number."""
        bound = loss_bound(self.ctx.task.dataset.classes)

        def shares(scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return losses(scores, x, y).double().nan_to_num(bound, bound).clamp(0, bound) / bound

        return self.measured("train", shares)

    def measured(self, part: str, measure: Any) -> Tensor:
        """Apply a function of scores, raw inputs and labels (B,) to a part's examples, in batches of `ROWS`."""
        self.model.eval()
        mine, values = self.indices(part), [torch.empty(0, dtype=torch.float64)]
        with torch.no_grad():
            for start in range(0, len(mine), ROWS):
                x, y = self.ctx.task.examples("train" if part == "train" else "test", mine[start : start + ROWS])
                filled = torch.cat([x, x.new_zeros(ROWS - len(x), *x.shape[1:])]).to(self.device)
                scores = self.model(self.ctx.task.inputs.normalise(filled))[: len(y)]
                values.append(measure(scores, filled[: len(y)], y.to(self.device)).double().cpu())
        self.model.train()
        return torch.cat(values).unsqueeze(1)
