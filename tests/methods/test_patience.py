"""Training that ends when nobody's validation accuracy rises: when, what follows, and after a kill the same."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sim
from flfw.adversary.attack import Uses
from flfw.data.splits.partition import Split
from flfw.dp.run_accountant import RunAccountant
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.recording.observation import Knowledge, Observation
from flfw.recording.reader import Recordings
from flfw.runs import run
from flfw.runs.estimate import Estimate, Memory, Seconds, lines
from flfw.server.history import EarlyStopping
from tests.support.resumed_runs import assert_same, cut_short, without_times
from tests.support.small_runs import ByGuess, result_of

# With such a learning rate no accuracy changes: the first round's are the best, and three rounds later patience ends.
STILL = (
    "--method fedavg --net linear --engine inproc --clients 2 --local-epochs 1 --lr 1e-12 --split sampled "
    "--set sampled.train=40 --attack analytic --images 2"
)
ENDS = "Training ended after round 4 of 9: no client's validation accuracy had risen above its best for 3 rounds."


def rows(*accuracies: tuple[int, int, float | None]) -> list[dict[str, Any]]:
    """(round, client, validation accuracy)."""
    return [{"round": r, "client": c, "acc_validation": accuracy} for r, c, accuracy in accuracies]


def last_rise(history: list[dict[str, Any]]) -> int:
    patience = EarlyStopping(1)
    patience.is_over(history, 9)
    return patience.risen


# --- the decision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accuracies", "risen"),
    [
        ([], 0),
        ([(1, 0, 0.0)], 1),
        ([(1, 0, 0.5), (2, 0, 0.5)], 1),  # as good is no rise
        ([(1, 0, 0.5), (2, 0, 0.4), (3, 0, 0.45)], 1),  # above the round before, not above the best
        ([(1, 0, 0.5), (1, 1, 0.1), (2, 0, 0.4), (2, 1, 0.2)], 2),  # anybody's, though the mean fell
        ([(1, 0, 0.9), (5, 1, 0.1)], 5),  # who is drawn for the first time
        ([(1, 0, 0.5), (2, 0, None), (3, 0, 0.6)], 3),  # a diverged model's loss is no number either
        ([(1, 0, 0.5), (2, 0, None)], 1),
    ],
)
def test_the_last_rise_is_anybodys_above_their_own_best(
    accuracies: list[tuple[int, int, float | None]], risen: int
) -> None:
    assert last_rise(rows(*accuracies)) == risen


def test_rows_without_validation_say_nothing() -> None:
    assert last_rise([{"round": 1, "client": 0, "acc_local": 0.5}]) == 0


def naive(history: list[dict[str, Any]], done: int, patience: int) -> bool:
    """Round by round and client by client, as one would say it."""

    def rose(row: dict[str, Any]) -> bool:
        before = [o for o in history if o["client"] == row["client"] and o["round"] < row["round"]]
        return all(row["acc_validation"] > o["acc_validation"] for o in before)

    return done >= patience and not any(rose(row) for row in history if row["round"] > done - patience)


def test_patience_ends_in_the_round_in_which_one_would_say_so() -> None:
    rng, ended = random.Random(0), 0
    for _ in range(200):
        clients, patience = rng.randint(1, 3), rng.randint(1, 3)
        history, followed = list[dict[str, Any]](), EarlyStopping(patience)
        for done in range(1, 9):
            drawn = [c for c in range(clients) if rng.random() < 0.7]
            history += rows(*((done, c, rng.randrange(4) / 4) for c in drawn))
            expected = naive(history, done, patience)
            assert followed.is_over(history, done) is followed.is_over(history, done) is expected
            assert EarlyStopping(patience).is_over(history, done) is expected, "as in a run that was resumed"
            ended += expected
            assert not EarlyStopping(0).is_over(history, done)
    assert ended > 100


class Counted(list):
    """A list that counts the rows that were read."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        value = super().__getitem__(place)
        self.read += len(value) if isinstance(place, slice) else 1
        return value


