"""Figures of regressions: the mean absolute error, of which less is better, in place of the accuracy."""

from pathlib import Path
from typing import Any

import pytest

from flfw.comparisons.figures import charts, comparisons, drawing, figures, gains, leakage_charts
from flfw.comparisons.figures import leakage_numbers as numbers
from flfw.comparisons.figures.comparisons import grouped
from flfw.comparisons.figures.figures import caption
from flfw.comparisons.rows import FinishedRun, read
from flfw.errors import InputError
from tests.comparisons.test_gains import run
from tests.support.csv_files import read_csv
from tests.support.matrix_runs import amended, entry, row, written


def attacked(folder: Path, db: float, error: float, **config: Any) -> Path:
    """A regression with two rounds, whose twelve records came out this close; its final error is the one given."""
    rows = [row(i, db + i / 4) for i in range(12)]
    written(folder, [entry(images=12, verdict="leaks")], rows, method="fedavg", defence="none", **config)
    final = {"acc_local": None, "acc_global": None, "mae_local": error, "mae_global": 2 * error}
    extra = [{"mae_global": 2 * error + at, "mae_local": error + at, "r2_local": 0.5} for at in (1, 2)]
    row_of_round = {"loss": 1.0, "acc_global": None, "acc_local": None}
    rounds = [{"round": at, **row_of_round, "extra": more} for at, more in enumerate(extra, start=1)]
    return amended(folder, final=final, rounds=rounds)


@pytest.mark.slow
def test_a_run_with_a_larger_error_and_a_larger_leak_is_beaten(tmp_path: Path) -> None:
    leaky = attacked(tmp_path / "leaky", 30.0, 50.0)
    tight = attacked(tmp_path / "tight", 9.0, 40.0, lr=0.1)
    best = attacked(tmp_path / "best", 30.0, 39.0, lr=0.2)
    rows = numbers.frontier(grouped([read(folder) for folder in (leaky, tight, best)]))
    marks = {row["run"]: (row["on_frontier"], row["beaten_by"]) for row in rows}
    assert marks == {"leaky": (False, "tight"), "tight": (True, ""), "best": (True, "")}
    assert {row["run"]: (row["measure"], row["mean_absolute_error"]) for row in rows} == {
        "leaky": ("mae_local", 50.0), "tight": ("mae_local", 40.0), "best": ("mae_local", 39.0),
    }  # fmt: skip
    assert all("accuracy" not in row for row in rows)
    for axes in leakage_charts.frontier(rows, "t").axes:
        assert axes.get_xlabel() == "mean absolute error\n(less is better)"
        assert axes.xaxis.get_major_formatter()(1500.0, 0) == "1,500"


@pytest.mark.slow
def test_files_of_the_frontier_and_of_training_name_errors(tmp_path: Path) -> None:
    seeds = [attacked(tmp_path / f"s{seed}", 30.0, 40.0 + seed, seed=seed) for seed in (0, 1)]
    other = attacked(tmp_path / "other", 9.0, 50.0, lr=0.5)
    figures.write([*seeds, other], tmp_path / "out", only=["frontier", "training"])
    assert "mean absolute error against leakage" in (tmp_path / "out" / "frontier.tex").read_text()
    first = read_csv(tmp_path / "out" / "frontier.csv")[0]
    ends = [first[f"mean_absolute_error{end}"] for end in ("_low", "", "_high")]
    assert (first["run"], ends) == ("s0", ["40.0", "40.5", "41.0"])
    rounds = read_csv(tmp_path / "out" / "training.csv")
    assert list(rounds[0])[:5] == ["run", "round", "loss", "mae_global", "mae_local"]
    assert not any(column.startswith("acc_") for column in rounds[0])
    assert [(line["mae_local"], line["mae_global"]) for line in rounds] == [
        ("41.5", "82.0"), ("42.5", "83.0"), ("51.0", "101.0"), ("52.0", "102.0"),
    ]  # fmt: skip
    words = caption(grouped([read(folder) for folder in seeds]), "t")
    assert words.endswith("Mean absolute errors: means over the seeds, from the most to the least accurate.")


