"""Tables of a user: kinds of columns, scales from training rows, plans, patients, and damaged files."""

from datetime import time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from flfw import data
from flfw.command.program import main as flfw_main
from flfw.data.files.columns import Column, TableSchema
from flfw.data.readers import table as reader
from flfw.data.tables import column_types, listing, plan_file, reading
from flfw.data.tables.names import TableName, TableSettings
from flfw.errors import InputError

ROWS = """\
name,age,ward,smoker,seen,died
ann,20,A,yes,2024-01-01,no
bob,90,B,no,2024-01-03,no
cid,40,A,no,2024-01-11,yes
dan,,C,yes,,yes
eve,60,B,yes,2024-01-06,no
"""


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def load(file: Path, target: str, *assignments: str, prefix: str = "csv") -> data.Dataset:
    return data.load(data.configured(f"{prefix}:{file}@{target}", assignments))


def schema(held: data.Dataset) -> TableSchema:
    assert held.columns is not None
    return held.columns


def refusal(file: Path, target: str, *assignments: str) -> str:
    with pytest.raises(InputError) as caught:
        load(file, target, *assignments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_row_becomes_numbers_by_hand_with_scales_of_the_training_rows(tmp_path: Path) -> None:
    """Rows 2 (bob) and 4 (dan) are for testing: ages 20 to 60 train, and nothing is missing there."""
    held = load(write(tmp_path, ROWS), "died", "csv.drop=name")
    assert schema(held).classes == ("no", "yes")
    assert [(c.name, c.kind, c.width) for c in schema(held).columns] == [
        ("name", "dropped", 0),
        ("age", "numeric", 1),
        ("ward", "categorical", 2),
        ("smoker", "boolean", 1),
        ("seen", "date", 1),
    ]
    assert held.train_x.tolist() == [[0, 1, 0, 1, 0], [0.5, 1, 0, 0, 1], [1, 0, 1, 1, 0.5]]
    assert held.train_y.tolist() == [0, 1, 0] and held.test_y.tolist() == [0, 1]
    bob, dan = held.test_x.tolist()
    assert bob == pytest.approx([1, 0, 1, 0, 0.2])  # 90 is cut to the training rows' greatest age
    assert dan == [0.5, 0, 0, 1, 0.5]  # the middle age and day; ward C is in no training row
    assert schema(held).row(held.test_x[1]) == ["40", "(none of these)", "yes", "2024-01-06"]
    assert (held.mean, held.std) == ((0.0,) * 5, (1.0,) * 5)


def test_a_missing_value_has_a_feature_and_rare_categories_share_one(tmp_path: Path) -> None:
    """Categories a (4 rows), b (3), c and d (1 each) with csv.most=2; a number is missing in one of 7 training rows."""
    words = ["a", "a", "a", "a", "b", "b", "b", "c", "d"]
    lines = [f"{word},{'' if index == 4 else index},{index % 2}" for index, word in enumerate(words)]
    held = load(write(tmp_path, "\n".join(["kind,size,y", *lines])), "y", "csv.most=2", "csv.task=classification")
    kind, size = schema(held).columns
    assert (kind.categories, kind.other, kind.width) == (("a", "b"), True, 3)
    assert "2 rarer values are (other)" in kind.encoding
    assert size.missing and size.width == 2 and size.absent == pytest.approx(1 / 7)
    together = np.concatenate([held.train_x, held.test_x])
    assert sorted(together[:, :3].sum(1).tolist()) == [1.0] * 9
    assert together[:, 2].sum() == 2 and together[:, 4].sum() == 1


def test_one_rare_category_has_a_feature_too(tmp_path: Path) -> None:
    lines = [f"{word},{index % 2}" for index, word in enumerate("daaaabbbbcccc")]
    held = load(write(tmp_path, "\n".join(["kind,y", *lines])), "y", "csv.most=3", "csv.task=classification")
    (kind,) = schema(held).columns
    assert kind.other and kind.encoding.endswith("; 1 rarer value is (other)")
    held = load(write(tmp_path, "\n".join(["kind,y", "e,1", *20 * lines])), "y", "csv.task=classification")
    assert schema(held).columns[0].encoding.endswith("; few rows have e, which tells them apart")


@pytest.mark.parametrize(("values", "fits"), [("a b a b", True), ("a b c b", False), ("a a a a", False)])
def test_a_boolean_that_is_asked_for_has_two_values(tmp_path: Path, values: str, fits: bool) -> None:
    lines = [f"{word},{index},{index % 2}" for index, word in enumerate(values.split() * 2)]
    file = write(tmp_path, "\n".join(["flag,size,y", *lines]))
    if fits:
        assert schema(load(file, "y", "csv.boolean=flag")).columns[0].categories == ("a", "b")
    else:
        refused = refusal(file, "y", "csv.boolean=flag")
        assert refused == f"Expected two values in column flag for csv.boolean, got {len(set(values.split()))}."


def test_the_first_five_columns_with_words_among_numbers_are_named(tmp_path: Path) -> None:
    cases = [(1, ""), (5, ""), (7, " and 2 more columns")]
    for columns, more in cases:
        rows = [",".join([*["ward" if index == 3 else str(index)] * columns, str(index % 2)]) for index in range(20)]
        file = write(tmp_path, "\n".join([",".join([*(f"c{n}" for n in range(columns)), "y"]), *rows]))
        refused = refusal(file, "y", "csv.task=classification")
        assert refused.count("(") == min(columns, 5) and f"){more}; if they mean" in refused


def test_kinds_are_told_by_the_values(tmp_path: Path) -> None:
    cases = [
        ("1 2 3 4 5 6 7", "numeric"),
        ("1.5 2 3 4 5 6 7", "numeric"),
        ("yes no yes no yes yes no", "boolean"),
        ("0 1 1 0 1 0 1", "boolean"),
        ("red blue red red blue blue red", "categorical"),
        ("2024-01-01 2024-02-01 2023-01-01 2024-01-01 2022-01-01 2024-01-01 2024-03-01", "date"),
        ("2024-01-01 2024-02-01 2023-01-01 9999-12-31 2022-01-01 9999-12-31 2024-03-01", "date"),
        ("x x x x x x x", "dropped"),
        (". NA nan null ? - N/A", "dropped"),
        ("1e400 2 3 4 5 6 7", "refused"),
        ("1 2 3 4 5 6 seven", "refused"),
        ("1 2 3 4 5 n.v. n.v. n.v.", "refused"),  # a word is a slip, however often it occurs
        ("20230101 20230102 20230103 20230104 20231131 20230106", "refused"),  # no day, and no number either
    ]
    for values, kind in cases:
        lines = [f"{value},{index % 2},{index}" for index, value in enumerate(values.split())]
        file = write(tmp_path, "\n".join(["column,y,beside", *lines]))
        if kind == "refused":
            assert "column" in refusal(file, "y")
            continue
        assert schema(load(file, "y")).columns[0].kind == kind, values


def test_identifiers_and_free_text_are_left_out_and_said(tmp_path: Path) -> None:
    lines = [f"{1000 + 7 * n},word{n},{n % 3},{n % 2},{n},{10115 + n % 2 * n},{7 * n}" for n in range(30)]
    table = schema(load(write(tmp_path, "\n".join(["patient_id,note,size,y,line,zip,amount_paid", *lines])), "y"))
    noted = {c.name: c.note[:23] for c in table.kept}
    assert noted == {"size": "", "zip": "an identifier or a code", "amount_paid": ""}
    shown = listing.listing(table)
    assert "30 values in 30 rows" in shown and shown.count("an identifier, another whole number in each row") == 2
    assert "and 5 more: 2 numeric, 3 left out" in listing.listing(table, maximum=1)


def test_an_index_without_a_name_is_left_out_of_short_tables_and_left_out_columns_say_gaps(tmp_path: Path) -> None:
    lines = [f"{n},{2.5 * n},{'' if n % 2 else f'note {n}'},{'ab'[n // 2 % 2]}" for n in range(10)]
    table = schema(load(write(tmp_path, "\n".join([",a,note,y", *lines])), "y", "csv.drop=note"))
    assert [c.name for c in table.kept] == ["a"]
    assert [c.absent for c in table.columns] == [0, 0, pytest.approx(0.5, abs=0.2)]


def test_two_numbers_are_a_boolean_in_all_but_the_shortest_tables(tmp_path: Path) -> None:
    lines = [f"{1 + n % 2},{n % 7},{'ab'[n % 2]}" for n in range(30)]
    sex, _ = schema(load(write(tmp_path, "\n".join(["sex,size,y", *lines])), "y")).columns
    assert (sex.kind, sex.categories) == ("boolean", ("1", "2"))
    for rows, kind in ((20, "numeric"), (21, "boolean")):
        shorter = write(tmp_path, "\n".join(["sex,size,y", *lines[:rows]]))
        assert schema(load(shorter, "y")).columns[0].kind == kind


def test_settings_overrule_what_values_tell_and_patterns_name_columns(tmp_path: Path) -> None:
    lines = [f"{n % 3},{n},{n % 5},{n % 2},{n % 4}" for n in range(20)]
    file = write(tmp_path, "\n".join(["zip,g_1,g_2,y,seven", *lines]))
    table = schema(load(file, "y", "csv.categorical=zip,seven", "csv.drop=g_*"))
    assert [(c.name, c.kind) for c in table.kept] == [("zip", "categorical"), ("seven", "categorical")]
    write(tmp_path, 'categorical = ["zip"]\ndrop = ["g_*", "seven"]\n', "t.csv.toml")
    assert [c.name for c in schema(load(file, "y")).kept] == ["zip"]
    assert "nobody" in refusal(file, "y", "csv.drop=nobody")
    assert "csv.numeric and csv.categorical" in refusal(file, "y", "csv.categorical=zip", "csv.numeric=zip")


def test_a_plan_that_was_written_encodes_the_same_rows_alike_and_other_columns_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, ROWS)
    first = load(file, "died", "csv.drop=name")
    plan = write(tmp_path, plan_file.text(schema(first)), "plan.toml")
    again = load(file, "died", f"csv.columns={plan}")
    assert again.columns == first.columns and np.array_equal(again.train_x, first.train_x)
    assert not data.has_public_constants(again.name)
    write(tmp_path, plan.read_text().replace("public = false", "public = true"), "plan.toml")
    assert data.has_public_constants(again.name)
    other = write(tmp_path, ROWS.replace("ward", "room"), "other.csv")
    assert "without ward and with room" in refusal(other, "died", f"csv.columns={plan}")


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    file = write(tmp_path, ROWS)
    pd.read_csv(file, dtype={"age": "Int64"}).to_parquet(tmp_path / "t.parquet")
    one = load(file, "died", "csv.drop=name")
    other = load(tmp_path / "t.parquet", "died", "parquet.drop=name", prefix="parquet")
    assert one.columns == other.columns and one.digest == other.digest


