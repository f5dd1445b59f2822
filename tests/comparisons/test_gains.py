"""What each client gains over training alone: against numbers made by hand; runs that are not of the same clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from flfw.comparisons.figures import figures, gains
from tests.support.csv_files import read_csv

CONFIG = {
    "seed": 0,
    "dataset": "digits",
    "image_size": 0,
    "split": "sampled",
    "clients": 3,
    "canaries": 0,
    "defence": "none",
}
HEADER = "round,client,acc_global,acc_local,acc_validation"


def run(folder: Path, method: str, rounds: str, digest: str = "abc", header: str = HEADER, **config: Any) -> Path:
    """A finished run's folder, as far as it is read; ``rounds``: lines of clients.csv with / between them."""
    folder.mkdir(parents=True)
    details = {**CONFIG, "method": method, "set": [], **config}
    last = [{"client": c, "acc_local": 0.1 * (c + 1)} for c in range(details["clients"])]
    result = {"config": details, "rounds": [], "final": {"acc_local": 0, "acc_global": 0, "per_client": last}}
    result["provenance"] = {"data": {"digest": digest}}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "clients.csv").write_text("\n".join([header, *rounds.split("/")]) + "\n")
    return folder


ALONE = "1,0,0,0.5,0.5/1,1,0,0.6,0.5/1,2,0,0.7,0.5"
# Client 0 is best in the first of two equal rounds, client 1 in the second, client 2 in the first by validation.
OURS = "1,0,0,0.75,0.9/1,1,0,0.1,0.2/1,2,0,0.45,0.9/2,0,0,0.1,0.9/2,1,0,0.85,0.3/2,2,0,0.99,0.8"


def drawn(tmp_path: Path, *folders: Path) -> list[dict[str, str]]:
    figures.write(folders, tmp_path / "out", only=["gains"])
    return read_csv(tmp_path / "out" / "gains.csv")


def test_a_gain_is_the_difference_at_each_client_s_best_validation(tmp_path: Path) -> None:
    rows = drawn(tmp_path, run(tmp_path / "a", "fedcg", OURS), run(tmp_path / "b", "local_only", ALONE))
    assert [tuple(row) for row in rows] == [("run", "client", "alone", "accuracy", "gain")] * 3
    assert [(row["run"], int(row["client"])) for row in rows] == [("fedcg", 2), ("fedcg", 0), ("fedcg", 1)]
    assert [float(row["accuracy"]) for row in rows] == [0.45, 0.75, 0.85]
    assert [float(row["gain"]) for row in rows] == pytest.approx([-0.25, 0.25, 0.25])


def test_without_validation_data_it_is_that_of_the_last_model(tmp_path: Path) -> None:
    none = "1,0,0,0.5,/1,1,0,0.6,/1,2,0,0.7,"
    rows = drawn(tmp_path, run(tmp_path / "a", "fedavg", none), run(tmp_path / "b", "local_only", ALONE))
    assert [float(row["accuracy"]) for row in rows] == pytest.approx([0.3, 0.2, 0.1][::-1])
    assert [int(row["client"]) for row in rows] == [0, 1, 2]  # equal gains: by number
    (tmp_path / "a" / "clients.csv").unlink()
    assert drawn(tmp_path, tmp_path / "a", tmp_path / "b") == rows


def test_a_client_without_an_accuracy_has_no_row(tmp_path: Path) -> None:
    rows = drawn(tmp_path, run(tmp_path / "a", "fedcg", "1,1,0,0.65,0.9"), run(tmp_path / "b", "local_only", ALONE))
    assert [(int(row["client"]), float(row["gain"])) for row in rows] == [(1, pytest.approx(0.05))]


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        ({"seed": 1}, "seed=1 as in"),
        ({"clients": 4}, "clients=4 as in"),
        ({"split": "iid"}, "split=iid as in"),
        ({"image_size": 16}, "image_size=16 as in"),
        ({"set": ["sampled.train=7"]}, "scheme=Sampled(train=7, distillation=32000, halves='drawn') as in"),
        ({"digest": "other"}, "data=other as in"),
        ({"dataset": "mnist"}, "runs on the same data in one figure, got datasets=digits and mnist."),
        ({"method": "fedavg"}, "one run of local_only and others beside it, got runs=fedcg and fedavg."),
    ],
)
def test_runs_of_other_clients_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], complaint: str
) -> None:
    one = run(tmp_path / "a", "fedcg", OURS, set=["lr=2"])
    two = run(tmp_path / "b", **{"method": "local_only", "rounds": ALONE, **other})
    assert figures.main([str(one), str(two), "--figure-names", "gains"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("figures: Expected ") and complaint in message and message.count("\n") == 1
    assert not (one / "figures").exists()


def test_one_run_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main([str(run(tmp_path / "b", "local_only", ALONE)), "--figure-names", "gains"]) == 2
    assert "Expected one run of local_only and others beside it, got runs=local_only." in capsys.readouterr().err


def test_bars_are_sorted_a_plot_a_run() -> None:
    rows = [{"run": name, "client": 5 - i, "gain": gain} for name in "ab" for i, gain in enumerate((-0.02, 0.01, 0.04))]
    plots = gains.drawn(rows, "title").axes
    assert [axes.get_title(loc="left") for axes in plots] == [f"{name}: mean +1.0 points (dashed)" for name in "ab"]
    for axes in plots:
        assert isinstance(axes, Axes)
        assert [bar.get_height() for bar in axes.patches] == [-0.02, 0.01, 0.04]  # pyright: ignore[reportAttributeAccessIssue]
        assert len({bar.get_facecolor() for bar in axes.patches}) == 2
        assert [text.get_text() for text in axes.get_xticklabels()] == ["5", "4", "3"]
        assert np.asarray(axes.lines[1].get_ydata()).tolist() == pytest.approx([0.01, 0.01])
    assert gains._POINTS(0.025, 0) == "+2.5" and gains._POINTS(-0.1, 0) == "-10" and gains._POINTS(0.0, 0) == "0"
