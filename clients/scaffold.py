"""SCAFFOLD's client half: local SGD along g_i(y) - c_i + c, and the change of its own control variate."""

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from flfw.client import FederatedClient
from flfw.nets import Tensors
from flfw.nets.training.optimisers import loss_and_grad

_SETS = ("control", "own")


@final
class ScaffoldClient(FederatedClient):
    """Client with corrected local steps."""

    place_labels = True
    regresses = True

    def load_received(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Store x, c and c_i as well, by the parameters' names."""
        super().load_received(received, version)
        self._start = {name: value.detach().clone() for name, value in self.trainable_parameters().items()}
        state = self.model.state_dict()
        self._control, self._own = ({n: state[n.replace("net.", f"{part}.", 1)] for n in self._start} for part in _SETS)
        self._before = {name: value.clone() for name, value in self._own.items()}
        self._at_start: Tensors = {}

    def loss_and_direction(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[float, Tensors]:
        """Compute the mean loss of a batch and its gradient, corrected."""
        loss, gradient = super().loss_and_direction(parameters, x, y)
        return loss, {name: g - self._before[name] + self._control[name] for name, g in gradient.items()}

    def local_gradient(self, x: Tensor, y: Tensor, rng: torch.Generator) -> Tensors:
        """Compute the corrected direction of a local step."""
        return self.step_direction(x, y, rng)

    def train(self) -> dict[str, float]:
        """Train and set c_i to c_i+; return the mean loss of the last epoch."""
        mine, size = self.indices("train"), self.ctx.local.batch_size
        self._look(self.examples("train", mine[start : start + size]) for start in range(0, len(mine), size))
        loss = self.train_epochs(self.trainable_parameters(), self.ctx.local.local_epochs, self.optimiser())
        for name, value in self._renewed().items():
            self._own[name].copy_(value)
        return {"loss": loss}

    def stepped(self, x: Tensor, y: Tensor, steps: int) -> Tensors:
        """Answer a probe of more local steps, as if the client had only its examples."""
        self._look([(x.to(self.device), y.to(self.device))])
        return super().stepped(x, y, steps)

    def upload_tensors(self) -> Tensors:
        """Return y_i, and c + c_i+ - c_i."""
        change = {name: self._control[name] + value - self._before[name] for name, value in self._renewed().items()}
        return {**super().upload_tensors(), **{n.replace("net.", "control.", 1): value for n, value in change.items()}}

    def _look(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Compute g_i(x) over all examples, which option I asks for before the first step."""
        if self.ctx.settings.option == "II":
            return
        count, total = 0, {name: torch.zeros_like(value) for name, value in self._start.items()}
        for x, y in batches:
            count += len(y)
            for name, gradient in loss_and_grad(self.local_loss(x, y), self.trainable_parameters())[1].items():
                total[name] += len(y) * gradient
        self._at_start = {name: value / count for name, value in total.items()}

    @torch.no_grad()
    def _renewed(self) -> Tensors:
        """Compute c_i+."""
        if self.ctx.settings.option == "I":
            return self._at_start
        travelled = max(1, self.steps_made) * self.ctx.local.lr
        ways = {name: (self._start[name] - value) / travelled for name, value in self.trainable_parameters().items()}
        return {name: self._before[name] - self._control[name] + way for name, way in ways.items()}
