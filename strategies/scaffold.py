"""SCAFFOLD: FedAvg whose local steps are corrected by the difference of a client's gradient from the mean gradient.

Paper       Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
            arXiv 1910.06378.
Symbols     x the server's model, y_i a client's, c and c_i the control variates of server and client, a number for each
            parameter and 0 at first; eta_l the local learning rate (lr), eta_g the global one, K local steps, S the
            cohort, N all clients.
Down        net.*, which is x, and control.*, which is c.
Up          net.*, which is y_i, and control.*: c plus the change of the client's own variate, c_i+ - c_i.
Private     own.*, which is c_i, kept by the client from round to round. It starts at 0 and all its changes are sent, so
            a server that adds them up knows it: it is private only in that no message holds it.
Client      clients/scaffold.py
A probe     the direction of one local step, g_i(x) - c_i + c, over net.*; of several steps, all sent tensors.
An attacker is granted one message, and c. It does not know c_i and takes c in its place, so that the direction is
            g_i(x): before the first round that is exact, for both are 0. A server that remembers earlier rounds knows
            c_i, so this attacker is weaker than a real one, and no verdict rests on it.
Departures  1. option=II by default, which needs no second pass over the data; the paper's experiments do the same.
            2. Momentum is refused: the paper's steps are plain ones, and (x - y_i) / (K eta_l) is a mean gradient only
               of these. Weight decay counts as a part of the loss (in option I as a part of the step alone).
            3. Buffers (BatchNorm's statistics) follow no gradient: their mean is taken.
            4. Messages are twice as long as FedAvg's, both ways, as in the paper.

    client i, having received x, c:  y_i <- x
        K times:  y_i <- y_i - eta_l (g_i(y_i) - c_i + c)
        c_i+ <- (I) g_i(x), over all examples;  (II) c_i - c + (x - y_i) / (K eta_l)
        send y_i, c_i+ - c_i;  c_i <- c_i+
    server:  x <- x + eta_g / |S| sum_i (y_i - x);  c <- c + 1 / N sum_i (c_i+ - c_i)
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from flfw.bounds import PositiveFinite
from flfw.errors import require
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets import Net, Tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import LocalTraining
from flfw.server.aggregation import Update, equal_mean
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class ScaffoldSettings(LocalTraining):
    """Settings of plain local SGD, the choice of a client's next variate, and the server's step."""

    momentum: float = 0.0  # 0
    option: Literal["I", "II"] = "II"  # c_i+: I the gradient over all own examples at x, II the mean of the steps'
    global_lr: PositiveFinite = 1.0  # eta_g > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self.optimiser == "sgd" and self.momentum == 0
        require(plain, "optimiser=sgd with momentum=0", optimiser=self.optimiser, momentum=self.momentum)


@final
class ControlledNet(nn.Module):
    """Network with the server's and the client's variates, as buffers with its parameters' names and shapes.

    Args:
        net: the architecture, and its first weights.
    """

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net, self.control, self.own = net, _zeros(net), _zeros(net)

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores (B, classes) of network inputs (B, ...)."""
        return self.net(x)


def _zeros(net: nn.Module) -> nn.Module:
    """Make a buffer of zeros in place of each parameter, and drop the buffers."""
    zeros = deepcopy(net)
    for module in zeros.modules():
        for name, _ in list(module.named_buffers(recurse=False)):
            delattr(module, name)
        for name, value in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, torch.zeros_like(value))
    return zeros


@final
class Scaffold(FederatedStrategy):
    """Averaging of changes, of models and of control variates."""

    Settings = ScaffoldSettings
    downloads = ("net.*", "control.*")
    uploads = ("net.*", "control.*")
    plain_steps = True  # with c in place of c_i nothing corrects them

    @classmethod
    def build_model(cls, net: Net, settings: ScaffoldSettings) -> ControlledNet:
        """Put the two variates beside the network."""
        return ControlledNet(net)

    @classmethod
    def descended(cls, model: nn.Module, settings: ScaffoldSettings) -> tuple[str, ...]:
        """Name the network: a variate has no gradient."""
        return ("net.*",)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: InputSpec, settings: ScaffoldSettings
    ) -> PlainVictim:
        """Build a client whose own variate is taken to be the server's, so that its direction is its gradient."""
        stood_in = {
            name.replace("control.", "own.", 1): c for name, c in received.items() if name.startswith("control.")
        }
        return PlainVictim(model, {**received, **stood_in}, cls.descended(model, settings), inputs)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Add eta_g times the mean change of the models; c follows the change of the variates, over all N clients."""
        before = self.last_broadcast
        mean, clients = equal_mean(updates)
        share = clients / self.require_context.plan.rounds.clients

        def after(name: str, size: float) -> Tensor:
            change = mean[name].double() - before[name].double()
            return (before[name].double() + size * change).to(before[name].dtype)

        controls = {name: after(name, share) for name in before if name.startswith("control.")}
        moved = {n.replace("control.", "net.", 1): self.settings.global_lr for n in controls}
        return {**mean, **controls, **{name: after(name, size) for name, size in moved.items()}}
