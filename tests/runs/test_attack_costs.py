"""What the estimate of an audit's attacks grants them, and that it counts their training on public data."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flfw.adversary.attack import Models, Uses
from flfw.experiment import Experiment
from flfw.inversion import compute
from flfw.inversion.client_models.victim import PlainVictim
from flfw.plans.run_plan import RunPlan, plan
from flfw.recording.observation import Examples, Knowledge, Observation, Reconstruction, Vantage
from flfw.rng import initialising, torch_generator
from flfw.runs import timing
from flfw.runs.attack_costs import AttackSeconds, TimedTarget, attack_seconds
from tests.support.clock import Clock
from tests.support.small_runs import ByGuess, plug_in


class Looking(ByGuess):
    """Keeps what it was granted."""

    granted: ClassVar[list[Knowledge]] = []

    @property
    def uses(self) -> Uses:
        return frozenset({"public"})

    @property
    def models(self) -> Models:
        return frozenset({"batch_statistics"})

    @property
    def labels(self) -> str:
        return "not used"

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        self.granted.extend(knowledge)
        return []


class Unasking(Looking):
    """Asks for nothing."""

    @property
    def uses(self) -> Uses:
        return frozenset()

    @property
    def models(self) -> Models:
        return frozenset()


def normalising() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))


def target(run_plan: RunPlan, first: bool = True, other: Callable[[], nn.Module] | None = None) -> TimedTarget:
    """A wholly shared network, of the experiment if no other is given."""
    task = run_plan.task.load(run_plan.experiment.data_root)

    def build() -> PlainVictim:
        with initialising(0, "net"):
            net = (other or task.build_net)()
        return PlainVictim(net, net.state_dict(), ("*",), task.inputs)

    images = run_plan.experiment.images
    return TimedTarget(build, 1, lambda x, y: build().gradient(x, y, {}, {}), first, images=images)


def test_attacks_are_granted_what_they_use_and_the_statistics_of_the_batch(small: Experiment) -> None:
    names = (plug_in(Looking), plug_in(Unasking))
    run_plan = plan(dataclasses.replace(small, net="linear", image_size=8, attack=names, images=1))
    Looking.granted.clear()
    attack_seconds(run_plan, target(run_plan, other=normalising))
    asking, other = Looking.granted
    task = run_plan.task.load(run_plan.experiment.data_root)
    assert asking.public is not None and torch.equal(asking.public.labels, task.public()[1])
    assert other.public is None and asking.labels is None is other.labels
    by_running = [
        any(isinstance(m, _BatchNorm) for m in knowledge.model.model.modules()) for knowledge in (asking, other)
    ]
    assert by_running == [False, True]


LEARNING: list[tuple[str, tuple[str, ...]]] = [
    ("generator", ("learning_iterations=300", "iterations=2", "restarts=1", "space=latent")),
    ("ig", ("prior=flow", "flow_width=8", "flow_iterations=60", "flow_batch=16", "flow_steps=1", "iterations=2")),
    ("rog", ("post=unet", "sf=2", "pairs=8", "post_epochs=128", "iterations=1")),
]


def timed(small: Experiment, name: str, settings: tuple[str, ...], first: bool = True) -> AttackSeconds:
    run_plan = learning(small, name, settings)
    return attack_seconds(run_plan, target(run_plan, first))


def learning(small: Experiment, name: str, settings: tuple[str, ...]) -> RunPlan:
    assigned = tuple(f"{name}.{setting}" for setting in settings)
    return plan(dataclasses.replace(small, net="linear", image_size=8, attack=(name,), images=1, set=assigned))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), LEARNING, ids=[name for name, _ in LEARNING])
def test_a_training_on_public_data_counts(
    small: Experiment, monkeypatch: pytest.MonkeyPatch, name: str, settings: tuple[str, ...]
) -> None:
    monkeypatch.setattr(timing, "ENOUGH_S", 1.0)
    estimated = timed(small, name, settings)
    run_plan = learning(small, name, settings)
    task, attacked = run_plan.task.load(None), target(run_plan)
    x, y = task.examples("train", torch.tensor([0]).numpy())
    victim = attacked.build()
    observation = Observation(Vantage.SERVER, "probe", "target", 0, 0, 0, attacked.answer(x, y), victim.known)
    samples, labels = task.public()
    fresh = Examples(samples.flip(0), labels.flip(0))  # in another order, so that no network that was kept is used
    began = time.process_time()
    run_plan.audit.reconstructions[name].run(
        [observation], [Knowledge(victim, 1, y, public=fresh)], [torch_generator(0, "attack")]
    )
    took = time.process_time() - began
    assert estimated.prepared > 0.2 * estimated.total
    assert took / 3 < estimated.total < took * 3, (took, estimated)


@pytest.mark.slow
def test_a_training_whose_result_is_kept_counts_once(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ENOUGH_S", 0.1)
    generator, rog = (timed(small, *LEARNING[at], first=False) for at in (0, 2))
    assert generator.prepared == 0 < rog.prepared


def linear(fixed: float, each: float) -> Callable[[int], float]:
    return lambda count: fixed + each * count


@pytest.mark.parametrize("calls", [1, 3])
def test_a_line_through_two_numbers_is_followed(calls: int) -> None:
    assert timing.at_length(linear(0.5, 0.1), 2000, calls) == pytest.approx(200.5)


def test_work_whose_result_is_kept_is_measured_once_for_each_number() -> None:
    kept = set[int]()

    def seconds(count: int) -> float:
        known, _ = count in kept, kept.add(count)
        return 0.0 if known else 0.1 * count

    assert timing.at_length(seconds, 2000, calls=1) == pytest.approx(200)


def test_work_that_was_done_before_for_one_iteration_is_extrapolated_from_two() -> None:
    kept = {1}

    def seconds(count: int) -> float:
        known, _ = count in kept, kept.add(count)
        return 0.0 if known else 5 + 0.1 * count

    assert timing.at_length(seconds, 2000, calls=1, first=2) == pytest.approx(205)
    assert timing.at_length(seconds, 3, calls=1, first=4) == pytest.approx(5.3)


class Timed(ByGuess):
    """Lets time pass on a clock of the test."""

    clock: ClassVar[Clock]


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "clock", Clock.read_by(monkeypatch, compute), raising=False)


class Sized(Timed):
    """Takes a time for each image, which it notes."""

    seen: ClassVar[list[Any]] = []

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        self.seen.append(len(observations))
        self.clock.pass_by(0.01 * len(observations))
        return []


@pytest.mark.usefixtures("_clock")
def test_more_images_than_are_measured_count_in_proportion(small: Experiment) -> None:
    run_plan = plan(dataclasses.replace(small, net="linear", image_size=8, attack=(plug_in(Sized),), images=80))
    Sized.seen.clear()
    assert attack_seconds(run_plan, target(run_plan)).total == pytest.approx(0.8) and Sized.seen == [1, 8]


@dataclass(frozen=True)
class InTwoParts:
    """Lengths of two searches."""

    iterations: int = 100
    further_iterations: int = 300


class Parted(Sized):
    """Takes a millisecond for each further iteration."""

    Settings = InTwoParts

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        self.seen.append((self.settings.iterations, self.settings.further_iterations))
        self.clock.pass_by(0.001 * self.settings.further_iterations)
        return []


@pytest.mark.usefixtures("_clock")
def test_the_parts_of_a_search_are_lowered_together(small: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ENOUGH_S", 0.03)
    run_plan = plan(dataclasses.replace(small, net="linear", image_size=8, attack=(plug_in(Parted),), images=1))
    Sized.seen.clear()
    assert attack_seconds(run_plan, target(run_plan)).total == pytest.approx(0.3)
    assert max(further for _, further in Sized.seen) < 300
    assert all(first == max(1, round(further / 3)) for first, further in Sized.seen)


@dataclass(frozen=True)
class InParts:
    """Length of a search."""

    iterations: int = 400


class Opening(Timed):
    """Begins a second part, which takes its time, where there are iterations for it; half a millisecond for each."""

    Settings = InParts

    def run(
        self, observations: Sequence[Observation], knowledge: Sequence[Knowledge], rngs: Sequence[torch.Generator]
    ) -> list[Reconstruction]:
        count = self.settings.iterations
        self.clock.pass_by(0.0005 * count + (0.05 if count > 1 else 0))
        return []


@pytest.mark.usefixtures("_clock")
def test_the_beginning_of_a_further_part_is_not_extrapolated(
    small: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all 0.25 s; from one iteration and four it would be 7 s."""
    monkeypatch.setattr(timing, "ENOUGH_S", 0.06)
    run_plan = plan(dataclasses.replace(small, net="linear", image_size=8, attack=(plug_in(Opening),), images=1))
    assert attack_seconds(run_plan, target(run_plan)).total == pytest.approx(0.25)