def test_patients_are_in_one_part_and_not_among_the_features(tmp_path: Path) -> None:
    """p0 to p4 of class a, p5 to p9 of b, two rows each: every fifth patient of a class, from the second on, tests."""
    lines = [f"p{n // 2},{n},{'ab'[n // 10]}" for n in range(20)]
    held = load(write(tmp_path, "\n".join(["who,size,y", *lines])), "y", "csv.patient=who")
    assert held.train_group is not None and held.test_group is not None
    assert sorted(set(held.test_group.tolist())) == [1, 6] and len(held.test_y) == 4
    assert [c.name for c in schema(held).columns] == ["size"]
    assert "no_one" in refusal(tmp_path / "t.csv", "y", "csv.patient=no_one")


def test_damaged_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    cases = [
        ("", "an empty line or file"),
        ("a,y\n", "got none"),
        ("a,b\n1,2\n3,4\n", "target y"),
        ("a,a,y\n1,2,0\n", "a twice"),
        ("a,,y\n1,2,0\n", "none for column 2"),
        ("a,y\n1,0\n2,0\n3,0\n", "only 0"),
        ("a,y\n1,\n2,\n", "none"),
        ("a,y\n1,0\n2,1,5\n", "3 in line 3"),
        ("a,y\n1,0\n2\n3,1\n", "1 in line 3"),
        ("a,y\n1,0,9\n2,1,9\n", "3 in line 2"),
        ("14.23,1.71\n13.2,1.78\n", "got numbers; add names"),
        ("a,y\nx,0\nx,1\nx,0\n", "tells rows apart"),
        ('a,y\n"1,0\n2,1\n', "in line"),
    ]
    for text, phrase in cases:
        assert phrase in refusal(write(tmp_path, text), "y")


