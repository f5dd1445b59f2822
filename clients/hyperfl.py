"""HyperFL's client half: one epoch on the classifier, then E epochs on the hypernetwork and the embedding."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flfw.client import FederatedClient
from flfw.nets.hypernetwork import GeneratedNet


@final
class HyperFLClient(FederatedClient):
    """Steps A and B of the paper's algorithm 1."""

    @property
    def net(self) -> GeneratedNet:
        """The model, which the method builds as a `GeneratedNet`."""
        assert isinstance(self.model, GeneratedNet)
        return self.model

    def moving(self) -> dict[str, Tensor]:
        """Step B's: the hypernetwork and the embedding."""
        return {name: p for name, p in self.net.named_parameters() if not name.startswith("classifier.")}

    def clips(self) -> dict[str, float]:
        """One bound for the hypernetwork's gradient, one for the embedding's."""
        return {"hypernet.*": self.at.settings.clip, "embedding": self.at.settings.clip}

    def train(self) -> dict[str, float]:
        """Returns the mean loss of the last epoch, step A's loss, and the share of dead hidden units afterwards."""
        classifier_loss = self._train_classifier()
        loss = self.descend(
            self.moving(),
            self.at.experiment.local_epochs,
            self.optimiser(),
            purpose="hypernetwork",
            clips=self.clips(),
        )
        with torch.no_grad():
            dead = (self.net.hypernet.hidden_units(self.net.embedding) == 0).float().mean()
        return {"loss": loss, "classifier_loss": classifier_loss, "dead_hidden_units": float(dead)}

    def _train_classifier(self) -> float:
        settings = self.at.settings
        with torch.no_grad():
            theta = self.net.extractor_weights()  # fixed during step A, so generated once

        def loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.net.features(self.at.task.inputs.normalise(x), theta)
            return cross_entropy(self.net.classifier(features), y)

        classifier = {f"classifier.{name}": p for name, p in self.net.classifier.named_parameters()}
        return self.descend(
            classifier,
            settings.classifier_epochs,
            settings.optimiser_at(settings.classifier_lr),
            purpose="classifier",
            loss=loss,
        )
