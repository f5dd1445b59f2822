"""HyperFL-LPM: HyperFL on a large pretrained model, whose adapters are generated and whose body is frozen.

Paper       Guo et al., "A New Federated Learning Framework Against Gradient Inversion Attacks", AAAI 2025,
            arXiv 2412.07187, section 4.3 and table 2.
Symbols     as in HyperFL; theta = h(v; varphi) are the adapters' weights, in the body of ViT-S/16 or ResNet-18.
Down        hypernet.*: 30.4 million numbers for ViT-S/16, 45.4 million for ResNet-18.
Up          hypernet.* after local training.
Private     embedding, classifier.*, running statistics of adapters. The body is public, frozen, and never sent: each
            client has its own copy of the published file, and all copies have one SHA-256.
Client      clients/hyperfl.py
A probe     one gradient of the hypernetwork with the classifier as it is (the paper's step B).
Departures  --variant authors undoes the first three; in papers/hyperfl.py also the fourth.
            1. head_init=identity by default: generated adapters change nothing at first. With torch's own start the
               four adapters of a ResNet scale each channel by numbers of random sign, which destroys the features.
            2. The 512 -> 128 layer of ResNet-18's head is trained with the classifier, as in the baselines. The
               authors' code leaves it random (`frozen_projection=true`).
            3. The authors' code for ResNet-18 never loads the generated adapters, since their names lack a dot: the
               network computes with random ones (`published_bug=true`).
            4. BatchNorm of adapters uses its batch in training; the authors' code leaves it in evaluation mode
               (`--set NET.adapter_norm=frozen`).
            5. The authors' code for ViT-S/16 drops the biases of queries, keys and values
               (`--set vit_small.published_bug=true`).
            6. Inputs are normalised by the data set's constants, as in the authors' code. The bodies were made for
               others: `--expert normalise=backbone`.

    client i, having received varphi:
        one epoch:  phi <- phi - eta_g grad_phi L        (v, varphi as they are)
        E epochs:   varphi, v <- SGD step on L           (phi as it is)
        send varphi
    server: varphi <- sum_i (n_i / sum_j n_j) varphi_i
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn

from flfw.errors import InputError
from flfw.inversion.client_models.batch_statistics import normalising_by_batch
from flfw.inversion.client_models.victim import GeneratedVictim
from flfw.messages.factored_upload import FactoredUpload
from flfw.nets import Net, Tensors
from flfw.nets.backbones.adapters import ConvAdapter, adapters_of
from flfw.nets.backbones.freezing import freeze
from flfw.nets.hypernetwork import GeneratedNet, HeadInit
from flfw.nets.inputs import InputSpec
from flfw.nets.training.low_rank import HypernetworkTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class LPMSettings(HypernetworkTraining):
    """Hyper-parameters of HyperFL, and two mistakes of the authors' code."""

    head_init: HeadInit = "identity"
    frozen_projection: bool = False  # whether the first of two layers of the classifier stays as it was drawn
    published_bug: bool = False  # whether adapters of a convolutional body are random for good, and never loaded


@final
class HyperFLLPM(FederatedStrategy):
    """Weighted averaging of hypernetworks that generate adapters."""

    Settings = LPMSettings
    variants: ClassVar = {"authors": {"head_init": "torch", "frozen_projection": "true", "published_bug": "true"}}
    downloads = ("hypernet.*",)
    uploads = ("hypernet.*",)
    net = "resnet18_imagenet"
    client = "hyperfl"
    train = "adapter"
    averaged = True
    reduces = "mean"

    @classmethod
    def build_model(cls, net: Net, settings: LPMSettings) -> GeneratedNet:
        """Build the hypernetwork of the adapters, the embedding and the network's own classifier.

        Raises:
            InputError: the network has no adapters.
        """
        adapters = adapters_of(net.extractor)
        if not adapters:
            raise InputError(
                "Expected a pretrained network with --trainable adapter for hyperfl_lpm, got none of its kind."
            )
        for adapter in adapters if settings.head_init == "identity" else ():
            adapter.become_identity()
        if settings.frozen_projection and isinstance(net.classifier, nn.Sequential):
            freeze(net.classifier[0])
        unloaded = settings.published_bug and isinstance(adapters[0], ConvAdapter)
        return GeneratedNet(net, settings.embedding, settings.hidden, settings.head_init, unloaded)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: InputSpec, settings: LPMSettings
    ) -> GeneratedVictim:
        """Build a client whose hypernetwork is known; its adapters normalise by the batch as training does."""
        by_batch = normalising_by_batch(model)
        assert isinstance(by_batch, GeneratedNet)
        return GeneratedVictim(by_batch, received, inputs)

    @classmethod
    def factored_upload(cls, settings: LPMSettings) -> FactoredUpload | None:
        """Send the heads as factors, as the same hidden units feed all of them; the trunk is small."""
        return FactoredUpload("hypernet.heads.*", settings.upload_error) if settings.upload == "factors" else None

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the hypernetworks, weighted by examples."""
        return weighted_mean(updates)