def test_another_encoding_is_named_and_can_be_read(tmp_path: Path) -> None:
    lines = "".join(f"Köln,{n},{n % 2}\nBonn,{n},1\n" for n in range(6))
    (tmp_path / "t.csv").write_bytes(f"town,a,y\n{lines}".encode("latin-1"))
    assert "csv.encoding" in refusal(tmp_path / "t.csv", "y")
    held = load(tmp_path / "t.csv", "y", "csv.encoding=latin-1")
    assert schema(held).columns[0].categories == ("Bonn", "Köln")
    (tmp_path / "p.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(InputError, match="readable Parquet file"):
        load(tmp_path / "p.parquet", "y", prefix="parquet")
    keys = pd.array([b"xx"] * 9, dtype=pd.ArrowDtype(pa.binary(2)))
    pd.DataFrame({"key": keys, "y": range(9)}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"fixed_size_binary\[2\] in column key; parquet.drop=key leaves it out"):
        load(tmp_path / "p.parquet", "y", prefix="parquet")


@pytest.mark.slow
def test_semicolons_decimal_commas_and_a_thousand_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"g{n}" for n in range(1000)]
    lines = [";".join([*(f"{v:.2f}".replace(".", ",") for v in rng.random(1000)), str(n % 2)]) for n in range(20)]
    held = load(write(tmp_path, "\n".join([";".join([*names, "y"]), *lines])), "y")
    assert held.train_x.shape == (16, 1000)
    assert "and 960 more: 960 numeric" in listing.listing(schema(held))


FORMS = [  # a column's words, its numbers, and what stands beside them
    ("16,3%|33,7%|6%", [16.3, 33.7, 6], "%"),
    ("€ 23.43|€ 18|€ -1.5", [23.43, 18, -1.5], "€"),
    ("1.234,50 €|951,20 €", [1234.5, 951.2], "€"),
    ("CHF 1'234.50|CHF 2'000'000", [1234.5, 2000000], "CHF"),
    ("81.9 kg|78 kg", [81.9, 78], "kg"),
    ("5 mg/dL|7.5 mg/dL", [5, 7.5], "mg/dL"),
    ("20 kg/m2|31.5 kg/m2", [20, 31.5], "kg/m2"),
    ("3\u00b5g|4\u03bcg", [3, 4], "\u00b5g"),  # two signs of micro
    ("6 254,6|1 188|70", [6254.6, 1188, 70], ""),
    ("6\u00a0254,6|1\u202f188", [6254.6, 1188], ""),
    ("6\u2009254|2\u2009940|70", [6254, 2940, 70], ""),
    ("6,29,504|9,22,474|951", [629504, 922474, 951], ""),
    ("1,234|1,234,567|951|7.5", [1234, 1234567, 951, 7.5], ""),
    ("1,234.50|951|7.5", [1234.5, 951, 7.5], ""),
    ("1.234.567|2,5", [1234567, 2.5], ""),
    ("1,234|2,5|3,25", [1.234, 2.5, 3.25], ""),
    ("0,123|1,250|2,125", [0.123, 1.25, 2.125], ""),
    ("1.234|2.345|0.5", [1.234, 2.345, 0.5], ""),
    ("5 days|1 day|0", [5, 1, 0], "day"),
    ("12.-|5.50", [12, 5.5], ""),
    ("$ (4,434.49)|$ 5", [-4434.49, 5], "$"),
    ("\u22125|\u20133|+4|-1", [-5, -3, 4, -1], ""),
    ("(5.00)|3.1|5-", [-5, 3.1, -5], ""),
    ("<0.5|8.3|≥ 90|7", [0.5, 8.3, 90, 7], ""),
    ("1e-05|2.5E3|1E+2", [1e-05, 2500, 100], ""),
    ("20:44|0:15:36", [20 + 44 / 60, 0.26], "h"),
    ("5 days 21:47:00|-1 days +23:00:00|1 day, 0:30:00", [141 + 47 / 60, -1, 24.5], "h"),
    ("9:05 pm|12:30 AM", [21 + 5 / 60, 0.5], "h"),
]
DATES = [  # words, days since 1970
    ("03.01.1970|11.01.1970", [2, 10]),
    ("13/01/1970|03/01/1970", [12, 2]),
    ("01/13/1970|01/03/1970", [12, 2]),
    ("1970/1/3|1970-01-13", [2, 12]),
    ("19700103|19700113", [2, 12]),
    ("3 Jan 1970|13-January-1970|Jan. 4, 1970", [2, 12, 3]),
    ("1970-01-03T12:00:00Z|1970-01-03 13:00:00,0+01:00|1970-01-03 13:00+01|03JAN1970:12:00:00", [2.5] * 4),
    ("13/01/1970 6:00 PM|03/01/1970 12:00 am", [12.75, 2]),
    ("197001|197003|197102", [0, 59, 396]),
    ("1. Januar 1970|3. März 1970|2 Mai 1970|1 Dezember 1970", [0, 61, 121, 334]),
    ("1er août 1970|3 février 1970|14 juil. 1970|1 juin 1970", [212, 33, 194, 151]),
    ("3. Ma\u0308rz 1970|1 fevrier 1970|2 Sept 1970", [61, 31, 244]),  # two characters for one letter
    ("3-ene-1970|1 abr 1970|2 dic 1970|5 gennaio 1970|1 ottobre 1970", [2, 90, 335, 4, 273]),
]
TWOFOLD = [  # words of which nobody can say which numbers, days or classes they are
    ("1.500|2.500|800|12.000", "got 1.500, which is 1500 or 1.500; say the sign before decimals"),
    ("1,234|12,345|951", "got 1,234, which is 1.234 or 1234; say the sign before decimals (csv.decimal=. or"),
    ("2,5|2.5", "got 2.5 beside 2,5; write one sign before decimals"),
    ("03/04/2016|05/06/2016", "got 03/04/2016, of which two numbers may be the day; write the year first, or"),
    ("|".join(f"{n}{unit}" for n in range(30) for unit in ("kg", "lb")), "got numbers in several units, such as "),
]


