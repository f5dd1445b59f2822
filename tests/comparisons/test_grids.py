"""Grids of reconstructions: their images, numbers and order against hand-made and real runs, and refusals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from PIL import Image
from safetensors.numpy import load_file, save_file

import sim
from flfw.comparisons.figures import figures, grids
from flfw.comparisons.figures.grids import GridChoice
from flfw.comparisons.rows import FinishedRun, read
from flfw.recording.retention import purge
from flfw.report.chart_style import INKS
from flfw.runs.run import run
from tests.support.csv_files import read_csv, write_csv
from tests.support.reported_runs import a_run, entry
from tests.support.small_runs import tiny

CONFIG = {"method": "fedavg", "dataset": "digits", "rounds": 2, "seed": 0, "defence": "none"}


def written(folder: Path, *entries: dict[str, Any], tabular: bool = False, **config: Any) -> Path:
    """A run with three attacked images in the slots 40, 41 and 42; the attack on the second one failed."""
    return a_run(folder, tabular, entries=list(entries) or [attacked()], config={**CONFIG, **config})


def attacked(attack: str = "ig", round_: int = 0, **changes: Any) -> dict[str, Any]:
    return entry(attack, round_, tabular=False, **{"adaptive": True, "adaptation": None, **changes})


def changed(folder: Path, number: int, **cells: Any) -> None:
    """Change cells in a row of audit.csv."""
    rows = read_csv(folder / "audit.csv")
    rows[number] |= {key: str(value) for key, value in cells.items()}
    write_csv(folder / "audit.csv", rows)


def content(*folders: Path, **choice: Any) -> grids.PictureGrid:
    runs: dict[str, FinishedRun] = {folder.name: read(folder) for folder in folders}
    return grids.grid(runs, GridChoice(**choice))


def cells(figure: Figure, columns: int) -> list[list[str]]:
    """The texts below the images, row by row."""
    scores = [axes.texts[0].get_text() for axes in figure.axes]
    return [scores[start : start + columns] for start in range(0, len(scores), columns)]


# --- hand-made runs ---


def test_rows_are_runs_and_columns_the_victims_in_slot_order(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two", method="hyperfl")
    result = content(one, two)
    assert [(row["row"], row["column"], row["probe_slot"], row["index"], row["label"]) for row in result.rows] == [
        (name, column, 39 + column, 99 + column, 7) for name in ("one", "two") for column in (1, 2, 3)
    ]
    scores = [(row["psnr"], row["failed"], row["recovered"]) for row in result.rows[:3]]
    assert scores == [(22.0, False, True), (None, True, False), (31.2, False, True)]
    truth = load_file(one / "truth" / "batch.safetensors")["samples"]
    guess = load_file(one / "ig-0-000.safetensors")["samples"]
    for column in (1, 2, 3):
        assert np.array_equal(result.pictures[grids.ORIGINAL, column], truth[column - 1])
    assert set(result.pictures) == {("original", 1), ("original", 2), ("original", 3)} | {
        (name, column) for name in ("one", "two") for column in (1, 3)
    }
    assert np.array_equal(result.pictures["two", 3], guess[2])


def test_no_score_decides_which_images_are_shown(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    changed(folder, 0, probe_slot=102)  # the slot decides, as a number, not the line's place
    result = content(folder, columns=2)
    assert [(row["probe_slot"], row["psnr"]) for row in result.rows] == [(41, None), (42, 31.2)]
    assert "Shown: the first 2 of the 3 images that every row attacked, by slot, not by score." in result.caption
    assert "Shown: the 3 images that" in content(folder).caption


def test_only_examples_that_all_rows_attacked_are_shown(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two")
    changed(two, 0, label=3)
    changed(two, 1, index=5)
    result = content(one, two)
    assert [(row["row"], row["column"], row["index"]) for row in result.rows] == [("one", 1, 102), ("two", 1, 102)]
    assert "Shown: the only image that every row attacked" in result.caption


def test_an_attack_that_is_told_has_a_row_beside_the_static_one(tmp_path: Path) -> None:
    known = {"adaptive": True, "adaptation": "written", "share_recovered": 0.0}
    folder = written(tmp_path / "run", attacked(adaptive=False), attacked(**known), attacked(curve="batch", batch=4))
    result = content(folder)
    assert list(dict.fromkeys(row["row"] for row in result.rows)) == ["run, static", "run, told"]
    marks = [(row["informed"], row["static"], row["recovered"]) for row in result.rows[2:4]]
    assert marks == [(False, True, True), (True, False, False)]
    assert "'told': the attack knows the defence" in result.caption and "'static': " in result.caption
    assert "'told'" not in content(written(tmp_path / "plain")).caption


def test_attack_round_and_place_can_be_chosen(tmp_path: Path) -> None:
    one = written(tmp_path / "one", attacked(), attacked(round_=2), attacked("dlg"), attacked(vantage="client_example"))
    two = written(tmp_path / "two", attacked("dlg"), attacked(round_=2), attacked("dlg", 4))

    def rows(**choice: Any) -> list[str]:
        return list(dict.fromkeys(row["row"] for row in content(one, two, **choice).rows))

    def settings(**choice: Any) -> set[tuple[Any, ...]]:
        return {(r["attack"], r["round"], r["vantage"]) for r in content(one, two, **choice).rows}

    assert settings() == {("ig", 2, "server")}  # the first attack of the first run, the first round that both have
    assert settings(attack=("dlg",)) == {("dlg", 0, "server")}
    assert rows(attack=("dlg",), round=("last",)) == ["one, round 0", "two, round 4"]
    assert "before training and after round 4" in content(one, two, attack=("dlg",), round=("last",)).caption
    assert rows(attack=("ig", "dlg"), round=(0, 2)) == [
        "one, by ig, round 0",
        "one, by ig, round 2",
        "one, by dlg, round 0",
        "two, by dlg, round 0",
        "two, by ig, round 2",
    ]
    places = content(one, vantage=("server", "client_example"), columns=1)
    assert [row["row"] for row in places.rows] == ["one, server", "one, client_example"]


def test_clients_with_and_without_the_defence_share_a_row(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", attacked(defence="none"), attacked(defence="prune", adaptive=False))
    rows = read_csv(folder / "audit.csv")
    for index in range(len(rows)):
        changed(folder, index, adaptive=str(index != 1), probe_slot=index % 3)
    lines = (folder / "audit.csv").read_text().splitlines()[:4]
    joined = [f"{line},{word}" for line, word in zip(lines, ("defence", "none", "prune", "none"), strict=True)]
    (folder / "audit.csv").write_text("\n".join(joined) + "\n")
    assert [(r["row"], r["probe_slot"]) for r in content(folder).rows] == [("run, static", slot) for slot in range(3)]


def test_a_score_is_below_its_image_and_a_recovered_one_framed(tmp_path: Path) -> None:
    result = content(written(tmp_path / "one"), written(tmp_path / "two", attacked(share_recovered=0.0)))
    figure = grids.drawn(result, "title")
    assert figure.get_suptitle() == "title"
    assert cells(figure, 3) == [["class 7"] * 3, ["22.0 dB", "–", "31.2 dB"], ["22.0 dB", "–", "31.2 dB"]]
    assert [len(axes.images) for axes in figure.axes] == [1, 1, 1, 1, 0, 1, 1, 0, 1]
    framed = [index for index, axes in enumerate(figure.axes) if axes.patches]
    assert framed == [3, 5] and all(same_color(figure.axes[p].patches[0].get_edgecolor(), INKS[1]) for p in framed)
    assert [figure.axes[index].texts[0].get_fontweight() for index in (3, 4, 6)] == ["bold", "normal", "normal"]
    texts = [text.get_text() for text in figure.texts]
    assert {"original", "one", "two"} < set(texts) and result.caption in {text.replace("\n", " ") for text in texts}
    figure.canvas.draw()
    for text in [*figure.texts, *(axes.texts[0] for axes in figure.axes)]:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 20, 10), (1, 300, 250)])
def test_pixels_are_drawn_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    folder = written(tmp_path / "run")
    picture = np.random.default_rng(0).random((3, *shape), dtype=np.float32)
    save_file({"samples": picture}, folder / "truth" / "batch.safetensors")
    save_file({"samples": 3 * picture - 1}, folder / "ig-0-000.safetensors")  # beyond [0, 1] on both sides
    figure = grids.drawn(content(folder), "title")
    (image,) = figure.axes[0].images
    assert image.get_interpolation() == "none"
    pixels = np.asarray(image.get_array())
    factor = pixels.shape[0] // shape[1]
    assert pixels.shape == (factor * shape[1], factor * shape[2], 3) and min(pixels.shape[:2]) >= 240
    expected = np.broadcast_to(np.rint(picture[0].astype(np.float64) * 255), (3, *shape[1:])).transpose(1, 2, 0)
    for across, down in ((0, 0), (factor - 1, factor - 1)):
        assert np.array_equal(pixels[down::factor, across::factor], expected)
    (guess,) = figure.axes[3].images
    assert {0, 255} <= set(np.asarray(guess.get_array()).flatten().tolist())
    box = figure.axes[0].get_position().transformed(figure.transFigure)
    assert box.height / box.width == pytest.approx(shape[1] / shape[2])


@pytest.mark.slow
def test_the_command_writes_picture_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two", defence="prune")
    for form in ("svg", "png", "pdf"):
        out = tmp_path / form
        flags = ["--figure-names", "grid", "--columns", "2", "--round", "last", "--format", form, "--out", str(out)]
        assert figures.main([str(one), str(two), *flags]) == 0
        assert capsys.readouterr().out.splitlines() == [str(out / f"grid.{e}") for e in (form, "csv", "tex")]
        again = figures.write([one, two], tmp_path / "again", [form], ["grid"], None, GridChoice(columns=2))
        assert [path.read_bytes() for path in again] == [(out / path.name).read_bytes() for path in again]
    rows = read_csv(tmp_path / "png" / "grid.csv")
    names = ("fedavg", "fedavg with prune")
    assert [(row["row"], row["psnr"]) for row in rows] == [(name, psnr) for name in names for psnr in ("22.0", "")]
    with Image.open(tmp_path / "png" / "grid.png") as picture:
        assert min(picture.size) > 300


# --- refusals ---


def test_runs_that_make_no_grid_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = written(tmp_path / "one"), written(tmp_path / "two", attacked("dlg"), method="hyperfl")
    other, rows = written(tmp_path / "other", defence="prune"), written(tmp_path / "rows", attacked(), tabular=True)
    for index in range(3):
        changed(other, index, index=index)
    larger, empty = written(tmp_path / "larger", defence="sign"), written(tmp_path / "empty", defence="clip")
    save_file({"samples": np.zeros((3, 1, 16, 16), np.float32)}, larger / "truth" / "batch.safetensors")
    (empty / "result.json").write_text(json.dumps({"config": CONFIG | {"defence": "clip"}, "audit": []}))
    for words, complaint in (
        ([one, two], "audits with the same attack in all runs, got fedavg: ig; hyperfl: dlg; leave a run out, or take"),
        ([one, two, "--attack", "cpl"], "audits with attack cpl in every run, got fedavg: ig; hyperfl: dlg; leave"),
        ([one, "--round", "3", "5"], "audits with round 3 or 5 in every run, got fedavg: 0; leave a run out, or take"),
        ([one, "--vantage", "client_example"], "audits with vantage client_example in every run, got fedavg: server;"),
        ([one, other], "runs that attacked the same examples, got fedavg: 100, 101, 102; fedavg with prune: 0, 1, 2; "),
        ([one, larger], f"the same image as example 100 of all runs, got another in {larger}; give the runs the same"),
        ([one, empty], f"runs with an audit, got {empty} without; run it again with --attack ig."),
        ([rows], f"grey or colour images, got samples of shape 12 in {rows}; compare other data with"),
        ([one, "--columns", "0"], "at least 1 column, got columns=0."),
    ):
        assert figures.main([*map(str, words), "--figure-names", "grid"]) == 2
        message = capsys.readouterr()
        assert message.err.startswith(f"figures: Expected {complaint}") and message.err.count("\n") == 1
        assert not message.out
    assert figures.main([str(one), "--figure-names", "training", "--columns", "3"]) == 2
    assert (
        capsys.readouterr().err
        == "figures: Expected options of a grid with --figure-names grid, got figure_names=training.\n"
    )
    assert not (one / "figures").exists()


def test_a_run_without_whole_pictures_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run")
    (folder / "ig-0-000.safetensors").write_bytes(b"nothing")
    assert figures.main([str(folder), "--figure-names", "grid"]) == 2
    damaged = capsys.readouterr().err
    assert damaged.startswith(f"figures: Expected example 0 in {folder / 'ig-0-000.safetensors'}, got ")
    assert damaged.endswith("; restore it, or run anew.\n") and damaged.count("\n") == 1
    (folder / "ig-0-000.safetensors").unlink()
    assert figures.main([str(folder), "--figure-names", "grid"]) == 2
    assert "got no ig-0-000.safetensors; a purged run has none: run it again, and draw" in capsys.readouterr().err
    purge(folder)
    assert figures.main([str(folder), "--figure-names", "grid"]) == 2
    assert capsys.readouterr().err == (
        f"figures: Expected the pictures of the audit in {folder}, got no truth/batch.safetensors; a purged run has "
        "none: run it again, and draw before --purge.\n"
    )


# --- real runs ---


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of a second without and with a defence, whose three single examples were attacked; the second is told."""
    folder = tmp_path_factory.mktemp("grids")
    plain = tiny(folder / "plain", images=3, attack=("analytic", "ig"), set=("ig.iterations=20",))
    return [run(one) for one in (plain, replace(plain, out=folder / "pruned", defence="prune"))]


