"""The contract of every attack on membership: it scores the candidates in their order, from its view alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw import plugins
from flfw.adversary.attack import Attack, AttackPlugin
from flfw.adversary.membership_attack import MembershipAttack, MembershipView
from flfw.nets.malicious_model import ModelModification
from flfw.recording.observation import Examples
from flfw.rng import torch_generator
from tests.support.membership_views import MEMBERS, small_view

NAMES = [
    name
    for name in plugins.names(plugins.ATTACK)
    if issubclass(plugins.load_class(plugins.ATTACK, name, AttackPlugin), MembershipAttack)
]
every_attack = pytest.mark.parametrize("name", NAMES)


def scores(name: str, view: MembershipView) -> dict[str, Tensor]:
    kind: Any = plugins.load_class(plugins.ATTACK, name, MembershipAttack)
    return kind().scores(view, torch_generator(0, "attack"))


def tensors(view: MembershipView) -> list[Tensor]:
    parts = [part for examples in (view.candidates, view.public) for part in (examples.samples, examples.labels)]
    for one in view.rounds:
        parts += [*one.received.values(), *(value for sent in one.sent.values() for value in sent.values())]
    return parts


def test_every_attack_is_of_one_kind() -> None:
    kinds = [plugins.load_class(plugins.ATTACK, name, AttackPlugin) for name in plugins.names(plugins.ATTACK)]
    for kind in kinds:
        reads = [issubclass(kind, Attack), issubclass(kind, MembershipAttack)]
        # Such a server lets others read.
        assert sum(reads) == 1 or (issubclass(kind, ModelModification) and not any(reads))
    assert "membership" in NAMES


@every_attack
def test_every_candidate_has_a_finite_score_of_each_statistic(name: str) -> None:
    given = scores(name, small_view(rounds=2))
    assert given
    for values in given.values():
        assert values.shape == (2 * MEMBERS,) and not values.requires_grad and bool(values.isfinite().all())


@every_attack
def test_the_same_view_gives_the_same_and_is_left_as_it_was(name: str) -> None:
    view = small_view()
    before = [tensor.clone() for tensor in tensors(view)]
    first = scores(name, view)
    torch.manual_seed(1)  # the global generator is nobody's business
    second = scores(name, view)
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(view), strict=True))


@every_attack
def test_a_score_belongs_to_its_candidate_and_not_to_its_place(name: str) -> None:
    view = small_view(rounds=2)
    turned = torch.arange(2 * MEMBERS - 1, -1, -1)
    other = Examples(view.candidates.samples[turned], view.candidates.labels[turned])
    there, here = scores(name, replace(view, candidates=other)), scores(name, view)
    for statistic, values in here.items():
        torch.testing.assert_close(there[statistic], values[turned], rtol=1e-4, atol=1e-4)


@every_attack
def test_numbers_of_clients_and_words_of_grants_change_nothing(name: str) -> None:
    view = small_view()
    renamed = [replace(one, sent={client + 7: sent for client, sent in one.sent.items()}) for one in view.rounds]
    other = replace(view, client=7, rounds=tuple(renamed), granted=("poison",))
    here, there = scores(name, view), scores(name, other)
    assert all(torch.equal(here[statistic], there[statistic]) for statistic in here)
