"""Base of methods whose server generates each client's network by a hypernetwork of its own."""

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.func import functional_call

from flfw.bounds import NonNegativeFinite, NonNegativeInt, PositiveFinite, PositiveFloat, PositiveInt, ShareBelowOne
from flfw.errors import InputError
from flfw.files.tensor_names import matches
from flfw.messages.sharing import select_shared
from flfw.messages.wire import pack
from flfw.nets import Net, Tensors, running_statistics
from flfw.nets.hypernetwork import PersonalHypernetwork
from flfw.nets.training.devices import one_thread
from flfw.nets.training.optimisers import SGD, LocalTraining, clip_norm
from flfw.rng import initialising
from flfw.server.aggregation import Update
from flfw.server.strategy import FederatedStrategy

_EMBEDDINGS = "embeddings.weight"
_AT_ONCE = 5  # tensors of the hypernetwork's size in a step: parameters and velocity before and after, the gradient


@dataclass(frozen=True)
class ServerHypernetworkTraining(LocalTraining):
    """Hyper-parameters of the server's hypernetwork beside those of local training."""

    clip: PositiveFloat = 50.0  # L2 bound of a local step's gradient of the generated tensors
    server_step: Literal["mean", "sequential"] = "mean"  # one step for a round's clients, or one for each in turn
    server_lr: PositiveFinite = 1e-2  # of the server's SGD
    lr_scale: Literal["clients", "none"] = "clients"  # of server_step=mean: lr times the number of clients, or lr
    server_momentum: ShareBelowOne = 0.9  # of the server's SGD
    server_decay: NonNegativeFinite = 1e-3  # weight decay of the hypernetwork and of all embeddings
    server_clip: PositiveFloat = 50.0  # L2 bound of the server's gradient, of hypernetwork and embeddings together
    embedding_lr: NonNegativeFinite = 0.0  # learning rate of the embeddings; 0: server_lr
    embedding: NonNegativeInt = 0  # length of an embedding; 0: int(1 + n / 4) of n clients
    hidden: PositiveInt = 100  # width of the hypernetwork
    layers: NonNegativeInt = 3  # its hidden maps after the first


