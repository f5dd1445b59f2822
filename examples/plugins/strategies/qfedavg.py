"""q-FedAvg: clients with a larger loss have a larger weight in the mean.

Paper       Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, algorithm 2.
Down        all tensors of the model, w.
Up          all tensors of the model after local training, w_k; the number F_k, the loss at w.
Private     nothing.
Client      clients/qfedavg.py.
A probe     one gradient of the whole model.
Departures  all clients of the cohort count, and are not drawn in proportion to their examples.

    d_k <- (w - w_k) / lr
    h_k <- q F_k^(q-1) ||d_k||^2 + F_k^q / lr
    w   <- w - sum_k F_k^q d_k / sum_k h_k
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

from flfw.errors import require
from flfw.messages.replies import UnusableReplyError
from flfw.nets import Tensors
from flfw.nets.training.optimisers import PersistentTraining
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class QFedAvgSettings(PersistentTraining):
    """Local SGD and the exponent."""

    q: float = 1.0  # exponent of the loss, >= 0; 0 is a plain mean

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.q >= 0, "q >= 0", q=self.q)


@final
class QFedAvg(FederatedStrategy):
    """Changes weighted by powers of the losses."""

    Settings = QFedAvgSettings
    downloads = ("*",)
    uploads = ("*",)
    plain_steps = True

    def check_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Refuse an update without its F_k > 0."""
        loss = metrics.get("loss_received")
        if loss is None or loss <= 0:
            raise UnusableReplyError(f"expected loss_received > 0, got {loss}")

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Follow the weighted change from the broadcast model."""
        before, lr, q = self.last_broadcast, self.require_context.local.lr, self.settings.q
        change = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in before.items()}
        total = 0.0
        for update in updates:
            loss = update.metrics["loss_received"]
            length = 0.0
            for name, value in update.tensors.items():
                step = (before[name].double() - value) / lr
                change[name].add_(step, alpha=loss**q)
                length += float(step.square().sum())
            total += q * loss ** (q - 1) * length + loss**q / lr
        return {name: (value - change[name] / total).to(value.dtype) for name, value in before.items()}
