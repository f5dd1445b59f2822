"""FedDF: FedAvg whose server distils the clients' models into their mean, on unlabelled images.

Paper       Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020,
            arXiv 2006.07242; as Wu et al., IJCAI 2022, arXiv 2111.08211, compare FedCG with it.
Symbols     w the server's model, w_k a client's, p_k = n_k / sum_j n_j, f_w(x) the class scores, E local epochs.
Down        all tensors of the model, w.
Up          all tensors of the model after local training, w_k.
Private     nothing; with lasting=true the memory of a client's optimiser.
Client      clients/sgd.py.
A probe     one gradient of the whole model.
The server  holds images of its own, without labels: the split's ``distillation``, which no client trains on, or the
            training part of another data set (``public``). They are normalised like the clients', and not augmented.
Departures  1. 2,000 steps of 16 at 3e-4, as in FedCG's comparison: one pass over its 32,000 images. The original makes
               up to 10,000 of 128 at 1e-3 on a cosine, ends early by a validation set, and its teachers count alike.
            2. Images come in shuffled passes over all of them; w learns in training mode and its teachers are in
               evaluation mode.
            3. The server's Adam starts afresh in each round, as the original's does: each round's student is a new
               mean, so there is no descent to continue, unlike for FedCG's generator. In the code of FedCG's comparison
               it goes on: ``memory=kept``, which --variant authors sets.
            4. All clients have one architecture; the original also distils between several.

    for each round t:
        S_t <- the cohort;  every k in S_t: w_k <- E epochs from w
        w <- sum_k p_k w_k;  2000 times: w <- Adam step on KL(softmax(sum_k p_k f_{w_k}(x)) || softmax(f_w(x)))
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch

from flfw import data
from flfw.data import feed
from flfw.errors import InputError, require
from flfw.nets import Tensors
from flfw.nets.training.optimisers import Adam, PersistentTraining
from flfw.server.aggregation import Update
from flfw.server.distillation import ServerTraining, TrainingServer, distil, scores_with, with_teacher_scores
from flfw.task.task import Task


@dataclass(frozen=True)
class FedDFSettings(PersistentTraining, ServerTraining):
    """Settings of local training and of the server's, and the data of the distillation."""

    memory: Literal["fresh", "kept"] = "fresh"  # of the server's Adam: new in each round, or going on
    public: str = ""  # data set whose training images the server has; empty: those that the split sets aside


@final
class FedDF(TrainingServer):
    """Weighted averaging of whole models, then distillation of all of them into their mean."""

    needs_classes = True

    Settings = FedDFSettings
    variants: ClassVar = {"authors": {"memory": "kept"}}
    downloads = ("*",)
    uploads = ("*",)
    plain_steps = True

    @classmethod
    def check_task(cls, task: Task, settings: FedDFSettings) -> None:
        """Refuse a task without images for the server."""
        unlabelled(task, settings.public)

    def trained(self, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Train the next w."""
        settings, task = self.settings, self.require_context.task
        student, frozen = (self.require_context.model() for _ in range(2))
        student.load_state_dict(mean)
        frozen.eval()
        teachers = [(share, scores_with(frozen, tensors)) for share, tensors in self.shares(uploads)]
        moved, adam = dict(student.named_parameters()), Adam(settings.server_lr)
        images, indices = unlabelled(task, settings.public)
        shuffled = passes(len(indices), settings.server_batch, settings.iterations, self.rng)
        batches = ((task.inputs.normalise(feed.raw(feed.batch(images[indices[some]]))),) for some in shuffled)
        lasting = self.resumed(adam, moved) if settings.memory == "kept" else nullcontext()
        with lasting:
            scored_batches = with_teacher_scores(self.on_device(batches), teachers)
            self.round_metrics["distillation_loss"] = distil(scored_batches, student, moved, adam)
        return student.state_dict()


def passes(count: int, size: int, batches: int, rng: torch.Generator) -> Iterator[np.ndarray]:
    """Yield batches (size,) of shuffled passes over the positions below ``count``; a pass may end within a batch."""
    left = torch.zeros(0, dtype=torch.long)
    for _ in range(batches):
        while len(left) < size:
            left = torch.cat([left, torch.randperm(count, generator=rng)])
        some, left = left[:size], left[size:]
        yield some.numpy()


def unlabelled(task: Task, public: str) -> tuple[np.ndarray, np.ndarray]:
    """Return stored inputs (N, ...) and the positions (M,) of the inputs that the server may use.

    Args:
        task: the clients' task.
        public: name of another data set; empty: the clients' data set.

    Raises:
        InputError: the split sets nothing aside, or the other data set is not another one or has other inputs.
    """
    if public:
        held = _another(task, public)
        return held.train_x, np.arange(len(held.train_x))
    if not len(task.split.distillation):
        raise InputError(
            "Expected data that no client holds for the server to distil on, got a split that sets none aside; pass "
            "--split sampled (domains for a data set of several), or --set public=NAME of another data set."
        )
    return task.dataset.train_x, task.split.distillation


def _another(task: Task, public: str) -> data.Dataset:
    """Load a data set that shares no data with the clients', its images resized like theirs."""
    held = task.dataset
    card, image = data.describe(public), held.is_image
    require(card.population is None, "data in files for the server to distil on", public=public)
    if _made_of(held.name) & _made_of(public):
        raise InputError(f"Expected public data beside the clients' {held.name}, got public={public}; leave it out.")
    if card.shape[:1] != held.shape[:1] or len(card.shape) != len(held.shape):
        unit = "channels" if image else "features"
        raise InputError(
            f"Expected public data of {held.shape[0]} {unit}, as {held.name} has, got public={public} of inputs "
            f"{'x'.join(map(str, card.shape))}; choose another."
        )
    data.fetch(public, task.data_root)
    return data.load(public, task.data_root, held.shape[1] if image else None)


def _made_of(name: str) -> set[str]:
    """Return the names of a data set and of the sets it was put together from."""
    family = name.partition(":")[0]
    return {data.absolute(name), *data.describe(name).domains, *({family} & set(data.names()))}
