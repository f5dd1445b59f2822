"""Clipped gradients of single examples at any model, computed apart from the clients' own code."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from flfw.dp.settings import DPSGDSettings
from flfw.nets.net import Tensors, targets
from flfw.nets.net import loss as mean_loss
from flfw.task import Task
from flfw.training.clipping import STABILITY, grouped


@final
class ClippedGradients:
    """Clipped gradients of a task's training examples, as rows with a number for each entry of the model.

    As at the clients, a group of an example's gradient that is not finite is 0.

    Args:
        task: the task, canaries with their wrong labels.
        model: network of the run; its weights are not used.
        settings: of the method; for noisy steps, gradients are clipped.

    Attributes:
        names: the parameters that are trained, in the order of a row.
        sizes: numbers in each of them.
        clip: bound of each group's norm; inf: nothing is clipped.
    """

    def __init__(self, task: Task, model: nn.Module, settings: Any) -> None:
        self._task, self._model = task, model
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in model.parameters() if p.requires_grad]
        noisy = isinstance(settings, DPSGDSettings)
        self.clip: float = settings.clip if noisy else inf
        self._automatic = noisy and settings.clipping == "automatic"
        self._groups = tuple(grouped(self.names, settings.grouping if noisy else "flat").values())

    def rows(self, sent: Tensors, indices: np.ndarray, at_once: int) -> Iterator[Tensor]:
        """Compute rows (B, numbers), B <= at_once, for training examples, at a model given by its tensors."""
        fixed = {n: v for n, v in sent.items() if n not in self.names}
        moving = {n: sent[n] for n in self.names}

        def loss(parameters: Tensors, x: Tensor, y: Tensor) -> Tensor:
            x, y = x.unsqueeze(0), y.unsqueeze(0)
            scores = functional_call(self._model, {**parameters, **fixed}, (self._task.inputs.normalise(x),))
            return mean_loss(scores, targets(scores, x, y))

        each = vmap(grad(loss), in_dims=(None, 0, 0))
        for start in range(0, len(indices), at_once):
            x, y = self._task.examples("train", indices[start : start + at_once])
            gradients: Tensors = each(moving, x, y)
            flat = {name: gradients[name].flatten(1) for name in self.names}
            for members in self._groups if self.clip < inf else ():
                joined = torch.cat([flat[name] for name in members], 1).double()  # float32 loses squares
                norms = torch.linalg.vector_norm(joined, dim=1, keepdim=True)
                scale = self.clip / (norms + STABILITY) if self._automatic else (self.clip / norms).clamp(max=1.0)
                clipped = torch.where(norms.isfinite(), joined * scale, 0.0).to(flat[members[0]].dtype)
                flat |= dict(zip(members, clipped.split([flat[name].shape[1] for name in members], 1), strict=True))
            yield torch.cat([flat[name] for name in self.names], 1)

    def row_of(self, tensors: Tensors) -> Tensor:
        """Join the trained tensors of a model into a row."""
        return torch.cat([tensors[name].flatten() for name in self.names])
