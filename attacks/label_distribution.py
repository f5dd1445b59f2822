"""Label distribution: the shares of the classes in a client's data, read off its uploads; no search.

Paper       label distribution inference by an honest but curious server (Gu and Bai, "LDIA", JISA 74, 2023), which
            learns it from simulated clients; here a closed form: the last bias moves by the shares of the classes
            minus the mean softmax (`flfw.inversion.closed_form.labels`).
Needs       a shared, fully connected last layer with a bias, plain SGD (with momentum or not) on the cross entropy.
Granted     what each client uploads in the audited rounds, its number of examples, the learning rate, public examples.
Exact       for one step, with the mean softmax over the client's own batch, which no server has.
Departures  no simulated clients and no classifier trained on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flfw.adversary.attack import ClosedFormAttack, NotApplicableError, Upload, Uses
from flfw.bounds import BoundedSettings, PositiveInt
from flfw.files.tensor_names import matches
from flfw.inversion.closed_form.labels import class_shares, effective_lr
from flfw.nets.net import Tensors
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction

_AT_ONCE = 64  # public examples in one evaluation


@dataclass(frozen=True)
class LabelDistributionSettings(BoundedSettings):
    """Settings of the public examples and of the way that the weights took."""

    examples: PositiveInt = 500  # public examples at most, the same number of each class where there are as many
    parts: PositiveInt = 4  # of the way from the received weights to the sent ones


@final
class LabelDistribution(ClosedFormAttack):
    """Closed form for the shares of the classes in a client's data."""

    Settings = LabelDistributionSettings
    reconstructs = False

    @property
    def uses(self) -> Uses:
        """Uploads, and public data for the mean softmax of each class."""
        return frozenset({"public", "uploads"})

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        """Refuse: it reconstructs nothing."""
        raise NotApplicableError(
            "label_distribution infers shares of classes from uploads, and reconstructs no example"
        )

    def shares(self, uploads: Sequence[Upload]) -> list[Tensor]:
        """Return for each upload the shares of the classes (K,).

        Raises:
            NotApplicableError: the last bias is not there, or does not move by plain steps on the cross entropy.
        """
        return [self._shares(upload) for upload in uploads]

    def _shares(self, upload: Upload) -> Tensor:
        name, local, public = _last_bias(upload.model.model), upload.local, upload.public
        if name not in upload.seen.sent or name not in upload.model.known:
            raise NotApplicableError("it needs the bias of a fully connected last layer, which clients do not share")
        if local is None or local.optimiser != "sgd" or local.loss is not cross_entropy:
            raise NotApplicableError("it needs a known number of plain SGD steps on the cross entropy")
        if not matches(name, local.moves):
            raise NotApplicableError("it needs a last bias that local training moves")
        if public is None:
            raise NotApplicableError("it needs public data: grant them")
        before, after = upload.model.known[name].double(), upload.seen.sent[name].double()
        rate = (after - before) / effective_lr(local.lr, local.steps, local.momentum)
        rate += local.weight_decay * (before + after) / 2
        chosen, prior = _of_each_class(public, len(rate), self.settings.examples)
        places = [(part + 0.5) / self.settings.parts for part in range(self.settings.parts)]
        means = torch.stack([_mean_softmax(upload, upload.weights(index), chosen, len(rate)) for index in places])
        return class_shares(rate.cpu(), means.cpu(), prior)


def _last_bias(model: nn.Module) -> str:
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return f"{layers[-1]}.bias" if layers else ""


def _of_each_class(public: Examples, classes: int, maximum: int) -> tuple[Examples, Tensor]:
    """Return the first public examples of each class, and the classes' shares among all public examples (K,)."""
    labels = public.labels
    each = [(labels == k).nonzero().flatten()[: max(1, maximum // classes)] for k in range(classes)]
    if not all(len(indices) for indices in each):
        raise NotApplicableError("it needs a public example of each class")
    indices = torch.cat(each)
    return Examples(public.samples[indices], labels[indices]), labels.bincount(minlength=classes).cpu() / len(labels)


@torch.no_grad()
def _mean_softmax(upload: Upload, weights: Tensors, chosen: Examples, classes: int) -> Tensor:
    """Compute for each class of the examples their mean softmax, (K, K)."""
    model, inputs = upload.model.model, upload.model.inputs
    scores: list[Any] = [
        functional_call(model, weights, (inputs.normalise(samples),)) for samples in chosen.samples.split(_AT_ONCE)
    ]
    softmax = torch.cat(scores).double().softmax(1)
    return torch.stack([softmax[chosen.labels == k].mean(0) for k in range(classes)])