def test_each_row_is_read_once() -> None:
    history, patience = Counted(), EarlyStopping(3)
    for done in range(1, 21):
        history += rows((done, 0, 0.01 * done), (done, 1, 0.5))
        for _ in range(3):  # a round asks several times
            assert not patience.is_over(history, done)
    assert history.read == 40


# --- a run --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ended") / "run"
    flags = "--rounds 9 --expert patience=3 --audit-rounds 0,2,7,last"
    assert sim.main([*STILL.split(), *flags.split(), "--out", str(folder)]) == 0
    return folder


def run_still(folder: Path, flags: str) -> dict[str, Any]:
    assert sim.main([*STILL.split(), *flags.split(), "--out", str(folder / "run")]) == 0
    return result_of(folder / "run")


@pytest.mark.slow
def test_a_run_ends_when_patience_does_and_says_so(ended: Path) -> None:
    results = result_of(ended)
    assert [row["round"] for row in results["rounds"]] == [1, 2, 3, 4]
    assert results["config"]["rounds"] == 9
    assert ENDS in results["notes"]
    (kept,) = (ended / "checkpoint").glob("round-*")
    assert kept.name.startswith("round-00004-")


@pytest.mark.slow
def test_the_last_audited_round_is_the_one_in_which_it_ended(ended: Path) -> None:
    results = result_of(ended)
    assert [(entry["round"], entry["verdict"]) for entry in results["audit"]] == [(at, "leaks") for at in (0, 2, 4)]
    assert "Never came, and so were not audited: rounds 7." in results["notes"]
    assert all(entry["failures"] == 0 for entry in results["audit"])
    assert not (ended / "failures.csv").exists()
    assert sorted({line["round"] for line in Recordings(ended / "observations").lines}) == [0, 2, 4]