@pytest.mark.nightly
def test_real_runs_give_the_numbers_and_images_of_their_audits(real: list[Path], tmp_path: Path) -> None:
    assert figures.main([*map(str, real), "--figure-names", "grid", "--attack", "ig", "--out", str(tmp_path)]) == 0
    rows = read_csv(tmp_path / "grid.csv")
    names = ["fedavg", "fedavg with prune, static", "fedavg with prune, told"]
    assert [(r["row"], r["probe_slot"]) for r in rows] == [(name, str(slot)) for name in names for slot in range(3)]
    audits = {folder.name: read_csv(folder / "audit.csv") for folder in real}
    for row in rows:
        (source,) = [
            r
            for r in audits["plain" if row["run"] == "fedavg" else "pruned"]
            if (r["attack"], r["rung"], r["round"], r["probe_slot"]) == ("ig", "target", "0", row["probe_slot"])
            and bool(r["adaptation"]) == (row["informed"] == "True")
        ]
        copied = ("psnr", "failed", "recovered", "client", "index", "label", "round", "truth", "reconstruction")
        assert {key: row[key] for key in copied} == {key: source[key] for key in copied}


@pytest.mark.slow
def test_the_closed_form_s_pictures_are_the_originals_in_the_drawing_too(real: list[Path], tmp_path: Path) -> None:
    result = content(real[0], attack=("analytic",))
    assert all(row["recovered"] and row["psnr"] > 40 for row in result.rows)
    figure = grids.drawn(result, "title")
    above, below = (
        [np.asarray(axes.images[0].get_array(), dtype=int) for axes in figure.axes[first : first + 3]]
        for first in (0, 3)
    )
    assert len({picture.tobytes() for picture in above}) == 3
    assert max(int(np.abs(one - two).max()) for one, two in zip(above, below, strict=True)) <= 1
    purged = shutil.copytree(real[0], tmp_path / "purged")
    assert sim.main(["--purge", str(purged)]) == 0
    assert figures.main([str(purged), "--figure-names", "grid"]) == 2
