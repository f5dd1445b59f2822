"""Arguments of the calls: what is taken, and what is refused in one line instead of a traceback or a guess."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfw import (
    Experiment,
    InputError,
    MatrixResult,
    RehearsalResult,
    Result,
    audit,
    reproduce_table,
    resume,
    run,
    run_matrix,
    run_rehearsal,
)
from flfw.command.api.arguments import numbers_of, words_of
from tests.support.small_runs import tiny

SMALL = tiny(attack=("none",))


@pytest.mark.parametrize("given", [2, [2], (2,), range(2, 3), np.int64(2), np.array([2]), iter([2])])
def test_seeds_are_one_or_several_whole_numbers_of_python_or_of_numpy(given: Any) -> None:
    seeds = numbers_of(given, "seeds")
    assert seeds == (2,) and type(seeds[0]) is int


def test_words_are_one_or_several() -> None:
    assert words_of("ig", "attacks") == words_of(["ig"], "attacks") == ("ig",)
    assert words_of((), "attacks") == ()


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"seeds": [0, 0.5]}, "Expected seeds[1] as a whole number, got 0.5."),
        ({"seeds": "01"}, "Expected seeds as whole numbers, got '01'."),
        ({"seeds": None}, "Expected seeds as whole numbers, got None."),
        ({"seeds": True}, "Expected seeds as a whole number, got True."),
        ({"methods": 3}, "Expected methods as words, got 3."),
        ({"defences": ["none", 3]}, "Expected defences[1] as text, got 3."),
    ],
)
def test_axes_of_another_type_are_refused_and_not_rounded(tmp_path: Path, axes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_matrix(SMALL, out=tmp_path / "matrix", **axes)
    assert str(caught.value) == message and not (tmp_path / "matrix").exists()


@pytest.mark.parametrize("load", [Result.load, MatrixResult.load, RehearsalResult.load, audit, resume])
@pytest.mark.parametrize("given", [None, 3, b"runs", SMALL])
def test_what_is_no_path_is_refused(load: Any, given: Any) -> None:
    with pytest.raises(InputError, match=r"^Expected (path|run|folder) as a path or a result, got "):
        load(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_steps": "3"}, "Expected max-steps as a whole number, got '3'."),
        ({"max_steps": 2.5}, "Expected max-steps as a whole number, got 2.5."),
        ({"policy": 3}, "Expected policy as a path or a result, got 3."),
        ({"write_policy": 3}, "Expected write-policy as a path or a result, got 3."),
    ],
)
def test_a_rehearsal_refuses_other_types(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        run_rehearsal(method="fedavg", out=tmp_path / "r", **given)
    assert str(caught.value) == message and not (tmp_path / "r").exists()


@pytest.mark.parametrize(("given", "name"), [({"table": 3}, "table"), ({"cell": 3}, "cell")])
def test_a_table_is_named_by_a_word(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InputError, match=f"^Expected {name} as text, got 3.$"):
        reproduce_table(**given)


def test_the_first_argument_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected a method among"):
        run(experiment=SMALL, method="nobody", out=tmp_path / "run")
    with pytest.raises(InputError, match="does not exist"):
        audit(run=tmp_path / "nowhere", attack="ig")
    with pytest.raises(InputError, match="does not exist"):
        resume(folder=tmp_path / "nowhere")
    with pytest.raises(InputError, match="Expected a table among"):
        reproduce_table(table="nobody.1")


@pytest.mark.parametrize("truth", [True, False])
def test_truths_of_numpy_are_taken_as_python_s(truth: bool) -> None:
    record = Experiment(record=np.bool_(truth)).record  # type: ignore[arg-type]
    assert record is truth


@pytest.mark.slow
def test_two_runs_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flfw.runs.run.time.strftime", lambda _form: "20260101-000000")
    folders = [run(SMALL, seed=seed).path for seed in range(3)]
    name = tmp_path / "runs" / "fedavg-digits-20260101-000000"
    assert [str(folder) for folder in folders] == [str(name), f"{name}-2", f"{name}-3"]


@pytest.mark.slow
def test_two_matrices_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flfw.comparisons.matrices.time.strftime", lambda _form: "20260101-000000")
    folders = [run_matrix(SMALL, seeds=seed).path.name for seed in range(2)]
    assert folders == ["matrix-digits-20260101-000000", "matrix-digits-20260101-000000-2"]
