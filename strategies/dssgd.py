"""DSSGD: each client keeps its own copy, downloads a share of the server's entries and sends a share of its changes.

Paper       Shokri and Shmatikov, "Privacy-Preserving Deep Learning", CCS 2015: distributed selective SGD.
Symbols     theta_d, theta_u shares downloaded and uploaded, gamma bound of a change, tau threshold, beta decay, W the
            server's parameters, w_k the copy of client k, lr the learning rate; an entry is one number of a model.
Down        shared.*: the share theta_d of W's entries that were updated most often, the first ones of equals; the rest
            are 0. With theta_d < 1 also fresh.*, a byte for each entry: 1 if it is downloaded. In the first round all
            of W, with which all copies begin.
Up          shared.*: the received tensors plus, for the chosen share theta_u of the entries, their change. Messages are
            dense, so byte counts are those of whole models: a share saves no bytes here.
Private     own.*: with theta_d < 1 the copy w_k, kept by the client from round to round. With theta_d = 1 all of it is
            overwritten in every round, so that nothing is kept.
Client      clients/dssgd.py
A probe     the message of one step: the chosen and bounded entries of -lr times the gradient, divided by -lr.
An attacker is granted the message, reads off which entries were sent and compares only those. With theta_d = 1 it holds
            the copy that training starts from. With theta_d < 1 the entries of w_k that were not downloaded are unknown
            to it and are searched for with the data. A real server also has the earlier messages, so this attacker is
            weaker than a real one, and no verdict rests on it.
Claims      none: sending few entries protects nobody. The paper's sparse vector technique with Laplace noise is left
            out: its epsilons are for single entries of a round. fed_sdp adds noise to whole updates.
Departures  1. Rounds: clients train at the same time and the server adds when all have sent. In the paper they come one
               after another, or asynchronously.
            2. A round has one download, E epochs and one upload, whose entries are chosen at the end.
            3. beta acts once a round; by default (1) all rounds count alike.
            4. combine=mean, in place of the paper's sum, where many clients move the same entries.
            5. The paper has no running statistics: a network with buffers (BatchNorm) is refused.

    client k:  w_k <- W at the fresh entries;  v <- E epochs of SGD from w_k;  c <- clamp(v - w_k, -gamma, gamma)
               send c at the theta_u entries with the largest |c|, or at random ones of |c| > tau;  w_k <- v
    server:    W <- W + sum_k c_k;  stat <- beta stat + how many sent the entry;  fresh <- the theta_d of largest stat
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flfw.bounds import NonNegativeFinite, PositiveShare
from flfw.errors import require
from flfw.inversion.client_models.victim import PlainVictim, VictimModel
from flfw.nets import Net, Tensors, running_statistics
from flfw.nets.inputs import InputSpec
from flfw.nets.training.optimisers import LocalTraining
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy


@dataclass(frozen=True)
class DSSGDSettings(LocalTraining):
    """Hyper-parameters of DSSGD beside those of SGD; a share is rounded to whole entries, and to at least one."""

    theta_u: PositiveShare = 0.1  # share of the entries whose change is sent
    theta_d: PositiveShare = 1.0  # share of the entries that are downloaded
    criterion: Literal["largest", "random"] = "largest"  # which changes are sent: random ones of those above tau
    tau: NonNegativeFinite = 0.0  # of criterion=random: a change must exceed it
    gamma: NonNegativeFinite = 0.0  # bound of the magnitude of each change; 0: none
    decay: PositiveShare = 1.0  # beta: what an older update counts for, from round to round
    combine: Literal["sum", "mean"] = "sum"  # of the clients' changes


@final
class SelectiveNet(nn.Module):
    """Network of one client: the server's entries where they are fresh, its own entries elsewhere.

    ``shared.*`` has the gradient of every entry in use, fresh or not, because changes are sent under these names.

    Args:
        net: the architecture, and its first weights.
        full: whether all entries are always fresh; then there is no own copy.
        bounded: whether changes are bounded.
    """

    def __init__(self, net: Net, full: bool, bounded: bool) -> None:
        super().__init__()
        buffers = ", ".join(running_statistics(net))
        require(not buffers, "a network without buffers", buffers=buffers)
        self.shared, self.bounded = net, bounded
        self.fresh = None if full else _flags(net)
        self.own = None if full else deepcopy(net)

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores (B, classes) of network inputs (B, ...)."""
        if self.fresh is None or self.own is None:
            return self.shared(x)
        fresh, copied = dict(self.fresh.named_buffers()), dict(self.own.named_parameters())
        used = {}
        for name, value in self.shared.named_parameters():
            kept = copied[name] + (value - value.detach())  # the copy's number, with a gradient for the shared one too
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
    """Client that sent only some entries: the others are not compared.

    Args:
        model: the freshly initialised model.
        received: the tensors sent to the client.
        inputs: the input space.
    """

    def __init__(self, model: SelectiveNet, received: Tensors, inputs: InputSpec) -> None:
        super().__init__(model, received, DSSGD.uploads, inputs)
        self._plain, self._bounded = PlainVictim(model, received, DSSGD.uploads, inputs), model.bounded

    def observed(self, sent: Tensors) -> tuple[Tensors, Tensors]:
        """Return the sent tensors; and, as constants, the sent entries and the largest of them."""
        observed, _ = self._plain.observed(sent)
        largest = torch.stack([value.abs().max() for value in observed.values()]).max()
        chosen = {f"chosen.{name}": (value != 0).to(value.dtype) for name, value in observed.items()}
        return observed, {**chosen, "largest": largest}

    def gradient(self, x: Tensor, y: Tensor, unknown: Tensors, constants: Tensors) -> Tensors:
        """Compute the gradient at the sent entries; if changes are bounded, the largest sent one is the bound."""
        gradient = self._plain.gradient(x, y, unknown, {})
        if self._bounded:
            gradient = {n: value.clamp(-constants["largest"], constants["largest"]) for n, value in gradient.items()}
        return {name: value * constants[f"chosen.{name}"] for name, value in gradient.items()}


