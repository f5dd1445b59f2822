"""FedCG's client half: classification held to generated features, then a conditional GAN of the client's own."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, cross_entropy, mse_loss

from flfw.client import FederatedClient, along
from flfw.nets import Tensors
from flfw.nets.conditional_gan import GeneratingNet, diversity_loss, noise
from flfw.optimisers import Adam, Optimiser, Remembering
from flfw.workplace import Workplace

_GAN_BETAS = (0.5, 0.999)


@final
class FedCGClient(FederatedClient):
    """Stages 1 and 2 of the paper's algorithm, with three optimisers that last as long as the run."""

    def __init__(self, at: Workplace) -> None:
        super().__init__(at)
        settings = at.settings
        self._task = Adam(at.experiment.lr, settings.weight_decay)
        self._generating = Adam(settings.gan_lr, betas=_GAN_BETAS)
        self._judging = Adam(settings.gan_lr, betas=_GAN_BETAS)

    @property
    def net(self) -> GeneratingNet:
        """The model, which the method builds as a `GeneratingNet`."""
        assert isinstance(self.model, GeneratingNet)
        return self.model

    def moving(self) -> dict[str, Tensor]:
        """Stage 1's: extractor and classifier."""
        return self._parts("extractor", "classifier")

    def optimiser(self) -> Optimiser:
        """Stage 1's."""
        return self._task

    def lasting(self) -> Mapping[str, tuple[Remembering, Mapping[str, Tensor]]]:
        """All three."""
        return {
            "adam": (self._task, self.moving()),
            "adam_generator": (self._generating, self._parts("generator")),
            "adam_discriminator": (self._judging, self._parts("discriminator")),
        }

    def train(self) -> dict[str, float]:
        """Returns the mean losses of the last epoch of each stage."""
        loss = self.train_classifier()
        return {"loss": loss, "gamma": self.gamma, "generator_loss": self.train_generator()}

    @property
    def gamma(self) -> float:
        """Weight of the distance to generated features: 0 in the first round, 2 / (1 + exp(-10)) - 1 at last."""
        rounds = self.at.settings.gamma_rounds
        progress = min((self.at.round - 1) / rounds, 1.0) if rounds else 1.0
        return 2 / (1 + exp(-10 * progress)) - 1

    def train_classifier(self) -> float:
        """Stage 1; returns the mean loss of the last epoch."""
        self.net.generator.eval()
        self._rng = self.generator("generated features")
        return self.descend(self.moving(), self.at.experiment.local_epochs, self._task)

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """CE(C(E(x)), y) + gamma MSE(E(x), G_g(z, y)), z afresh for each batch."""
        features = self.net.extractor(self.at.task.inputs.normalise(x))
        loss = cross_entropy(self.net.classifier(features), y)
        if not self.gamma:
            return loss
        with torch.no_grad():
            generated = self.net.generator(noise(len(y), self._rng).to(self.device), y)
        return loss + self.gamma * mse_loss(features, generated)

    def train_generator(self) -> float:
        """Stage 2; returns the generator's mean loss of the last epoch."""
        epochs = self.at.settings.gan_epochs or self.at.experiment.local_epochs
        self.net.extractor.eval()
        self.net.generator.train()
        self._rng = self.generator("noise")
        found = self.descend(
            self._parts("generator"), epochs, self._generating, purpose="generator", follow=self._after_judging
        )
        self.net.extractor.train()
        return found

    def _after_judging(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """A step of the discriminator; then what the generator's follows."""
        z = noise(len(y), self._rng).to(self.device)
        with torch.no_grad():
            real = self.net.extractor(self.at.task.inputs.normalise(x))
        generated = self.net.generator(z, y)
        judge = self._parts("discriminator")
        judged = self._judged(real, y, 1.0) + self._judged(generated.detach(), y, 0.0)
        self._judging.step(judge, along(judged, judge)[1])
        return along(self._judged(generated, y, 1.0) + self._diversity(z, y), parameters)

    def _judged(self, features: Tensor, y: Tensor, real: float) -> Tensor:
        probability = self.net.discriminator(features, y)
        return binary_cross_entropy(probability, torch.full_like(probability, real))

    def _diversity(self, z: Tensor, y: Tensor) -> Tensor:
        """Of half a batch, whose labels are drawn a second time."""
        weight, half = self.at.settings.diversity, max(1, len(y) // 2)
        if not weight:
            return z.new_zeros(())
        first, other = z[:half], noise(half, self._rng).to(self.device)
        both = self.net.generator(torch.cat([first, other]), y[:half].repeat(2))
        return weight * diversity_loss(both[:half], both[half:], first, other)

    def _parts(self, *names: str) -> dict[str, Tensor]:
        """The parameters of some parts of the model."""
        return {name: p for name, p in self.net.named_parameters() if name.partition(".")[0] in names}
