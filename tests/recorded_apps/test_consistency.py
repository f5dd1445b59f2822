"""Descriptions of foreign apps that are right or wrong: whether the truth explains the update, and the likely cause."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flfw.audit.measures.agreement import agreement
from flfw.files.outcomes import outcome
from flfw.recorded_apps import SearchLimits, TrainingDescription
from flfw.recorded_apps.consistency import Retraining, squared
from flfw.recorded_apps.knowledge import input_space
from flfw.recording.observation import Truth
from flfw.rng import torch_generator
from tests.support.foreign_apps import (
    LR,
    SPACE,
    Convolutional,
    app_of,
    ask,
    client_app,
    dense,
    examples,
    fresh,
    normalised,
    recorded,
    truth_of,
)

COUNT = 8
PLAIN = TrainingDescription(LR)
Optimiser = Callable[[Any], torch.optim.Optimizer]


sgd = partial(torch.optim.SGD, lr=LR)
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
nesterov = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
adam = partial(torch.optim.Adam, lr=1e-3)
adamw = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)


@dataclass
class Local:
    """Training as an app writes it, in a loop of its own."""

    optimiser: Optimiser = sgd
    steps: int = 1
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    normalise: Callable[[Tensor], Tensor] = normalised
    mode: str = "train"
    sends: str = "weights"
    batch_size: int = 0
    changes: Callable[[Tensor], Tensor] = lambda x: x

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor] | None:
        before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        net.train(self.mode == "train")
        optimiser, rng = self.optimiser(net.parameters()), torch_generator(7, "the app's own")
        gradient: dict[str, Tensor] = {}
        for _ in range(self.steps):
            order = torch.randperm(len(x), generator=rng) if self.batch_size else torch.arange(len(x))
            for indices in order.split(self.batch_size or len(x)):
                optimiser.zero_grad()
                self.loss(net(self.normalise(self.changes(x[indices]))), y[indices]).backward()
                gradient = gradient or {
                    name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None
                }
                optimiser.step()
        if self.sends == "weights":
            return None
        delta = {name: parameter.detach() - before[name] for name, parameter in net.named_parameters()}
        return {"delta": delta, "gradient": gradient, "negative": {name: -value for name, value in delta.items()}}[
            self.sends
        ]


def checked(folder: Path, local: Local, build: Callable[[], nn.Module] = dense, **given: Any) -> dict[str, Any]:
    """The entry of one audit of two clients."""
    recordings = recorded(folder / "recordings", app_of(build, COUNT, local), build, one=True)
    (result,) = ask(recordings, folder / "audit", count=COUNT, **{"net": build, "training": PLAIN, **given})["audit"]
    return result


def control(result: dict[str, Any]) -> Any:
    return next(control for control in result["ladder"] if control["rung"] == "consistency")


RIGHT: dict[str, tuple[Local, TrainingDescription]] = {
    "one step": (Local(), PLAIN),
    "20 steps": (Local(steps=20), replace(PLAIN, epochs=20)),
    "100 steps": (Local(steps=100), replace(PLAIN, epochs=100)),
    "momentum": (Local(momentum, 10), TrainingDescription(0.1, momentum=0.9, epochs=10)),
    "nesterov": (
        Local(nesterov, 10),
        TrainingDescription(0.1, momentum=0.9, nesterov=True, weight_decay=0.01, epochs=10),
    ),
    "adam": (Local(adam, 10), TrainingDescription(1e-3, "adam", epochs=10)),
    "adamw": (Local(adamw, 10), TrainingDescription(1e-3, "adamw", weight_decay=0.1, epochs=10)),
    "squared errors": (Local(loss=squared), replace(PLAIN, loss=squared)),
    "delta": (Local(sends="delta"), replace(PLAIN, sends="delta")),
    "negative delta": (Local(steps=3, sends="negative"), replace(PLAIN, sends="negative delta", epochs=3)),
    "gradient": (Local(sends="gradient"), TrainingDescription(sends="gradient")),
}
WRONG: dict[str, tuple[Local, TrainingDescription, str]] = {
    "20 steps": (Local(steps=20), PLAIN, "20 steps (described: 1) ("),
    "100 steps": (Local(steps=100), PLAIN, "100 steps (described: 1) ("),
    "momentum": (Local(momentum, 10), TrainingDescription(0.1, epochs=10), "momentum 0.9 ("),
    "momentum and steps": (Local(momentum, 10), TrainingDescription(0.1), "momentum 0.9, 10 steps (described: 1) ("),
    "adam": (Local(adam), TrainingDescription(1e-3), "Adam ("),
    "adam and steps": (Local(adam, 5), TrainingDescription(1e-3), "Adam, 5 steps (described: 1) ("),
    "normalisation": (Local(normalise=lambda x: x), PLAIN, "inputs left in [0, 1] ("),
    "squared errors": (Local(loss=squared), PLAIN, "squared errors ("),
    "delta": (Local(sends="delta"), PLAIN, "delta sent ("),
    "delta of 5 steps": (Local(steps=5, sends="delta"), PLAIN, "5 steps (described: 1), delta sent ("),
    "gradient": (Local(sends="gradient"), PLAIN, "gradient sent ("),
    "flipped": (Local(changes=lambda x: x.flip(-1)), PLAIN, "images flipped left to right ("),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RIGHT)
def test_a_right_description_explains_the_update(tmp_path: Path, case: str) -> None:
    local, training = RIGHT[case]
    result = checked(tmp_path, local, training=training)
    assert control(result)["passed"] is True and "All of 2 agree" in control(result)["reason"]
    for check in result["consistency"]:
        assert (check["outcome"], check["cause"]) == ("passed", "")
        assert check["cosine"] > 0.99999 and abs(check["ratio"] - 1) < 1e-3
    assert outcome(result) != "void"


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_description_is_named_and_is_no_finding(tmp_path: Path, case: str) -> None:
    local, training, cause = WRONG[case]
    result = checked(tmp_path, local, training=training)
    first, second = result["consistency"]
    assert first["outcome"] == second["outcome"] == "failed"
    assert first["cause"].startswith(f"Another description explains it: {cause}"), first["cause"]
    assert control(result)["passed"] is False
    # What was reconstructed leaks, however it was described.
    assert outcome(result) == ("reconstructed" if result["share_recovered"] else "void")
    if outcome(result) == "void":
        for words in ("2 of 2 updates", f"cosine {first['cosine']:.5f}, length ratio", first["cause"]):
            assert words in result["reason"]


@pytest.mark.slow
def test_another_clients_truth_is_named_with_its_owner(tmp_path: Path) -> None:
    given = truth_of(COUNT)
    result = checked(tmp_path, Local(), truth=lambda client: given(3 - client))
    assert "Another description explains it: the data of client 2 (" in result["consistency"][0]["cause"]


@pytest.mark.slow
def test_a_learning_rate_that_only_stretches_the_update_is_estimated(tmp_path: Path) -> None:
    result = checked(tmp_path, Local(), training=TrainingDescription(0.1))
    assert result["consistency"][0]["cause"] == (
        "Its direction agrees with the given one, its length with a learning rate of about 0.5."
    )


@pytest.mark.slow
def test_a_cause_outside_of_the_list_is_not_made_up(tmp_path: Path) -> None:
    result = checked(tmp_path, Local(normalise=lambda x: (x - 0.45) / 0.25))
    assert outcome(result) == "void"
    assert result["consistency"][0]["cause"] == (
        "No other description that was tried explains it; none comes much nearer."
    )


@pytest.mark.slow
def test_the_mode_of_batch_normalisation_is_seen_but_not_a_normalisation_that_it_undoes(tmp_path: Path) -> None:
    wrong = checked(tmp_path / "mode", Local(mode="eval"), Convolutional)
    assert "the network in mode eval (" in wrong["consistency"][0]["cause"]
    unseen = checked(tmp_path / "normalisation", Local(normalise=lambda x: x), Convolutional)
    assert control(unseen)["passed"] is True  # the limit that docs/recording.md states


@pytest.mark.slow
def test_weights_sent_in_half_precision_cannot_be_checked(tmp_path: Path) -> None:
    def local(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        Local(steps=1, optimiser=lambda p: torch.optim.SGD(p, 1e-4))(net, x, y)
        return {name: value.half() for name, value in net.state_dict().items()}

    result = checked(tmp_path, local, training=TrainingDescription(1e-4))  # type: ignore[arg-type]
    assert control(result)["passed"] is None and "rounding alone may change" in control(result)["failure_reason"]
    assert [check["outcome"] for check in result["consistency"]] == ["not possible"] * 2


@pytest.mark.slow
def test_what_is_not_described_cannot_be_checked(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recordings", client_app(dense, 3, steps=5), dense)
    for name, given, why in (
        ("optimiser", {"lr": None}, "the optimiser and its learning rate are not described"),
        ("defence", {"defence": "noise"}, "the clients use noise"),
    ):
        (result,) = ask(folder, tmp_path / name, count=3, **given)["audit"]
        assert control(result)["passed"] is None and why in control(result)["failure_reason"]


@pytest.mark.slow
def test_an_error_in_the_loss_makes_the_check_impossible_and_not_passed(tmp_path: Path) -> None:
    def broken(scores: Tensor, labels: Tensor) -> Tensor:
        raise ZeroDivisionError("by nothing")

    result = checked(tmp_path, Local(), training=replace(PLAIN, loss=broken))
    assert "it cannot be recomputed (ZeroDivisionError: by nothing)" in control(result)["failure_reason"]
    zero = replace(PLAIN, loss=lambda scores, labels: 0 * scores.sum())  # a ratio to it is not finite
    result = checked(tmp_path / "zero", Local(), training=zero)
    assert result["verdict"] == "undecided" and result["consistency"][0]["ratio"] is None


# --- random trainings ---------------------------------------------------------------------------------------------


def jittered(x: Tensor, rng: torch.Generator) -> Tensor:
    """Shifts each image in brightness."""
    return x + 0.02 * torch.randn(len(x), 1, 1, 1, generator=rng)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 3))


slow = partial(torch.optim.SGD, lr=0.05)
slow_momentum = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
MIXED = TrainingDescription(0.05, batch_size=2, epochs=3)
JITTER = replace(PLAIN, augment=jittered)
SHUFFLED = Local(slow, batch_size=2, steps=3)
DRAWN = Local(changes=lambda x: jittered(x, torch_generator(1, "the app's own")))
RANDOM: dict[str, tuple[Callable[[], nn.Module], Local, TrainingDescription, str]] = {
    "order unknown": (dense, SHUFFLED, MIXED, "passed"),
    "order unknown, with an epoch more": (dense, replace(SHUFFLED, steps=4), MIXED, "failed"),
    "order unknown, with momentum": (dense, replace(SHUFFLED, optimiser=slow_momentum), MIXED, "failed"),
    "order unknown, flipped": (dense, replace(SHUFFLED, changes=lambda x: x.flip(-1)), MIXED, "failed"),
    "order unknown, not normalised": (dense, replace(SHUFFLED, normalise=lambda x: x), MIXED, "failed"),
    "order unknown, as delta": (dense, replace(SHUFFLED, sends="delta"), MIXED, "failed"),
    "order unknown, and decisive": (dense, replace(SHUFFLED, optimiser=sgd), replace(MIXED, lr=LR), "not possible"),
    "augmented": (dense, DRAWN, JITTER, "passed"),
    "augmented, and described as twice as long": (dense, DRAWN, replace(JITTER, epochs=2), "failed"),
    "dropout": (dropping, Local(), PLAIN, "passed"),
    "dropout, squared errors": (dropping, Local(loss=squared), PLAIN, "failed"),
    "dropout, 10 steps": (dropping, Local(steps=10), PLAIN, "failed"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RANDOM)
def test_random_trainings_are_as_near_to_their_repetitions_as_these_to_one_another(tmp_path: Path, case: str) -> None:
    build, local, training, outcome = RANDOM[case]
    result = checked(tmp_path, local, build, training=training)
    assert {check["outcome"] for check in result["consistency"]} == {outcome}
    times = 40 if outcome == "failed" else 10
    assert f"recomputed {times} times" in result["consistency"][0]["words"]


@pytest.mark.slow
def test_a_random_training_that_takes_too_long_to_be_repeated_is_not_checked(tmp_path: Path) -> None:
    result = checked(tmp_path, SHUFFLED, training=MIXED, limits=SearchLimits(seconds=1e-9))
    assert "10 repetitions of the training would take about" in control(result)["failure_reason"]


@pytest.mark.slow
def test_a_right_description_of_a_random_training_hardly_ever_fails() -> None:
    net, (x, y) = fresh(dropping), examples(COUNT)
    truth, received = Truth(x, y, torch.arange(COUNT)), dict(net.state_dict())
    space = input_space(SPACE)
    drawn = [Retraining(net, received, truth, PLAIN, space, draw=draw).finished() for draw in range(100)]
    outcomes = [agreement(one, [*drawn[:i], *drawn[i + 1 :]][:40]).outcome for i, one in enumerate(drawn)]
    assert outcomes.count("failed") <= 1


@pytest.mark.slow
def test_a_known_order_is_checked_exactly(tmp_path: Path) -> None:
    rng = torch_generator(7, "the app's own")
    epochs = [torch.randperm(COUNT, generator=rng).split(2) for _ in range(3)]
    order = tuple(tuple(indices.tolist()) for epoch in epochs for indices in epoch)
    result = checked(tmp_path, SHUFFLED, training=replace(MIXED, order=order))
    assert control(result)["passed"] is True and result["adaptive"] is False and result["steps"] == 12
    assert "recomputed once" in result["consistency"][0]["words"]
    given, indices = truth_of(COUNT), torch.tensor(order)
    with_order = checked(tmp_path / "told", SHUFFLED, truth=lambda c: replace(given(c), order=indices), training=MIXED)
    assert with_order["consistency"][0]["cosine"] == result["consistency"][0]["cosine"]
    wrong = checked(tmp_path / "wrong", SHUFFLED, training=replace(MIXED, order=order[::-1]))
    assert wrong["consistency"][0]["outcome"] == "failed"


@pytest.mark.slow
def test_the_truth_of_some_updates_only_is_checked_for_these(tmp_path: Path) -> None:
    given = truth_of(COUNT)
    result = checked(tmp_path, Local(), truth=lambda client: given(client) if client == 2 else None)
    assert [check["client"] for check in result["consistency"]] == [2]
