"""A paper's table from Python: the command's numbers, and its refusals."""

from pathlib import Path

import pandas as pd
import pytest

from flfw import Experiment, InputError, TableResult, reproduce_table
from flfw.command.api import tables
from tests.support.outside_parts import TABLE_NAME


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> TableResult:
    """A table of two runs of a second."""
    return reproduce_table(TABLE_NAME, engine="inproc", out=tmp_path_factory.mktemp("table"))


@pytest.mark.slow
def test_a_table_has_its_cells_and_the_text_of_the_command(measured: TableResult) -> None:
    assert [file.suffix for file in measured.files] == [".csv", ".md", ".tex"] and str(measured) == measured.text
    written = pd.read_csv(measured.files[0])
    assert measured.cells["measured"].tolist() == written["measured"].tolist() and len(written) == 2
    assert set(measured.cells["status"]) == {"measured"}
    assert "Accuracy on stripes" in measured.text and "ours" in measured.text


def test_measured_cells_are_kept(measured: TableResult) -> None:
    times = {path: path.stat().st_mtime_ns for path in measured.files[0].parent.glob("cells/*/result.json")}
    again = reproduce_table(TABLE_NAME, engine="inproc", out=measured.files[0].parent)
    assert again.text == measured.text and len(times) == 2
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        ("nobody.1", {}, "Expected a table among .*; got --table nobody.1."),
        ("hyperfl.1", {"scale": "fast"}, "Expected scale=quick or full, got scale=fast."),
        ("hyperfl.1", {"rounds": 3}, "Expected only flags that decide no numbers beside --table, got rounds=3"),
        ("hyperfl.1", {"cell": "hyperfl.1/nobody"}, "Expected "),
    ],
)
def test_what_a_table_decides_and_what_there_is_not_is_refused(
    tmp_path: Path, table: str, given: dict, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        reproduce_table(table, out=tmp_path / "out", engine="inproc", **given)
    assert not (tmp_path / "out").exists()


def test_the_names_are_those_of_the_list() -> None:
    assert {"hyperfl.1", "dp.frontier"} <= {*tables.names()} and Experiment().out is None
