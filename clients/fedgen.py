"""FedGen's client half: classification of its own examples, and of features generated for their labels."""

from typing import final

import torch
from torch import Tensor

from flfw.client.context import ClientContext
from flfw.client.federated_client import FederatedClient
from flfw.nets.conditional_gan import GeneratingNet, noise


@final
class FedGenClient(FederatedClient):
    """Client with E epochs on extractor and classifier; the generator stays as received."""

    def __init__(self, ctx: ClientContext) -> None:
        super().__init__(ctx)
        self._rng = self.generator("generated features")  # draws the noise

    @property
    def net(self) -> GeneratingNet:
        """Model, which the method builds as a `GeneratingNet`."""
        assert isinstance(self.model, GeneratingNet)
        return self.model

    def trainable_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of extractor and classifier."""
        return self.net.parts("extractor", "classifier")

    def train(self) -> dict[str, float]:
        """Train extractor and classifier; return the mean loss of the last epoch."""
        return {"loss": self.train_epochs(self.trainable_parameters(), self.ctx.local.local_epochs, self.optimiser())}

    def local_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute CE(C(E(x)), y) + CE(C(G_g(z, y)), y), with new z for each batch."""
        frozen = self.net.generator.eval()
        with torch.no_grad():
            generated = frozen(noise(len(y), self._rng).to(self.device), y)
        return self.loss(x, y) + self.penalised(self.net.classifier(generated), y)