def values_of(words: str, *assignments: str, times: int = 3) -> column_types.ColumnValues:
    """Read a column of words, each several times, so that they are no identifiers."""
    settings = TableName.parse(data.configured("csv:t.csv@y", assignments)).settings
    table = {"c": np.array(words.split("|") * times, dtype=object)}
    signs = column_types.decimal_signs(table, settings, "")
    return column_types.infer_columns(table, settings, signs, np.arange(len(table["c"])))["c"]


def test_numbers_are_read_in_the_forms_that_people_write() -> None:
    for words, numbers, unit in FORMS:
        read = values_of(words)
        assert (read.kind, read.unit) == ("numeric", unit), words
        assert read.values[: len(numbers)] == pytest.approx(numbers), words
        missing = values_of(f"{words}|None|NA|-")
        assert missing.kind == "numeric" and int(missing.absent.sum()) == 9


def test_days_are_read_in_the_forms_that_people_write() -> None:
    for words, days in DATES:
        read = values_of(words)
        assert read.kind == "date" and read.values[: len(days)] == pytest.approx(days), words


def test_words_of_several_readings_are_refused(tmp_path: Path) -> None:
    for words, phrase in TWOFOLD:
        with pytest.raises(InputError, match=r"^Expected one reading of column c") as caught:
            values_of(words)
        assert phrase in str(caught.value) and "csv.drop=c" in str(caught.value)
        lines = [f"{word};{index}" for index, word in enumerate(words.split("|") * 3)]
        assert phrase in refusal(write(tmp_path, "\n".join(["c;beside", *lines])), "c")


def test_the_user_says_what_words_leave_open() -> None:
    comma = "1,234|12,345|951"
    assert values_of(comma, "csv.decimal=,").values[:3].tolist() == [1.234, 12.345, 951]
    assert values_of(comma, "csv.decimal=.").values[:3].tolist() == [1234, 12345, 951]
    assert values_of("03/01/1970|02/01/1970", "csv.dayfirst=yes").values[:2].tolist() == [2, 1]
    assert values_of("03/01/1970|02/01/1970", "csv.dayfirst=no").values[:2].tolist() == [59, 31]
    assert values_of("007|12", "csv.numeric=c").values[:2].tolist() == [7, 12]
    assert values_of("5|-999.0|-999|6,5", "csv.missing=-999").absent[:4].tolist() == [False, True, True, False]
    assert values_of("5|None|6|5.0", "csv.categorical=c").values[:4].tolist() == ["5", "None", "6", "5"]


SIGNS = [  # words of two columns, the sign between cells, a number of the second column (None: it is refused)
    ("2,5|3", "1.234|5.678|7.001", ";", 7001),
    ("2.5|3", "1,234|5,678|9,999", ",", 9999),
    ("2.5|3", "1.234|5|7", ",", 1.234),
    ("x|y", "1.234|5.678|7.001", ",", 1.234),  # an English file
    ("x|y", "850|1.500|7", ",", None),  # thousands of a German table from the net
    ("2.5|3", "1,234|5,678|9,999", ";", None),  # a version 2.5 may stand in a German file
    ("14.30|9.15", "850|1.500|7", ";", None),
    ("2,5|1,3", "1.234|5.678|7.001", ",", None),  # 1,3 may be two answers
    ("x|y", "1.234|5.678|7.001", ";", None),
    ("2,5|3", "1.234|5.678|7.001", "|", 7001),
]


def test_a_file_has_one_sign_before_decimals(tmp_path: Path) -> None:
    """What one column leaves open, 1,234 or 1.234, another one tells, also the target, and a plan is read likewise."""
    for target in [False, True]:
        for known, twofold, separator, number in SIGNS:
            words = zip(f"{known}|{known}".split("|"), twofold.split("|"), strict=False)
            lines = [[f'"{one}"', f'"{two}"', str(n)] for n, (one, two) in enumerate(words)]
            text = [separator.join(["a", "b", "n"]), *(separator.join(line) for line in lines * 12)]
            file, settings = write(tmp_path, "\n".join(text)), ("csv.task=regression",) if target else ()
            name, drop = ("b", "csv.drop=a") if target else ("n", "csv.task=classification")
            if number is None:
                with pytest.raises(InputError, match=r"one reading of column|numbers in target"):
                    load(file, name, drop, *settings)
                continue
            held = load(file, name, drop, *settings)
            plan = write(tmp_path, plan_file.text(schema(held)), "plan.toml")
            again = load(file, name, f"csv.columns={plan}")
            assert np.array_equal(held.train_x, again.train_x) and np.array_equal(held.train_y, again.train_y)
            if target:
                scale = schema(held).number
                assert scale is not None
                got = np.concatenate([held.train_y, held.test_y]) * scale.std + scale.mean
                assert min(abs(got - number)) < 1e-3 * number
            else:
                assert number in (schema(held).kept[-1].low, schema(held).kept[-1].high)


