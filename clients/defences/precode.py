"""PRECODE: a variational bottleneck in the network makes the gradient depend on noise that is not sent.

Paper       Scheliga, Maeder and Seeland, "PRECODE: A Generic Model Extension to Prevent Deep Gradient Leakage", WACV
            2022, arXiv 2108.04725. A baseline of DCS^2, which puts it before the last layer of its ConvNet.
Symbols     h the inputs of a fully connected layer, z its bottleneck, beta the weight of the divergence in the loss.
Acts on     the network, which server and clients build alike, and its loss. Clients with this defence draw the noise;
            others send what a network without noise gives.
Departures  1. z is drawn in evaluation too, as in the authors' code (draws=always), but from a fixed seed, so
               that accuracies are repeatable. draws=training evaluates with the mean of z.
            2. No convolution reduces the inputs of the bottleneck: it stands before a fully connected layer.
            3. ``scale`` is not in the paper; it is 1 there.

    mu, s = encoder(h), s after softplus;  z = mu + scale s N(0, I);  h' = decoder(z)
    loss = CE + beta mean over the batch of sum(mu^2 + s^2 - log s^2 - 1) / (2 log 2)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import nn

from flfw.bounds import BoundedSettings, NonNegativeFinite, PositiveInt
from flfw.errors import InputError
from flfw.files.tensor_names import matches
from flfw.nets import Net
from flfw.nets.bottleneck import bottlenecks, with_bottleneck
from flfw.task.defence import Defence


@dataclass(frozen=True)
class PrecodeSettings(BoundedSettings):
    """Place and size of the bottleneck, its noise, and its weight in the loss; the defaults are the paper's."""

    layer: str = ""  # name of the fully connected layer behind the bottleneck, such as classifier.1; empty: the last
    width: PositiveInt = 256  # length of z
    beta: NonNegativeFinite = 1e-3  # weight of the divergence, in bits
    scale: NonNegativeFinite = 1.0  # factor of the noise
    draws: Literal["always", "training"] = "always"  # whether evaluation draws z as well


@final
class Precode(Defence):
    """Defence that puts a variational bottleneck into the network."""

    Settings = PrecodeSettings

    @classmethod
    def disabled_settings(cls, settings: PrecodeSettings) -> PrecodeSettings:
        """Return settings without noise."""
        return replace(settings, scale=0.0)

    @classmethod
    def weakest_settings(cls, settings: PrecodeSettings) -> PrecodeSettings:
        """Return settings with at most a hundredth of the paper's noise."""
        return replace(settings, scale=min(settings.scale, 0.01))

    def network(self, net: Net) -> Net:
        """Put the bottleneck before the chosen layer."""
        chosen = self.settings
        return with_bottleneck(net, chosen.layer, chosen.width, chosen.beta, chosen.scale, chosen.draws == "always")

    def check_model(self, model: nn.Module, uploads: Sequence[str]) -> None:
        """Refuse a method that builds a model without the bottleneck, or sends nothing of the layers below it."""
        if not bottlenecks(model):
            raise InputError("Expected a method that trains a network as it is for precode, got none; choose another.")
        if not any(matches(name, uploads) for name, _ in model.named_parameters()):
            raise InputError("Expected shared weights of the network for precode, got none; choose another method.")

    def prepare(self, model: nn.Module, rng: torch.Generator) -> None:
        """Draw the noise of this step's examples from ``rng``."""
        for one in bottlenecks(model):
            one.rng = rng
