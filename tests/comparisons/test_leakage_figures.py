"""Figures of what runs leak: numbers by hand, seeds pooled, what cannot be drawn, and the files of a paper."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import sim
from flfw.comparisons.figures import drawing, figures
from flfw.comparisons.figures import leakage_charts as charts
from flfw.comparisons.figures import leakage_numbers as numbers
from flfw.comparisons.figures.comparisons import expanded, grouped
from flfw.comparisons.rows import read
from flfw.errors import InputError
from flfw.report import chart_style
from tests.support.csv_files import read_csv
from tests.support.latex import check
from tests.support.matrix_runs import amended, entry, row, written


def attacked(folder: Path, decibels: list[float], accuracy: float = 0.8, **config: Any) -> Path:
    """A run with a round of training, whose images came out this close; recovered above 20 dB."""
    rows = [row(i, db) for i, db in enumerate(decibels)]
    written(folder, [entry(images=len(rows), verdict="leaks")], rows, method="fedavg", defence="none", **config)
    rounds = [
        {"round": at, "loss": 2.0 / at, "acc_global": None, "acc_local": accuracy, "extra": {}} for at in (1, 2, 4)
    ]
    return amended(folder, final={"acc_local": accuracy, "acc_global": 0.6}, rounds=rounds)


def close(db: float, count: int = 8) -> list[float]:
    return [db + i / 4 for i in range(count)]


# --- numbers ---


def test_seeds_are_pooled_and_other_settings_are_not(tmp_path: Path) -> None:
    folders = [attacked(tmp_path / f"s{seed}", close(30.0, 2), 0.7 + seed / 10, seed=seed) for seed in (0, 1)]
    other = attacked(tmp_path / "other", close(10.0, 2), lr=0.5)
    groups = grouped([read(folder) for folder in (*folders, other)])
    assert [(group.name, [run.seed for run in group.runs]) for group in groups] == [("s0", [0, 1]), ("other", [0])]
    first, second = numbers.leakage(groups)
    assert (first["images"], first["recovered"], first["seeds"]) == (4, 4, "0 1")
    assert (first["share_low"], first["share_high"]) == (pytest.approx(0.025 ** (1 / 4)), 1.0)  # exact, 4 of 4
    assert (first["psnr"], second["psnr"], second["recovered"]) == (30.125, 10.125, 0)
    rows = figures.training(groups)
    assert [row["round"] for row in rows if row["run"] == "s0"] == [1, 2, 4]
    assert {key: rows[0][key] for key in ("acc_local", "acc_local_low", "acc_local_high")} == pytest.approx(
        {"acc_local": 0.75, "acc_local_low": 0.7, "acc_local_high": 0.8}
    )
    assert rows[0]["acc_global"] is None and rows[-1]["acc_local_low"] is None  # not measured; one seed


def test_runs_of_one_seed_and_setting_stay_apart(tmp_path: Path) -> None:
    runs = [read(attacked(tmp_path / name, close(30.0, 2))) for name in ("a", "b")]
    assert [group.name for group in grouped(runs)] == ["a", "b"]


def test_the_folder_of_a_matrix_stands_for_its_complete_runs(tmp_path: Path) -> None:
    one = attacked(tmp_path / "m" / "one", close(30.0))
    cells = [{"folder": "one", "state": "complete"}, {"folder": "two", "state": "not run yet"}]
    stored = {"question": {}, "notes": [], "cells": cells, "combinations": []}
    (tmp_path / "m" / "matrix.json").write_text(json.dumps(stored))
    assert expanded([tmp_path / "m"]) == [one]
    assert figures.write([tmp_path / "m"], only=["leakage"])[0] == tmp_path / "m" / "figures" / "leakage.svg"


@pytest.mark.slow
def test_points_of_a_curve_stand_at_their_sizes(tmp_path: Path) -> None:
    sizes: list[tuple[str, int, int, int | None]] = [("batch", 4, 1, None), ("ladder", 4, 5, None), ("group", 8, 1, 2)]
    psnr = {"mean": 12.0, "low": 11.0, "high": 14.0}
    points = [
        entry(curve=c, batch=b, steps=s, sum_size=g, share_recovered=0.25, share_interval=[0.1, 0.5], psnr=psnr)
        for c, b, s, g in sizes
    ]
    rows = numbers.curves(grouped([read(written(tmp_path / "run", [entry(), *points], []))]))
    assert [(one["curve"], one["at"]) for one in rows] == [("batch", 4), ("ladder", 20), ("sum_size", 2)]
    assert [rows[0][key] for key in ("share_low", "share", "share_high", "psnr")] == [0.1, 0.25, 0.5, 12.0]
    assert len(charts.curves(rows, "t").axes) == 2


@pytest.mark.slow
def test_only_a_significantly_smaller_leak_at_no_lower_accuracy_beats_a_run(tmp_path: Path) -> None:
    leaky = attacked(tmp_path / "leaky", close(30.0, 12), 0.8)
    tight = attacked(tmp_path / "tight", close(9.0, 12), 0.8, lr=0.1)
    poor = attacked(tmp_path / "poor", close(8.0, 12), 0.3, lr=0.2)
    best = attacked(tmp_path / "best", close(30.0, 12), 0.9, lr=0.3)
    rows = numbers.frontier(grouped([read(folder) for folder in (leaky, tight, poor, best)]))
    marks = {row["run"]: (row["on_frontier"], row["beaten_by"]) for row in rows}
    assert marks["leaky"] == (False, "tight")  # less accurate than best, and leaks more than tight
    assert marks["best"] == marks["tight"] == (True, "")
    few = [attacked(tmp_path / f"few-{db}", close(float(db), 3), 0.8, lr=float(db)) for db in (9, 30)]
    assert all(row["on_frontier"] for row in numbers.frontier(grouped([read(folder) for folder in few])))


# --- what is drawn ---


def lines_of(figure: Figure, column: int = 0) -> list[list[float]]:
    """The horizontal places of each line with more than one point, without whiskers."""
    return [list(line.get_xdata()) for line in figure.axes[column].lines if len(list(line.get_xdata())) > 1]  # type: ignore[arg-type]


@pytest.mark.slow
def test_no_line_goes_through_rounds_that_were_not_measured(tmp_path: Path) -> None:
    rows = figures.training(grouped([read(attacked(tmp_path / "run", close(30.0)))]))
    drawn = drawing.training(rows, "t")
    assert lines_of(drawn) == [[1, 2]]  # round 4 stands alone, as a mark
    assert [list(line.get_xdata()) for line in drawn.axes[0].lines] == [[1, 2], [4]]  # type: ignore[arg-type]
    rounds = [entry(round=at) for at in (1, 2, 4)]
    samples = [row(i, 20.0 + at + i, round=at) for at in (1, 2, 4) for i in range(2)]
    leaks = numbers.rounds(grouped([read(written(tmp_path / "rounds", rounds, samples))]))
    assert [one["round"] for one in leaks] == [1, 2, 4]
    assert [places for places in lines_of(charts.rounds(leaks, "t")) if places[0] != places[1]] == [[1, 2]]


def test_intervals_are_drawn_and_beaten_runs_are_hollow(tmp_path: Path) -> None:
    folders = [attacked(tmp_path / name, close(db), 0.8, lr=db) for name, db in (("leaky", 30.0), ("tight", 9.0))]
    rows = numbers.frontier(grouped([read(folder) for folder in folders]))
    figure = charts.frontier(rows, "t")
    marks = [line for line in figure.axes[0].lines if line.get_marker() in chart_style.MARKS]  # type: ignore[operator]
    hollow = [to_rgb(line.get_markerfacecolor()) == (1, 1, 1) for line in marks]  # type: ignore[arg-type]
    assert hollow == [not row["on_frontier"] for row in rows] == [True, False]
    with chart_style.wide_as("one"):
        leaks = numbers.leakage(grouped([read(folders[0])]))
        narrow = charts.leakage([{**one, "run": 20 * "n"} for one in leaks], "title")
    (segment,) = narrow.axes[0].collections[0].get_segments()  # type: ignore[attr-defined]
    assert list(segment[:, 0]) == pytest.approx([0.025 ** (1 / 8), 1.0])
    assert b">title<" not in chart_style.rendered(narrow, "svg")  # it is the caption's
    assert [axes.get_title("left") for axes in narrow.axes] == ["Examples\nrecovered", "PSNR, dB"]


def test_colours_differ_in_grey_and_for_the_colour_blind() -> None:
    """Luminance tells each pair apart, whatever hue is seen; markers differ as well."""
    grey = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(to_rgb, chart_style.INKS)]
    assert all(later - earlier > 0.08 for earlier, later in pairwise(grey))
    assert len(set(chart_style.MARKS)) >= len(chart_style.INKS)


# --- files ---


@pytest.mark.slow
def test_a_pdf_has_fonts_as_truetype_and_the_width_of_a_column(tmp_path: Path) -> None:
    run = attacked(tmp_path / "run", close(30.0))
    files = figures.write([run], tmp_path / "out", ["pdf", "svg", "png"], ["leakage"], columns="one")
    assert [path.name for path in files] == ["leakage.pdf", "leakage.svg", "leakage.png", "leakage.csv", "leakage.tex"]
    page = files[0].read_bytes()
    assert b"/FontFile2" in page and b"/Type3" not in page
    box = re.search(rb"/MediaBox \[ ?([\d. ]+)\]", page)
    assert box and float(box[1].split()[2]) == pytest.approx(3.35 * 72, abs=1)
    source = files[-1].read_text()
    check(source)
    assert r"\includegraphics[width=\columnwidth]{leakage.pdf}" in source and r"\begin{figure}" in source
    assert "Seed 0. n = 8 attacked examples of each; ig (100 iterations, 1 start)." in source
    (numbers_beside,) = read_csv(files[3])
    assert (numbers_beside["recovered"], numbers_beside["verdict"]) == ("8", "leaks")


def test_without_pdf_the_snippet_says_what_to_do(tmp_path: Path) -> None:
    run = attacked(tmp_path / "run", close(30.0))
    source = figures.write([run], tmp_path / "out", ["svg"], ["training"], columns="two")[-1].read_text()
    assert "% LaTeX includes no SVG: draw training with --format pdf." in source
    assert r"\begin{figure*}" in source and r"width=\textwidth" in source


def test_membership_alone_is_drawn_and_other_figures_name_it(tmp_path: Path) -> None:
    figures_of_one = {"attack": "membership", "statistic": "loss", "vantage": "server", "defence": "none",
                      "adaptive": True, "rounds": [1], "clients": 2, "pairs": 40, "verdict": "leaks", "reason": "x",
                      "auc": 0.7, "auc_low": 0.6, "auc_high": 0.8, "fpr": 0.1, "tpr": 0.3, "tpr_low": 0.1,
                      "tpr_high": 0.5, "epsilon_low": 0.25, "claimed_epsilon": None, "accuracy_gap": 0.1,
                      "floor": {}}  # fmt: skip
    run = written(tmp_path / "run", [], [], method="fedavg", defence="none")
    amended(run, membership=[figures_of_one])
    (line,) = numbers.membership(grouped([read(run)]))
    assert (line["auc"], line["auc_low"], line["read"]) == (0.7, 0.6, "in round 1")
    files = figures.write([run], tmp_path / "out", only=["membership"])
    assert "40 pairs of a member and another example" in files[-1].read_text()
    with pytest.raises(InputError, match="got fedavg without; draw --figure-names membership"):
        figures.write([run], tmp_path / "out", only=["leakage"])


def test_what_the_runs_lack_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = attacked(tmp_path / "run", close(30.0))
    bare = written(tmp_path / "bare", [], [], method="fedavg", defence="none")
    for words, complaint in (
        (
            [str(bare), "--figure-names", "frontier"],
            "an attack that reconstructs, got fedavg without; run it again with",
        ),
        ([str(run), "--figure-names", "rounds"], "Expected runs audited at two rounds or more, got round 0"),
        ([str(run), "--figure-names", "curves"], "Expected runs with a curve, got fedavg without"),
        ([str(run), "--figure-names", "membership"], "Expected runs with an attack on membership, got fedavg without"),
        ([str(run), "--figure-names", "pie"], "Expected figures among training,"),
    ):
        assert sim.main(["--figures", *words]) == 2
        message = capsys.readouterr().err
        assert complaint in message and message.count("\n") == 1
    assert sim.main(["--format", "pdf"]) == 2 and "Expected --figures with --figure-names" in capsys.readouterr().err


@pytest.mark.slow
def test_by_default_a_run_that_was_attacked_shows_its_leakage(tmp_path: Path) -> None:
    run = attacked(tmp_path / "run", close(30.0))
    assert sim.main(["--figures", str(run), "--format", "pdf", "svg", "--width", "one"]) == 0
    names = {path.stem for path in (run / "figures").iterdir()}
    assert names == {"training", "leakage", "frontier"} and (run / "figures" / "training.pdf").is_file()
