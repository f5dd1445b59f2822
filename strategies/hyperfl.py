"""HyperFL: clients share a hypernetwork; each generates its own extractor from a private embedding.

Paper       Guo et al., "A New Federated Learning Framework Against Gradient Inversion Attacks", AAAI 2025,
            arXiv 2412.07187, main configuration (section 4).
Symbols     varphi hypernetwork, v embedding (N(0,1)^64, the same start for all), theta = h(v; varphi) extractor,
            phi classifier, eta_g, eta_h, eta_v the learning rates of phi, varphi, v.
Down        hypernet.*
Up          hypernet.* after local training: 14.9 million numbers for CNN 1, 128 times FedAvg's upload; with
            upload=factors the change of the heads as low-rank factors, coded (docs/methods/hyperfl.md).
Private     embedding, classifier.*, kept by the client from round to round; the extractor is never sent, and stored
            only with keep_theta.
Client      clients/hyperfl.py
A probe     one gradient of the hypernetwork with the classifier as it is (the paper's step B).
Departures  --variant authors undoes the first one.
            1. head_init=fan_in by default: with torch's own (`head_init=torch`, the authors' code) generated weights
               are ten times the usual size and the hidden layer dies in the first epoch; the share of dead hidden
               units is logged either way.
            2. Accuracy before local training uses extractor weights generated from the fresh hypernetwork; the
               authors' code reuses those of the client's last forward pass.
            3. Widths, the number of layers and the two gradient clips of 50 are from the authors' code; the paper
               states neither.

    client i, having received varphi:
        one epoch:  phi <- phi - eta_g grad_phi L        (v, varphi as they are)
        E epochs:   varphi, v <- SGD step on L           (phi as it is)
        send varphi
    server: varphi <- sum_i (n_i / sum_j n_j) varphi_i
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import nn

from flfw.errors import require
from flfw.messages.factored_upload import FactoredUpload
from flfw.nets import Net, Tensors
from flfw.nets.hypernetwork import GeneratedNet, HeadInit
from flfw.nets.inputs import Inputs
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy
from flfw.training.optimisers import LocalTraining
from flfw.victims.generated import GeneratedVictim


@dataclass(frozen=True)
class HyperFLSettings(LocalTraining):
    """Settings of HyperFL beside those of SGD, which serve both steps; eta_h = eta_v is the experiment's lr."""

    embedding: int = 64  # length of v
    hidden: int = 128  # width of the hypernetwork
    head_init: HeadInit = "fan_in"
    classifier_lr: float = 0.1  # eta_g, > 0
    classifier_epochs: int = 1  # passes over the data in step A
    clip: float = 50.0  # L2 bound of a step's gradient, once for varphi and once for v; > 0
    step: Literal["low_rank", "dense"] = "low_rank"  # how step B is computed; the same but for rounding, see the client
    upload: Literal["dense", "factors"] = "dense"  # factors: the heads' change in low rank, rounded and deflated
    keep_theta: bool = False  # clients keep theta for a round, to report theta_change_between_rounds
    upload_error: float = 1e-3  # of upload=factors: error of the sent tensors, over their change (L2); in (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.embedding >= 1, "embedding >= 1", embedding=self.embedding)
        require(self.hidden >= 1, "hidden >= 1", hidden=self.hidden)
        require(self.classifier_lr > 0, "classifier_lr > 0", classifier_lr=self.classifier_lr)
        require(self.classifier_epochs >= 1, "classifier_epochs >= 1", classifier_epochs=self.classifier_epochs)
        require(self.clip > 0, "clip > 0", clip=self.clip)
        require(0 < self.upload_error < 1, "0 < upload_error < 1", upload_error=self.upload_error)


@final
class HyperFL(FederatedStrategy):
    """Weighted averaging of hypernetworks."""

    Settings = HyperFLSettings
    variants: ClassVar = {"authors": {"head_init": "torch"}}
    downloads = ("hypernet.*",)
    uploads = ("hypernet.*",)
    averaged = True

    @classmethod
    def build_model(cls, net: Net, settings: HyperFLSettings) -> GeneratedNet:
        """Build the hypernetwork, the embedding and the network's own classifier."""
        return GeneratedNet(net, settings.embedding, settings.hidden, settings.head_init)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: Inputs, settings: HyperFLSettings
    ) -> GeneratedVictim:
        """Build a client whose hypernetwork is known, and whose embedding and classifier are not."""
        assert isinstance(model, GeneratedNet)
        return GeneratedVictim(model, received, inputs)

    @classmethod
    def factored_upload(cls, settings: HyperFLSettings) -> FactoredUpload | None:
        """Send the heads as factors, as the same hidden units feed all of them; the trunk is small."""
        return FactoredUpload("hypernet.heads.*", settings.upload_error) if settings.upload == "factors" else None

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the hypernetworks, weighted by examples."""
        return weighted_mean(updates)
