"""DSSGD's client half: local training of its own copy, and the choice of the changes that are sent."""

from collections.abc import Mapping
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor

from flfw.client.federated_client import FederatedClient
from flfw.nets import Tensors


@final
class DSSGDClient(FederatedClient):
    """Client with E epochs of SGD on its own copy.

    If only some entries are downloaded, the copy is ``own.*`` of the model, else ``shared.*`` itself. In both cases its
    tensors have the names under which their changes are sent.
    """

    def trainable_parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the copy."""
        parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        copied = {n.replace("own.", "shared.", 1): p for n, p in parameters.items() if n.startswith("own.")}
        return copied or parameters

    def load_received(self, received: Mapping[str, np.ndarray], version: int) -> None:
        """Overwrite the fresh entries of the copy; after that all of it belongs to this client."""
        super().load_received(received, version)
        state = self.model.state_dict()
        for name, fresh in state.items():
            if name.startswith("fresh."):
                rest, taken = name.removeprefix("fresh."), fresh.bool()
                state[f"own.{rest}"][taken] = state[f"shared.{rest}"][taken]
                fresh.zero_()
        self._start = {name: value.detach().clone() for name, value in self.trainable_parameters().items()}

    def train(self) -> dict[str, float]:
        """Train the copy; return the mean loss of the last epoch."""
        return {"loss": self.train_epochs(self.trainable_parameters(), self.ctx.local.local_epochs, self.optimiser())}

    def gradient(self, x: Tensor, y: Tensor) -> Tensors:
        """Answer a probe of one step: the chosen entries of that step, divided by minus the learning rate."""
        rng, lr = self.generator("probe"), self.ctx.local.lr
        change = {name: -lr * value for name, value in self.local_gradient(x, y, rng).items()}
        sent = {name: value / -lr for name, value in self._chosen(change).items()}
        return self.ctx.defence.update(sent, rng) if self.ctx.defence else sent

    def upload_tensors(self) -> Tensors:
        """Return the received tensors plus, at the chosen entries, the change."""
        change = {
            name: (value.detach() - self._start[name]).cpu() for name, value in self.trainable_parameters().items()
        }
        return {name: torch.tensor(self.received[name]) + value for name, value in self._chosen(change).items()}

    def _chosen(self, change: Tensors) -> Tensors:
        settings, rng = self.ctx.settings, self.generator("upload")
        if settings.gamma:
            change = {name: value.clamp(-settings.gamma, settings.gamma) for name, value in change.items()}
        return selected(change, settings.theta_u, settings.criterion, settings.tau, rng)


def selected(
    change: Tensors, share: float, criterion: Literal["largest", "random"], tau: float, rng: torch.Generator
) -> Tensors:
    """Choose a share of all entries of a change and set the others to 0.

    Args:
        change: tensors by name; the share counts over all of them together.
        share: in (0, 1], rounded to whole entries, at least one.
        criterion: ``largest``: the entries of largest magnitude, the first ones of equals; ``random``: random entries
            of magnitude above tau, all of them if there are fewer.
        tau: threshold of the magnitude, >= 0.
        rng: generator of the random choice.

    >>> change = {"w": torch.tensor([1.0, -3.0]), "b": torch.tensor([2.0, -1.0])}
    >>> selected(change, 0.5, "largest", 0.0, torch.Generator())
    {'w': tensor([ 0., -3.]), 'b': tensor([2., 0.])}
    """
    flat = torch.cat([value.flatten() for value in change.values()])
    count = max(1, round(share * len(flat)))
    if criterion == "largest":
        indices = flat.abs().argsort(descending=True, stable=True)[:count]
    else:
        above = (flat.abs() > tau).nonzero().flatten()
        indices = above[torch.randperm(len(above), generator=rng)[:count]]
    kept = torch.zeros_like(flat).index_copy(0, indices, flat[indices])
    parts = kept.split([value.numel() for value in change.values()])
    return {name: part.view_as(value) for (name, value), part in zip(change.items(), parts, strict=True)}
