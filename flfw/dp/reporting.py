"""Client half that reports private metrics: what it measures, when, and the one release of each answer."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flfw.client.phases import Phases
from flfw.client.stacked_descent import GradientClient
from flfw.dp.private_metrics import NoisyMeans, released
from flfw.dp.settings import DPSettings
from flfw.nets.net import Tensors, hits, losses
from flfw.privacy.mechanism import Clipped

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
        yield from self.training()
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
        return self.leaving(), {**metrics, "num-examples": count}

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
        clipped: Clipped = "example" if settings.on_steps else "client"
        noise = settings.noise(self.ctx.plan.seed, purpose, self.ctx.round, self.ctx.partition)
        return released(parts, clipped, self.ctx.plan.privacy.metrics_noise_multiplier, noise)

    def right(self, part: str) -> Tensor:
        """Tell of each of n examples whether the model is right, of a text at which share of places: (n, 1)."""
        return self.measured(part, hits)

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
