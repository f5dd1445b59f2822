"""The client half of methods that clip and add noise: in every local step, or to the whole update."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw.client.federated_client import FederatedClient
from flfw.client.workplace import Workplace
from flfw.dp.settings import Noise, NoisySteps, clipped_change
from flfw.messages.sharing import matches
from flfw.nets.net import Tensors
from flfw.training.gaussian import gaussian
from flfw.training.per_example import Bound, ClippedSum, PerExample


class NoisyClient(FederatedClient, ABC):
    """Base of such clients; uploads are clipped, and all other tensors take no part in it.

    In a Poisson batch each example is there by a coin of its own; a sum is then divided by the expected number, which
    tells nobody how many there were. A batch of a shuffled pass is divided by its size, which is known.

    Args:
        at: the workplace.
    """

    def __init__(self, at: Workplace) -> None:
        super().__init__(at)
        self._seen: list[tuple[float, float]] = []

    @property
    def privacy(self) -> Noise:
        """The part of the method's settings that is about clipping and noise."""
        chosen: Any = self.at.settings
        assert isinstance(chosen, Noise)
        return chosen

    @property
    def steps(self) -> NoisySteps:
        """The same, where local steps are clipped."""
        assert isinstance(self.privacy, NoisySteps)
        return self.privacy

    @cached_property
    def per_example(self) -> PerExample:
        """The clipping and summing of the uploads' gradients."""
        return PerExample(self.model, self.sharing.uploads, grouping=self.privacy.grouping, way="fixed")

    @cached_property
    def noise(self) -> torch.Generator:
        """The generator of this client's noise in this round."""
        numbers = (self.at.round, self.at.partition, *self.at.probe)
        return self.privacy.generator(self.at.experiment.seed, "noise", *numbers)

    @cached_property
    def coins(self) -> torch.Generator:
        """The generator of this client's Poisson batches in this round; as hard to repeat as the noise."""
        return self.privacy.generator(self.at.experiment.seed, "coins", self.at.round, self.at.partition)

    def bound(self) -> Bound:
        """Choose C in this round."""
        return self.privacy.clip

    def measures(self) -> dict[str, float]:
        """Compute, of all noisy steps so far, the mean norm of an example's gradient and the share of clipped groups.

        For whoever runs the experiment: they are as bare as a loss.
        """
        if not self._seen:
            return {}
        norms, clipped = zip(*self._seen, strict=True)
        return {"gradient_norm": sum(norms) / len(norms), "clipped": sum(clipped) / len(clipped)}

    def train(self) -> dict[str, float]:
        """Return the mean loss of the last epoch, and `measures`."""
        loss = self.descend(self.moving(), self.at.experiment.local_epochs, self.optimiser())
        return {"loss": loss, **self.measures()}

    def moving(self) -> dict[str, Tensor]:
        """Choose the parameters that follow the noisy steps."""
        return self._trained(uploaded=True)

    def staying(self) -> dict[str, Tensor]:
        """Choose the parameters that are trained without noise, for they never leave."""
        return self._trained(uploaded=False)

    def _trained(self, uploaded: bool) -> dict[str, Tensor]:
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        return {n: p for n, p in trained.items() if matches(n, self.sharing.uploads) == uploaded}

    def follow(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """Compute a batch's mean loss and, where steps are clipped, the noisy mean of its clipped gradients."""
        if not self.privacy.on_steps:
            return super().follow(parameters, x, y)
        probed, size = bool(self.at.probe), self.at.experiment.batch_size
        losses, total = self.summed(x, y, self.steps.deviation(1.0, len(y) if probed else size))
        coins = self.steps.batches == "poisson" and not probed
        divisor = min(size, len(self.indices("train"))) if coins else max(1, len(y))
        return float(losses.mean()) if len(y) else 0.0, {name: value.div_(divisor) for name, value in total.items()}

    def clipped(self, x: Tensor, y: Tensor, bound: Bound) -> ClippedSum:
        """Clip and sum the gradients of raw inputs (B, ...) with labels (B,), B >= 0, without noise."""

        def losses() -> Tensor:
            return cross_entropy(self.model(self.at.task.inputs.normalise(x)), y, reduction="none")

        return self.per_example.clipped_sum(losses, bound)

    def summed(self, x: Tensor, y: Tensor, deviation: float) -> tuple[Tensor, Tensors]:
        """Compute the losses of B >= 0 raw inputs (B, ...), and the sum of their clipped gradients with noise.

        Args:
            x: the inputs.
            y: their labels.
            deviation: of the noise, over the bound of each group.
        """
        bound = self.bound()
        sums = self.clipped(x, y, bound)
        if len(y):
            norms = torch.linalg.vector_norm(sums.norms, dim=1)
            self._seen.append((float(norms.mean()), float((sums.scales < 1).float().mean())))
        noise = gaussian({name: value.shape for name, value in sums.sums.items()}, deviation, self.noise)
        bounds = bound if isinstance(bound, Mapping) else dict.fromkeys(self.per_example.groups, bound)
        scale = {name: bounds[group] for group, members in self.per_example.groups.items() for name in members}
        total = self.finished(sums.sums)
        return sums.losses, {n: v.add_(noise[n].to(v.device), alpha=scale[n]) for n, v in total.items()}

    def finished(self, total: Tensors) -> Tensors:
        """Finish the sum of clipped gradients before the noise is added; by default it stays as it is."""
        return total

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Pass once in shuffled order; or draw as many Poisson batches as that has, of which some may be empty."""
        if not self.privacy.on_steps or self.steps.batches == "shuffled":
            yield from super().batches(rng)
            return
        mine, size, defence = self.indices("train"), self.at.experiment.batch_size, self.at.defence
        for _ in range(ceil(len(mine) / size)):
            coins = torch.rand(len(mine), generator=self.coins).numpy() < size / len(mine)
            x, y = self.examples("train", mine[coins], vary=rng)
            yield defence.batch(x, y, rng) if defence and len(y) else (x, y)

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the direction of a local step: clipped and noisy, where steps are."""
        return self.followed_gradient(x, y, rng) if self.privacy.on_steps else super().local_gradient(x, y, rng)

    def observed(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Show one example's gradient after clipping and noise or, if the settings say so, before."""
        if self.privacy.on_steps and self.steps.observed == "bare":
            return super().local_gradient(x, y, rng)
        return self.local_gradient(x, y, rng)

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """Answer a probe of one step. Where updates are clipped, that is a clipped step over minus its size."""
        if not self.privacy.on_update:
            return super().gradient(x, y)
        lr, rng = self.at.experiment.lr, self.generator("probe")
        change = self._sanitised({name: -lr * value for name, value in self.local_gradient(x, y, rng).items()})
        sent = {name: value / -lr for name, value in change.items()}
        return self.at.defence.update(sent, rng) if self.at.defence else sent  # after the noise, as in training

    def outgoing(self) -> Tensors:
        """Choose the uploaded tensors; where updates are clipped, the received ones plus the clipped change."""
        sent = super().outgoing()
        if not self.privacy.on_update:
            return sent
        before = {n: torch.tensor(self.received[n], device=v.device) for n, v in sent.items() if v.is_floating_point()}
        change = self._sanitised({name: sent[name] - value for name, value in before.items()})
        return {**sent, **{name: value + change[name] for name, value in before.items()}}

    def _sanitised(self, change: Tensors) -> Tensors:
        clipped = clipped_change(change, self.privacy.clip, self.privacy.grouping)
        shapes = {name: value.shape for name, value in clipped.items()}
        noise = gaussian(shapes, self.privacy.update_deviation, self.noise)
        return {name: value + noise[name].to(value.device) for name, value in clipped.items()}