@pytest.mark.slow
def test_what_came_before_the_end_is_that_of_a_run_of_so_many_rounds(ended: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert sim.main([*STILL.split(), "--rounds", "4", "--audit-rounds", "0,2,last", "--out", str(whole)]) == 0
    results, other = without_times(result_of(ended)), without_times(result_of(whole))
    for name in ("rounds", "final", "audit"):
        assert results[name] == other[name]
    for name in ("rounds.csv", "clients.csv"):
        columns = [path.joinpath(name).read_text().splitlines()[0] for path in (ended, whole)]
        assert columns[0] == columns[1]
    models = [next((path / "checkpoint").glob("round-00004-*.safetensors")) for path in (ended, whole)]
    one, two = map(load_file, models)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("after", [2, 3, 4])
def test_a_run_that_was_cut_short_comes_to_the_same_end(ended: Path, tmp_path: Path, after: int) -> None:
    """Before patience has ended, in the round before, and between the end and the final evaluation."""
    stored = dataclasses.replace(run.stored(ended), out=tmp_path / "run")
    folder = cut_short(stored, after)
    assert not (folder / "training.json").exists()
    run.resume(stored)
    assert_same(ended, folder)


@pytest.mark.slow
def test_a_patience_that_outlasts_the_rounds_changes_nothing(tmp_path: Path) -> None:
    results = run_still(tmp_path, "--rounds 3 --expert patience=3 --audit-rounds last")
    assert len(results["rounds"]) == 3 and results["audit"][0]["round"] == 3
    assert not any("Training ended" in note for note in results["notes"])


@pytest.mark.slow
def test_attacks_beside_training_attack_the_early_last_round_and_end(tmp_path: Path) -> None:
    results = run_still(
        tmp_path, "--rounds 9 --expert patience=1 attack_process=concurrent --audit-rounds 5,last --audit-source both"
    )
    assert [(entry["round"], entry["verdict"]) for entry in results["audit"]] == [(2, "leaks")]
    assert results["recordings"]["refused"][0].startswith("The uploads of round 2 were left out: ")


def test_a_run_of_whose_audited_rounds_none_came_has_an_empty_audit(tmp_path: Path) -> None:
    results = run_still(tmp_path, "--rounds 9 --expert patience=1 --audit-rounds 8,9")
    assert results["audit"] == [] and "Never came, and so were not audited: rounds 8, 9." in results["notes"]
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_recordings_of_a_run_that_ended_early_are_audited_again(
    ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["--from", str(ended), "--attack", "analytic"]
    assert sim.main([*again, "--audit-rounds", "last", "--out", str(tmp_path / "again")]) == 0
    assert [entry["round"] for entry in result_of(tmp_path / "again")["audit"]] == [4]
    assert sim.main([*again, "--audit-rounds", "7", "--out", str(tmp_path / "none")]) == 2
    message = f"Expected audit-rounds <= 4, after which the training in {ended} ended, got audit-rounds=7."
    assert capsys.readouterr().err.splitlines()[-1] == f"sim.py: {message}"
    assert not (tmp_path / "none").exists()


class AsksForUploads(ByGuess):
    """Looks at nothing, but asks that uploads be recorded."""

    @property
    def uses(self) -> Uses:
        return frozenset({"uploads"})

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        return torch.zeros(knowledge.model.inputs.shape)


@pytest.mark.slow
def test_uploads_are_recorded_of_a_round_that_turns_out_to_be_the_last(tmp_path: Path) -> None:
    flags = "--rounds 9 --expert patience=2 --audit-rounds last --attack tests.methods.test_patience:AsksForUploads"
    assert sim.main([*STILL.split(), *flags.split(), "--out", str(tmp_path / "run")]) == 0
    recorded = Recordings(tmp_path / "run" / "observations").lines
    assert {line["round"] for line in recorded if line["type"] == "train"} == {3}


# --- what is claimed and said beforehand --------------------------------------------------------------------------


def test_epsilons_count_all_the_rounds_that_there_may_be() -> None:
    """When training ends depends on the data, so what the rounds that there were would cost is no bound."""
    split = Split((np.arange(50),) * 2, (np.arange(5),) * 2, (np.arange(5),) * 2, *[np.arange(0)] * 3)
    experiment = without_auto(Experiment(method="fed_cdp", clients=2, rounds=3, attack=("none",), net="lenet"))
    patient = dataclasses.replace(experiment, patience=1)
    for one, other in zip(
        RunAccountant(plan(experiment).client, split).entries(),
        RunAccountant(plan(patient).client, split).entries(),
        strict=True,
    ):
        assert one["epsilon"] == other["epsilon"] and one["rounds"] == other["rounds"] == 3
        informed = [message for message in other["assumptions"] if message not in one["assumptions"]]
        assert (len(informed) == 1 and "all the rounds there may be" in informed[0]) or one["epsilon"] == "inf"


def test_an_estimate_says_that_it_is_of_the_most() -> None:
    experiment = Experiment(rounds=9, patience=3)
    seconds, memory = (cls(**dict.fromkeys(names(cls), 1)) for cls in (Seconds, Memory))
    results = Estimate(experiment, seconds, memory, 1, 1, "here")
    assert "(at most 9 rounds of 1.0 s" in lines(results)
    assert "(9 rounds of 1.0 s" in lines(dataclasses.replace(results, experiment=Experiment(rounds=9)))


def names(record: type) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--split dominant --expert patience=5",
            "Expected validation data at each client for --expert patience=5, got split=dominant without; "
            "choose another "
            "--split, such as sampled.",
        ),
        ("--expert patience=-1", "Expected patience >= 0, got patience=-1."),
    ],
)
def test_bad_patience_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, line: str
) -> None:
    requested = "--method fedavg --engine inproc --clients 2 --attack none --out"
    assert sim.main([*requested.split(), str(tmp_path / "run"), *flags.split()]) == 2
    assert capsys.readouterr().err == f"sim.py: {line}\n"
    assert not (tmp_path / "run").exists()
