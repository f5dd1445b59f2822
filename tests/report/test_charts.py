"""Charts of the report, as a reader gets them: lines, intervals, names, light and dark, a phone, a screen reader."""

import re
import subprocess
import sys
from itertools import pairwise
from math import inf, nan
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from flfw.report.chart_style import ACCENT, LIGHT, SOFT, spread
from flfw.report.charts import leakage_panel, utility_panel
from flfw.report.figures import Chart, Curve, feature_strip, stacked_panels
from flfw.report.findings import read_settings
from flfw.report.report import write_report
from tests.support.drawn_charts import DOT, RING, charts_in, lines_of, texts_at, texts_of
from tests.support.reported_runs import a_full_run, full_entry

OVERVIEW = "Accuracy of the clients by round, and below it what the attacks reached by round."
LONG = "invertinggradients told of gaussian_noise (client_update, probe)"


def drawn(*charts: Chart, **changes: object) -> list[ElementTree.Element]:
    return charts_in(str(stacked_panels(charts, "of a test", **changes)), "of a test")  # pyright: ignore[reportArgumentType]


def of_errors(*points: tuple[float, float], **changes: object) -> Chart:
    return Chart("Errors", (Curve("mean", points, **changes),))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(a_full_run(tmp_path_factory.mktemp("runs") / "run")).read_text(encoding="utf-8")


def test_the_first_figure_has_all_series_with_their_last_values(page: str) -> None:
    for svg in charts_in(page, OVERVIEW):
        text = " ".join(texts_of(svg))
        for name in ("after 80.0 %", "as received 70.0 %", "ig adaptive 24.0", "ig static 24.0", "mean image 13.0"):
            assert name in text
        assert "Accuracy as received, and after local" in text and "Leakage: PSNR of the reconstructions, dB" in text
        assert {"0 %", "100 %", "30", "0", "1", "2", "round"} <= set(texts_of(svg))


def test_an_interval_and_the_best_stand_where_their_numbers_are(page: str) -> None:
    wide, _ = charts_in(page, OVERVIEW)
    places = {text: (x, y) for text, x, y in texts_at(wide)}
    decibel = (places["10"][1] - places["30"][1]) / 20
    (one, _), (two, _) = places["1"], places["2"]
    intervals = [line for line in lines_of(wide, "accent", width=2) if len(line) == 2 and line[0][0] == line[1][0]]
    assert [round((end[1] - start[1]) / -decibel) for start, end in intervals] == [8, 8]  # from 20 to 28 dB
    assert [line[0][0] for line in intervals] == pytest.approx([2 * one - two + 3, two + 3], abs=1.5)
    best = [line[0] for line in lines_of(wide, "accent", width=RING)]
    means = [line[0] for line in lines_of(wide, "accent", width=DOT)]
    assert [mean[1] - peak[1] for mean, peak in zip(means, best, strict=True)] == pytest.approx(
        [7.2 * decibel] * 2, 0.02
    )


def test_every_chart_is_light_and_dark_and_has_words_for_who_cannot_see_it(page: str) -> None:
    charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert len(charts) == 8
    for chart in charts:
        svg = ElementTree.fromstring(chart)
        assert svg.get("role") == "img" and len(svg.attrib["aria-label"]) > 20
        colours = re.findall(r"(?:fill|stroke): ([^;\"]+)", chart)
        assert colours and all(re.match(r"none$|var\(--\w+, (currentColor|#\w{6})\)$", colour) for colour in colours)
        assert not re.search(r"font-family| id=|url\(|clip", chart)
    modes = ("<style>", "@media (prefers-color-scheme: dark)", "@media print")
    light, *others = [page.partition(mode)[2].partition(":root {")[2].partition("}")[0] for mode in modes]
    assert all(f"--{name}:{colour};" in light for name, colour in LIGHT.items())
    assert all(f"--{name}:" in variables for variables in others for name in LIGHT)


def test_dashed_levels_are_no_measured_lines(page: str) -> None:
    wide, _ = charts_in(page, OVERVIEW)
    dashed = [path.attrib["d"] for path in wide.iter("path") if "stroke-dasharray" in path.attrib["style"]]
    assert len(dashed) == 3  # look-alike, mean image, noise


