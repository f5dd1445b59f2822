"""Updates of several local steps: simulated training on a guess of the data, step by step.

Local training is a function of the guess, and a search follows its derivative through all steps (the simulation of
Geiping et al., NeurIPS 2020, section 6, and of Dimitrov et al., TMLR 2022), also through momentum, Adam's means,
clipping and a proximal term.
"""

from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from flfw.errors import require
from flfw.files.tensor_names import matches
from flfw.inversion.client_models.victim import VictimModel, mean_gradient
from flfw.nets.bottleneck import penalty
from flfw.nets.net import Tensors, targets
from flfw.nets.net import loss as loss_of
from flfw.nets.training.local_steps import _CLIP_EPSILON, _RULES, LocalSteps, Places


@final
class SteppedVictim(VictimModel):
    """Victim that sends weights after several local steps.

    Its coordinates are the change of the weights, ``(received - sent) / (lr * steps)``: after one step of plain SGD
    the gradient, after several the mean of the steps' gradients. Private parameters move in training like the shared
    ones, from their guessed values. Buffers stay unchanged, and the model is in evaluation mode: a BatchNorm layer uses
    the running statistics as they were received, and a `flfw.inversion.client_models.batch_statistics.BatchStatistics`
    those of each step's batch.

    After one step of Adam little more than the gradient's signs is left, and a derivative near 0 for the search.

    Args:
        victim: a victim of one step; gives the model, the known tensors, the shared names, the inputs, and the
            function of each example's gradient.
        received: the shared tensors at the start of training, by name.
        local: the known settings of the training.
        direct: whether the sent tensors are in these coordinates already, and not weights.

    Raises:
        InputError: a shared tensor that moves was not received, or has another shape; or no shared tensor moves.
    """

    def __init__(self, victim: VictimModel, received: Tensors, local: LocalSteps, direct: bool = False) -> None:
        shared = [name for name in victim.shared if matches(name, local.moves)]
        super().__init__(victim.model, {**victim.known, **received}, shared, victim.inputs)
        self.local, self.each, self.direct = local, victim.each, direct
        self._moving = {n: p.shape for n, p in victim.model.named_parameters() if matches(n, local.moves)}
        require(bool(shared), "a shared tensor that local training moves", moves=local.moves)
        for name in self.shared:
            require(name in received, f"{name} among what was received", received=", ".join(received) or "nothing")
            shape = tuple(received[name].shape)
            require(shape == self._moving[name], f"{name} of shape {tuple(self._moving[name])}", received=shape)

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Compute the change of the shared parameters; no constants.

        Args:
            sent: the weights after training, by name, or their change in these coordinates.
        """
        if self.direct:
            return {name: sent[name] for name in self.shared}, {}
        travelled = self.local.lr * self.local.steps
        return {name: (self.known[name] - sent[name]) / travelled for name in self.shared}, {}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the change after training on a guess, by automatic differentiation through all steps.

        Raises:
            InputError: the order has an index out of the guess's range.
        """
        local, start = self.local, {**self.known, **unknown}
        # The sum is kept apart from the weights: small changes of large weights would be lost to rounding.
        moved = {name: torch.zeros_like(start[name]) for name in self._moving}
        rule = _RULES[local.optimiser](local)
        for indices in local.batches(len(x)):
            weights = {name: start[name] - local.lr * way for name, way in moved.items()}
            gradients = self._step(_taken(x, indices), _taken(y, indices), start, weights)
            if local.proximal:
                gradients = {n: g + local.proximal * (weights[n] - start[n]) for n, g in gradients.items()}
            if local.clip:
                gradients = _clipped(gradients, local.clip)
            direction = rule.direction(gradients, weights)
            moved = {name: way + direction[name] for name, way in moved.items()}
        return {name: moved[name] / local.steps for name in self.shared}

    def _step(self, x: Tensor, y: Tensor, start: Tensors, weights: Tensors) -> Tensors:
        """Compute the gradient of a batch's mean loss at the moved weights, or the mean of `each`."""

        def gradient(inputs: Tensor, labels: Tensor) -> Tensors:
            def loss(moving: Tensors) -> Tensor:
                scores = functional_call(self.model, {**start, **moving}, (self.inputs.normalise(inputs),))
                follows = loss_of if self.local.loss is cross_entropy else self.local.loss
                return follows(scores, targets(scores, inputs, labels)) + penalty(self.model)

            return grad(loss)(weights)

        return mean_gradient(gradient, x, y, self.each)


def _clipped(gradients: Tensors, bound: float) -> Tensors:
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients.values()]))
    scale = torch.where(norm > bound, bound / (norm + _CLIP_EPSILON), 1.0)
    return {name: scale * gradient for name, gradient in gradients.items()}


def _taken(examples: Tensor, indices: Places) -> Tensor:
    """Return the rows at the given indices; consecutive rows are a view."""
    if indices == tuple(range(indices[0], indices[0] + len(indices))):
        return examples[indices[0] : indices[0] + len(indices)]
    return examples.index_select(0, torch.tensor(indices, device=examples.device))
