"""What a phase of a run is said to take, by a clock that goes on only where the test says so."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from flfw.experiment import Experiment
from flfw.inversion import compute
from flfw.inversion.compute import steps
from flfw.nets import Tensors
from flfw.plans.run_plan import RunPlan, plan
from flfw.recording.observation import Knowledge, Reconstruction
from flfw.runs import timed_phases
from flfw.runs.run import check
from flfw.runs.timed_phases import AuditCosts, audit_phase, client_phase, line, shortened, training_phase
from flfw.server.aggregation import Update
from flfw.strategies.fedcg import FedCG
from tests.support.clock import Clock
from tests.support.small_runs import ByGuess, plug_in

SEEN: list[Any] = []
"""What the attacks below were asked for."""


class Timed(ByGuess):
    """Lets time pass on a clock of the test."""

    clock: ClassVar[Clock]

    def guess(self, observation: Any, knowledge: Knowledge, rng: torch.Generator) -> torch.Tensor:
        return torch.zeros(1, *knowledge.model.inputs.shape)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    SEEN.clear()
    monkeypatch.setattr(Timed, "clock", Clock.read_by(monkeypatch, compute, timed_phases), raising=False)
    return Timed.clock


def audited(small: Experiment, *attacks: type, **changes: Any) -> RunPlan:
    requested = {"net": "linear", "image_size": 8, "images": 1, "attack": tuple(map(plug_in, attacks)), **changes}
    return plan(dataclasses.replace(small, **requested))


def costs_of(run_plan: RunPlan, folder: Path) -> AuditCosts:
    return audit_phase(run_plan, folder / "shortened", 0.0)


# --- a line through a few numbers ---


@pytest.mark.parametrize(("first", "maximum"), [(1, 2000), (2, 2000), (1, 2), (2, 3)])
def test_a_line_through_few_numbers_is_followed(first: int, maximum: int) -> None:
    assert line(lambda count: 0.5 + 0.1 * count, maximum, first).at(maximum) == pytest.approx(0.5 + 0.1 * maximum)


def test_few_steps_are_asked_for_and_one_alone_where_it_takes_long() -> None:
    requested: list[int] = []

    def noted(fixed: float) -> Callable[[int], float]:
        return lambda count: requested.append(count) or fixed + 0.1 * count

    assert line(noted(0.5), 2000).at(2000) == pytest.approx(200.5) and max(requested) <= 64
    requested.clear()
    assert line(noted(9.9), 2000).at(3) == pytest.approx(30) and requested == [1]
    assert line(noted(0.5), 1).at(1) == pytest.approx(0.6)


def test_the_fastest_of_short_calls_counts_and_a_long_one_is_not_repeated(clock: Clock) -> None:
    times = [0.03, 0.01, 0.02, 9.0, 1.0]

    def work() -> None:
        clock.pass_by(times.pop(0))

    assert timed_phases.fastest_s(work) == pytest.approx(0.01)
    assert timed_phases.fastest_s(work) == pytest.approx(9.0) and times == [1.0]


# --- training ---


@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_a_client_that_answers_in_its_turns_alone_is_timed_in_one(
    small: Experiment, tmp_path: Path, rounds: int
) -> None:
    changes = {"method": "dp_ftrl", "net": "mlp", "clients": 6, "rounds": rounds, "set": ("bands=4",)}
    assert client_phase(plan(dataclasses.replace(small, **changes)), tmp_path, 0.0).up > 0  # type: ignore[arg-type]


@pytest.mark.nightly
def test_what_a_server_trains_is_timed_for_all_uploads_of_a_round(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    trained, longest = FedCG.trained, 0

    def training(self: FedCG, uploads: Sequence[Update], mean: Tensors) -> Tensors:
        """Train, and let a tenth of a second pass, and a millisecond for each upload in each iteration."""
        nonlocal longest
        longest = max(longest, self.settings.iterations)
        clock.pass_by(0.1 + 0.001 * self.settings.iterations * len(uploads))
        return trained(self, uploads, mean)

    monkeypatch.setattr(timed_phases, "_ENOUGH_S", 0.02)
    monkeypatch.setattr(FedCG, "trained", training)
    for clients, iterations in [(2, 20), (2, 2000), (9, 2000)]:
        changes = {"method": "fedcg", "net": "lenet5", "clients": clients, "set": (f"iterations={iterations}",)}
        run_plan = plan(dataclasses.replace(small, **changes))  # type: ignore[arg-type]
        costs = training_phase(run_plan, tmp_path, 0.0)
        assert costs.round_s == pytest.approx(0.1 + 0.001 * iterations * clients)
    assert longest <= 16


# --- the shortened audit ---


def test_a_run_is_shortened_to_one_round(small: Experiment, tmp_path: Path) -> None:
    requested = {"rounds": 9, "audit_rounds": "0,3,last", "images": 80, "clients": 20, "local_epochs": 4}
    short = shortened(audited(small, Timed, engine="ray", **requested), tmp_path).experiment
    assert (short.rounds, short.audited, short.images, short.per_round, short.local_epochs) == (1, (1,), 8, 8, 1)
    uploads = shortened(audited(small, Timed, **requested, audit_source="both"), tmp_path).experiment
    assert (uploads.per_round, uploads.local_epochs) == (20, 4)
    before = shortened(audited(small, Timed, **requested | {"audit_rounds": "0"}), tmp_path).experiment
    assert before.audited == (0,) and before.engine == "inproc" and before.out == tmp_path


def test_of_large_messages_there_are_few(small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear layer from 64 pixels to 10 classes has 2,600 bytes."""
    run_plan = audited(small, Timed, images=80, clients=20)
    for maximum, images in [(1, 1), (3 * 2600, 3), (80 * 2600, 8)]:
        monkeypatch.setattr(timed_phases, "MESSAGES", maximum)
        assert shortened(run_plan, tmp_path).experiment.images == images