class HypernetworkServer(FederatedStrategy, ABC):
    """Base of these methods; the tensors that a subclass shares are generated.

    The state holds the hypernetwork, the embeddings of all clients and their velocities. Nothing of it is ever sent.
    The broadcast gives names and shapes: its numbers never change, and no client gets them. On the CPU one thread
    computes, so that the same uploads give the same bits on any machine.
    """

    @classmethod
    def build_model(cls, net: Net, settings: Any) -> Net:
        """Return the network; its shared tensors are to be generated.

        Raises:
            InputError: it has running statistics, which no gradient reaches.
        """
        if running := running_statistics(net):
            raise InputError(
                "Expected a network that is all weights, for a hypernetwork to generate, got the running statistics "
                f"{running[0]}; choose another --net, or --expert norm=group."
            )
        return net

    @classmethod
    def kept_by_server(cls, model: nn.Module, settings: ServerHypernetworkTraining, clients: int) -> int:
        """Count the numbers of a server's step; most are the heads', or those of many embeddings."""
        generated = sum(p.numel() for n, p in model.named_parameters() if matches(n, cls.uploads))
        return _AT_ONCE * (generated * (settings.hidden + 1) + clients * _length(settings, clients))

    def arrays_for(self, partition: int, arrays: ArrayRecord) -> ArrayRecord:
        """Generate h(v_i), the network of one client."""
        self._asked_shapes = {name: torch.Size(array.shape) for name, array in arrays.items()}
        with one_thread(), torch.no_grad():
            generated = self.hypernet(self.parameters(), [partition])
        return pack({name: value[0].cpu() for name, value in generated.items()})

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Step along delta_i = h(v_i) - theta_i of the round's clients; return the broadcast as it was."""
        deltas: dict[int, Tensors] = {}
        for update in updates:
            sent = self.sent_to(update.partition)
            deltas[update.partition] = {name: sent[name] - value for name, value in update.tensors.items()}
        in_turn = self.settings.server_step == "sequential"
        with one_thread():
            self.descend([{i: delta} for i, delta in deltas.items()] if in_turn else [deltas])
        return self.last_broadcast

    def descend(self, steps: Iterable[Mapping[int, Tensors]]) -> None:
        """Make one step of SGD for each group of clients, along the mean of their gradients; keep the result.

        Args:
            steps: for each step its clients, by number, with their delta.
        """
        settings, parameters = self.settings, {n: v.clone().requires_grad_() for n, v in self.parameters().items()}
        optimisers = [SGD(0.0, settings.server_momentum, settings.server_decay) for _ in range(2)]
        embeddings = {_EMBEDDINGS: parameters[_EMBEDDINGS]}
        weights = {name: value for name, value in parameters.items() if name != _EMBEDDINGS}
        parts = list(zip(optimisers, (weights, embeddings), strict=True))
        for optimiser, part in parts:
            optimiser.recall(part, self.state)
        for deltas in steps:
            scale = len(deltas) if settings.lr_scale == "clients" else 1
            gradient = clip_norm(self.gradient(parameters, deltas), settings.server_clip)
            for optimiser, part in parts:
                apart = settings.embedding_lr if part is embeddings else 0.0
                optimiser.lr = scale * (apart or settings.server_lr)
                optimiser.step(part, gradient)
        memory = {n: v for optimiser, part in parts for n, v in optimiser.memory(part).items()}
        self.state = {name: value.detach().cpu() for name, value in {**parameters, **memory}.items()}

    def gradient(self, parameters: Tensors, deltas: Mapping[int, Tensors]) -> Tensors:
        """Compute the mean over some clients of the vector-Jacobian product (d h(v_i) / d parameters)^T delta_i.

        Args:
            parameters: those of the hypernetwork, and all embeddings.
            deltas: by client.
        """
        generated = self.hypernet(parameters, list(deltas))
        ways = [torch.stack([delta[name] for delta in deltas.values()]).to(v) for name, v in generated.items()]
        mean = [way / len(deltas) for way in ways]
        gradients = torch.autograd.grad(list(generated.values()), list(parameters.values()), mean)
        return dict(zip(parameters, gradients, strict=True))

    def hypernet(self, parameters: Tensors, partitions: list[int]) -> Tensors:
        """Generate the tensors (m, ...) of m clients by name, with given parameters."""
        return functional_call(self._blank, parameters, (torch.tensor(partitions, device=self._device),))

    def parameters(self) -> Tensors:
        """Return the hypernetwork's present parameters on the server's device, as drawn before the first round."""
        if not self.state:
            with initialising(self.seed, "hypernetwork"):
                drawn = {name: value.detach() for name, value in self._built().named_parameters()}
            self.state = {**drawn, **SGD(0.0, self.settings.server_momentum).memory(drawn)}
        return {name: self.state[name].to(self._device) for name, _ in self._blank.named_parameters()}

    @cached_property
    def _blank(self) -> PersonalHypernetwork:
        """Hypernetwork without numbers."""
        with torch.device("meta"):
            return self._built()

    @property
    def _device(self) -> torch.device:
        return self.ctx.device if self.ctx else torch.device("cpu")

    def _built(self) -> PersonalHypernetwork:
        if self.ctx:
            generated = select_shared(dict(self.ctx.blank.named_parameters()), self.sharing.uploads)
            shapes, clients = {name: value.shape for name, value in generated.items()}, self.ctx.plan.rounds.clients
        else:  # used alone in another app, which has the arrays and the nodes only
            shapes, clients = self._asked_shapes, len(self.client_directory.nodes)
        length = _length(self.settings, clients)
        return PersonalHypernetwork(shapes, clients, length, self.settings.hidden, self.settings.layers)


def _length(settings: ServerHypernetworkTraining, clients: int) -> int:
    """Return the length of an embedding."""
    return settings.embedding or int(1 + clients / 4)
