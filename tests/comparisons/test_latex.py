"""Tables of a matrix in LaTeX, read by a small parser, and the same ranking on the page and in Markdown."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flfw.comparisons import tables
from flfw.comparisons.question import Matrix
from flfw.comparisons.rows import read_matrix
from flfw.comparisons.tables import latex
from flfw.files.tables import escaped, floating, tabular
from tests.support.latex import check
from tests.support.matrix_runs import SMALL, entry, row, written


def write(folder: Path, decibels: dict[str, float], images: int) -> dict[str, object]:
    """Write the tables of combinations whose images all came out this close, a tenth more from one to the next."""
    cells = []
    for name, db in decibels.items():
        verdict = "leaks" if db > 20 else "no leak found"
        rows = [row(i, db + i / 10, defence=name) for i in range(images)]
        run = written(folder / name, [entry(verdict=verdict, defence=name, images=images)], rows, defence=name)
        cells.append(replace(SMALL, defence=name, out=run))
    names = tuple(decibels)
    tables.write(folder, Matrix(defences=names, attacks=("ig",)).filled(SMALL).question(SMALL), cells, {})
    return json.loads((folder / "matrix.json").read_text())


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", page).split())


def test_what_differs_is_bold_and_what_does_not_shares_a_letter(tmp_path: Path) -> None:
    write(tmp_path, {"none": 30.0, "dp_gaussian": 10.0, "prune": 30.0}, 9)
    ranking, attacks = check((tmp_path / "matrix.tex").read_text())
    assert [cells[0] for cells in ranking[1:]] == ["fedavg", "fedavg with prune", r"fedavg with dp\_gaussian"]
    assert [cells[-1] for cells in ranking[1:]] == ["a", "a", r"\textbf{b}"]
    assert ranking[3][2] == r"\textbf{0 of 9 (0 to 34\,\%)}" and ranking[1][2] == r"9 of 9 (66 to 100\,\%)"
    assert ranking[3][3].startswith(r"\textbf{10.4 (") and attacks[2][:2] == ["fedavg", r"dp\_gaussian"]
    source = (tmp_path / "matrix.tex").read_text()
    assert "$n=9$ attacked examples of each combination, seed 0; the pairs share 9 messages." in source
    assert "Holm's correction over all 6 tests" in source


def test_page_and_markdown_say_the_same(tmp_path: Path) -> None:
    record = write(tmp_path, {"none": 30.0, "x": 10.0, "prune": 30.0}, 9)
    page = text_of((tmp_path / "matrix.html").read_text())
    assert "fedavg without a defence and fedavg with prune leak most, of which fedavg without a defence: 9 of 9" in page
    assert "fedavg with x least, 0 of 9 images (10.4 dB)" in page
    same = "These 2 do not differ at 5 %: fedavg and fedavg with prune."
    assert same in page and f"- {same}" in (tmp_path / "matrix.md").read_text()
    assert "| fedavg with x | 0 of 9 (0 to 34 %) | 10.4 | b |" in (tmp_path / "matrix.md").read_text()
    ranking = record["ranking"]
    assert isinstance(ranking, dict) and (ranking["most"], ranking["least"]) == (
        ["fedavg", "fedavg with prune"],
        ["fedavg with x"],
    )
    # 0 of 9 and 9 of 9: 2 / 2^9, times six tests of which four are as small.
    adjusted = [test["adjusted"] for test in ranking["tests"] if test["significant"]]
    assert adjusted == [pytest.approx(6 * 2 / 2**9)] * 4


def test_with_two_images_nothing_is_bold_and_the_page_says_why(tmp_path: Path) -> None:
    write(tmp_path, {"none": 30.0, "x": 10.0}, 2)
    assert r"\textbf" not in (tmp_path / "matrix.tex").read_text()
    assert "it takes at least 7" in (tmp_path / "matrix.tex").read_text()  # 2 * 2 / 2^7 <= 0.05
    page = text_of((tmp_path / "matrix.html").read_text())
    assert "No combination is shown to leak less than another, on digits: there are too few messages" in page
    assert "2 tests need at least 7 messages in common" in page


def test_earlier_records_and_those_of_one_combination_have_one_table(tmp_path: Path) -> None:
    record = write(tmp_path, {"none": 30.0}, 2)
    (alone,) = check((tmp_path / "matrix.tex").read_text())
    assert len(alone) == 2
    del record["ranking"]
    assert len(check(latex({"mnist": record, "cifar10": record}))) == 2
    assert read_matrix(tmp_path / "matrix.json")["combinations"]


def test_names_are_escaped_and_a_table_that_would_not_compile_is_noticed() -> None:
    assert escaped(r"a_b & 5 % {c} \d ~ ^") == (
        r"a\_b \& 5 \% \{c\} \textbackslash{}d \textasciitilde{} \textasciicircum{}"
    )
    assert escaped("# $ [1] <x>") == r"\# \$ {[}1] \textless{}x\textgreater{}"
    assert escaped("0 – 1 ± 2 × −3") == r"0 -- 1 $\pm$ 2 $\times$ $-$3"
    good = floating("table", tabular("lr", ["a", "b"], [[["1", "2"]]]), "A caption.", "x", ["A note."])
    assert check(good) == [[["a", "b"], ["1", "2"]]]
    for broken in (
        good.replace("1 & 2", "1"),
        good.replace("A note.", "a_b"),
        good.replace(r"\end{table}", ""),
        good + "{",
    ):
        with pytest.raises(AssertionError):
            check(broken)