class Sized(Timed):
    """Takes a hundredth of a second for each image."""

    each_s: ClassVar[float] = 0.01

    def run(self, observations: Any, knowledge: Any, rngs: Any) -> list[Reconstruction]:
        SEEN.append(len(observations))
        self.clock.pass_by(self.each_s * len(observations))
        return super().run(observations, knowledge, rngs)


@pytest.mark.slow
def test_eight_images_are_attacked_once_and_in_a_round(small: Experiment, tmp_path: Path) -> None:
    costs = costs_of(audited(small, Sized, images=80), tmp_path)
    assert (costs.images, costs.once_s, costs.probes_s) == (8, pytest.approx(0.08), pytest.approx(0.08))
    assert SEEN == [8, 8] and costs.messages == 8 and costs.round_bytes > costs.once_bytes > 0


class Slow(Sized):
    """Takes longer for an image than there is for all jobs."""

    each_s = 5.0


@pytest.mark.nightly
def test_jobs_that_come_too_late_count_as_the_attacks_others(small: Experiment, tmp_path: Path) -> None:
    costs = costs_of(audited(small, Slow), tmp_path)
    assert (costs.once_s, costs.probes_s, costs.untimed, SEEN) == (5.0, 5.0, 1, [1])


class Sampled(Sized):
    """Learns once in a process for 3 s, and searches for 2 s in steps that are sampled."""

    sampled: ClassVar[bool] = True
    learnt: ClassVar[list[bool]] = []

    def run(self, observations: Any, knowledge: Any, rngs: Any) -> list[Reconstruction]:
        for _ in steps(0 if self.learnt else 1000):
            self.clock.pass_by(0.003)
        self.learnt.append(True)
        for _ in steps(1000):
            self.clock.pass_by(0.002)
        return ByGuess.run(self, observations, knowledge, rngs)


@pytest.mark.nightly
def test_what_a_process_learns_for_all_targets_counts_once_and_a_game_is_played_whole(
    small: Experiment, tmp_path: Path
) -> None:
    Sampled.learnt.clear()
    costs = costs_of(audited(small, Sampled), tmp_path)
    assert (costs.once_s, costs.probes_s) == (pytest.approx(5.0), pytest.approx(2.0))
    game = dataclasses.replace(small, attack=("membership",), membership_pairs="auto", audit_rounds="last")
    played = costs_of(check(game)[0], tmp_path / "game")
    assert played.uploads > 0 == played.messages


@dataclass(frozen=True)
class InTwoParts:
    """Lengths of two searches."""

    iterations: int = 100
    further_iterations: int = 300


class Parted(Timed):
    """Takes a hundredth of a second for each further iteration, and half a second where there are two or more."""

    Settings = InTwoParts

    def run(self, observations: Any, knowledge: Any, rngs: Any) -> list[Reconstruction]:
        first, further = self.settings.iterations, self.settings.further_iterations
        SEEN.append((first, further))
        self.clock.pass_by(0.01 * further + (0.5 if further > 1 else 0.0))
        return super().run(observations, knowledge, rngs)


@pytest.mark.slow
def test_the_parts_of_a_search_are_lowered_together(small: Experiment, tmp_path: Path) -> None:
    costs = costs_of(audited(small, Parted), tmp_path)
    assert costs.once_s == pytest.approx(3.5) == costs.probes_s
    assert max(further for _, further in SEEN) < 300
    assert all(first == max(1, round(further / 3)) for first, further in SEEN)


def test_matching_large_messages_takes_the_time_of_all_arrangements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses of a pair are matched 4,999 times in a test and in its control, those of 40 examples 999 times."""
    monkeypatch.setattr(timed_phases, "fastest_s", lambda work: (work(), 0.001)[1])
    inputs = np.random.default_rng(0).integers(0, 256, (100, 4))
    alone = [timed_phases.scoring_s([size], inputs) for size in (1, 2, 40, 400)]  # at most 50 are matched with others
    assert alone == pytest.approx([0, 2 * 4.999, 2 * 0.999, 2 * 0.999 * 8**3])
    assert (
        timed_phases.scoring_s([1, 40], inputs) == pytest.approx(4 * 0.999) and timed_phases.scoring_s([], inputs) == 0
    )
