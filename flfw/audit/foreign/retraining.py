"""Local training of a foreign app, carried out here on the truth as its description says, with PyTorch's optimisers.

It shares no code with the unrolled steps of an attack, so each of the two tests the other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from flfw.adversary.observation import Truth
from flfw.audit.foreign.description import TrainingDescription
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors
from flfw.rng import initialising, torch_generator


@final
class Retraining:
    """Training of a copy of a network as described, step by step.

    Args:
        net: the network.
        received: the tensors that the client had received, by the network's names.
        truth: the client's examples.
        training: the description; its epochs are repeated for ever.
        inputs: the input space.
        seed: seed of the training's random draws.
        draw: number of the repetition; each has draws of its own.

    Attributes:
        steps: number of steps so far.
        gradient: gradient of the first step.
    """

    def __init__(
        self,
        net: nn.Module,
        received: Tensors,
        truth: Truth,
        training: TrainingDescription,
        inputs: InputSpec,
        seed: int = 0,
        draw: int = 0,
    ) -> None:
        self._model, self._truth, self._training, self._inputs = copy.deepcopy(net), truth, training, inputs
        self._model.load_state_dict({**self._model.state_dict(), **received})
        self._model.train(training.mode == "train")
        self._moving = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._before = {name: parameter.detach().clone() for name, parameter in self._moving.items()}
        self._optimiser = _optimiser(training, list(self._moving.values()))
        self._rng = torch_generator(seed, "consistency", draw)
        self._batches = self._epochs()
        with initialising(seed, "consistency", draw):
            self._state = torch.get_rng_state()
        self.steps = 0
        self.gradient: Tensors = {}

    def step(self) -> None:
        """Take the next step."""
        training, (x, y) = self._training, next(self._batches)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(self._state)  # dropout draws from the global generator
            loss = training.loss(self._model(self._inputs.normalise(x)), y)
            self._state = torch.get_rng_state()
            if training.proximal:
                way = sum((p - self._before[name]).square().sum() for name, p in self._moving.items())
                loss = loss + training.proximal / 2 * way
            self._optimiser.zero_grad()
            loss.backward()
        self.gradient = self.gradient or {name: _gradient(p) for name, p in self._moving.items()}
        if training.clip:
            clip_grad_norm_(list(self._moving.values()), training.clip)
        self._optimiser.step()
        self.steps += 1

    @property
    def change(self) -> Tensors:
        """Change of the trained weights so far."""
        return {name: (p.detach().double() - self._before[name].double()).float() for name, p in self._moving.items()}

    def result(self, training: TrainingDescription) -> Tensors:
        """Return the change of the weights so far or, where gradients are sent, the gradient of these steps."""
        if training.sends != "gradient":
            return self.change
        travelled = -self.steps * (training.lr or 1.0)
        return self.gradient if self.steps == 1 else {name: way / travelled for name, way in self.change.items()}

    def _epochs(self) -> Iterator[tuple[Tensor, Tensor]]:
        training, count = self._training, len(self._truth.labels)
        while True:
            for places in training.batches(count, self._rng):
                x, y = self._truth.samples[list(places)], self._truth.labels[list(places)]
                yield x if training.augment is None else training.augment(x.clone(), self._rng), y


def retrained(
    net: nn.Module,
    received: Tensors,
    truth: Truth,
    training: TrainingDescription,
    inputs: InputSpec,
    seed: int = 0,
    draw: int = 0,
) -> Tensors:
    """Train as `Retraining` does, for the described number of steps, and return its result."""
    run = Retraining(net, received, truth, training, inputs, seed, draw)
    for _ in range(len(training.batches(len(truth.labels)))):
        run.step()
    return run.result(training)


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()


def _optimiser(training: TrainingDescription, parameters: list[Tensor]) -> torch.optim.Optimizer:
    lr, decay = 1.0 if training.lr is None else training.lr, training.weight_decay
    if training.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, lr, momentum=training.momentum, weight_decay=decay, nesterov=training.nesterov
        )
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.AdamW
    return kind(parameters, lr, betas=training.betas, eps=training.epsilon, weight_decay=decay)