def test_what_a_column_is_taken_for_is_said() -> None:
    cases = [
        ("06305|02186|01950", "categorical", "codes, as 0123 and 2E05 are; csv.numeric makes them numbers"),
        ("1E10|2E05|3E11", "categorical", "codes, as 0123"),
        ("None|Mild|Severe", "categorical", ""),  # a word among words
        ("None|yes|no", "categorical", ""),
        ("None|True|False", "boolean", "missing: 3 times None"),
        ("NA|FR|DE", "categorical", "missing: 3 times NA"),
        ("1 room|2 beds|3 rooms", "categorical", "numbers in several units, such as 3 rooms and 2 beds"),
        ("12A|12B|13A", "categorical", "numbers in several units"),
        ("5 mg|7 Mg|3 mg", "categorical", "numbers in several units, such as 3 mg and 7 Mg"),
        ("5 s|6|7 s", "categorical", "numbers in several units"),
        ("5 MPa|700 mPa|3 MPa", "categorical", "numbers in several units, such as 3 MPa and 700 mPa"),
        ("1 Marks 2001|2 Marks 2002|3 Sets 2003", "categorical", "1 Marks 2001 is in no known form of days"),
        ("201801|201912|202007", "date", "six digits are read as a month"),
        ("5|7|8|-999|6|9", "numeric", "3 times -999: a missing value? csv.missing=-999"),
        ("<1|<2|<3", "categorical", ""),  # all below what can be measured: no number is known
        ("9934567890123456|9934567890123457|1", "dropped", "an identifier, whole numbers of 16 digits or more"),
        ("27/09/45|28/09/45|29/10/45", "categorical", "27/09/45 is in no known form of days"),  # of which century?
        ("14:30 PM|1:30 AM|2:30 AM", "categorical", "numbers beside words, such as 1:30 AM and 14:30 PM"),
        ("A\u200b|male|A|Male", "categorical", "'A' and 'A\\u200b' differ in capitals, blanks or dots"),
        ("+|++|-", "categorical", ""),  # - is no gap
        ("1|2|77|-99.9|-3.4e38", "numeric", "3 times -3.4e+38: a missing value? csv.missing=-3.4e+38; 3 times -99.9"),
        ("18|25|47|80|-1", "numeric", "3 times -1: a missing value?"),
        ("31.12.9999|13.01.2020|14.02.2020", "date", "3 times 9999-12-31: a missing value? csv.missing names it"),
        ("250.00|401.9|038.9", "numeric", "038.9 is read as a number, no code"),
        ("201801|201913|202007", "numeric", ""),  # of which 13 is no month
    ]
    for words, kind, note in cases:
        read = values_of(words)
        assert (read.kind, read.note[: len(note)]) == (kind, note) and bool(read.note) == bool(note), words


def test_words_in_no_known_form_of_numbers_are_not_left_out_in_silence() -> None:
    with pytest.raises(InputError, match=r"got 0:0\.1, which is in no known form of days or times"):
        values_of("|".join(["0:0.1", *(f"{hour}:{minute}.1" for hour in range(9) for minute in range(9))]), times=1)


def test_what_is_missing_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{('NA', 'FR')[index % 2]},{index},{('None', 'null', 'mild')[index % 3]}" for index in range(30)]
    file = write(tmp_path, "\n".join(["country,size,y", *lines]))
    usual, kept = load(file, "y"), load(file, "y", "csv.keep_default_na=no")
    assert schema(usual).classes == ("None", "mild")
    assert data.describe(usual.name).source.endswith("; 10 rows without a target are left out")
    for name in (usual.name, f"{file}@y"):  # also without its prefix
        assert flfw_main(["data", "columns", name]) == 0
        said = capsys.readouterr().out
        assert "\ny: missing: 10 times null.\n" in said
        assert "\nExamples: 16 for training and 4 for tests; by class: None 10, mild 10.\n" in said
    assert schema(kept).classes == ("None", "mild", "null")
    assert schema(kept).columns[0].categories == ("FR", "NA") and schema(usual).columns[0].missing


def test_a_class_of_one_part_and_an_unused_word_for_missing_values_are_said(tmp_path: Path) -> None:
    lines = [f"{index % 13},{'c' if index == 7 else 'ab'[index % 2]}" for index in range(30)]
    file = write(tmp_path, "\n".join(["size,y", *lines]))
    tests = write(tmp_path, "size,y\n1,a\n2,d\n3,b\n4,d\n", "tests.csv")
    assert data.describe(load(file, "y").name).source.endswith("target y; training rows alone have class c (rows: 1)")
    said = data.describe(load(file, "y", f"csv.test={tests}").name).source
    assert "test rows alone have class d (rows: 2); training rows alone have class c (rows: 1)" in said
    said = data.describe(load(file, "y", "csv.missing=7.0,-9,C,none of these").name).source
    assert "csv.missing names -9, which no cell holds; csv.missing names none of these, which no cell holds" in said


def test_a_regression_becomes_no_classification_in_silence(tmp_path: Path) -> None:
    cases = [
        ("|".join([*(f"{n}.5" for n in range(30)), "unknown"]), "in target c, got 'unknown' in row 31; name"),
        ("|".join(["days", *(f"{n}.5" for n in range(30))]), "in target c, got 'days' in row 1;"),
        ("|".join(f"x{n}" for n in range(40)), "few classes in target c, got 40 different words such as 'x0' in 120"),
        ("|".join(f"1970-01-{n + 10}" for n in range(20)), "numbers or classes in target c, got days"),
    ]
    for words, phrase in cases:
        lines = [f"{word},{index % 7}" for index, word in enumerate(words.split("|") * 3)]
        file = write(tmp_path, "\n".join(["c,beside", *lines]))
        assert phrase in refusal(file, "c")
        assert data.describe(data.configured(f"csv:{file}@c", ["csv.task=classification"])).classes >= 20