def test_a_line_joins_neighbouring_rounds_alone() -> None:
    wide, _ = drawn(of_errors((0, 1.0), (1, 2.0), (5, 3.0)))
    assert [len(line) for line in lines_of(wide, "ink", width=2)] == [2]
    assert len(lines_of(wide, "ink", width=DOT)) == 3
    long = of_errors(*((n, 1.0) for n in range(20)), (30, 1.0))
    assert len(lines_of(drawn(long)[0], "ink", width=DOT)) == 1  # only the round without a neighbour
    between = of_errors((0, 1.0), (2, 2.0), (4, 3.0))
    wide, _ = drawn(between, axis="examples in the batch", marks=[(0, "1"), (2, "4"), (4, "16")])
    assert [len(line) for line in lines_of(wide, "ink", width=1.25)] == [3]
    assert {"1", "4", "16", "examples in the batch"} <= set(texts_of(wide))


def test_the_answer_alone_is_accented(tmp_path: Path) -> None:
    settings = read_settings(tmp_path, [full_entry(name, 0, False) for name in ("ig", "dlg")], pictures=False)
    panel = leakage_panel(settings, settings[1])
    assert [(line.label, line.tone, bool(line.peaks)) for line in panel.lines] == [
        ("ig", SOFT, False),
        ("dlg", ACCENT, True),
    ]


def test_a_perfect_copy_leaves_a_chart(tmp_path: Path) -> None:
    perfect = full_entry("ig", 0, False, psnr={"mean": inf, "low": nan, "high": inf, "max": inf})
    settings = read_settings(tmp_path, [perfect, full_entry("ig", 1, False)], pictures=False)
    (line,) = leakage_panel(settings, settings[0]).lines
    assert [x for x, _ in line.points] == [1.0]


def test_names_are_on_the_screen_and_do_not_overlap() -> None:
    lines = tuple(Curve(f"{LONG} {n}", ((0.0, 5.0), (2.0, 5.0)), SOFT, (None, None)) for n in range(12))
    for svg in drawn(Chart("many", lines)):
        names = [(x, y, len(text)) for text, x, y in texts_at(svg) if x > max(p[0] for p in dots_of(svg))]
        assert len(names) >= 24 and all(x + 6.4 * length < float(svg.attrib["width"]) for x, _, length in names)
        heights = sorted(y for _, y, _ in names)
        assert min(np.diff(heights)) > 12 and heights[0] > 0 and heights[-1] < float(svg.attrib["height"])


def dots_of(svg: ElementTree.Element) -> list[tuple[float, float]]:
    return [line[0] for line in lines_of(svg, "soft", width=DOT)]


def test_points_at_one_round_are_beside_one_another() -> None:
    lines = tuple(Curve(f"attack {n}", ((0.0, 5.0), (2.0, 5.0)), SOFT, (None, None)) for n in range(12))
    wide, _ = drawn(Chart("many", lines))
    assert len({x for x, _ in dots_of(wide)}) == 24


@pytest.mark.parametrize("top", [0.0, 1e-300, 1.7e308])
def test_odd_numbers_and_names_leave_a_chart(top: float) -> None:
    wide, narrow = drawn(Chart("$x_{", (Curve("a & b <$y^{>\x07\ud800", ((1.0, top),)),)))
    assert "$x_{" in texts_of(wide) and any(text.startswith("a & b <$y^{>\ufffd") for text in texts_of(narrow))


def test_what_has_no_point_has_no_chart() -> None:
    assert stacked_panels([], "nothing") == "" == stacked_panels([utility_panel([{"round": 1}], False)], "nothing")


def test_labels_keep_their_distance() -> None:
    heights = [15, 30, 15, 15, 15]
    placed = spread([40.0, 41.0, 42.0, 100.0, 100.0], heights, 0, 100)
    order = np.argsort(placed)
    needed = [(heights[one] + heights[other]) / 2 for one, other in pairwise(order)]
    assert np.all(np.diff(np.sort(placed)) >= needed) and min(placed) >= 0 and max(placed) <= 100


def test_a_strip_shows_each_feature_beside_the_attackers() -> None:
    svg = ElementTree.fromstring(feature_strip(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 0.5]), "Features"))
    truth, guess = lines_of(svg, "ink", width=DOT), lines_of(svg, "accent", width=4)
    assert svg.get("aria-label") == "Features" and len(truth) == len(guess) == 3
    assert [line[0][0] for line in truth] == [line[0][0] for line in guess]
    assert truth[0] == guess[0] and truth[1][0][1] == guess[2][0][1] > truth[2][0][1] == guess[1][0][1]
    alone = ElementTree.fromstring(feature_strip(np.zeros(60), None, "Features"))
    assert len(lines_of(alone, "ink", width=DOT)) == 48 and not lines_of(alone, "accent", width=4)


@pytest.mark.slow
def test_who_writes_no_page_does_without_matplotlib() -> None:
    code = "import flfw.report.report, flfw.comparisons.page, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
