"""DSSGD: every client keeps a copy of its own, takes over a share of the server's entries and sends a share of changes.

Paper       Shokri and Shmatikov, "Privacy-Preserving Deep Learning", CCS 2015: distributed selective SGD.
Symbols     theta_d, theta_u shares downloaded and uploaded, gamma bound of a change, tau threshold, beta decay, W the
            server's parameters, w_k the copy of client k, lr the learning rate; an entry is one number of a model.
Down        shared.*: the theta_d of W's entries that were updated most often, of equals those that come first in the
            model; elsewhere 0. With theta_d < 1 fresh.* too, a byte an entry: whether it is one of them. In the first
            round all of W, which is also where all copies begin.
Up          shared.*: what was received and, for the chosen theta_u of the entries, their change. Messages are dense, so
            byte counts are those of whole models: a share saves nothing on this wire.
Private     own.*: with theta_d < 1 the copy w_k, kept by the client from round to round. With theta_d = 1 all of it is
            overwritten in every round, so that nothing is kept.
Client      clients/dssgd.py
A probe     what one step would send: the chosen and bounded entries of -lr times the gradient, over -lr.
An attacker is granted the message, reads off which entries were sent and compares only those. With theta_d = 1 it holds
            the copy that training starts from. With theta_d < 1 the entries of w_k that were not downloaded are unknown
            to it and are searched for with the data; the server remembers more than that message, so this is less than
            it could do, and no verdict rests on it.
Claims      none: that few entries are sent protects nobody. The paper's sparse vector technique with Laplace noise is
            left out: its epsilons are for single entries of a round; whole updates under noise are what fed_sdp has.
Departures  1. Rounds: clients train at the same time and the server adds when all have sent. In the paper they come one
               after another, or as they please.
            2. Down and up are one change of E epochs, chosen once at their end.
            3. beta acts once a round; by default (1) all rounds count alike.
            4. combine=mean, in place of the paper's sum, where many clients move the same entries.
            5. The paper knows no running statistics: a network with buffers (BatchNorm) is refused.

    client k:  w_k <- W at the fresh entries;  v <- E epochs of SGD from w_k;  c <- clamp(v - w_k, -gamma, gamma)
               send c at the theta_u entries with the largest |c|, or at random ones of |c| > tau;  w_k <- v
    server:    W <- W + sum_k c_k;  stat <- beta stat + how many sent the entry;  fresh <- the theta_d of largest stat
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.errors import require
from flfw.nets import Net, Tensors
from flfw.nets.inputs import Inputs
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy
from flfw.training.optimisers import LocalTraining
from flfw.victims.victim import PlainVictim, VictimModel


@dataclass(frozen=True)
class DSSGDSettings(LocalTraining):
    """DSSGD's hyper-parameters beside those of SGD; a share is rounded to whole entries, and to at least one."""

    theta_u: float = 0.1  # share of the entries whose change is sent, in (0, 1]
    theta_d: float = 1.0  # share of the entries that are downloaded, in (0, 1]
    criterion: Literal["largest", "random"] = "largest"  # which changes are sent: random ones of those above tau
    tau: float = 0.0  # of criterion=random: a change must exceed it, >= 0
    gamma: float = 0.0  # bound of the magnitude of each change, >= 0; 0: none
    decay: float = 1.0  # beta: what an older update counts for, from round to round; in (0, 1]
    combine: Literal["sum", "mean"] = "sum"  # of the clients' changes

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.theta_u <= 1, "0 < theta_u <= 1", theta_u=self.theta_u)
        require(0 < self.theta_d <= 1, "0 < theta_d <= 1", theta_d=self.theta_d)
        require(0 <= self.tau < inf, "0 <= tau < inf", tau=self.tau)
        require(0 <= self.gamma < inf, "0 <= gamma < inf", gamma=self.gamma)
        require(0 < self.decay <= 1, "0 < decay <= 1", decay=self.decay)


