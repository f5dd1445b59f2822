"""Statistics of the attack on membership, each against a small loop over the candidates."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.adversary.attack import NotApplicableError
from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.attacks.membership import Membership, MembershipSettings
from flfw.nets.net import Tensors
from flfw.rng import torch_generator
from tests.support.attackable import digit_inputs, fresh_net, gradient
from tests.support.membership_views import LR, MEMBERS, small_view

ALL = {"cosine", "gradient_difference", "whitened", "loss_drop", "fedmia", "trajectory", "label_only", "loss_only"}


def scores(view: MembershipView, **settings: int) -> dict[str, Tensor]:
    return Membership(MembershipSettings(**settings)).scores(view, torch_generator(0, "attack"))


def at(weights: Tensors) -> nn.Module:
    net = fresh_net("linear", (1, 8, 8), seed=5)
    net.load_state_dict(weights)
    return net


def flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).double()


def own_gradients(view: MembershipView, one: MembershipRound) -> Tensor:
    inputs, (x, y) = digit_inputs(8), (view.candidates.samples, view.candidates.labels)
    return torch.stack([flat(gradient(at(one.received), inputs, x[i : i + 1], y[i : i + 1])) for i in range(len(y))])


def update(one: MembershipRound, client: int) -> Tensor:
    return flat({name: (one.received[name] - value) / LR for name, value in one.sent[client].items()})


def losses(view: MembershipView, weights: Tensors) -> Tensor:
    inputs, (x, y) = digit_inputs(8), (view.candidates.samples, view.candidates.labels)
    return cross_entropy(at(weights)((x - inputs.mean) / inputs.std), y, reduction="none").detach().double()


def cosines(view: MembershipView, one: MembershipRound, client: int) -> Tensor:
    return torch.cosine_similarity(own_gradients(view, one), update(one, client), dim=1)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-3, atol=1e-4)


def test_gradients_are_compared_with_the_update_as_a_loop_does_it() -> None:
    view = small_view(rounds=2)
    given = scores(view)
    assert given.keys() >= ALL and all(values.shape == (2 * MEMBERS,) for values in given.values())
    close(given["cosine"], torch.stack([cosines(view, one, 0) for one in view.rounds]).mean(0))
    nearer = []
    for one in view.rounds:
        singles, sent = own_gradients(view, one), update(one, 0)
        nearer.append((sent**2).sum() - ((sent - singles) ** 2).sum(1))
    close(given["gradient_difference"], torch.stack(nearer).mean(0))


def test_losses_are_those_before_and_after_less_the_drop_at_other_clients() -> None:
    view = small_view(clients=3)
    (one,) = view.rounds
    before, drops = losses(view, one.received), [losses(view, one.sent[client]) for client in range(3)]
    given = scores(view)
    close(given["loss_drop"], (before - drops[0]) - ((before - drops[1]) + (before - drops[2])) / 2)
    close(given["loss_only"], -before)
    alone = scores(replace(view, rounds=(replace(one, sent={0: one.sent[0]}),)))
    close(alone["loss_drop"], before - drops[0])
    assert "fedmia" not in alone and "fedmia" in given


def test_fedmia_holds_the_cosine_against_the_other_clients() -> None:
    view = small_view(clients=4)
    (one,) = view.rounds
    others = torch.stack([cosines(view, one, client) for client in (1, 2, 3)])
    z = (cosines(view, one, 0) - others.mean(0)) / (others.var(0) + 1e-8).sqrt()
    close(scores(view)["fedmia"], torch.special.ndtr(z))


def test_the_floors_read_no_message() -> None:
    view = small_view()
    (one,) = view.rounds
    other = replace(view, rounds=(replace(one, sent={**one.sent, 0: one.sent[1]}),))
    mine, moved = scores(view), scores(other)
    for floor in ("label_only", "loss_only"):
        assert torch.equal(mine[floor], moved[floor])
    assert not torch.allclose(mine["cosine"], moved["cosine"], atol=1e-3)


@pytest.mark.parametrize("statistic", ["cosine", "whitened", "trajectory"])
def test_members_of_one_step_score_highest(statistic: str) -> None:
    given = scores(small_view(rounds=2))[statistic]
    assert bool((given[:MEMBERS, None] > given[None, MEMBERS:]).double().mean() > 0.8)


def test_the_trajectory_of_one_round_is_the_whitened_score_on_another_scale() -> None:
    given = scores(small_view())
    whitened = given["whitened"]
    close(given["trajectory"], (whitened - whitened.mean()) / whitened.std())


def test_fewer_public_examples_and_other_clients_are_used_where_asked() -> None:
    given, few = scores(small_view(), width=32), scores(small_view(), width=32, public=10, others=1)
    assert "fedmia" not in few
    assert not torch.allclose(given["whitened"], few["whitened"], atol=1e-3)
    torch.testing.assert_close(given["cosine"], few["cosine"])


def test_a_client_that_sends_nothing_it_received_gives_nothing_to_compare() -> None:
    view = small_view()
    (one,) = view.rounds
    strange = replace(one, sent={0: {"another": torch.zeros(3)}})
    with pytest.raises(NotApplicableError, match="receive and send back"):
        scores(replace(view, rounds=(strange,)))
