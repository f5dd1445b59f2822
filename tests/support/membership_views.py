"""The smallest views of attacks on membership: clients of one network, each with one step on digits of its own."""

from typing import Any

from torch import Tensor

from flfw import nets
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets.net import Tensors
from flfw.recording.observation import Examples
from tests.support.attackable import digit_inputs, digits, fresh_net, gradient

LR = 0.1
MEMBERS = 4
"""Members among the candidates of client 0, which come first; as many held-out ones follow."""


def small_view(clients: int = 4, rounds: int = 1, name: str = "linear") -> MembershipView:
    """Let each client take a step on `MEMBERS` digits of its own, once a round from other weights."""
    inputs = digit_inputs(8)
    seen = []
    for number in range(1, rounds + 1):
        net = fresh_net(name, inputs.shape, seed=number)
        received = nets.tensors(net)
        batches = [digits(10 * client, MEMBERS, side=8) for client in range(clients)]
        sent = {client: stepped(received, gradient(net, inputs, *batch)) for client, batch in enumerate(batches)}
        seen.append(MembershipRound(number, received, sent, LR, steps=1))

    def model(received: Tensors) -> PlainVictim:
        return PlainVictim(fresh_net(name, inputs.shape, seed=9), received, ("*",), inputs)

    candidates, public = digits(0, 2 * MEMBERS, side=8), digits(500, 60, side=8)
    return MembershipView(0, tuple(seen), Examples(*candidates), Examples(*public), model)


def stepped(received: Tensors, step: dict[str, Tensor]) -> Tensors:
    """Return the weights after a step of `LR`; other tensors stay."""
    return {name: value - LR * step[name] if name in step else value for name, value in received.items()}


ITEM: dict[str, Any] = {"attack": "membership", "statistic": "whitened", "vantage": "server", "defence": "none"}
ITEM |= {"sum_size": None, "anonymity_set_size": None, "num_colluding": None, "adaptive": False, "adaptation": None}
ITEM |= {"protected_by": None, "unit": "example", "rounds": [1, 2]}
"""Description of a statistic, as result.json begins with it."""
