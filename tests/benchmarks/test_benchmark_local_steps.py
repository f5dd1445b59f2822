"""The benchmark of local iterations: every method of the two tables, the papers' ratios, and what it prints."""

import json
import sys
from collections.abc import Sequence

import pytest

from benchmarks import local_steps
from flfw.comparisons.figures.norms import Trainee


def test_every_method_of_both_tables_is_timed_and_the_goal_is_the_paper_s_ratio() -> None:
    assert list(local_steps.CASES["MNIST"].experiments) == ["non-private", "Fed-SDP", "Fed-CDP", "Fed-CDP(decay)"]
    methods = [experiment.method for experiment in local_steps.CASES["EMNIST"].experiments.values()]
    assert methods[0] == "fedavg" and set(methods) == {"fedavg", "dp_fedavg", "centaur", "ppsgd", "hyperfl"}
    assert local_steps.CASES["CIFAR-10"].goal["Fed-CDP"] == pytest.approx(131.5 / 32.5)
    assert local_steps.CASES["EMNIST"].goal["HyperFL"] == pytest.approx(37 / 23)
    assert "FedAvg" not in local_steps.CASES["EMNIST"].goal


def test_a_client_has_the_paper_s_number_of_local_iterations() -> None:
    for name, case in local_steps.CASES.items():
        first = next(iter(case.experiments.values()))
        trainee = Trainee(first, local_steps.task(name, first, local_steps._EXAMPLES[name]))
        assert trainee.steps == (50 if name == "EMNIST" else 100)


def test_a_ratio_is_the_median_of_the_turns_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turns(trainees: Sequence[Trainee], turns: int) -> list[list[float]]:
        assert len(trainees) == 4 and turns == 3
        return [[1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 8.0, 2.0], [10.0, 30.0, 10.0, 10.0]]

    monkeypatch.setattr(local_steps, "in_turns", in_turns)
    assert local_steps.measure("Cancer", 3, 8) == {
        "non-private": (1.0, 2.0),
        "Fed-SDP": (2.0, 2.0),  # of 2, 1 and 3
        "Fed-CDP": (3.0, 8.0),
        "Fed-CDP(decay)": (1.0, 4.0),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Cancer", "EMNIST"])
def test_every_method_runs(name: str) -> None:
    result = local_steps.measure(name, 1, 4)
    assert list(result) == list(local_steps.CASES[name].experiments)
    assert all(ratio > 0 and milliseconds > 0 for ratio, milliseconds in result.values())


def test_the_last_line_is_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["local_steps", "--quick", "--only", "Cancer"])
    monkeypatch.setitem(local_steps._EXAMPLES, "Cancer", 8)
    local_steps.main()
    *message, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert set(result) == {"local_steps", "goal", "met", "milliseconds", "turns", "quick", "only", "hardware"}
    assert result["local_steps"]["Cancer"]["non-private"] == 1.0 and set(result["met"]["Cancer"]) == set(
        result["goal"]["Cancer"]
    )
    assert message[0].startswith("Cancer:") and len(message) == 5 and "goal <= 2.33" in message[3]
