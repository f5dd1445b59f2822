"""IG with a flow as its prior: it searches three times, and its own distance decides."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from flfw.adversary.attack import AttackCost, NotApplicableError
from flfw.attacks import ig
from flfw.attacks.ig import IG, IGSettings
from flfw.errors import InputError
from flfw.inversion.flow import Velocity
from flfw.recording.observation import Examples, Knowledge, Observation
from tests.support.attackable import attackable, db, digits, generators
from tests.support.tables import attackable_rows

FEW = IGSettings(iterations=40, prior="flow", flow_width=8, flow_iterations=20, flow_batch=8, flow_steps=10)
PUBLIC = Examples(*digits(500, 40, side=8))


def situation(*batches: tuple[Tensor, Tensor]) -> tuple[list[Observation], list[Knowledge]]:
    observations, knowledge = attackable("mlp", 8, *batches)
    return observations, [dataclasses.replace(known, public=PUBLIC) for known in knowledge]


def led_to(image: Tensor) -> Any:
    """In place of the training: the best velocity of one image, raw in [0, 1]."""

    def trained(*_: Any) -> Velocity:
        return lambda x, t, labels: (2 * image - 1 - x) / (1 - t.view(-1, 1, 1, 1)).clamp(min=1e-3)

    return trained


@pytest.mark.slow
def test_it_finds_a_digit_with_a_flow_of_others() -> None:
    x, y = digits(0, side=8)
    (result,) = IG(dataclasses.replace(FEW, iterations=100)).run(*situation((x, y)), generators(1))
    assert db(x, result) > 30 and result.matching_loss is not None and result.matching_loss < 1e-3


@pytest.mark.slow
def test_a_flow_to_the_true_image_leads_nearer_than_the_total_variation(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits(0, side=8)
    monkeypatch.setattr(ig, "trained_flow", led_to(x))
    (plain,), (led,) = (
        IG(dataclasses.replace(FEW, prior=prior)).run(*situation((x, y)), generators(1)) for prior in ("tv", "flow")
    )
    assert plain.matching_loss is not None and led.matching_loss is not None
    assert led.matching_loss < plain.matching_loss and db(x, led) > db(x, plain) + 3


@pytest.mark.slow
def test_a_flow_to_another_image_does_not_win_by_plausibility(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search without the flow is the first one, with the same random start as alone: its result is kept."""
    x, y = digits(0, side=8)
    other, _ = digits(7, side=8)
    monkeypatch.setattr(ig, "trained_flow", led_to(other))
    monkeypatch.setattr(ig, "flow_recipes", _only_led(ig.flow_recipes))
    (plain,), (kept,) = (
        IG(dataclasses.replace(FEW, prior=prior)).run(*situation((x, y)), generators(1)) for prior in ("tv", "flow")
    )
    assert torch.equal(plain.samples, kept.samples) and plain.matching_loss == kept.matching_loss


def _only_led(recipes: Any) -> Any:
    """The plug-and-play search with its full weight to the end and no closing searches: it ends at the flow's image."""

    def strong(recipe: Any, velocity: Any, inputs: Any, settings: Any) -> Any:
        plugged, _ = recipes(recipe, velocity, inputs, dataclasses.replace(settings, flow_weight=1.0, flow_every=1))
        step = dataclasses.replace(plugged.descent.proximal, weights=(1.0, 1.0))
        return (dataclasses.replace(plugged, descent=dataclasses.replace(plugged.descent, proximal=step), closing=()),)

    return strong


@pytest.mark.nightly  # three attacks
def test_a_victim_s_result_does_not_depend_on_the_others() -> None:
    both = situation(digits(0, side=8), digits(1, side=8))
    attack = IG(dataclasses.replace(FEW, iterations=10))
    together = attack.run(*both, generators(2))
    (alone,) = attack.run(both[0][1:], both[1][1:], generators(2)[1:])
    torch.testing.assert_close(together[1].samples, alone.samples, rtol=0, atol=1e-4)
    again = attack.run(*both, generators(2))
    assert all(torch.equal(one.samples, other.samples) for one, other in zip(together, again, strict=True))


def test_what_it_uses_and_costs_is_what_was_set() -> None:
    attack = IG(dataclasses.replace(FEW, iterations=7, restarts=2))
    assert attack.uses == {"public"} and attack.cost == AttackCost(7, 6, "lowest cosine distance")


def test_it_needs_public_images() -> None:
    observations, knowledge = attackable("lenet", 8, digits(0, side=8))
    with pytest.raises(NotApplicableError, match="prior=flow needs public data"):
        IG(FEW).run(observations, knowledge, generators(1))
    observations, knowledge, x = attackable_rows(1, 0)
    rows = dataclasses.replace(knowledge[0], public=Examples(x, torch.zeros(len(x), dtype=torch.int64)))
    with pytest.raises(NotApplicableError, match="prior=flow needs images, got rows"):
        IG(FEW).run(observations, [rows], generators(1))


def test_its_guided_search_starts_from_noise() -> None:
    with pytest.raises(InputError, match="start=normal with prior=flow, whose guided search starts from noise"):
        IGSettings(prior="flow", start="class_mean")


def test_the_settings_of_its_flow_are_refused_beside_those_of_its_search() -> None:
    with pytest.raises(InputError, match="Expected a width that is a multiple of 8, got width=3"):
        IGSettings(flow_width=3)
    with pytest.raises(InputError, match="Expected restarts=1 with start=class_mean"):
        IGSettings(restarts=2, start="class_mean", flow_width=3)