TABLES = [  # text, columns, number of rows, what is said
    ("sep=;\na;b;y\n1;2,5;x\n3;4;z\n", "ab", 2, "line 1 stands before the names and is not read"),
    ("Export of ward 3, 2026\na;b;y\n1;2;x\n3;4;z\n", "ab", 2, "line 1 stands before the names"),
    ("# made by X;;\n# v2, beta\na;b;y\n1;2;x\n3;4;z\n", "ab", 2, "line 2 stands before the names"),
    ("a;b;y;\n1;2;x;\n3;4;z;\n", "ab", 2, ""),
    ("a,b,y\n1,2,x,\n3,4,z,\n", "ab", 2, ""),
    ("\ufeffa,b,y\n\n1,2,x\n\n3,4,z\n", "ab", 2, ""),
    ("'a','b','y'\n1,'2, 3','x'\n3,'4','z'\n", "ab", 2, ""),
    ('a,b,y\n1,"said \\"ouch\\" 1",x\n3,"said ""ouch""",z\n', "ab", 2, "within quotes is read as one quote"),
    ('a;"b,c,d";"e,f,g,h";y\n1;2;3;x\n4;5;6;z\n', ("a", "b,c,d", "e,f,g,h"), 2, ""),
    ("a\tb\ty\n1\t2,5\tx\n3\t4,5\tz\n", "ab", 2, ""),
    ("\n,a,b,y\n1,2,3,x\n2,3,4,z\n", ("Unnamed: 0", "a", "b"), 2, "column 1 has no name and is called Unnamed: 0"),
    ('"a" "b" "y"\n"1" 2 3 "x"\n"2" 3 4 "z"\n', ("Unnamed: 0", "a", "b"), 2, "column 1 has no name"),
    ("a  b   y\n1  2.5 x\n31 4   z\n", "ab", 2, ""),
    ("1.5,2,y\n5,2,x\n1.5,2,y\n3,4,z\n", ("1.5", "2"), 2, "as names, 1.5, 2, y; 1 lines repeat the names and are not"),
    ("a,b,y\nA,2,x\nTotal,4,z\n", "ab", 2, "the last row says Total: take it out of t.csv if it sums up others"),
    ("a,b,y\n1,2,x\n2,4,z\n3,5,x\n6,11,z\n", "ab", 4, "the last row is the sum of the others in a, b: take it out of"),
    ("a,b,y\n1,2,x\n2,4,z\n3,5,x\n6,7,z\n", "ab", 4, "the last row is the sum of the others in a: take it out of"),
    ("a,b,y\n0,2,x\n0,4,z\n1,5,x\n1,7,z\n", "ab", 4, ""),  # one of two alike
    ("a,b,y,,\n1,2,x,,\n3,4,z,,\n", "ab", 2, ""),
    ("Report, 2020\na,b,c,y\n1,2,3,x\n3,4,5,z\n", "abc", 2, "line 1 stands before the names"),
    (f"a,b,y\n1,{'w' * 200_000},x\n3,4,z\n", "ab", 2, ""),
]


