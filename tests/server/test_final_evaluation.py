"""The final evaluation of some clients: who is asked, what stands in the results, and the interval beside a mean."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.runs import run
from flfw.runs.run_notes import final_accuracies, interval
from flfw.server.cohorts import drawn_last
from tests.support.resumed_runs import cut_short

# --- who is asked ---


def test_all_are_asked_up_to_the_number_and_so_many_of_more() -> None:
    for maximum in (3, 4, 1000, None):
        assert drawn_last([2, 5, 7], maximum, 0) == [2, 5, 7]
    drawn = drawn_last(range(10_000), 1000, 0)
    assert len(drawn) == len(set(drawn)) == 1000 and drawn == sorted(drawn) and set(drawn) < set(range(10_000))
    assert drawn == drawn_last(range(10_000), 1000, 0) != drawn_last(range(10_000), 1000, 1)
    assert drawn_last([2, 5, 7], 0, 0) == []


def test_all_are_drawn_equally_often() -> None:
    counts = Counter(one for seed in range(2000) for one in drawn_last(range(4), 2, seed))
    assert all(abs(counts[one] - 1000) < 5 * 22.4 for one in range(4))  # five deviations, of sqrt(2000 / 4)


@pytest.mark.parametrize(
    ("final", "clients", "requested"),
    [("1000", 10, 10), ("1000", 5000, 1000), ("all", 5000, 5000), ("none", 10, 0), ("1", 10, 1), ("1000000", 3, 3)],
)
def test_the_number_asked(final: str, clients: int, requested: int) -> None:
    assert Experiment(final_eval_clients=final, clients=clients).finally_asked == requested


def test_by_default_at_most_a_thousand_are_asked() -> None:
    assert [Experiment(clients=n).finally_asked for n in (10, 1000, 1001)] == [10, 1000, 1000]


def test_other_words_are_refused() -> None:
    expected = "Expected final-eval-clients=all, none or a number from 1 to 1,000,000, got final_eval_clients="
    for final in ("0", "-1", "1.5", "some", "", "ALL", "²", "1000001", "9" * 5000):
        with pytest.raises(InputError, match=expected):
            Experiment(final_eval_clients=final)


# --- the interval ---


def test_the_interval_by_hand() -> None:
    """Of 0.4 0.5 0.5 0.6 the deviation is 0.08165; t with 3 degrees is 3.1824; half of 8 clients: sqrt(0.5 / 4)."""
    low, high = interval([0.4, 0.5, 0.5, 0.6], 8) or (0, 0)
    assert high - 0.5 == pytest.approx(3.18245 * 0.0816497 * 0.353553, rel=1e-5) == 0.5 - low


def test_the_ends_are_accuracies() -> None:
    assert interval([0.0, 1.0], 100) == [0.0, 1.0]


def test_there_is_nothing_to_estimate_where_all_have_answered() -> None:
    assert interval([0.25, 0.5], 2) == [0.375, 0.375]
    assert interval([0.5], 1) == [0.5, 0.5]


@pytest.mark.parametrize(("values", "clients"), [([], 3), ([0.5], 3), ([0.5, 0.5], 0), ([], 0), ([0.5, 0.5], 1)])
def test_there_is_none_for_too_few(values: list[float], clients: int) -> None:
    assert interval(values, clients) is None


@pytest.mark.slow
def test_it_covers_the_mean_of_all_clients() -> None:
    """Drawn 2,000 times, 20 and 150 of 200 clients with skewed accuracies: in 93 to 97 % of the draws."""
    rng = np.random.default_rng(0)
    everyone = rng.beta(6, 2, 200)
    for count in (20, 150):
        drawn = (interval(rng.choice(everyone, count, replace=False).tolist(), 200) or (0, 0) for _ in range(2000))
        assert 0.93 < np.mean([low <= everyone.mean() <= high for low, high in drawn]) < 0.97


def test_equal_draws_say_how_many_others_may_be_missed() -> None:
    """Of 8 clients, 4 draws miss 3 certain ones in 5 of 70 ways, and 4 in 1 of 70, which is below 5 %."""
    assert interval([0.5] * 4, 8) == [0.5 - 0.5 * 3 / 8, 0.5 + 0.5 * 3 / 8]
    assert interval([1.0] * 4, 8) == [1 - 3 / 8, 1.0]
    assert interval([0.25] * 39, 40) == [0.25, 0.25]  # one certain client of 40 is missed in 2.5 % of the draws


def test_it_covers_where_few_clients_are_unlike_all_others() -> None:
    """Of 200 clients 10 have 0 and the others 1: all draws are often equal."""
    rng, everyone = np.random.default_rng(0), np.repeat([0.0, 1.0], [10, 190])
    for count in (2, 5, 20):
        drawn = (interval(rng.choice(everyone, count, replace=False).tolist(), 200) or (0, 0) for _ in range(500))
        assert np.mean([low <= everyone.mean() <= high for low, high in drawn]) > 0.95


def test_numbers_with_noise_have_none() -> None:
    rows = [{"client": k, "acc_global": k / 4, "acc_local": 0.5} for k in range(4)]
    assert final_accuracies(rows, [], None)["acc_global_interval"] is None
    with_interval = final_accuracies(rows, [], None, 8)
    low, high = with_interval["acc_global_interval"]
    assert low < with_interval["acc_global"] < high
    assert with_interval["acc_local_interval"] == interval([0.5] * 4, 8)


# --- in a run ---


@pytest.fixture
def given(small: Experiment) -> Experiment:
    return dataclasses.replace(small, net="linear", clients=4, rounds=1)


def results(experiment: Experiment, folder: Path) -> dict[str, Any]:
    return json.loads((run.run(dataclasses.replace(experiment, out=folder)) / "result.json").read_text())


@pytest.mark.slow
def test_some_clients_give_the_numbers_that_they_give_among_all(given: Experiment, tmp_path: Path) -> None:
    # A deadline for a round's clients and a least number of them are no reason against fewer in the end.
    requested = dataclasses.replace(given, final_eval_clients="2", on_client_failure="fail:3")
    some, every = results(requested, tmp_path / "some"), results(given, tmp_path / "all")
    assert [row["loss"] for row in some["rounds"]] == [row["loss"] for row in every["rounds"]]
    rows = {row["client"]: row for row in every["final"]["per_client"]}
    drawn = some["final"]["per_client"]
    assert [row["client"] for row in drawn] == drawn_last(range(4), 2, 0)
    for row in drawn:
        assert {**row, "seconds": 0} == {**rows[row["client"]], "seconds": 0}
    mean = sum(row["acc_global"] for row in drawn) / 2
    low, high = some["final"]["acc_global_interval"]
    assert some["final"]["acc_global"] == pytest.approx(mean) and low <= mean <= high
    assert every["final"]["acc_global_interval"] == [every["final"]["acc_global"]] * 2
    note = "The final accuracies are those of 2 of 4 clients; 2 were drawn by the seed (final=2)."
    assert note in some["notes"] and not any("final=" in line for line in every["notes"])
    assert note in (tmp_path / "some" / "report.html").read_text()


def test_nobody_is_asked_on_request(given: Experiment, tmp_path: Path) -> None:
    nobody = results(dataclasses.replace(given, final_eval_clients="none"), tmp_path / "none")
    final = nobody["final"]
    assert final["per_client"] == [] and final["acc_global"] is None and final["acc_global_interval"] is None
    assert "No client was asked for a final evaluation (final=none)." in nobody["notes"]
    assert "final=none" in (tmp_path / "none" / "report.html").read_text()


@pytest.mark.slow
def test_a_resumed_run_asks_the_same_clients(
    given: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requested = dataclasses.replace(given, final_eval_clients="2", rounds=2)
    whole = results(requested, tmp_path / "whole")
    folder = cut_short(dataclasses.replace(requested, out=tmp_path / "cut"), 1)
    assert sim.main(["--resume", str(folder), "--expert", "final_eval_clients=3"]) == 2
    assert "Expected final-eval-clients=2 as in" in capsys.readouterr().err
    assert sim.main(["--resume", str(folder)]) == 0
    resumed = json.loads((folder / "result.json").read_text())
    for name in ("acc_global", "acc_local", "acc_global_interval"):
        assert resumed["final"][name] == whole["final"][name]
