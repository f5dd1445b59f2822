"""Loss of the candidates at the weights that the client sent last."""

from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.adversary.membership_attack import MembershipAttack, MembershipView
from flfw.nets.net import losses


@final
class LossAfter(MembershipAttack):
    """Lower losses after the client's training say member."""

    @torch.no_grad()
    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, Tensor]:
        """Score each candidate by its loss."""
        last, asked = view.rounds[-1], view.candidates
        sent = {name: value for name, value in last.sent[view.client].items() if name in last.received}
        victim = view.model({**last.received, **sent})
        inputs = victim.inputs.normalise(asked.samples)
        outputs = functional_call(victim.model, {**victim.unknown, **victim.known}, (inputs,))
        return {"loss_after": -losses(outputs, asked.samples, asked.labels)}