def test_training_is_drawn_by_its_errors(tmp_path: Path) -> None:
    rows = figures.training(grouped([read(attacked(tmp_path / "run", 30.0, 40.0))]))
    _, below = drawing.training(rows, "t").axes
    assert below.get_title(loc="left") == "Mean absolute error before and after local training"
    drawn = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in below.lines]  # type: ignore[arg-type]
    assert drawn == [[(1, 41.0), (2, 42.0)], [(1, 81.0), (2, 82.0)]]
    assert below.yaxis.get_major_formatter()(42.0, 0) == "42"


def finished(error: float | None, *claims: dict[str, Any], ratio: float | None = None) -> FinishedRun:
    settings = {} if ratio is None else {"compress": "before", "compress_ratio": ratio}
    config = {"seed": 0, "dataset": "t", "method": "fed_cdp", "defence": "none", "method_settings": settings}
    final = {"acc_global": None, "acc_local": None} | ({} if error is None else {"mae_global": error})
    result = {"config": config, "privacy": list(claims), "final": final, "audit": []}
    return FinishedRun(Path("somewhere"), result, ())


CLAIM = {"unit": "example", "adversary": "server", "epsilon": 4.0, "delta": 1e-5, "accounting": "exact"}


def test_privacy_and_compression_have_errors() -> None:
    rows = comparisons.privacy({"a": finished(40.0, CLAIM), "b": finished(50.0, {**CLAIM, "epsilon": 2.0})})
    assert [(row["epsilon"], row["mean_absolute_error"]) for row in rows] == [(4.0, 40.0), (2.0, 50.0)]
    (axes,) = charts.privacy(rows, "t").axes
    assert axes.get_ylabel() == "mean absolute error (less is better)"
    assert [(2.0, 50.0), (4.0, 40.0)] in [list(zip(*line.get_data(), strict=True)) for line in axes.lines]  # type: ignore[arg-type]
    rows = comparisons.compression({"a": finished(40.0, ratio=0.0), "b": finished(50.0, ratio=0.5)})
    assert [(row["ratio"], row["mean_absolute_error"]) for row in rows] == [(0.5, 50.0), (0.0, 40.0)]
    assert charts.compression(rows, "t").axes[0].get_title(loc="left") == "Mean absolute error (less is better)"
    with pytest.raises(InputError, match="Expected a run whose clients report mean absolute errors, got somewhere"):
        comparisons.privacy({"a": finished(40.0, CLAIM), "b": finished(None, CLAIM)})


def with_clients(folder: Path, method: str, lines: str) -> Path:
    """A regression of two clients: its last errors are 10 and 20."""
    run(folder, method, lines, header="round,client,mae_local,r2_validation", split="iid", clients=2)
    last = [{"client": c, "mae_local": 10.0 * (c + 1)} for c in (0, 1)]
    return amended(folder, final={"acc_local": None, "mae_local": 15.0, "per_client": last})


def test_a_gain_is_the_error_that_is_saved(tmp_path: Path) -> None:
    alone = with_clients(tmp_path / "alone", "local_only", "1,0,12,/1,1,18,")  # no validation data: the last errors
    ours = with_clients(tmp_path / "ours", "fedavg", "1,0,7,0.5/1,1,25,-0.5/2,0,3,0.4/2,1,26,-0.6")
    rows = gains.gains({"alone": read(alone), "ours": read(ours)})
    assert [(row["client"], row["alone"], row["mean_absolute_error"], row["gain"]) for row in rows] == [
        (1, 20.0, 25.0, -5.0), (0, 10.0, 7.0, 3.0),
    ]  # fmt: skip
    figure = gains.drawn(rows, "t")
    assert figure.axes[0].get_title(loc="left") == "ours: mean -1 (dashed)"
    assert figure.get_supylabel() == "error below that of local training"
    assert figure.axes[0].yaxis.get_major_formatter()(-2.5, 0) == "-2.5"
