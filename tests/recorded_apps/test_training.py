"""Descriptions of foreign trainings: what an attack makes of them, what they cost, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot

from flfw.attacks.dlg import DLG, DLGSettings
from flfw.attacks.ig import IG, IGSettings
from flfw.audit.measures.agreement import agreement
from flfw.errors import InputError
from flfw.inversion.compute import ComputeLimits
from flfw.inversion.matching import cosine_distance
from flfw.inversion.search import SearchConfig, SearchTarget, _Run
from flfw.recorded_apps import SearchLimits, TrainingDescription, knowledge, named
from flfw.recorded_apps.cost import CostEstimate, SearchCost, bearable
from flfw.recorded_apps.knowledge import input_space
from flfw.recording.observation import Observation, mean_gradient
from flfw.rng import torch_generator
from tests.recorded_apps.test_consistency import RIGHT, SHUFFLED, Local, checked, slow
from tests.support.foreign_apps import (
    LR,
    SPACE,
    Convolutional,
    app_of,
    as_seen,
    ask,
    client_app,
    dense,
    examples,
    fresh,
    recorded,
)


def observation(local: Local, build: Callable[[], nn.Module], count: int) -> tuple[Observation, Tensor, Tensor]:
    net = fresh(build)
    received = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = examples(count)
    sent = local(net, x, y)
    return as_seen(received, sent or dict(net.state_dict())), x, y


MORE: dict[str, tuple[Local, TrainingDescription]] = {
    "decay in one step": (
        Local(lambda p: torch.optim.SGD(p, LR, weight_decay=0.1)),
        TrainingDescription(LR, weight_decay=0.1),
    ),
    "delta of nesterov": (
        Local(lambda p: torch.optim.SGD(p, LR, momentum=0.5, nesterov=True, weight_decay=0.1), sends="delta"),
        TrainingDescription(LR, sends="delta", momentum=0.5, nesterov=True, weight_decay=0.1),
    ),
    "delta of squared errors with decay": (
        Local(
            lambda p: torch.optim.SGD(p, LR, weight_decay=0.1), 3, loss=RIGHT["squared errors"][0].loss, sends="delta"
        ),
        TrainingDescription(LR, sends="delta", epochs=3, weight_decay=0.1, loss=RIGHT["squared errors"][1].loss),
    ),
}


@pytest.mark.parametrize("build", [dense, Convolutional])
@pytest.mark.parametrize("case", [*RIGHT, *MORE])
def test_what_an_attack_computes_at_the_truth_is_what_it_observes(case: str, build: Callable[[], nn.Module]) -> None:
    local, training = (RIGHT | MORE)[case]
    seen, x, y = observation(local, build, 4)
    net = fresh(build, seed=1)
    known = knowledge(net, seen, inputs=SPACE, labels=y, batch=4, training=training)
    view = named(net, seen, training, 4)
    assert known.unrolled == (len(training.batches(4)) > 1 or case == "squared errors")
    observed = known.model.observed(view.sent)[0] if known.unrolled else mean_gradient(view, known)
    expected = known.model.gradient(x, y, {}, {})
    if training.optimiser != "sgd":
        expected.pop("stem.bias", None)  # 0 before batch normalisation, and Adam makes steps of what rounding leaves
    result = agreement({name: observed[name] for name in expected}, [expected])
    # A unit that rounding switches on or off is felt with Adam, whose steps do not shrink with the gradient.
    assert result.off < (1e-4 if training.optimiser == "sgd" else 0.1), result.sentence


def test_what_is_described_is_said() -> None:
    seen, _, y = observation(Local(steps=2), dense, 4)

    def granted(**changed: Any) -> tuple[str, ...]:
        training = TrainingDescription(**{"lr": LR, **changed})
        return knowledge(dense(), seen, inputs=SPACE, labels=y, batch=4, training=training).granted

    assert "that the steps are plain SGD with learning rate 0.5" in granted()
    assert "that the steps are SGD (momentum 0.9, weight decay 0.01) with learning rate 0.5" in granted(
        momentum=0.9, weight_decay=0.01
    )
    assert "that the steps are AdamW with learning rate 0.5" in granted(optimiser="adamw")
    assert "that clients send the delta, not the weights" in granted(sends="delta")
    assert "that 4 local steps on batches of 4 examples stand behind it" in granted(batch_size=2, epochs=2)
    assert any("which examples are in which batch" in words for words in granted(batch_size=2))
    assert not any("which examples are in which batch" in words for words in granted(batch_size=2, shuffled=False))
    assert any("random changes of the inputs" in words for words in granted(augment=lambda x, rng: x))
    assert "the local loss (mse_loss)" in granted(loss=mse_loss)
    assert any("their mean gradient is attacked" in words for words in granted(lr=None, epochs=2))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sends": "model"}, "^Expected sends among weights, delta, negative delta, gradient, got sends=model"),
        ({"epochs": 0}, "^Expected epochs >= 1, got epochs=0"),
        ({"lr": 0.0}, "^Expected 0 < lr < inf or None, got lr=0.0"),
        ({"optimiser": "lion"}, "^Expected optimiser among sgd, adam, adamw, got optimiser=lion"),
        ({"nesterov": True}, "^Expected momentum > 0 with nesterov, got momentum=0.0"),
        ({"mode": "both"}, "^Expected mode among train, eval, got mode=both"),
        ({"order": ()}, "^Expected an order of at least one step"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        TrainingDescription(**{"lr": LR, **given})


def test_batches_are_those_of_a_data_loader() -> None:
    data = list(range(5))
    for drop in (False, True):
        loader = torch.utils.data.DataLoader(data, batch_size=2, drop_last=drop)  # type: ignore[arg-type]
        training = TrainingDescription(LR, batch_size=2, drop_last=drop, shuffled=False)
        assert training.batches(5) == tuple(tuple(batch.tolist()) for batch in loader)
    mixed = TrainingDescription(LR, batch_size=2, epochs=3)
    drawn = mixed.batches(5, torch_generator(0, "batches"))
    assert len(drawn) == 9 and drawn != mixed.batches(5)
    for epoch in range(3):
        assert sorted(index for indices in drawn[3 * epoch : 3 * epoch + 3] for index in indices) == data


# --- audits -------------------------------------------------------------------------------------------------------


def searching(iterations: int = 3, memory: float = 4.0) -> dict[str, IG]:
    return {"ig": IG(IGSettings(iterations=iterations), ComputeLimits(memory_gb=memory))}


@pytest.mark.nightly
def test_a_search_goes_through_steps_that_are_described(tmp_path: Path) -> None:
    build = lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Sigmoid(), nn.Linear(24, 3))  # noqa: E731
    strong = Local(lambda p: torch.optim.SGD(p, 1.0, momentum=0.9), 4)
    training = TrainingDescription(1.0, momentum=0.9, epochs=4)
    folder = recorded(tmp_path / "recordings", app_of(build, 1, strong), build, one=True)
    given: dict[str, Any] = {"net": build, "training": training, "attacks": searching(20)}
    (through,) = ask(folder, tmp_path / "through", **given)["audit"]
    assert through["adaptive"] and through["steps"] == 4
    assert not any("mean gradient" in words for words in through["granted"])
    (mean,) = ask(folder, tmp_path / "mean", limits=SearchLimits(most_steps=3), **given)["audit"]
    assert not mean["adaptive"] and mean["steps"] == 4
    assert any("(4 steps are more than most_steps=3)" in words for words in mean["granted"])


@pytest.mark.slow
def test_steps_of_an_unknown_order_are_searched_through_but_count_as_static(tmp_path: Path) -> None:
    local, training = replace(SHUFFLED, batch_size=4, steps=1), TrainingDescription(0.05, batch_size=4)
    result = checked(tmp_path, local, training=training, attacks=searching())
    assert (result["adaptive"], result["steps"]) == (False, 2)
    assert not any("mean gradient" in words for words in result["granted"])


@pytest.mark.slow
def test_a_description_may_depend_on_the_update(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 3, steps=2), dense)
    training = TrainingDescription(LR, epochs=2)
    (result,) = ask(folder, tmp_path / "audit", count=3, training=lambda seen: training)["audit"]
    assert result["steps"] == 2 and result["ladder"][2]["passed"]
    with pytest.raises(InputError, match=r"^Expected steps, lr and mode within training, or without it"):
        ask(folder, tmp_path / "twice", count=3, training=training, lr=LR)


@pytest.mark.slow
def test_an_attack_that_reads_labels_off_cross_entropy_is_not_tried_on_another_loss(tmp_path: Path) -> None:
    def squared(scores: Tensor, labels: Tensor) -> Tensor:
        return mse_loss(scores, one_hot(labels, 3).float())

    attacks = {"ig": IG(IGSettings(iterations=3, labels="counts")), "dlg": DLG(DLGSettings(iterations=3))}
    folder = recorded(tmp_path / "recordings", app_of(dense, 1, Local(loss=squared)), dense, one=True)
    entries = ask(folder, tmp_path / "audit", training=TrainingDescription(LR, loss=squared), attacks=attacks)["audit"]
    assert all(entry["failure_reason"].startswith("not applicable: it finds the labels as") for entry in entries)


@pytest.mark.slow
def test_a_search_for_a_sample_of_the_examples_is_static_and_scored_on_these(tmp_path: Path) -> None:
    local = Local(slow)
    folder = recorded(tmp_path / "recordings", app_of(dense, 6, local), dense, one=True)
    training = TrainingDescription(0.05)
    (result,) = ask(
        folder, tmp_path / "audit", count=6, training=training, attacks=searching(), limits=SearchLimits(sample=2)
    )["audit"]
    assert (result["batch"], result["images"], result["adaptive"]) == (2, 4, False)
    assert any("6 examples; 2 of them are searched for" in words for words in result["granted"])
    assert result["ladder"][2]["passed"]  # all six are trained on


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"attacks": searching(memory=1e-6)}, "1e-06 GB"),
        ({"attacks": searching(10**9)}, "about .* hours are estimated"),
    ],
    ids=["memory", "time"],
)
def test_a_search_that_costs_too_much_is_refused_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], what: str
) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 6), dense)
    with pytest.raises(InputError, match=f"^Expected an attack within .*{what}.*pass SearchLimits") as error:
        ask(folder, tmp_path / "audit", count=6, **given)
    assert "\n" not in str(error.value) and not (tmp_path / "audit").exists()


def test_a_network_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 1), dense)
    with pytest.raises(InputError, match=r"^Expected a network of PyTorch \(nn.Module\), got builtins's dict;"):
        ask(folder, tmp_path / "audit", net=dict)


@pytest.mark.slow
@pytest.mark.parametrize("build", [dense, Convolutional])
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (8, 1), (4, 5)])
def test_the_estimate_of_memory_is_near_to_what_a_search_takes(
    build: Callable[[], nn.Module], batch: int, steps: int
) -> None:
    seen, _, y = observation(Local(steps=steps), build, batch)
    training = TrainingDescription(LR, epochs=steps)
    known = knowledge(fresh(build), seen, inputs=SPACE, labels=y, batch=batch, training=training)
    recipe = IG(IGSettings()).recipe(None)
    run = _Run(
        known.model, SearchConfig(cosine_distance, recipe.descent, recipe.prior), None, (0.0, 1.0), ComputeLimits()
    )
    view = named(fresh(build), seen, training, batch)
    sent = view.sent if known.unrolled else mean_gradient(view, known)
    problem = run._problem(SearchTarget(sent, y, torch_generator(0, "estimate"), batch))
    needed = run._evaluation(run._recipe.stages[0], problem)[1]._graph.bytes  # type: ignore[attr-defined]
    cost = CostEstimate(fresh(build), input_space(SPACE)).of_search(IG(IGSettings()), batch, steps, 1)
    assert needed / 4 < cost.bytes < 4 * needed


def test_what_has_no_search_costs_nothing_and_limits_are_limits() -> None:
    cost = SearchCost(2e9, 100.0)
    attack = IG(IGSettings(), ComputeLimits(memory_gb=2.0))
    assert bearable(cost, attack, SearchLimits(seconds=100.0))
    assert not bearable(cost, attack, SearchLimits(seconds=99.0))
    assert not bearable(replace(cost, bytes=2.1e9), attack, SearchLimits()) and cost.words == "about 2 GB and 100 s"
