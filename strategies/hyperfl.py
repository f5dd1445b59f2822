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
        step A, one epoch:  phi <- SGD(phi, grad_phi L; eta_g)                     (v, varphi as they are)
        step B, E epochs:   varphi, v <- SGD(varphi, v, grad L; eta_h, eta_v)      (phi as it is)
        send varphi
    server: varphi <- sum_i (n_i / sum_j n_j) varphi_i
"""

from collections.abc import Iterable
from typing import ClassVar, final

from torch import nn

from flfw.inversion.client_models.victim import GeneratedVictim
from flfw.messages.factored_upload import FactoredUpload
from flfw.nets import Net, Tensors
from flfw.nets.hypernetwork import GeneratedNet, require_all_weights
from flfw.nets.inputs import InputSpec
from flfw.nets.training.low_rank import HypernetworkTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@final
class HyperFL(FederatedStrategy):
    """Weighted averaging of hypernetworks."""

    Settings = HypernetworkTraining
    variants: ClassVar = {"authors": {"head_init": "torch"}}
    downloads = ("hypernet.*",)
    uploads = ("hypernet.*",)
    averaged = True
    reduces = "mean"

    @classmethod
    def build_model(cls, net: Net, settings: HypernetworkTraining) -> GeneratedNet:
        """Build the hypernetwork, the embedding and the network's own classifier."""
        require_all_weights(net)
        return GeneratedNet(net, settings.embedding, settings.hidden, settings.head_init)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: InputSpec, settings: HypernetworkTraining
    ) -> GeneratedVictim:
        """Build a client whose hypernetwork is known, and whose embedding and classifier are not."""
        assert isinstance(model, GeneratedNet)
        return GeneratedVictim(model, received, inputs)

    @classmethod
    def factored_upload(cls, settings: HypernetworkTraining) -> FactoredUpload | None:
        """Send the heads as factors, as the same hidden units feed all of them; the trunk is small."""
        return FactoredUpload("hypernet.heads.*", settings.upload_error) if settings.upload == "factors" else None

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the hypernetworks, weighted by examples."""
        return weighted_mean(updates)
