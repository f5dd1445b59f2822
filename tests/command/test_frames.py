"""Tables of results: columns and types are the same for every run, and values are those of the files."""

import math
from pathlib import Path

import pandas as pd
import pytest

from flfw import InputError
from flfw.command.api.frames import CLIENTS, IMAGES, columns, frame, read_table, typed
from flfw.files.result_entries import EntryFields, MembershipFields
from flfw.files.result_file import ClaimFields, RoundFigures

ROUND = {"round": 1, "loss": 0.5, "acc_global": None, "clients": 2, "extra": {"proxy": 0.25}, "failed": []}
ENTRY = {
    "attack": "ig", "round": 0, "failures": 1, "adaptive": True, "psnr": {"mean": 20.5, "max": "inf"}, "ssim": None,
    "granted": ["model"], "ladder": [{"rung": "easy", "passed": True}], "client": None, "floors": {"noise": 5.0},
}  # fmt: skip


def test_a_field_within_a_field_is_a_column() -> None:
    table = frame([ENTRY], EntryFields)
    row = table.iloc[0]
    assert (row["attack"], row["round"], row["psnr.mean"], row["psnr.max"]) == ("ig", 0, 20.5, math.inf)
    assert row["adaptive"] is True or bool(row["adaptive"])
    assert math.isnan(row["ssim.mean"]) and row["client"] is pd.NA and math.isnan(row["psnr.low"])
    assert row["granted"] == ["model"] and row["ladder"][0]["rung"] == "easy" and row["floors.noise"] == 5.0
    assert "psnr" not in table and "ssim" not in table


@pytest.mark.parametrize("form", [EntryFields, MembershipFields, ClaimFields, RoundFigures])
def test_an_empty_table_has_the_columns_and_types_of_a_full_one(form: type) -> None:
    empty, none = frame([], form), frame(None, form)
    assert list(empty.columns) == list(columns(form)) == list(none.columns)
    assert {name: str(kind) for name, kind in empty.dtypes.items()} == columns(form)


def test_types_do_not_depend_on_the_rows() -> None:
    full, empty = frame([ENTRY, {**ENTRY, "client": 2**64 - 1}], EntryFields), frame([], EntryFields)
    assert full.dtypes[: len(empty.columns)].equals(empty.dtypes)
    assert full["client"].tolist() == [pd.NA, 2**64 - 1]


def test_figures_that_only_some_methods_have_come_behind() -> None:
    table = frame([ROUND, {**ROUND, "round": 2, "extra": None}], RoundFigures, ("failed",))
    assert list(table.columns)[-1] == "extra.proxy" and table["extra.proxy"].dtype == "float64"
    assert table["extra.proxy"].tolist()[0] == 0.25 and math.isnan(table["extra.proxy"].tolist()[1])
    assert "failed" not in table and "extra" not in table
    assert table["acc_global"].isna().all() and table["acc_global"].dtype == "float64"
    assert table["round"].tolist() == [1, 2]


def test_a_figure_that_is_missing_in_all_rows_is_a_number_all_the_same() -> None:
    table = frame([{**ENTRY, "native_resolution": {"psnr": None}}], EntryFields)
    assert table["native_resolution.psnr"].dtype == "float64" and table["native_resolution.psnr"].isna().all()


def test_columns_of_a_file_stay_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("name,size,unit\na,1.5,m\n")
    table = read_table(tmp_path / "t.csv", {})
    assert list(table.columns) == ["name", "size", "unit"] and table["size"].tolist() == [1.5]


def test_infinite_epsilons_are_numbers() -> None:
    table = frame([{"unit": "example", "adversary": "server", "epsilon": "inf", "accounting": "exact"}], ClaimFields)
    assert table["epsilon"].tolist() == [math.inf]


def test_a_table_of_a_file_has_numbers_truths_and_gaps(tmp_path: Path) -> None:
    path = tmp_path / "audit.csv"
    path.write_text(
        "attack,round,adaptive,client,psnr,floor_noise,label,chance_match\nig,0,True,3,inf,5.5,1,\n007,1,,,,,2,\n"
    )
    table = read_table(path, IMAGES)
    assert list(table.columns)[: len(IMAGES)] == list(IMAGES)
    assert table["attack"].tolist() == ["ig", "007"] and table["floor_noise"].tolist()[0] == 5.5
    assert table["adaptive"].tolist() == [True, pd.NA] and table["client"].tolist() == [3, pd.NA]
    assert table["psnr"].tolist()[0] == math.inf and math.isnan(table["psnr"].tolist()[1])
    assert table["label"].dtype == "Int64" and table["chance_match"].isna().all()


def test_labels_that_are_no_whole_numbers_stay_what_they_are() -> None:
    assert typed([{"label": "1.5"}, {"label": "2"}], {"label": "Int64"})["label"].tolist() == [1.5, 2.0]


def test_a_table_without_a_row_has_its_columns(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("\n")
    assert list(read_table(tmp_path / "clients.csv", CLIENTS).columns) == list(CLIENTS)


def test_words_where_numbers_belong_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("round,client\n1,many\n")
    with pytest.raises(InputError, match="got could not convert string to float: 'many'; restore"):
        read_table(path, CLIENTS)
