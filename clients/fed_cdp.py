"""Fed-CDP's client half: noisy steps whose bound may change from round to round, and compression around the noise."""

from functools import cached_property
from math import inf
from typing import Any, final

import torch

from flfw.dp.client import DPClient
from flfw.nets import Tensors
from flfw.nets.training.clipping import Bound, keep_largest
from flfw.nets.training.optimisers import Optimiser
from flfw.nets.training.per_example import ClippedSum

_LEAST = 1e-6  # least bound: a median of vanished gradients is 0, which would clip everything to 0
_AT_ONCE = 100


@final
class FedCDPClient(DPClient):
    """Client with L noisy steps of plain SGD."""

    regresses = True

    @property
    def settings(self) -> Any:
        """Hyper-parameters of Fed-CDP."""
        return self.ctx.settings

    def optimiser(self) -> Optimiser:
        """Return SGD with the learning rate of the round."""
        done = max(0, self.ctx.round - 1)
        return self.settings.optimiser_at(self.ctx.local.lr * self.settings.lr_decay**done)

    def bound(self) -> Bound:
        """Return C(t), or for each layer the median of the client's own gradient norms."""
        if self.settings.bound == "median":
            return self._medians
        return self.settings.clip_at(self.ctx.round, self.ctx.plan.rounds.rounds)

    @cached_property
    def _medians(self) -> dict[str, float]:
        """Medians of the gradient norms over all examples of the client, at the received model."""
        norms, mine = [], self.indices("train")
        for start in range(0, len(mine), _AT_ONCE):
            x, y = self.examples("train", mine[start : start + _AT_ONCE])
            norms.append(self.clipped_sum(x, y, inf).norms)
        medians = torch.cat(norms).median(0).values.clamp(min=_LEAST).tolist()
        return dict(zip(self.per_example.groups, medians, strict=True))

    def add_noise(self, clipped: ClippedSum, bound: Bound, sum_noise_multiplier: float) -> Tensors:
        """Return the noisy sum, whose smallest entries may be zeroed."""
        where, ratio = self.settings.compress, self.settings.compress_ratio
        total = super().add_noise(clipped, bound, sum_noise_multiplier)
        return {n: keep_largest(v, ratio) for n, v in total.items()} if where == "after" else total

    def before_noise(self, total: Tensors) -> Tensors:
        """Return the sum before the noise; its smallest entries may be zeroed."""
        ratio = self.settings.compress_ratio
        return {n: keep_largest(v, ratio) for n, v in total.items()} if self.settings.compress == "before" else total
