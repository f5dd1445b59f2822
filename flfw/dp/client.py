"""Client half of methods that clip and add noise: in every local step, or to the whole update."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from math import ceil
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.client.context import ClientContext
from flfw.client.federated_client import IN_THEIR_OWN_WAY
from flfw.client.gradient_client import GradientClient
from flfw.client.phases import Batch, BatchedSteps, Phases
from flfw.dp.private_metrics import PrivatelyReporting
from flfw.dp.quantile import answer
from flfw.dp.settings import DPSettings, DPSGDSettings, clipped_change
from flfw.errors import require
from flfw.files.tensor_names import matches
from flfw.nets.net import Tensors, losses
from flfw.nets.training.clipping import CLIP_FACTOR, Bound
from flfw.nets.training.gaussian import GaussianNoise
from flfw.nets.training.per_example import ClippedSum, PerExample, accumulated, physical, stacked_clipped_sums
from flfw.rng import drawing_in_secret, secret_choices, secret_coins, secret_generator, torch_generator

_CLIPPED = 1 - 1e-5  # a scale below it counts as clipped: with a median for a bound, rounding would decide of one norm


class DPClient(PrivatelyReporting, ABC):
    """Base of clients that clip and add noise to the uploaded tensors; tensors that stay are not clipped.

    A Poisson batch holds each example with the same probability, independently. With ``batches=balls`` each example
    chooses one of a pass's batches. Such a sum of gradients is divided by the expected batch size, which does not
    reveal the real one. A batch of a shuffled pass is divided by its size, which is known.

    Args:
        ctx: the context.
    """

    batch_loss = False  # where steps are noisy, they clip each example's gradient

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        self._seen: list[tuple[float, float]] = []

    @property
    def noise_settings(self) -> DPSettings:
        """Settings of the clipping and the noise, a part of the method's settings."""
        chosen: Any = self.ctx.settings
        assert isinstance(chosen, DPSettings)
        return chosen

    @property
    def step_settings(self) -> DPSGDSettings:
        """Settings of the clipping and the noise, where local steps are clipped."""
        assert isinstance(self.noise_settings, DPSGDSettings)
        return self.noise_settings

    @cached_property
    def per_example(self) -> PerExample:
        """Clipped sums of the per-example gradients of the uploaded tensors."""
        rules = self.noise_settings.grouping, self.noise_settings.clipping
        return PerExample(self.model, self.sharing.uploads, grouping=rules[0], clipping=rules[1])

    @cached_property
    def noise(self) -> GaussianNoise:
        """Source of this client's noise in this round."""
        numbers = (self.ctx.round, self.ctx.partition, *self.ctx.probe)
        return self.noise_settings.noise(self.ctx.plan.seed, "noise", *numbers)

    @cached_property
    def _coins(self) -> torch.Generator:
        return torch_generator(self.ctx.plan.seed, "coins", self.ctx.round, self.ctx.partition)

    def coins(self, count: int, probability: float) -> np.ndarray:
        """Draw the coins (count,) of one Poisson batch, as secret as the noise; True: the example is drawn."""
        if self.noise_settings.secure:
            return secret_coins(count, probability)
        return torch.rand(count, generator=self._coins).numpy() < probability

    def choices(self, count: int, options: int) -> np.ndarray:
        """Draw a uniform choice (count,) from 0 to ``options`` - 1 for each example, as secret as the noise."""
        if self.noise_settings.secure:
            return secret_choices(count, options)
        return torch.randint(options, (count,), generator=self._coins).numpy()

    def generator(self, purpose: str) -> torch.Generator:
        """Return a generator of this client for one purpose in this round; with secure noise nobody can repeat it.

        From a known seed, one example more or less would change how the others of its batch are augmented, and by that
        their gradients, which no noise for one example hides.
        """
        return secret_generator() if self.noise_settings.secure else super().generator(purpose)

    def bound(self) -> Bound:
        """Return the clipping bound C of this round."""
        return self.noise_settings.clip

    def measures(self) -> dict[str, float]:
        """Average over all noisy steps so far: the norm of an example's gradient, and the share of clipped groups.

        These values have no noise, as the loss has none: they are for the researcher who runs the experiment.
        """
        if not self._seen:
            return {}
        norms, clipped = zip(*self._seen, strict=True)
        return {"gradient_norm": sum(norms) / len(norms), "clipped": sum(clipped) / len(clipped)}

    def training_phases(self) -> Phases[dict[str, float]]:
        """Train for one round; return the mean loss of the last epoch, and `measures`."""
        return {**(yield from super().training_phases()), **self.measures()}

    def joint(self, clients: Sequence[DPClient]) -> BatchedSteps | None:
        """Make the joint steps of some clients like this one: noisy ones, where steps are clipped."""
        return JointNoisySteps(clients) if self.noise_settings.clips_examples else super().joint(clients)

    @classmethod
    def joined_as(cls) -> type[GradientClient]:
        """Return this class: a subclass may change the bound, `add_noise` and `before_noise`."""
        return DPClient

    @classmethod
    def not_batchable_reason(cls, model: nn.Module, settings: Any) -> str:
        """Name the reason against joint steps; see the base."""
        if reason := super().not_batchable_reason(model, settings):
            return reason
        if cls.noisy_sum is not DPClient.noisy_sum or cls.clipped_sum is not DPClient.clipped_sum:
            return IN_THEIR_OWN_WAY
        return "whose physical batches divide a step" if getattr(settings, "physical_batch", 0) else ""

    @classmethod
    def batched_on_cpu(cls, model: nn.Module) -> int:
        """Return 1: alone, no gradient of a single example is formed."""
        return 1

    def trainable_parameters(self) -> dict[str, Tensor]:
        """Return the parameters that noisy steps change."""
        return self._trained(uploaded=True)

    def unshared_parameters(self) -> dict[str, Tensor]:
        """Return the parameters that are trained without noise, because they are never uploaded."""
        return self._trained(uploaded=False)

    def _trained(self, uploaded: bool) -> dict[str, Tensor]:
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        return {n: p for n, p in trained.items() if matches(n, self.sharing.uploads) == uploaded}

    def loss_and_direction(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """Compute the mean loss of a batch and, where steps are clipped, the noisy mean of its clipped gradients."""
        if not self.noise_settings.clips_examples:
            return super().loss_and_direction(parameters, x, y)
        probed, size = bool(self.ctx.probe), self.ctx.local.batch_size
        values, total = self.noisy_sum(x, y, self.step_settings.sum_noise_multiplier(len(y) if probed else size))
        divisor = max(1, len(y)) if probed else self.divisor(len(y))
        return float(values.mean()) if len(y) else 0.0, {name: value.div_(divisor) for name, value in total.items()}

    def divisor(self, drawn: int) -> float:
        """Return the divisor of a batch's sum: its size where that is known to all, else its expectation."""
        size, examples = self.ctx.local.batch_size, len(self.indices("train"))
        if self.step_settings.batches == "poisson":
            return min(size, examples)
        return examples / ceil(examples / size) if self.step_settings.batches == "balls" else max(1, drawn)

    def clipped_sum(self, x: Tensor, y: Tensor, bound: Bound) -> ClippedSum:
        """Sum the clipped gradients of raw inputs (B, ...) with labels (B,), B >= 0, without noise."""

        def summed(x: Tensor, y: Tensor) -> ClippedSum:
            def of_each() -> Tensor:
                return losses(self.model(self.ctx.task.inputs.normalise(x)), x, y)

            return self.per_example.clipped_sum(of_each, bound)

        with drawing_in_secret(x.device) if self.noise_settings.secure else nullcontext():
            return accumulated(summed(*part) for part in physical(x, y, self.step_settings.physical_batch))

    def noisy_sum(self, x: Tensor, y: Tensor, sum_noise_multiplier: float) -> tuple[Tensor, Tensors]:
        """Compute the losses of B >= 0 raw inputs (B, ...), and the sum of their clipped gradients with noise.

        Args:
            x: the inputs.
            y: the labels.
            sum_noise_multiplier: standard deviation of the noise over the clipping bound of each group.
        """
        bound = self.bound()
        clipped = self.clipped_sum(x, y, bound)
        return clipped.losses, self.add_noise(clipped, bound, sum_noise_multiplier)

    def add_noise(self, clipped: ClippedSum, bound: Bound, sum_noise_multiplier: float) -> Tensors:
        """Return a sum of clipped gradients of B >= 0 examples with noise; see `noisy_sum`."""
        if len(clipped.losses):
            norms = torch.linalg.vector_norm(clipped.norms, dim=1)
            self._seen.append((float(norms.mean()), float((clipped.scales < _CLIPPED).float().mean())))
        bounds = bound if isinstance(bound, Mapping) else dict.fromkeys(self.per_example.groups, bound)
        scale = {name: bounds[group] for group, members in self.per_example.groups.items() for name in members}
        return self.noise.add(self.before_noise(clipped.sums), sum_noise_multiplier, scale)

    def before_noise(self, total: Tensors) -> Tensors:
        """Return the sum of clipped gradients to which noise is added; by default ``total``, unchanged."""
        return total

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a shuffled pass, or as many drawn ones, which may be empty."""
        if not self.noise_settings.clips_examples or self.step_settings.batches == "shuffled":
            yield from super().batches(rng)
            return
        indices = self.indices("train")
        for drawn in self._drawn(len(indices), self.ctx.local.batch_size):
            x, y = self.examples("train", indices[drawn], vary=rng)
            yield self.defended_batch(x, y, rng) if len(y) else (x, y)

    def _drawn(self, examples: int, size: int) -> Iterator[np.ndarray]:
        """Yield who is in each batch (examples,) of a pass: by a coin for each, or by each example's choice of one."""
        count = ceil(examples / size)
        if self.step_settings.batches == "balls":
            choices = self.choices(examples, count)
            yield from (choices == index for index in range(count))
        else:
            yield from (self.coins(examples, min(1.0, size / examples)) for _ in range(count))

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the direction of a local step; clipped and noisy, where the method clips steps."""
        return (
            self.step_direction(x, y, rng) if self.noise_settings.clips_examples else super().local_gradient(x, y, rng)
        )

    def observed(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Return one example's gradient after clipping and noise or, with ``observed=bare``, before both."""
        if self.noise_settings.clips_examples and self.step_settings.observed == "bare":
            return super().local_gradient(x, y, rng)
        return self.local_gradient(x, y, rng)

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """Answer a probe of one step; where updates are clipped, by a clipped step divided by ``-lr``."""
        if not self.noise_settings.clips_updates:
            return super().gradient(x, y)
        lr, rng = self.ctx.local.lr, self.generator("probe")
        change = self._clipped({name: -lr * value for name, value in self.local_gradient(x, y, rng).items()})
        change = self.noise.add(change, self.noise_settings.update_deviation)
        gradient = {name: value / -lr for name, value in change.items()}
        # After the noise, as in training.
        return self.ctx.defence.update(gradient, rng) if self.ctx.defence else gradient

    def upload_tensors(self) -> Tensors:
        """Return the uploaded tensors; where updates are clipped, the received ones plus the clipped noisy change."""
        sent = super().upload_tensors()
        if not self.noise_settings.clips_updates:
            return sent
        moved = {name: value for name, value in sent.items() if value.is_floating_point() and name != CLIP_FACTOR}
        before = {name: torch.tensor(self.received[name], device=value.device) for name, value in moved.items()}
        change = {name: sent[name] - value for name, value in before.items()}
        if self.noise_settings.follows_quantile:
            norm = torch.stack([value.double().square().sum() for value in change.values()]).sum().sqrt()
            sent = {**sent, CLIP_FACTOR: torch.full_like(sent[CLIP_FACTOR], answer(float(norm), self.update_bound))}
        change = self._clipped(change)
        noisy = self.noise.add_to_update(before, change, self.update_bound, self.noise_settings.update_deviation)
        return {**sent, **noisy}

    @property
    def update_bound(self) -> float:
        """Bound C of this client's update in this round."""
        moving = self.noise_settings.follows_quantile
        return self.noise_settings.clip * (float(self.received[CLIP_FACTOR].item()) if moving else 1.0)

    def _clipped(self, change: Tensors) -> Tensors:
        return clipped_change(change, self.update_bound, self.noise_settings.grouping, self.noise_settings.clipping)

    def _defended(self, sent: Tensors) -> Tensors:
        """Apply the defence to all but the answer on the update's norm, which is no part of the model."""
        return {**sent, **super()._defended({name: value for name, value in sent.items() if name != CLIP_FACTOR})}


@final
class JointNoisySteps(BatchedSteps):
    """Noisy steps of some clients: gradients of all examples of all clients at once, and the noise of each client.

    Args:
        clients: the clients.
    """

    def __init__(self, clients: Sequence[DPClient]) -> None:
        self._clients, self._model, self._inputs = clients, clients[0].model, clients[0].ctx.task.inputs
        self._moving = [client.trainable_parameters() for client in clients]
        whole = dict(self._model.named_parameters()).keys()
        require(self._moving[0].keys() == whole, "noisy steps on all parameters", batched_clients=len(clients))
        self._stacked = {n: torch.stack([one[n].detach() for one in self._moving]) for n in self._moving[0]}
        self._optimisers = [client.optimiser() for client in clients]

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Do the next step of as many first clients as there are batches; return their mean losses."""
        clients = self._clients[: len(batches)]
        parameters = {n: v[: len(batches)] for n, v in self._stacked.items()}
        bounds = [client.bound() for client in clients]
        groups, rule = clients[0].per_example.groups, clients[0].noise_settings.clipping
        each = [[one[name] if isinstance(one, Mapping) else one for name in groups] for one in bounds]
        sums = stacked_clipped_sums(self._loss, parameters, batches, groups, each, rule)
        means: list[Tensor] = []
        for index, (client, clipped, bound) in enumerate(zip(clients, sums, bounds, strict=True)):
            multiplier = client.step_settings.sum_noise_multiplier(client.ctx.local.batch_size)
            total, divisor = client.add_noise(clipped, bound, multiplier), client.divisor(len(clipped.losses))
            direction = {name: value.div_(divisor) for name, value in total.items()}
            self._optimisers[index].step({n: v[index] for n, v in self._stacked.items()}, direction)
            means.append(clipped.losses.mean() if len(clipped.losses) else clipped.losses.new_zeros(()))
        return torch.stack(means)

    @torch.no_grad()
    def write(self) -> None:
        """Bring the clients' own parameters up to their last steps."""
        for index, parameters in enumerate(self._moving):
            for name, value in parameters.items():
                value.copy_(self._stacked[name][index])

    def _loss(self, parameters: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return losses(functional_call(self._model, parameters, (self._inputs.normalise(x),)), x, y)[0]
