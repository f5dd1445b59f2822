"""FedGen: clients share classifiers; the server trains a generator of features that all of them classify correctly.

Paper       Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
            arXiv 2105.10056; as Wu et al., IJCAI 2022, arXiv 2111.08211, compare FedCG with it.
Symbols     E_i extractor and C_i classifier of client i, C_g and G_g the server's classifier and generator,
            w_i = n_i / sum_j n_j, z ~ N(0, I) noise.
Down        classifier.*, generator.*: C_g and G_g.
Up          classifier.* after local training: C_i.
Private     extractor.*, kept by the client from round to round; with lasting=true also its optimiser's memory. The
            memory of the server's optimiser is the server's state, and never sent.
Client      clients/fedgen.py
A probe     one gradient of the classifier, with the extractor as it is and without the generated features.
Departures  --variant authors undoes 7, the one departure from the version in FedCG's comparison.
            1. The generator is FedCG's, of maps that the extractor could have made. The original's makes the 32 inputs
               of the last layer from 32 numbers and a one-hot label, through one hidden layer.
            2. A client's two losses count alike, and always. The original weighs the second, and a third that holds
               scores to those of generated features, by 10, times 0.98 a round, in the first 20 local epochs.
            3. w_i for every label. The original weighs a client's scores for a label by its number of examples of that
               label, which clients do not send here. Labels are drawn uniformly, so that a client without a class still
               scores it, and no client is refused for lacking one. Features of a class are generated only at clients
               that have it, since a client generates for the labels of its own batches.
            4. Extractors are private, as FedCG's and FedSplit's; the original shares whole models.
            5. The generator learns in training mode and generates for clients in evaluation mode.
            6. start=independent draws each client's own first extractor; see strategies/fedcg.py, departure 4.
            7. The diversity loss compares two draws for one label; FedCG's version compares the halves of a batch, of
               other labels (``pairs=halves``).

    client i, having received C_g, G_g:
        E epochs:  E_i, C_i <- step on CE(C_i(E_i(x)), y) + CE(C_i(G_g(z, y)), y);  send C_i
    server: C_g <- sum_i w_i C_i
        2000 times: y uniform, z ~ N(0, I);  G_g <- Adam step on CE(sum_i w_i C_i(G_g(z, y)), y) + diversity
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch.nn.functional import cross_entropy

from flfw.bounds import NonNegativeFloat
from flfw.nets import Net, Tensors
from flfw.nets.batch_last import use_batch_last
from flfw.nets.conditional_gan import (
    GeneratingNet,
    generator_and_classifier,
    half_diversity,
    label_diversity,
    labelled_noise,
)
from flfw.nets.training.optimisers import Adam, PersistentTraining
from flfw.server.aggregation import Update
from flfw.server.distillation import ServerTraining, TrainingServer, scores_with


@dataclass(frozen=True)
class FedGenSettings(PersistentTraining, ServerTraining):
    """Settings of local training and of the server's, and the start of the extractors."""

    optimiser: Literal["sgd", "adam"] = "adam"  # the authors'; see strategies/fedsplit.py
    server_decay: NonNegativeFloat = 1e-4  # weight decay of the server's Adam
    diversity: NonNegativeFloat = 1.0  # weight of the diversity loss; 0: without
    pairs: Literal["same_label", "halves"] = "same_label"  # what that loss compares: two draws, or a batch's halves
    start: Literal["common", "independent"] = "common"  # of the extractors


@final
class FedGen(TrainingServer):
    """Weighted averaging of classifiers, and a generator that learns from all of them."""

    Settings = FedGenSettings
    variants: ClassVar = {"authors": {"pairs": "halves"}}
    net = "lenet5"
    downloads = ("classifier.*", "generator.*")
    uploads = ("classifier.*",)

    @classmethod
    def build_model(cls, net: Net, settings: FedGenSettings) -> GeneratingNet:
        """Build the network with a generator of its features."""
        return GeneratingNet(net, judged=False)

    @classmethod
    def common_start(cls, settings: FedGenSettings) -> bool:
        """Return whether the setting ``start`` is ``common``."""
        return settings.start == "common"

    def trained(self, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Average C_g and train G_g."""
        settings, model = self.settings, use_batch_last(generator_and_classifier(self.require_context.model()))
        model.load_state_dict(self.last_broadcast)
        model.classifier.eval()
        moved, adam = dict(model.generator.named_parameters()), Adam(settings.server_lr, settings.server_decay)
        judges = [
            (share, scores_with(model.classifier, {name.removeprefix("classifier."): v for name, v in tensors.items()}))
            for share, tensors in self.shares(uploads)
        ]
        rng, losses = self.rng, []
        batches = labelled_noise(settings.iterations, settings.server_batch, model.classes, rng)
        with self.resumed(adam, moved):
            for z, y in self.on_device(batches):
                features = model.generator(z, y)
                agreed = torch.stack([share * scores(features) for share, scores in judges]).sum(0)
                loss = cross_entropy(agreed, y)
                losses.append(loss.detach())
                if settings.diversity and settings.pairs == "halves":
                    loss = loss + settings.diversity * half_diversity(features, z)
                elif settings.diversity:
                    loss = loss + settings.diversity * label_diversity(model.generator, z, y, rng)
                gradients = torch.autograd.grad(loss, list(moved.values()))
                adam.step(moved, dict(zip(moved, gradients, strict=True)))
        self.round_metrics["generator_loss"] = float(torch.stack(losses[-max(1, len(losses) // 10) :]).mean())
        return {**model.state_dict(), **mean}