def test_first_lines_quotes_and_separators_of_other_programs(tmp_path: Path) -> None:
    for text, columns, rows, said in TABLES:
        table, notes, _ = reading.read(write(tmp_path, text), "csv", TableSettings())
        assert list(table) == [*columns, "y"] and table["y"].tolist() == ["x", "z"] * (rows // 2)
        assert (said in "; ".join(notes)) and bool(notes) == bool(said)


def test_parquet_has_times_and_durations(tmp_path: Path) -> None:
    frame = pd.DataFrame({"stay": pd.to_timedelta([36, 48] * 9, unit="h"), "at": [time(20, 30), time(6)] * 9})
    frame["size"], frame["y"] = range(18), ["a", "b"] * 9
    frame.to_parquet(tmp_path / "t.parquet")
    stay, at = schema(load(tmp_path / "t.parquet", "y", prefix="parquet")).kept[:2]
    assert (stay.name, stay.low, stay.high, stay.unit) == ("stay", 36, 48, "h")
    assert (at.name, at.low, at.high, at.unit) == ("at", 6, 20.5, "h")


@given(
    st.lists(st.integers(-(10**8), 10**8), min_size=25, max_size=40, unique=True),
    st.sampled_from([(",", "."), (".", ","), (" ", ","), ("\u202f", "."), ("'", "."), ("", "."), ("", ",")]),
    st.sampled_from(["{}", "{} %", "€{}", "{} kg", "{}mg/l"]),
    st.booleans(),
)
def test_each_number_is_read_as_it_was_written(
    hundredths: list[int], signs: tuple[str, str], form: str, parquet: bool
) -> None:
    """Feature and target, CSV and Parquet: never another number, whatever the signs between digits."""
    thousands, decimal = signs
    plain = [f"{number / 100:,.2f}" for number in hundredths]
    words = [form.format(word.translate({ord(","): thousands, ord("."): decimal})) for word in plain]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        frame = pd.DataFrame({"c": words, "z": ["a", "b"] * (len(words) // 2) + ["a"] * (len(words) % 2)})
        file = Path(folder) / ("t.parquet" if parquet else "t.csv")
        frame.to_parquet(file) if parquet else frame.to_csv(file, index=False)
        held = load(file, "c", prefix="parquet" if parquet else "csv")
        number = schema(held).number
        assert number is not None
        got = sorted(np.concatenate([held.train_y, held.test_y]).astype(float) * number.std + number.mean)
        assert got == pytest.approx([value / 100 for value in sorted(hundredths)], rel=1e-5, abs=1e-6 * number.std)
        feature = schema(load(file, "z", prefix="parquet" if parquet else "csv")).columns[0]
        assert feature.kind == "numeric" and feature.unit == number.unit == form.replace("{}", "").strip()


def test_a_file_beyond_its_plan_is_said_and_notes_are_of_the_file_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{n},{'ab'[n % 2]},{'yn'[n % 2]}" for n in range(30)]
    file = write(tmp_path, "\n".join(["size,ward,y", *rows]))
    assert state(file, "y", "size=0:30 ward=a,b y=n,y") == 0
    assert data.describe(f"csv:{file}@y").source.endswith("target y")
    other = write(tmp_path, "\n".join(["size,ward,y", *rows, "<0.5,c,y", "-999,b,y", "NA,A,n"]), "u.csv")
    name = data.configured(f"csv:{other}@y", [f"csv.columns={file}.toml"])
    assert flfw_main(["data", "columns", name]) == 0
    shown = capsys.readouterr().out
    assert "\nsize: 1 values are cut to the plan's range; <0.5 and their like" in shown
    assert "missing: 1 times NA.\nward: 2 values are other than the plan's; 'A' and 'a' differ in" in shown
    told = "How size, ward is read, or what to know of it, stands in `flfw data columns`."
    assert data.load(name).notes[:-1] == (told,) and "0.5" not in data.describe(name).source
    held = load(write(tmp_path, "\n".join(["size,ward,y", *rows, "<0.5,b,y"]), "v.csv"), "y")
    assert "<0.5" in schema(held).columns[0].note and "<0.5" not in plan_file.text(schema(held))


def test_a_plan_knows_its_words_units_and_types_however_they_are_written(tmp_path: Path) -> None:
    """1.0 for 1, years for year, a zero without its unit; typed numbers of Parquet are never taken for thousands."""
    first = write(tmp_path, "g,stay,n,y\n" + "".join(f"{n % 3},{n} years,{n},{n % 2}\n" for n in range(12)), "a.csv")
    assert state(first, "y", "g=0,1,2 stay=0:20year n=0:11 y=0,1") == 0
    text = "g,stay,n,y\n" + "".join(f"{n % 3}.0,{n}{' year' * (n > 0)},{n},{n % 2}.0\n" for n in range(12))
    strange = write(tmp_path, f"{text}x,1 year,1,0.0\n", "s.csv")  # another word changes no number
    assert load(strange, "y", f"csv.columns={first}.toml").test_x[:, 3].sum() == 1
    one, other = load(first, "y"), load(write(tmp_path, text, "b.csv"), "y", f"csv.columns={first}.toml")
    assert np.array_equal(one.train_x, other.train_x) and np.array_equal(one.train_y, other.train_y)
    zeros = write(tmp_path, "g,stay,n,y\n" + "".join(f"0,0,{n},{n % 2}\n" for n in range(12)), "c.csv")
    assert not load(zeros, "y", f"csv.columns={first}.toml").train_x[:, 5].any()  # nothing needs no unit
    mixed = write(tmp_path, "g;stay;n;y\n1;5 years;2;0\n", "d.csv")
    assert "one sign between cells" in refusal(first, "y", f"csv.test={mixed}", f"csv.columns={first}.toml")
    frame = pd.DataFrame({"x": [1.125, 2.125, 7.5] * 6, "w": ["2,5", "3"] * 9, "tags": [[1]] * 18, "y": list("ab") * 9})
    frame["m"] = [Decimal("1.100"), Decimal("2.200"), Decimal("3.300")] * 6
    frame.to_parquet(tmp_path / "t.parquet")
    held = load(tmp_path / "t.parquet", "y", "parquet.drop=tags", prefix="parquet")
    assert [c.high for c in schema(held).kept if c.kind == "numeric"] == [7.5, 3, 3.3]


def test_patients_are_the_same_however_their_numbers_are_written(tmp_path: Path) -> None:
    numbers = [f"{n // 2 % 5}{'.0' * (n % 2)}" for n in range(20)], [f"{2**53 + n // 2 % 5}" for n in range(20)]
    for names in (*numbers, ["p1", "P 1", "p2", "p3", "p4"] * 4):  # the second ones are no floats, the last ones odd
        lines = [f"{name},{n},{'ab'[n % 2]}" for n, name in enumerate(names)]
        held = load(write(tmp_path, "\n".join(["who,size,y", *lines])), "y", "csv.patient=who")
        assert held.train_group is not None and held.test_group is not None
        assert len({*held.train_group.tolist(), *held.test_group.tolist()}) == 5
    assert "some names in who differ in capitals, blanks or dots alone, and count as two" in held.source


def test_files_of_other_programs_are_read(tmp_path: Path) -> None:
    """UTF-16 with tabs; thousands of columns in long lines; days that no clock of Python reaches; classes 1 and 1.0."""
    lines = ["a\ty", *(f"{n},5\t{'xy'[n % 2]}" for n in range(20))]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-16")
    assert load(tmp_path / "t.csv", "y").train_x.shape == (16, 1)
    wide = [",".join([*(f"0.{n:05}" for n in range(20_000)), "xy"[row % 2]]) for row in range(10)]
    file = write(tmp_path, "\n".join([",".join([*map(str, range(20_000)), "y"]), *wide]))
    assert len(reading.read(file, "csv", TableSettings())[0]) == 20_001
    frame = pd.DataFrame({"until": np.array(["9999-12-31T23:59:59", "2020-01-01", "2021-01-01"] * 6, "datetime64[us]")})
    frame["until"], frame["y"] = frame["until"].dt.tz_localize("Europe/Berlin"), ["1", "1.0", "2"] * 6
    frame.to_parquet(tmp_path / "t.parquet")
    held = load(tmp_path / "t.parquet", "y", prefix="parquet")
    assert schema(held).classes == ("1", "2") and schema(held).columns[0].kind == "date"


def test_a_plan_says_the_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "fat;dose;y\n" + "".join(f"{n},5%;{n};{'ab'[n % 2]}\n" for n in range(10)))
    assert state(file, "y", "fat=0:60 dose=0:9 y=a,b") == 0
    assert "column fat without a unit, as its plan says, got %" in refusal(file, "y")
    Path(f"{file}.toml").unlink()
    assert state(file, "y", "fat=0:50% dose=0:9 y=a,b") == 0 and "0 % = 0 to 50 % = 1" in capsys.readouterr().out
    assert load(file, "y").train_x[0, 0] == pytest.approx(0.01)


@pytest.mark.filterwarnings("error")
def test_numbers_whose_range_no_float_holds_are_refused(tmp_path: Path) -> None:
    lines = [f"{(-1) ** (index // 2)}e308,{index},{'ab'[index % 2]},{(1 + index) * 1e200}" for index in range(9)]
    file = write(tmp_path, "\n".join(["a,b,y,z", *lines]))
    assert "a finite range of column a" in refusal(file, "y")
    assert "a finite mean and deviation of target z" in refusal(file, "z", "csv.drop=a", "csv.task=regression")


def test_a_table_without_a_column_of_use_is_refused_with_the_reasons(tmp_path: Path) -> None:
    file = write(tmp_path, "\n".join(["a,b,y", *(f"7,w{index},{'xy'[index % 2]}" for index in range(30))]))
    reason = refusal(file, "y")
    assert "a is left out (always 7)" in reason and "b is left out (an identifier or free text, 30 values" in reason


@pytest.mark.parametrize("method", ["", "--method hyperfl --set hidden=8 csv.drop=b"])
def test_the_split_of_a_regression_is_shown_whatever_the_method(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No split depends on the method, and the default one refuses regressions; other mistakes are refused as before."""
    file = write(tmp_path, "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i * 1.5}\n" for i in range(200)))
    flags = f"--show-split --dataset csv:{file}@y --clients 3 --out {tmp_path / 'drawn'} {method}".split()
    assert sim.main(flags) == 0
    shown = capsys.readouterr().out
    assert "client  train  test  b0  b1" in shown and ("left out: as asked" in shown) == ("csv.drop=b" in method)
    assert "\nMethod hyperfl refuses a regression: for runs choose another, such as fedavg.\n" in shown
    assert (tmp_path / "drawn" / "split.png").is_file()
    assert sim.main([*flags, "--split", "dirichlet", "--out", str(tmp_path / "other")]) == 2
    assert "Expected a split that needs no classes" in capsys.readouterr().err


def test_names_survive_their_own_text() -> None:
    name = "csv:/x/a@b.csv@survived??categorical=a,b%3Dc&most=5"
    parsed = TableName.parse(name)
    assert (parsed.file, parsed.target) == ("/x/a@b.csv", "survived?")
    assert parsed.settings.categorical == "a,b=c" and str(parsed) == name
    with pytest.raises(InputError, match="FILE@TARGET"):
        TableName.parse("csv:file.csv")


def test_columns_refuse_what_no_table_has() -> None:
    with pytest.raises(InputError, match="low < high"):
        Column("a", "numeric", 2, 1)
    with pytest.raises(InputError, match="each column once"):
        TableSchema((Column("a", "numeric"), Column("a", "numeric")), "y", "classification", ("0", "1"))


def test_a_table_that_is_read_in_another_way_than_before_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = tmp_path / "t.csv", list[TableName]()
    file.write_text("a,y\n" + "".join(f"{i},{'no' if i % 2 else 'yes'}\n" for i in range(20)))
    made = reader._made
    monkeypatch.setattr(reader, "_made", lambda parsed: (reads.append(parsed), made(parsed))[1])
    for version in (1, 1, 2, 2, 1):
        monkeypatch.setattr(reader, "_VERSION", version)
        data.describe(f"csv:{file}@y")
    assert len(reads) == 2


def state(file: Path, target: str, ranges: str, *more: str) -> int:
    return flfw_main(["data", "columns", f"csv:{file}@{target}", "--public", *ranges.split(), *more])


STATED = "age=0:120 ward=A,B smoker=yes,no seen=1970-01-02:1970-01-11"


def test_a_stated_plan_is_public_and_made_without_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same plan, byte for byte, from the line of names alone; 30 of 0 to 120 is 1/4, day 2 of 1 to 10 1/9."""
    rows = [f"ann,30,A,no,1970-01-03,{answer}" for answer in ("no", "yes")]
    rows += [f"bob,{age},C,maybe,,{answer}" for age in ("", "999") for answer in ("no", "yes")]
    head = ROWS.splitlines()[0]
    full, bare = write(tmp_path, "\n".join([head, *rows]), "full.csv"), write(tmp_path, head, "bare.csv")
    for file in (full, bare):
        assert state(file, "died", f"{STATED} died=yes,no", "--set", "csv.drop=name") == 0
    plan = Path(f"{full}.toml").read_text()
    assert plan == Path(f"{bare}.toml").read_text() and "public = true" in plan
    assert "0.0%" not in capsys.readouterr().out
    held = load(full, "died")
    assert schema(held).classes == ("yes", "no") and data.has_public_constants(held.name)
    x, y = np.concatenate([held.train_x, held.test_x]).tolist(), [*held.train_y.tolist(), *held.test_y.tolist()]
    ann, hers = [0.25, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1 / 9, 0], [0, 1]
    lost = [[0.5, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0.5, 1], [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0.5, 1]]
    got = sorted(zip(y, x, strict=True))
    expected = sorted([*((label, ann) for label in hers), *((label, row) for row in lost for label in (0, 1))])
    assert [label for label, _ in got] == [label for label, _ in expected]
    assert np.allclose([row for _, row in got], [row for _, row in expected])


def test_a_stated_target_of_numbers_is_standardised_by_its_range(tmp_path: Path) -> None:
    """From 0 to 120: the middle is 60, the deviation of even values 120 / sqrt(12)."""
    file = write(tmp_path, "g1,g2,cost\n" + "".join(f"{n},{n},{10 * n}\n" for n in range(10)))
    assert state(file, "cost", "g*=0:9 cost=0:120") == 0
    table = schema(load(file, "cost"))
    assert table.number is not None and table.number.cuts == tuple(range(12, 120, 12))
    assert (table.number.mean, table.number.std) == (60, pytest.approx(34.641))
    assert [column.high for column in table.columns] == [9, 9]


def test_what_is_not_stated_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [
        (STATED, "got none of died; state these too, or leave columns out by --set csv.drop=NAME,NAME"),
        ("age=0:120 died=no,yes", "got none of ward, smoker, seen;"),
        (f"{STATED} died=no,yes age=0:99", "got age=0:99; not yet stated: none."),
        (f"{STATED} died=no,yes name=a,b", "got name=a,b; not yet stated: none."),
        (f"{STATED} dead=no,yes", "got dead=no,yes; not yet stated: died."),
        (f"{STATED} died=no", "WORD,WORD for column died, got 'no'"),
        (f"{STATED} died=1970-01-01:1970-01-02", "numbers or classes of target died"),
        *(
            (f"age={wrong}", f"for column age, got '{wrong}'")
            for wrong in ("120:0", "nan:5", "0:inf", "0-120", "", "0:1,0")
        ),
    ]
    for ranges, phrase in cases:
        file = write(tmp_path, ROWS)
        assert state(file, "died", ranges, "--set", "csv.drop=name") == 2
        said = capsys.readouterr().err
        assert phrase in said and said.count("\n") == 1 and not Path(f"{file}.toml").exists()


def test_a_stated_plan_replaces_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = write(tmp_path, "a,y\n1,0\n"), write(tmp_path, 'numeric = "a"\n', "t.csv.toml")
    assert state(file, "y", "a=0:1 y=0,1") == 2
    assert "--write FILE, and name it by --set csv.columns=FILE." in capsys.readouterr().err
    assert state(file, "y", "a=0:1 y=0,1", "--write", str(tmp_path / "p.toml")) == 0


def test_parquet_whose_names_are_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pd.DataFrame({"âge": [1.5, 2.0], "y": [0, 1]}).to_parquet(file)
    file.write_bytes(file.read_bytes().replace("âge".encode(), b"\xe1\xa2ge"))
    with pytest.raises(InputError, match=r"^Expected a readable Parquet file .*t\.parquet, got UnicodeDecodeError"):
        load(file, "y", prefix="parquet")
