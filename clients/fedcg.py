"""FedCG's client half: classification held close to generated features, then the client's own conditional GAN."""

from collections.abc import Mapping
from math import exp
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy, cosine_similarity, mse_loss

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.nets import Tensors
from flfw.nets.batch_last import use_batch_last
from flfw.nets.conditional_gan import GeneratingNet, half_diversity, label_diversity, noise
from flfw.nets.training.optimisers import Adam, Optimiser, StatefulOptimiser, loss_and_grad

_GAN_BETAS = (0.5, 0.999)


def distance(features: Tensor, generated: Tensor, kind: str) -> Tensor:
    """Compute the distance of features (B, ...) to generated ones, a scalar.

    Args:
        features: of a batch.
        generated: as many.
        kind: ``mse``, the mean over elements; ``norm``, the squared norm of an example's, mean over the batch; or
            ``cosine``, one minus the cosine similarity of an example's, mean over the batch.
    """
    if kind == "cosine":
        return (1 - cosine_similarity(features.flatten(1), generated.flatten(1))).mean()
    mean = mse_loss(features, generated)
    return mean * features[0].numel() if kind == "norm" else mean


@final
class FedCGClient(FederatedClient):
    """Client with stages 1 and 2 of the paper's algorithm; its three optimisers last as long as the run."""

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        for part in (self.net.generator, self.net.discriminator):
            use_batch_last(part)
        settings = ctx.settings
        self._adam = Adam(ctx.local.lr, settings.weight_decay)
        self._adam_generator = Adam(settings.gan_lr, betas=_GAN_BETAS)
        self._adam_discriminator = Adam(settings.gan_lr, betas=_GAN_BETAS)
        self._rng = self.generator("generated features")  # draws the noise of stage 1
        self._image_rng = self.generator("image noise")

    @property
    def net(self) -> GeneratingNet:
        """Model, which the method builds as a `GeneratingNet`."""
        assert isinstance(self.model, GeneratingNet)
        return self.model

    def trainable_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of stage 1: extractor and classifier."""
        return self.net.parts("extractor", "classifier")

    def optimiser(self) -> Optimiser:
        """Return the optimiser of stage 1."""
        return self._adam

    def lasting(self) -> Mapping[str, tuple[StatefulOptimiser, Mapping[str, Tensor]]]:
        """Return the three optimisers, each with its parameters."""
        return {
            "adam": (self._adam, self.trainable_parameters()),
            "adam_generator": (self._adam_generator, self.net.parts("generator")),
            "adam_discriminator": (self._adam_discriminator, self.net.parts("discriminator")),
        }

    def train(self) -> dict[str, float]:
        """Run both stages; return the mean losses of their last epochs."""
        return {"loss": self.train_classifier(), "gamma": self.gamma, "generator_loss": self.train_generator()}

    def personalise(self) -> dict[str, float]:
        """Run stage 1 only: the GAN has no part in classification."""
        return {"loss": self.train_classifier()}

    @property
    def gamma(self) -> float:
        """Weight of the distance to generated features: 0 in the first round, 2 / (1 + exp(-10)) - 1 at the end."""
        rounds = self.ctx.settings.gamma_rounds
        progress = min((self.ctx.round - 1) / rounds, 1.0) if rounds else 1.0
        return 2 / (1 + exp(-10 * progress)) - 1

    def train_classifier(self) -> float:
        """Run stage 1; return the mean loss of the last epoch."""
        return self.train_epochs(self.trainable_parameters(), self.ctx.local.local_epochs, self._adam)

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute CE(C(E(x)), y) + gamma distance(E(x), G_g(z, y)), with new z for each batch."""
        features = self.net.extractor(self._inputs(x))
        loss = self.penalised(self.net.classifier(features), y)
        if not self.gamma or self.ctx.settings.distance == "none":
            return loss
        frozen = self.net.generator.eval()
        with torch.no_grad():
            generated = frozen(noise(len(y), self._rng).to(self.device), y)
        return loss + self.gamma * distance(features, generated, self.ctx.settings.distance)

    def _inputs(self, x: Tensor) -> Tensor:
        """Return the inputs for raw images: normalised, and with noise if the settings have it."""
        inputs, std = self.ctx.task.inputs.normalise(x), self.ctx.settings.image_noise
        if not std:
            return inputs
        return inputs + std * torch.randn(inputs.shape, generator=self._image_rng).to(inputs.device)

    def train_generator(self) -> float:
        """Run stage 2; return the generator's mean loss of the last epoch."""
        epochs = self.ctx.settings.gan_epochs or self.ctx.local.local_epochs
        self.net.extractor.eval()
        self.net.generator.train()
        self._rng = self.generator("noise")
        loss = self.train_epochs(
            self.net.parts("generator"), epochs, self._adam_generator, purpose="generator", follow=self._gan_step
        )
        self.net.extractor.train()
        return loss

    def _gan_step(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """Step the discriminator; then compute the generator's loss and gradient."""
        z = noise(len(y), self._rng).to(self.device)
        with torch.no_grad():
            real = self.net.extractor(self._inputs(x))
        generated = self.net.generator(z, y)
        discriminator = self.net.parts("discriminator")
        loss = self._bce(real, y, 1.0) + self._bce(generated.detach(), y, 0.0)
        self._adam_discriminator.step(discriminator, loss_and_grad(loss, discriminator)[1])
        if self.ctx.settings.second_pass:
            generated = self.net.generator(z, y)  # the same features: only the running statistics move once more
        saturating = self.ctx.settings.adversary == "saturating"
        adversarial = -self._bce(generated, y, 0.0) if saturating else self._bce(generated, y, 1.0)
        return loss_and_grad(adversarial + self._diversity(generated, z, y), parameters)

    def _bce(self, features: Tensor, y: Tensor, real: float) -> Tensor:
        probability = self.net.discriminator(features, y)
        return binary_cross_entropy(probability, torch.full_like(probability, real))

    def _diversity(self, generated: Tensor, z: Tensor, y: Tensor) -> Tensor:
        settings = self.ctx.settings
        if not settings.diversity:
            return z.new_zeros(())
        halves = settings.pairs == "halves"
        loss = half_diversity(generated, z) if halves else label_diversity(self.net.generator, z, y, self._rng)
        return settings.diversity * loss
