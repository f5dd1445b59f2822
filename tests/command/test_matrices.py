"""Matrices and rehearsals from Python: their tables, their runs, and their refusals."""

import json
from pathlib import Path

import pytest

from flfw import InputError, MatrixResult, RehearsalResult, run_matrix, run_rehearsal
from flfw.command.api.frames import CELLS, MATRIX
from tests.support.small_runs import tiny

SMALL = tiny()

ATTEMPT_TYPES = ("Int64", "float64", "boolean", "object")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> MatrixResult:
    """A matrix of two data sets, with a run each."""
    out = tmp_path_factory.mktemp("matrix") / "both"
    return run_matrix(SMALL, datasets=["digits", "cancer"], net="mlp", out=out)


@pytest.mark.slow
def test_a_matrix_has_tables_and_a_result_for_each_run(matrix: MatrixResult) -> None:
    assert set(matrix.matrices) == {"digits", "cancer"} and len(matrix.reports) == 2
    assert all(page.is_file() for page in matrix.reports)
    assert matrix.table["matrix"].unique().tolist() == ["cancer", "digits"]
    assert matrix.table["matrix"].dtype == object
    assert matrix.cells["state"].tolist() == ["complete"] * 2
    assert set(matrix.runs) == {"cancer/fedavg-none-s0", "digits/fedavg-none-s0"}
    plain = matrix.runs["digits/fedavg-none-s0"]
    assert plain.config["dataset"] == "digits" and plain.final["acc_local"] > 0
    assert str(matrix.path / "matrix.md") in str(matrix)


@pytest.mark.slow
def test_the_table_has_the_columns_of_the_file_with_their_types(matrix: MatrixResult) -> None:
    one = MatrixResult.load(matrix.path / "digits").table
    assert list(one.columns) == list(MATRIX)
    assert (matrix.path / "digits" / "matrix.csv").read_text().startswith(",".join(MATRIX) + "\n")
    assert {name: str(kind) for name, kind in one.dtypes.items()} == MATRIX
    assert one["informed"].tolist() == [False, False] and one["seed"].tolist() == [0, 0]


def test_a_matrix_without_attacks_has_cells_with_accuracies_and_a_table_without_rows(tmp_path: Path) -> None:
    alone = run_matrix(SMALL, attack="none", out=tmp_path / "matrix")
    assert alone.table.empty and {name: str(kind) for name, kind in alone.table.dtypes.items()} == MATRIX
    assert {name: str(kind) for name, kind in alone.cells.dtypes.items()} == CELLS
    assert alone.cells["seed"].tolist() == [0] and alone.cells["acc_local"].tolist()[0] > 0
    assert MatrixResult.load(alone.path) == alone


@pytest.mark.slow
def test_a_matrix_is_loaded_and_one_of_its_folders_too(matrix: MatrixResult) -> None:
    assert MatrixResult.load(matrix.path) == matrix
    alone = MatrixResult.load(matrix.path / "cancer")
    assert "matrix" not in alone.table and set(alone.runs) == {"fedavg-none-s0"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"defences": ("none", "none")}, "Expected each of the defences once, got twice=none."),
        ({"defences": "nobody"}, "nobody"),
        ({"seeds": -1}, "Expected seeds >= 0"),
        ({"method": 3}, "Expected method as text, got 3."),
    ],
)
def test_a_bad_axis_is_refused_and_nothing_written(tmp_path: Path, given: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_matrix(SMALL, out=tmp_path / "matrix", **given)
    assert not (tmp_path / "matrix").exists()


@pytest.mark.slow
def test_a_rehearsal_answers_for_each_attack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"images": 2, "rounds": 1, "batch_size": 4, "max_steps": 1}
    rehearsal = run_rehearsal(method="fedavg", net="linear", attack="analytic", **small, out=tmp_path / "r")
    assert "nothing leaves this machine" in capsys.readouterr().out
    assert len(rehearsal.answers) == 1 and all("analytic" in name for name in rehearsal.answers)
    assert len(rehearsal.attempts) >= 2 and rehearsal.warnings == () and len(rehearsal.limits) == 3
    types = {name: str(kind) for name, kind in rehearsal.attempts.dtypes.items()}
    assert (types["batch"], types["best_psnr"], types["control"], types["because"]) == ATTEMPT_TYPES
    assert rehearsal.attempts["control"].all() and rehearsal.attempts["batch"].tolist()[0] == 1
    assert rehearsal.result.audit["attack"].unique().tolist() == ["analytic"]
    assert RehearsalResult.load(tmp_path / "r") == rehearsal
    (tmp_path / "r" / "rehearsal.json").write_text(json.dumps({"answers": {}}))
    with pytest.raises(InputError, match="that can be read"):
        RehearsalResult.load(tmp_path / "r")
