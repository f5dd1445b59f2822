"""Readings of clients' messages that attacks on membership share: mean gradients, losses, floors, public examples."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.adversary.observation import Examples
from flfw.membership.statistics import label_only
from flfw.nets.net import Tensors, losses
from flfw.victims.victim import VictimModel


def mean_gradient_behind(one: MembershipRound, sent: Tensors) -> Tensors:
    """Return about the mean gradient behind a message.

    Raises:
        NotApplicableError: no tensor is received and sent back.
    """
    both = [name for name, value in sent.items() if name in one.received and value.is_floating_point()]
    if not both:
        raise NotApplicableError("membership needs tensors that clients receive and send back")
    return {name: (one.received[name] - sent[name]) / (one.lr * one.steps) for name in both}


@torch.no_grad()
def losses_with(victim: VictimModel, sent: Tensors, examples: Examples) -> Tensor:
    """Return the loss of each example (N,), with the sent tensors in the place of those received."""
    held = {**victim.known, **victim.unknown}
    held |= {name: value for name, value in sent.items() if name in held}
    scores = functional_call(victim.model, held, (victim.inputs.normalise(examples.samples),))
    return losses(scores, examples.samples, examples.labels)


def floors(view: MembershipView) -> dict[str, Tensor]:
    """Return the statistics that read no client's message, (N,) each."""
    labels, last = view.candidates.labels, view.model(view.rounds[-1].received)
    return {
        "label_only": label_only(labels, labels, view.public.labels),
        "loss_only": -losses_with(last, {}, view.candidates),
    }


def public_examples(view: MembershipView, most: int) -> tuple[Tensor, Tensor]:
    """Return public inputs and labels, evenly spread over all where there are more than the most."""
    count = len(view.public.labels)
    places = torch.linspace(0, count - 1, min(most, count)).long()
    return view.public.samples[places], view.public.labels[places]