@final
class SelectiveNet(nn.Module):
    """A network as one party has it: the server's entries where they are fresh, elsewhere its own.

    ``shared.*`` has the gradient of every entry in use, fresh or not: it is what a change is sent of.

    Args:
        net: the architecture, and its first weights.
        whole: whether all entries are always fresh; then there is no own copy.
        bounded: whether changes are.
    """

    def __init__(self, net: Net, whole: bool, bounded: bool) -> None:
        super().__init__()
        buffers = ", ".join(name for name, _ in net.named_buffers())
        require(not buffers, "a network without buffers", buffers=buffers)
        self.shared, self.bounded = net, bounded
        self.fresh = None if whole else _flags(net)
        self.own = None if whole else deepcopy(net)

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores (B, classes) of network inputs (B, ...)."""
        if self.fresh is None or self.own is None:
            return self.shared(x)
        fresh, copy = dict(self.fresh.named_buffers()), dict(self.own.named_parameters())
        used = {}
        for name, value in self.shared.named_parameters():
            kept = copy[name] + (value - value.detach())  # the own number, with a gradient for the shared one too
            used[name] = torch.where(fresh[name].bool(), value, kept)
        return functional_call(self.shared, used, (x,))


def _flags(net: nn.Module) -> nn.Module:
    """Make a buffer of ones in place of each parameter."""
    flags = deepcopy(net)
    for module in flags.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, torch.ones_like(value, dtype=torch.uint8))
    return flags


@final
class SelectiveVictim(VictimModel):
    """A client of which only some entries were sent: the others are not compared.

    Args:
        model: freshly initialised.
        received: what the client was sent.
        inputs: the input space.
    """

    def __init__(self, model: SelectiveNet, received: Tensors, inputs: Inputs) -> None:
        super().__init__(model, received, DSSGD.uploads, inputs)
        self._plain, self._bounded = PlainVictim(model, received, DSSGD.uploads, inputs), model.bounded

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Read off the tensors as they were sent; which entries that were, and the largest of them."""
        seen, _ = self._plain.observed(sent)
        largest = torch.stack([value.abs().max() for value in seen.values()]).max()
        chosen = {f"chosen.{name}": (value != 0).to(value.dtype) for name, value in seen.items()}
        return seen, {**chosen, "largest": largest}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute at the entries that were sent; a bound of changes is stood in for by the largest that was sent."""
        gradient = self._plain.gradient(x, y, unknown, {})
        if self._bounded:
            gradient = {n: value.clamp(-constants["largest"], constants["largest"]) for n, value in gradient.items()}
        return {name: value * constants[f"chosen.{name}"] for name, value in gradient.items()}


@final
class DSSGD(FederatedStrategy):
    """A sum of chosen changes; the entries that were changed most often are offered."""

    Settings = DSSGDSettings
    downloads = ("shared.*", "fresh.*")
    uploads = ("shared.*",)

    @classmethod
    def build_model(cls, net: Net, settings: DSSGDSettings) -> SelectiveNet:
        """Put a client's own entries beside the server's, with theta_d < 1."""
        return SelectiveNet(net, whole=settings.theta_d == 1, bounded=settings.gamma > 0)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: Inputs, settings: DSSGDSettings
    ) -> SelectiveVictim:
        """Build a client whose own entries are unknown, and of which only some changes were sent."""
        assert isinstance(model, SelectiveNet)
        return SelectiveVictim(model, received, inputs)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Add up the changes, as far as the entries are offered."""
        sent = {name: value for name, value in self.broadcasted.items() if name.startswith("shared.")}
        changes = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in sent.items()}
        stat = {n: self.settings.decay * self.state.get(f"stat.{n}", torch.zeros(v.shape)) for n, v in sent.items()}
        taken = 0
        for update in updates:
            taken += 1
            for name, value in sent.items():
                change = update.tensors[name].double() - value.double()
                changes[name] += change
                stat[name] += change != 0
        divisor = max(1, taken) if self.settings.combine == "mean" else 1
        # What is not offered is 0 in the broadcast; before the first round everything is.
        before = {name: self.state.get(name, value) for name, value in sent.items()}
        after = {n: (v.double() + changes[n] / divisor).to(v.dtype) for n, v in before.items()}
        self.state = {**after, **{f"stat.{name}": value for name, value in stat.items()}}
        return after if self.settings.theta_d == 1 else offered(after, stat, self.settings.theta_d)


def offered(parameters: Tensors, stat: Tensors, share: float) -> Tensors:
    """Choose the broadcast: ``shared.*``, 0 where it is not offered, and ``fresh.*``, uint8, 1 where it is.

    Args:
        parameters: the server's, as ``shared.*``.
        stat: how often each entry was updated, by the same names.
        share: of the entries to offer, in (0, 1]: those of largest ``stat``, of equals the first.

    >>> offered({"shared.w": torch.tensor([5.0, 6.0, 7.0, 8.0])}, {"shared.w": torch.tensor([0.0, 2.0, 1.0, 1.0])}, 0.5)
    {'shared.w': tensor([0., 6., 7., 0.]), 'fresh.w': tensor([0, 1, 1, 0], dtype=torch.uint8)}
    """
    flat = torch.cat([stat[name].flatten() for name in parameters])
    first = flat.argsort(descending=True, stable=True)[: max(1, round(share * len(flat)))]
    chosen = torch.zeros(len(flat), dtype=torch.uint8).index_fill(0, first, 1)
    sizes = [value.numel() for value in parameters.values()]
    fresh = {n: f.view_as(v) for (n, v), f in zip(parameters.items(), chosen.split(sizes), strict=True)}
    sent = {name: torch.where(fresh[name].bool(), value, 0.0) for name, value in parameters.items()}
    return sent | {f"fresh.{name.removeprefix('shared.')}": value.clone() for name, value in fresh.items()}