@final
class DSSGD(FederatedStrategy):
    """Sum of the clients' chosen changes; the entries that were changed most often are offered."""

    Settings = DSSGDSettings
    downloads = ("shared.*", "fresh.*")
    uploads = ("shared.*",)

    @classmethod
    def build_model(cls, net: Net, settings: DSSGDSettings) -> SelectiveNet:
        """Build the network with the server's entries and, with theta_d < 1, a client's own."""
        return SelectiveNet(net, full=settings.theta_d == 1, bounded=settings.gamma > 0)

    @classmethod
    def victim_model(
        cls, model: nn.Module, received: Tensors, inputs: InputSpec, settings: DSSGDSettings
    ) -> SelectiveVictim:
        """Build a client whose own entries are unknown, and which sent only some changes."""
        assert isinstance(model, SelectiveNet)
        return SelectiveVictim(model, received, inputs)

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Add the changes to the server's entries; return the offered ones."""
        sent = {name: value for name, value in self.last_broadcast.items() if name.startswith("shared.")}
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
        # Entries that are not offered are 0 in the broadcast; in the first round all are offered.
        before = {name: self.state.get(name, value) for name, value in sent.items()}
        after = {n: (v.double() + changes[n] / divisor).to(v.dtype) for n, v in before.items()}
        self.state = {**after, **{f"stat.{name}": value for name, value in stat.items()}}
        return after if self.settings.theta_d == 1 else offered(after, stat, self.settings.theta_d)


def offered(parameters: Tensors, stat: Tensors, share: float) -> Tensors:
    """Choose the broadcast entries: ``shared.*``, 0 where not offered, and ``fresh.*``, uint8, 1 where offered.

    Args:
        parameters: the server's entries, as ``shared.*``.
        stat: number of updates of each entry, by the same names.
        share: share of the entries to offer, in (0, 1]: those of largest ``stat``, the first ones of equals.

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
