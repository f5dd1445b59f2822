"""Attackers on membership who are told what hides the data: whom, of what, and what their results may conclude."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flfw.adversary.membership_attack import MembershipRound, MembershipView
from flfw.attacks.membership import Membership
from flfw.audit.jobs import MembershipGame
from flfw.audit.membership.views import InformedAttacker
from flfw.experiment import Experiment
from flfw.inversion.client_models.operator import Scaled
from flfw.plans.run_plan import RunPlan, plan
from flfw.recording.observation import Examples
from flfw.runs import run as whole
from tests.support.planned import clients_and_adaptation
from tests.support.small_runs import tiny


def asked(folder: Path | None = None, **changes: Any) -> Experiment:
    wanted = {"net": "mlp", "dataset": "digits", "attack": ("membership",), "audit_rounds": "1", **changes}
    return tiny(folder, **wanted)


def rows(folder: Path, **changes: Any) -> dict[tuple[str, bool], dict[str, Any]]:
    """Run, and return the items of membership by statistic and by whether the attacker is told."""
    out = whole.run(asked(folder / "run", **changes))
    items = json.loads((out / "result.json").read_text())["membership"]
    return {(row["statistic"], row["adaptation"] is not None): row for row in items}


def informed(*, batch: int = 32, steps: int = 1, examples: int = 32, **changes: Any) -> InformedAttacker:
    run_plan: RunPlan = plan(asked(batch_size=batch, **changes))
    game = MembershipGame("nowhere", 4, (0, 1), (steps, steps), 0.1, examples=(examples, examples))
    return InformedAttacker(*clients_and_adaptation(run_plan), game, run_plan.audit.memberships["membership"])


@pytest.mark.nightly
def test_a_pruned_update_is_attacked_by_one_who_is_told_and_by_one_who_is_not(tmp_path: Path) -> None:
    items = rows(tmp_path, defence="prune", batch_size=1000)
    adapting = {name for name, adapted in items if adapted}
    assert adapting == {"whitened", "trajectory", "cosine"}
    assert {row["adaptive"] for (_, adapted), row in items.items() if adapted} == {True}
    assert {row["adaptive"] for (_, adapted), row in items.items() if not adapted} == {False}
    assert len({row["tests"] for row in items.values()}) == 1 and items["whitened", True]["tests"] == len(items)
    static = items["whitened", False]
    assert (static["verdict"], static["cause"]) == ("undecided", "static") or static["verdict"] == "leaks"
    assert items["whitened", True]["cause"] != "static"
    assert items["whitened", True]["auc"] > static["auc"] + 0.02


@pytest.mark.nightly
def test_of_noise_in_several_steps_it_is_said_what_is_not_modelled(tmp_path: Path) -> None:
    row = rows(tmp_path, method="fed_cdp", batch_size=20, set=("noise_multiplier=3",))["whitened", True]
    assert not row["adaptive"] and row["protected_by"] == "fed_cdp"
    assert row["cause"] == "static" and "that the noise of a step moves the weights" in row["reason"]


def test_only_the_clients_with_a_defence_that_is_modelled_are_told_of() -> None:
    assert informed(defence="prune", defended="1").clients == (1,)
    assert informed().clients == ()
    assert informed(defence="dp_gaussian").clients == (0, 1)
    assert informed(defence="low_precision").clients == (0, 1)
    assert informed(defence="low_precision", set=("low_precision.bits=1",)).clients == ()
    assert informed(defence="soteria").clients == () and informed(defence="dcs2").clients == ()
    assert informed(method="fed_cdp").clients == (0, 1)
    assert informed(defence="prune", adaptation="none").clients == ()


def test_what_a_stand_in_cannot_know_is_named() -> None:
    private_head, whole_net = informed(method="fedper"), informed(method="fed_cdp")
    assert private_head.replaced == "classifier" and private_head.clients == (0, 1)
    assert private_head.missed(0) == ("the private tensors (classifier), in whose place stands what public data teach")
    assert whole_net.replaced == whole_net.missed(0) == ""
    assert informed(method="hyperfl").replaced == "classifier"
    assert informed(method="fedcg", net="lenet5").replaced == "extractor"
    beside = informed(method="fedper", defence="soteria").missed(0)
    assert beside.startswith("what soteria does and the private tensors")


def test_the_view_holds_each_round_s_mechanism_in_the_units_of_the_mean_gradient() -> None:
    known = informed(defence="dp_gaussian", steps=4, set=("dp_gaussian.std=0.02",))
    one = MembershipRound(1, {}, {0: {}}, 0.1, 4)
    nothing = Examples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    view = MembershipView(0, (one,), nothing, nothing, lambda received: pytest.fail("not asked for"))
    granted = known.with_operators(view)
    operator = granted.rounds[0].operator
    assert granted.adaptive and isinstance(operator, Scaled)
    passage = operator.residual({"w": torch.ones(3)})
    assert passage is not None and passage.deviation == pytest.approx(0.02 / (0.1 * 4))


def test_the_noise_of_clipped_steps_is_that_of_their_mean() -> None:
    chosen = ("noise_multiplier=3", "clip=2")
    operator = informed(method="fed_cdp", batch=8, steps=4, set=chosen).operator(0, 1)
    assert operator is not None
    passage = operator.residual({})
    assert passage is not None and passage.deviation == pytest.approx(3 * 2 / 8 / 4**0.5)
    assert passage.clip is not None
    left = passage.of_example({"a.w": torch.tensor([6.0, 8.0]), "b.w": torch.tensor([1.0])})
    assert left["a.w"].tolist() == pytest.approx([1.2, 1.6]) and left["b.w"].tolist() == [1.0]


def test_the_attack_declares_the_parts_that_it_can_replace() -> None:
    attack, model = Membership(), plan(asked()).client.model
    names = list(model.state_dict())
    head = [name for name in names if name.startswith("classifier.")]
    assert attack.replaceable(model, head) == "classifier"
    assert attack.replaceable(model, [name for name in names if name not in head]) == "extractor"
    assert attack.replaceable(model, head[:1]) == attack.replaceable(model, names) == ""
