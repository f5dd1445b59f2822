"""Whole attack on membership in a simulated round of training: for `research.measurements.membership`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from flfw.adversary.membership.operating_points import area
from flfw.adversary.membership.shadow_models import ShadowClients, ShadowSets
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.attacks import membership
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Net, Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.recording.observation import Examples
from flfw.rng import numpy_generator, torch_generator

_LR = 0.1
_INPUTS = InputSpec.from_constants((1, 28, 28), (0.0,), (1.0,))


@final
@dataclass(frozen=True)
class ClientTraining:
    """Local training by plain SGD: members, steps, and batch size, 0 for all of them."""

    members: int
    steps: int
    batch: int = 0

    @property
    def local(self) -> LocalSteps:
        """The same as the attacker is granted it."""
        return LocalSteps(_LR, self.steps, batch_size=self.batch)


def view(
    net: Callable[[int], Net], draw: Examples, training: ClientTraining, seed: int, clients: int
) -> MembershipView:
    """Return the view of a client that was trained on the first examples of a draw.

    As many candidates follow that nobody was trained on, the examples of the other clients, and public ones.

    Args:
        net: builds the network that all clients receive, from a seed.
        draw: normalised images with their labels.
        training: of each client.
        seed: of the network and of the orders.
        clients: number of clients.
    """
    count = training.members
    received = {name: value.detach() for name, value in net(seed).state_dict().items()}

    def model(known: Tensors) -> PlainVictim:
        return PlainVictim(net(seed), known, ("*",), _INPUTS)

    others = torch.arange(2 * count, (clients + 1) * count).view(clients - 1, count)
    sets = ShadowSets(torch.zeros(clients, 0, dtype=torch.bool), torch.cat([torch.arange(count)[None], others]))
    trained = ShadowClients.train(model(received), training.local, sets, draw, torch_generator(seed, "training"))
    sent = {
        client: {name: received[name] - trained.travelled * way[client] for name, way in trained.updates.items()}
        for client in range(clients)
    }
    round_ = MembershipRound(seed, received, sent, _LR, training.steps)
    parts = [(0, 2 * count), ((clients + 1) * count, len(draw.labels))]
    candidates, public = (Examples(draw.samples[first:last], draw.labels[first:last]) for first, last in parts)
    return MembershipView(0, (round_,), candidates, public, model, local=training.local, examples=count)


def scores(seen: MembershipView, seed: int, shadows: int = 8) -> dict[str, Tensor]:
    """Return the scores of the attack; members come first."""
    attack = membership.Membership(membership.MembershipSettings(shadows=shadows))
    return attack.scores(seen, torch_generator(seed, "attack"))


def auc(values: Tensor) -> float:
    """Return the area under the curve of scores; members come first, and as many others follow."""
    members = np.arange(len(values)) < len(values) // 2
    return area(values.numpy(), members, np.zeros(len(values), int), numpy_generator(0, "area"), draws=1).auc


def means(rows: Sequence[Mapping[str, float]], name: str) -> dict[str, dict[str, float]]:
    """Return the mean and the standard error of each column of rows, the mean under a name."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return {
        key: {name: round(float(np.mean(each)), 4), "error": round(float(np.std(each) / len(each) ** 0.5), 4)}
        for key, each in columns.items()
    }
