"""FedCG: clients share classifiers and conditional generators of features; the server distils them into one of each.

Paper       Wu et al., "FedCG: Leverage Conditional GAN for Protecting Privacy and Maintaining Competitive Performance
            in Federated Learning", IJCAI 2022, arXiv 2111.08211.
Symbols     E_i extractor, D_i discriminator, C_i classifier, G_i generator of client i, C_g and G_g the server's,
            w_i = n_i / sum_j n_j, z ~ N(0, I) noise, gamma weight of the generated features, T local epochs.
Down        classifier.*, generator.*: C_g and G_g, 0.9 million numbers for LeNet5 and ten classes.
Up          classifier.*, generator.* after local training: C_i and G_i.
Private     extractor.*, discriminator.*, and the memory of a client's three optimisers, over all rounds. The memory of
            the server's optimiser is the server's state, and never sent.
Client      clients/fedcg.py
A probe     one gradient of the classifier, with the extractor as it is (stage 1's, without the generated features).
Departures  --variant authors sets what 3 changes back to the authors' plain client (their second one has
            ``diversity=0.2``), and runs the generator twice a batch, as they do. --variant paper undoes 1 and 2.
            1. The distance to generated features is a mean over elements, as in the authors' code; the paper writes the
               squared norm (``distance=norm``), which is 400 times that. gamma, which the paper lets rise from 0 to 1,
               follows the code.
            2. The generator maximises log D(G), as the code; the paper writes the minimum of log(1 - D(G))
               (``adversary=saturating``).
            3. The diversity loss compares two draws of the same label, as its source, Mao et al., on half a batch;
               the code compares the two halves of a batch, whose labels differ (``pairs=halves``), with weight 0.2, and
               its plain client has none (``diversity=0``).
            4. start=independent draws each client's own first extractor and discriminator. The authors give all clients
               the same, which the server knows: see attacks/fedcg.py. Both come from the run's seed, so that
               runs repeat; a site that relies on this protection has to draw its own.
            5. The code shuffles alike in every round and at every client; here each round has its own order.
            6. distance=cosine, distance=none and image_noise are options of the code (``distance``, ``add_noise``)
               without a published result. The image of a probe of one gradient has no such noise.

    client i, having received C_g, G_g:
        T epochs:  E_i, C_i <- Adam step on CE(C_i(E_i(x)), y) + gamma MSE(E_i(x), G_g(z, y))
        T epochs:  D_i <- Adam step on BCE(D_i(E_i(x), y), 1) + BCE(D_i(G_i(z, y), y), 0)
                   G_i <- Adam step on BCE(D_i(G_i(z, y), y), 1) + 0.2 / (r + 1e-5),
                          r = mean |G_i(z, y) - G_i(z', y)| / mean |z - z'|
        send C_i, G_i
    server: C_g, G_g <- sum_i w_i (C_i, G_i)
        2000 times: y uniform, z ~ N(0, I)
                   C_g, G_g <- Adam step on KL(softmax(sum_i w_i C_i(G_i(z, y))) || softmax(C_g(G_g(z, y))))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from torch import nn

from flfw.bounds import NonNegativeFinite, NonNegativeFloat, NonNegativeInt, PositiveFloat
from flfw.nets import Net, Tensors
from flfw.nets.batch_last import use_batch_last
from flfw.nets.conditional_gan import GeneratingNet, generator_and_classifier, labelled_noise
from flfw.nets.training.optimisers import Adam
from flfw.server.aggregation import Update
from flfw.server.distillation import ServerTraining, TrainingServer, distil, scores_with, with_teacher_scores
from flfw.task.task import Task, require_every_class


@dataclass(frozen=True)
class FedCGSettings(ServerTraining):
    """Settings of FedCG; the step size of extractor and classifier is the experiment's lr, in the paper 3e-4."""

    weight_decay: NonNegativeFloat = 1e-4  # of Adam on extractor and classifier; the others have none
    gan_epochs: NonNegativeInt = 0  # passes over the data for discriminator and generator; 0: as many as local epochs
    gan_lr: PositiveFloat = 3e-4  # of Adam, with betas 0.5 and 0.999, on both
    gamma_rounds: NonNegativeInt = 50  # rounds in which gamma goes from 0 to its last value; 0: it has it at once
    diversity: NonNegativeFloat = 0.2  # weight of the diversity loss; 0: without
    pairs: Literal["same_label", "halves"] = "same_label"  # what that loss compares: two draws, or a batch's halves
    distance: Literal["mse", "norm", "cosine", "none"] = "mse"  # of features to generated ones, weighted by gamma
    adversary: Literal["non_saturating", "saturating"] = "non_saturating"  # what G minimises: -log D(G), log(1 - D(G))
    image_noise: NonNegativeFinite = 0.0  # deviation of noise on the network's inputs in local training; 0: none
    second_pass: bool = False  # G runs anew for its own step, so that its running statistics move twice a batch
    start: Literal["common", "independent"] = "common"  # of the extractors and discriminators, see the card


@final
class FedCG(TrainingServer):
    """Distillation of the clients' generators and classifiers, starting from their means."""

    Settings = FedCGSettings
    variants: ClassVar = {
        "authors": {"diversity": "0", "pairs": "halves", "second_pass": "true"},
        "paper": {"distance": "norm", "adversary": "saturating"},
    }
    net = "lenet5"
    downloads = ("classifier.*", "generator.*")
    uploads = ("classifier.*", "generator.*")

    @classmethod
    def build_model(cls, net: Net, settings: FedCGSettings) -> GeneratingNet:
        """Build the network with a generator and a discriminator of its features."""
        return GeneratingNet(net)

    @classmethod
    def descended(cls, model: nn.Module, settings: FedCGSettings) -> tuple[str, ...]:
        """Name the classifier: the generator has no gradient of the classification loss."""
        return ("classifier.*",)

    @classmethod
    def common_start(cls, settings: FedCGSettings) -> bool:
        """Return whether the setting ``start`` is ``common``."""
        return settings.start == "common"

    @classmethod
    def check_client(cls, task: Task, partition: int, settings: Any) -> None:
        """Refuse a client that lacks a class: labels are drawn from all classes."""
        require_every_class(task, partition)

    def trained(self, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Train C_g and G_g."""
        settings, build = self.settings, self.require_context.model
        student = use_batch_last(generator_and_classifier(build()))
        teacher = use_batch_last(generator_and_classifier(build())).eval()
        student.load_state_dict(mean)
        teachers = [(share, scores_with(teacher, tensors)) for share, tensors in self.shares(uploads)]
        parameters, adam = dict(student.named_parameters()), Adam(settings.server_lr)
        batches = labelled_noise(settings.iterations, settings.server_batch, student.classes, self.rng)
        with self.resumed(adam, parameters):
            scored = with_teacher_scores(self.on_device(batches), teachers)
            self.round_metrics["distillation_loss"] = distil(scored, student, parameters, adam)
        return student.state_dict()
