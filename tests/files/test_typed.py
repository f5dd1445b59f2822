"""Values whose writer may be anybody: what fits a type is taken as it is, everything else is refused by its field."""

from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, TypedDict

import pytest

from flfw.dp.releases import RequestedRounds
from flfw.errors import InputError, RunError
from flfw.files.result_file import read_rows
from flfw.files.sealed import seal, unseal
from flfw.files.typed import SchemaMismatchError, fit, fitted, from_json, read_json, read_toml


@dataclass(frozen=True)
class Site:
    """A table with one field of its own default."""

    name: str
    ports: tuple[int, ...]
    share: float | None = None
    kind: Literal["a", "b"] = "a"


class Row(TypedDict):
    """A table that may hold more."""

    number: int
    words: NotRequired[list[str]]


def test_what_fits_is_taken_as_its_type() -> None:
    assert fit({"name": "x", "ports": [1, 2], "kind": "b"}, Site) == Site("x", (1, 2), None, "b")
    assert fit({"number": 1, "more": [None]}, Row) == {"number": 1, "more": [None]}
    assert fit("a/b", Path) == Path("a/b") and fit(None, int | None) is None and fit([1, ["x"]], tuple[int, list[str]])


@pytest.mark.parametrize(
    ("value", "shape", "field"),
    [
        (True, int, "as a whole number, got True"),
        (1.0, int, "as a whole number, got 1.0"),
        ("2", int, "as a whole number, got '2'"),
        ("-1.5e3", float, "as a finite number, got '-1.5e3'"),
        ("true", bool, "as true or false, got 'true'"),
        (2**63, int, "as a whole number"),
        pytest.param(10**5000, int, "got a number of many digits", id="many digits"),
        (nan, float, "as a finite number, got nan"),
        (inf, float, "as a finite number"),
        (1, bool, "as true or false, got 1"),
        (1, str, "as text, got 1"),
        pytest.param("\ud800", str, "as text", id="surrogate"),
        ("a\0", Path, "as a path"),
        (1, Literal[True, False], "as True or False"),
        ([1, "x"], list[int], "[1] as a whole number, got x"),
        ([1], tuple[int, int], "as a list of 2"),
        ({"a": {"b": "x"}}, dict[str, dict[str, int]], "a.b as a whole number, got x"),
        ({"name": "x"}, Site, "ports, got none"),
        ({"name": "x", "ports": [], "port": 1}, Site, "name, ports, share, kind, got port"),
        ({"words": []}, Row, "number, got none"),
        ({"number": 1, "words": [2]}, Row, "words[0] as text, got 2"),
        ({"name": "x", "ports": 7}, Site | None, "ports as a list, got 7"),
        pytest.param("x" * 1000, int, "...", id="long"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(value: Any, shape: Any, field: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        fit(value, shape)
    assert field in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"1e999", b'{"number": "\\ud800"}'])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    for read in (lambda: read_json(path, Row), lambda: from_json(data, Row, path), lambda: read_toml(path)):
        if data == b"" and read_toml(path) == {}:
            continue
        with pytest.raises(InputError) as caught:
            read()
        assert str(path) in str(caught.value) and str(caught.value).isprintable()


@dataclass(frozen=True)
class Step:
    EARLIER_NAMES: ClassVar[dict[str, str]] = {"draws": "noise_per"}
    noise_per: str


@dataclass(frozen=True)
class LongStep(Step):
    EARLIER_NAMES: ClassVar[dict[str, str]] = {"most": "limit"}
    limit: int


def test_earlier_names_of_bases_count() -> None:
    assert fit({"draws": "batch", "most": 2}, LongStep) == LongStep("batch", 2)


def test_a_field_is_read_by_its_earlier_name_and_not_by_both() -> None:
    assert fit({"draws": "batch"}, Step) == fit({"noise_per": "batch"}, Step) == Step("batch")
    with pytest.raises(SchemaMismatchError, match=r"^a\.noise_per alone, got draws too$"):
        fit({"draws": "batch", "noise_per": "example"}, Step, "a")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requested_rounds.txt").mkdir()
    sealed = seal(tmp_path, "a", ".txt", b"x")
    sealed.unlink()
    sealed.mkdir()
    reads = (read_json, lambda path, _: read_toml(path), lambda path, _: read_rows(path))
    for read in reads:
        with pytest.raises(InputError, match="none that can be read"):
            read(tmp_path, Row)
    for read in (lambda: RequestedRounds(tmp_path), lambda: unseal(sealed)):
        with pytest.raises(InputError, match="none that can be read"):
            read()


@pytest.mark.parametrize("text", ["1\nx\n", "1\n-2\n", "1\n\n2\n", "9" * 5000 + "\n", "é\n"])
def test_a_line_of_asked_rounds_that_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "requested_rounds.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"^Expected a round in each line of .*requested_rounds.txt, got "):
        RequestedRounds(tmp_path)


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,b\n1,2,3\n", 'a,b\n"1,2\n', "a\n\0\xff\n"])
def test_a_table_with_a_row_of_another_length_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("latin1"))
    with pytest.raises(InputError, match=r"t\.csv"):
        read_rows(tmp_path / "t.csv")


def test_a_table_is_read_by_its_header(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b\n1,"x,y"\n')
    assert read_rows(tmp_path / "t.csv") == [{"a": "1", "b": "x,y"}]


def test_errors_are_one_printable_line_whatever_they_name() -> None:
    for kind in (InputError, RunError):
        assert str(kind("two\nlines\x1b[2J")) == "two?lines?[2J"
        assert len(str(kind("x" * 10**6))) < 5000
    with pytest.raises(InputError, match=r"^Expected a as text, got 1 in b; c\.$"):
        fitted({"a": 1}, dict[str, str], "b", "c")
