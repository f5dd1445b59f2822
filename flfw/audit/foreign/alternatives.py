"""Other descriptions of a training, which may explain an update where the given one does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from flfw.adversary.observation import Truth
from flfw.audit.foreign.description import TrainingDescription
from flfw.nets.inputs import InputSpec

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "inputs left in [0, 1]": ((0.0,), (1.0,)),
    "inputs from 0 to 255": ((0.0,), (1 / 255,)),
    "inputs in [-1, 1]": ((0.5,), (0.5,)),
    "MNIST's normalisation": ((0.1307,), (0.3081,)),
    "CIFAR-10's normalisation": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "ImageNet's normalisation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Usual means and deviations: one for all channels, or one for each of three."""

_MOST_OTHERS = 32  # clients whose data are tried


def squared(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean squared error of the scores from one-hot labels."""
    return mse_loss(scores, one_hot(labels, scores.shape[-1]).to(scores.dtype))


def squared_softmax(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean squared error of the probabilities from one-hot labels."""
    return squared(scores.softmax(-1), labels)


def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy with labels smoothed by 0.1."""
    return cross_entropy(scores, labels, label_smoothing=0.1)


def summed(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the sum of the examples' cross entropies."""
    return cross_entropy(scores, labels, reduction="sum")


@final
@dataclass(frozen=True)
class Alternative:
    """A description other than the given one.

    Attributes:
        name: the difference, in words; empty: none but perhaps the steps and the sent tensors.
        training: the training.
        truth: the examples.
        inputs: the input space.
        any_steps: whether other numbers of steps and other sent tensors are tried with it.
    """

    name: str
    training: TrainingDescription
    truth: Truth
    inputs: InputSpec
    any_steps: bool = False


Others: TypeAlias = Mapping[int, Truth]
"""The data of other clients, by their numbers."""


def alternatives(
    training: TrainingDescription, truth: Truth, inputs: InputSpec, others: Others, modes: bool
) -> Iterator[Alternative]:
    """Yield the fixed list of other descriptions.

    Args:
        training: the given description.
        truth: the given examples.
        inputs: the given input space.
        others: the data of other clients.
        modes: whether the network computes differently in training and evaluation.
    """
    for name, changed in _optimisers(training):
        yield Alternative(name, changed, truth, inputs, any_steps=True)
    for client, held in list(others.items())[:_MOST_OTHERS]:
        yield Alternative(f"the data of client {client}", training, held, inputs)
    for name, samples in _turned(truth.samples):
        yield Alternative(name, training, replace(truth, samples=samples), inputs)
    for name, (mean, std) in NORMALISATIONS.items():
        channels = inputs.shape[0] if len(inputs.shape) > 1 else 1
        if len(mean) in (1, channels):
            space = InputSpec.from_constants(inputs.shape, mean, std)
            yield Alternative(name, training, truth, space)
    if modes:
        mode = "eval" if training.mode == "train" else "train"
        yield Alternative(f"the network in mode {mode}", replace(training, mode=mode), truth, inputs)
    losses = {"squared errors": squared, "squared errors of probabilities": squared_softmax}
    losses |= {"labels smoothed by 0.1": smoothed, "the sum of the examples' losses": summed}
    losses |= {"cross entropy": cross_entropy}
    for name, loss in losses.items():
        if loss is not training.loss:
            yield Alternative(name, replace(training, loss=loss), truth, inputs)
    for decay in (1e-4, 5e-4, 1e-3, 1e-2):
        yield Alternative(f"weight decay {decay:g}", replace(training, weight_decay=decay), truth, inputs)


def _optimisers(training: TrainingDescription) -> Iterator[tuple[str, TrainingDescription]]:
    """Yield optimisers; where the given one is another, the settings that only it has are dropped."""
    yield "", training
    if training.order is None and training.batch_size:
        yield "all examples in every step", replace(training, batch_size=0)
    bare = replace(training, optimiser="sgd", momentum=0.0, nesterov=False)
    yield "plain SGD", replace(bare, weight_decay=0.0, clip=0.0, proximal=0.0)
    yield "momentum 0.9", replace(bare, momentum=0.9)
    yield "Nesterov's momentum 0.9", replace(bare, momentum=0.9, nesterov=True)
    yield "Adam", replace(bare, optimiser="adam")
    yield "AdamW with weight decay 0.01", replace(bare, optimiser="adamw", weight_decay=0.01)


def _turned(samples: Tensor) -> Iterator[tuple[str, Tensor]]:
    if samples.dim() != 4:
        return
    yield "images flipped left to right", samples.flip(-1)
    yield "images flipped upside down", samples.flip(-2)
    if samples.shape[-1] == samples.shape[-2]:
        yield "images with rows and columns exchanged", samples.transpose(-1, -2)
        yield "images turned by a quarter", torch.rot90(samples, 1, (-2, -1))
    if samples.shape[1] == 3:
        yield "channels in the order blue, green, red", samples.flip(1)
    yield "images inverted", 1 - samples
