"""Figures of finished runs: their numbers against hand-made and real runs, and what cannot be drawn."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.text import Annotation, Text
from safetensors.numpy import load_file

import sim
from flfw.comparisons.figures import charts, comparisons, drawing, figures, norms, tsne
from flfw.comparisons.rows import FinishedRun
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.recording.retention import purge
from flfw.report import chart_style
from flfw.runs import results
from flfw.runs.run import run
from flfw.server.checkpoint import last_snapshot, stored_experiment
from tests.support.csv_files import read_csv

SVG = "{http://www.w3.org/2000/svg}"
ROUNDS = [
    {"round": 1, "loss": 2.25, "acc_global": 0.1, "acc_local": 1 / 3, "extra": {"slow": None, "steps": 7}},
    {"round": 2, "loss": 0.1 + 0.2, "acc_global": None, "acc_local": 0.75, "extra": {"slow": 0.5, "never": None}},
]


def written(folder: Path, rounds: Any = ROUNDS, **config: Any) -> Path:
    """A finished run's folder, as far as it is read."""
    folder.mkdir(parents=True)
    details = {"seed": 0, "dataset": "digits", "method": "hyperfl", "defence": "none", **config}
    (folder / "result.json").write_text(json.dumps({"config": details, "rounds": rounds, "final": None, "audit": []}))
    return folder


def texts(svg: Path) -> set[str]:
    return {"".join(node.itertext()).strip() for node in ElementTree.parse(svg).iter(f"{SVG}text")}


# --- numbers ---


@pytest.mark.slow
def test_the_csv_holds_what_result_json_says(tmp_path: Path) -> None:
    other = [{"round": 1, "loss": 1, "acc_global": 0.25, "acc_local": 0.5, "extra": {}}]
    one, two = written(tmp_path / "one"), written(tmp_path / "two", other, method="fedavg", defence="prune")
    files = figures.write([one, two])
    names = [f"{name}.{end}" for name in ("training", "measures") for end in ("svg", "csv", "tex")]
    assert [path.relative_to(one / "figures").name for path in files] == names
    read = [tuple(row.values()) for row in read_csv(one / "figures" / "training.csv")]
    assert [(name, int(r), *(float(x) if x else None for x in numbers)) for name, r, *numbers in read] == [
        ("hyperfl", 1, 2.25, 0.1, 1 / 3),
        ("hyperfl", 2, 0.1 + 0.2, None, 0.75),
        ("fedavg with prune", 1, 1.0, 0.25, 0.5),
    ]
    # What nobody ever measured is no column; what one round lacks is empty.
    assert (one / "figures" / "measures.csv").read_text() == "round,steps,slow\n1,7.0,\n2,,0.5\n"


@pytest.mark.slow
def test_runs_are_named_after_what_tells_them_apart(tmp_path: Path) -> None:
    def names(*folders: Path) -> set[str]:
        figures.write(folders, tmp_path / "out", only=["training"])
        return {row["run"] for row in read_csv(tmp_path / "out" / "training.csv")}

    one, two = written(tmp_path / "a" / "one"), written(tmp_path / "a" / "two", method="my.own:Method")
    same, again = written(tmp_path / "a" / "same"), written(tmp_path / "b" / "same")
    assert names(one, two) == {"hyperfl", "Method"}
    assert names(one, same) == {"one", "same"}
    assert names(same, again) == {"a/same", "b/same"}


@pytest.mark.parametrize(
    ("rounds", "complaint"),
    [
        ([], "Expected a run with rounds of training, got "),
        (None, "Expected a run with rounds of training, got "),
        ([{"round": 1}], "got damaged ones: KeyError('loss')"),
        ([{**ROUNDS[0], "loss": "much"}], "Expected rounds[0].loss as "),
        ("none", "Expected rounds as "),
    ],
)
def test_a_run_without_sound_rounds_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rounds: Any, complaint: str
) -> None:
    assert figures.main([str(written(tmp_path / "run", rounds))]) == 2
    message = capsys.readouterr()
    assert message.err.startswith("figures: Expected ") and complaint in message.err and message.err.count("\n") == 1
    assert not message.out and not (tmp_path / "run" / "figures").exists()


def test_what_cannot_stand_in_one_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, mnist = written(tmp_path / "one"), written(tmp_path / "mnist", dataset="mnist")
    for words, complaint in (
        ([one, mnist], "Expected runs on the same data in one figure, got datasets=digits and mnist."),
        ([one, tmp_path / "one" / ".." / "one"], "Expected each run once, got runs="),
        ([one, tmp_path / "nothing"], "Expected a finished run with result.json, got "),
        ([written(tmp_path / "short", ROUNDS[1:]), "--figure-names", "measures"], "Expected two rounds or more"),
        ([one, "--out", one / "result.json"], "Expected a folder for the figures, got out="),
    ):
        assert sim.main(["--figures", *map(str, words)]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"sim.py: {complaint}") and message.count("\n") == 1
    assert sim.main(["--figures", str(one), "--compare", str(one), str(mnist)]) == 2


# --- a real run ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clients of the papers' groups 0 to 4 and 0 again, whose state was kept."""
    folder = tmp_path_factory.mktemp("figures") / "run"
    flags = "--method hyperfl --net lenet --split dominant --clients 6 --rounds 2 --local-epochs 1 --attack none"
    flags += " --engine inproc --expert keep_state=true --set hidden=16 embedding=8"
    assert sim.main([*flags.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.mark.slow
def test_a_run_that_kept_its_state_gives_all_three(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim.main(["--figures", str(finished), "--out", str(tmp_path / "out")]) == 0
    message = capsys.readouterr()
    assert message.out.splitlines() == [
        str(tmp_path / "out" / f"{n}.{s}") for n in figures.USUAL for s in ("svg", "csv", "tex")
    ]
    assert message.err == ""
    result = json.loads((finished / "result.json").read_text())
    losses = [float(row["loss"]) for row in read_csv(tmp_path / "out" / "training.csv")]
    assert losses == [row["loss"] for row in result["rounds"]] and len(losses) == 2
    dead = [float(row["dead_hidden_units"]) for row in read_csv(tmp_path / "out" / "measures.csv")]
    assert dead == [row["extra"]["dead_hidden_units"] for row in result["rounds"]]
    rows = read_csv(tmp_path / "out" / "embeddings.csv")
    assert [int(row["client"]) for row in rows] == list(range(6))
    assert [row["dominant_classes"] for row in rows] == ["0 1 2", "2 3 4", "4 5 6", "6 7 8", "0 8 9", "0 1 2"]
    assert [row["group"] for row in rows] == ["0–2", "2–4", "4–6", "6–8", "0, 8, 9", "0–2"]
    assert {"before", "after", "Mean training loss", "round"} <= texts(tmp_path / "out" / "training.svg")
    assert {"dead hidden units", "classifier loss"} <= texts(tmp_path / "out" / "measures.svg")
    assert {"dominant classes", "0–2", "0, 8, 9"} <= texts(tmp_path / "out" / "embeddings.svg")


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    once, again = (figures.write([finished], tmp_path / word) for word in ("once", "again"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]


@pytest.mark.slow
def test_an_embedding_is_the_one_that_the_server_went_on_from(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = stored_experiment(copied)

    def kept(client: int, made_in: int) -> list[float]:
        (path,) = (copied / "state").glob(f"*/*/client-{client:04d}/round-{made_in:05d}-*.safetensors")
        return load_file(path)["embedding"].tolist()

    result = tsne._embedded(copied, stored)
    assert {client: vector.tolist() for client, vector in result.items()} == {c: kept(c, 2) for c in range(6)}
    last = last_snapshot(copied)
    assert last.state_versions == dict.fromkeys(range(6), 2)
    earlier = replace(last, state_versions=last.state_versions | {0: 1, 3: 0})
    monkeypatch.setattr(tsne, "last_snapshot", lambda folder: earlier)
    result = tsne._embedded(copied, stored)
    assert sorted(result) == [0, 1, 2, 4, 5] and result[0].tolist() == kept(0, 1) != kept(0, 2)


@pytest.mark.slow
def test_state_is_kept_if_asked_and_purged_all_the_same(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = replace(stored_experiment(copied).experiment, out=copied)
    assert experiment.keep_state and not Experiment().keep_state and "keep-state" not in experiment.decisive
    (copied / "tidying.json").touch()
    results.tidy(experiment)
    assert len(list((copied / "state").glob("*/*/client-*/*.safetensors"))) == 12
    assert "state/: 12 files" in " ".join(purge(shutil.copytree(copied, copied.parent / "purged")))
    assert not (copied.parent / "purged" / "state").exists()
    (copied / "tidying.json").touch()
    results.tidy(replace(experiment, keep_state=False))
    assert not (copied / "state").exists()
    complaint = (
        f"Expected the clients' private tensors in {copied / 'state'}, got none; run with --expert keep_state=true.\n"
    )
    assert figures.main([str(copied)]) == 0
    assert capsys.readouterr().err == f"left out: embeddings: {complaint}"
    assert not (copied / "figures" / "embeddings.svg").exists()
    assert figures.main([str(copied), "--figure-names", "embeddings"]) == 2
    assert capsys.readouterr().err == f"figures: {complaint}"


def test_state_that_is_not_whole_is_refused(copied: Path) -> None:
    shutil.rmtree(next((copied / "state").glob("*/*/client-0004")))
    with pytest.raises(InputError, match=r"Expected the whole state of the run in .*copy: .* round 2 .*client-0004"):
        tsne.embeddings(copied)
    next((copied / "checkpoint").glob("round-*")).unlink()
    with pytest.raises(InputError, match=r"Expected the last round's checkpoint in .*copy/checkpoint, got none"):
        tsne.embeddings(copied)


@pytest.mark.slow
def test_a_method_without_private_embeddings_is_named(small: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(replace(small, net="linear", keep_state=True))
    capsys.readouterr()
    assert figures.main([str(folder)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "left out: measures: Expected a method that measures more than loss and accuracy, got method=fedavg.",
        "left out: embeddings: Expected a method whose clients keep a private embedding, got fedavg.",
    ]


# --- privacy against utility ---


def claim(unit: str, epsilon: float | str, counted: str = "exact", adversary: str = "server") -> dict[str, Any]:
    return {"unit": unit, "adversary": adversary, "epsilon": epsilon, "delta": 1e-5, "accounting": counted}


def finished_with(accuracy: float | None, claims: Any = (), audit: Any = (), **config: Any) -> FinishedRun:
    details = {"seed": 0, "dataset": "digits", "method": "fed_cdp", "defence": "none", **config}
    final = None if accuracy is None else {"acc_global": accuracy, "acc_local": 0.01}
    result = {"config": details, "privacy": list(claims), "final": final, "audit": list(audit)}
    return FinishedRun(Path("somewhere"), result, ())


def test_privacy_has_the_true_epsilon_and_the_paper_s_of_each_unit() -> None:
    one = finished_with(
        0.75,
        [
            claim("example", 3.0, adversary="outsider"),
            claim("example", 5.0),
            claim("client", "inf"),
            claim("example", 0.5, "as published", "not told apart"),
        ],
    )
    rows = comparisons.privacy({"one": one, "two": finished_with(0.9, method="fedavg")})
    details = {"run": "one", "kind": "fed_cdp", "delta": 1e-5, "accuracy": 0.75}
    assert rows == [
        {**details, "unit": "example", "epsilon": 5.0, "as_published": 0.5},
        {**details, "unit": "client", "epsilon": float("inf"), "as_published": None},
        {
            "run": "two",
            "kind": "fedavg",
            "unit": "",
            "epsilon": None,
            "as_published": None,
            "delta": None,
            "accuracy": 0.9,
        },
    ]


@pytest.mark.parametrize(
    ("one", "complaint"),
    [
        (
            finished_with(0.5, method="fedavg"),
            "Expected a run that claims an epsilon against the server, got runs=one.",
        ),
        (finished_with(0.5, [claim("client", "inf")]), "Expected a run that claims an epsilon against the server, "),
        (finished_with(None, [claim("client", 1.0)]), "Expected a run whose clients report accuracies, got somewhere"),
        (finished_with(0.5, [{"unit": "client"}]), "Expected claims of this version in somewhere, got others"),
    ],
)
def test_runs_without_privacy_or_utility_are_refused(one: FinishedRun, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        comparisons.privacy({"one": one})
    assert str(refused.value).startswith(complaint)


def test_privacy_is_drawn_where_it_is_known() -> None:
    rows = comparisons.privacy({
        "a": finished_with(0.5, [claim("example", 8.0), claim("example", 2.0, "as published"), claim("client", "inf")]),
        "b": finished_with(0.7, [claim("example", 80.0), claim("client", "inf")]),
        "c": finished_with(0.9, method="fedavg"),
    })  # fmt: skip
    (axes,) = charts.privacy(rows, "title").axes  # of clients nothing is known
    assert axes.get_title(loc="left") == "Privacy of one example" and axes.get_xscale() == "log"
    assert [(8.0, 0.5), (80.0, 0.7)] in lines(axes) and [(2.0, 0.5)] in lines(axes)
    assert [(0, 0.9), (1, 0.9)] in lines(axes)  # across the plot
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["fed_cdp", "fedavg, no epsilon", "as its paper counts"]


# --- compression ---


def entry(attack: str, success: float, rmsd: float | None, vantage: str = "client_example") -> dict[str, Any]:
    distance = {"success": success, "rmsd": rmsd, "iterations": 1.0}
    return {"attack": attack, "vantage": vantage, "round": 0, "failures": 2, "distance": distance}


def compressed(where: str, ratio: float, accuracy: float, *audit: dict[str, Any]) -> FinishedRun:
    return finished_with(accuracy, audit=audit, method_settings={"compress": where, "compress_ratio": ratio})


def test_compression_has_the_worst_attack_on_single_examples() -> None:
    weak, strong, other = entry("a", 0.5, 0.1), entry("b", 0.75, 0.2), entry("c", 1.0, 0.0, "server")
    rows = comparisons.compression({
        "x": compressed("after", 0.3, 0.7, weak, strong, other),
        "y": compressed("none", 0.3, 0.9, entry("a", 0.5, 0.3), entry("b", 0.5, 0.2), entry("c", 0.5, None)),
        "z": compressed("after", 0.1, 0.8),
    })  # fmt: skip
    assert [(row["run"], row["compress"], row["ratio"]) for row in rows] == [
        ("z", "after", 0.1),
        ("x", "after", 0.3),
        ("y", "none", 0.0),
    ]
    assert [(row["attack"], row["distance"], row["found"], row["failures"]) for row in rows] == [
        (None, None, None, None),
        ("b", 0.2, 0.75, 2),
        ("b", 0.2, 0.5, 2),
    ]
    above, below = charts.compression(rows, "title").axes
    assert [(0.0, 0.9), (0.1, 0.8), (0.3, 0.7)] in lines(above)
    assert [(0.0, 0.2), (0.3, 0.2)] in lines(below)
    assert [note.get_text() for note in notes(above)] == ["after the noise"]


def test_runs_that_say_nothing_on_compression_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"^Expected runs of a method with the setting compress_ratio, got fed_cdp in x\.$"
    ):
        comparisons.compression({"x": finished_with(0.5)})
    with pytest.raises(InputError, match=r"^Expected runs with different compress_ratio, got ratios=0\.$"):
        comparisons.compression({"x": compressed("none", 0.1, 0.5), "y": compressed("after", 0.0, 0.5)})


# --- norms of gradients ---


def test_norms_are_those_of_single_examples_along_plain_steps(small: Experiment) -> None:
    """Against autograd, example by example, and torch's own SGD."""
    experiment = replace(small, net="linear", method="fed_cdp", batch_size=20, lr=0.5, set=("noise_multiplier=50",))
    task = plan(experiment).task.load(None)
    result = norms.by_client(experiment, task, maximum=2)
    assert len(result) == 2
    for partition, mine in enumerate(result):
        client = norms.client_of(replace(experiment, method="fedavg", set=()), task, partition, None)
        parameters, steps = list(client.model.parameters()), []
        optimiser = torch.optim.SGD(parameters, lr=0.5)  # neither momentum nor decay, as Fed-CDP
        for x, y in client.batches(client.generator("batches")):
            every = [torch.autograd.grad(client.loss(x[i : i + 1], y[i : i + 1]), parameters) for i in range(len(y))]
            steps.append(float(np.mean([torch.cat([g.flatten() for g in chosen]).norm().item() for chosen in every])))
            optimiser.zero_grad()
            client.loss(x, y).backward()
            optimiser.step()
        assert mine == pytest.approx(steps, rel=1e-4) and len(steps) == -(-len(client.indices("train")) // 20) > 3


@pytest.mark.slow
def test_norms_are_of_the_fresh_and_of_the_trained_model(small: Experiment, tmp_path: Path) -> None:
    folder = run(replace(small, net="linear", method="fed_cdp", set=("noise_multiplier=0.1",)))
    (before, after) = (
        [row for row in norms.norms(folder) if row["state"] == state] for state in ("before training", "after round 2")
    )
    steps = len(before)
    assert [row["iteration"] for row in after] == list(range(1, steps + 1)) and {r["clients"] for r in after} == {3}
    assert all(0 < row["low"] <= row["mean"] <= row["high"] for row in [*before, *after])
    # The same fresh weights and batches.
    chosen = norms.by_client(small, plan(replace(small, net="linear")).task.load(None))
    assert before[0]["mean"] == pytest.approx(np.mean([norm[0] for norm in chosen]))
    assert before[0]["mean"] != pytest.approx(after[0]["mean"], rel=0.01)
    assert sim.main(["--figures", str(folder), "--out", str(tmp_path / "usual")]) == 0
    assert not (tmp_path / "usual" / "norms.csv").exists()  # only if it is asked for
    assert figures.main([str(folder), "--figure-names", "norms", "--out", str(tmp_path / "out")]) == 0
    assert len(read_csv(tmp_path / "out" / "norms.csv")) == 2 * steps
    assert {"before training", "after round 2", "local iteration"} <= texts(tmp_path / "out" / "norms.svg")


def test_clients_of_fewer_steps_leave_the_mean_to_the_others() -> None:
    rows = norms._rows("here", [[1.0, 3.0], [2.0]])
    assert [(row["iteration"], row["clients"], row["mean"]) for row in rows] == [(1, 2, 1.5), (2, 1, 3.0)]
    assert (rows[0]["low"], rows[0]["high"]) == (pytest.approx(1.1), pytest.approx(1.9))


def test_a_method_that_shares_a_part_of_its_model_has_norms_of_the_fresh_one(finished: Path) -> None:
    assert {row["state"] for row in norms.norms(finished)} == {"before training"}


def test_norms_of_very_different_size_are_drawn_on_a_logarithmic_scale() -> None:
    rows = [
        {"state": state, "iteration": i, "mean": size * i, "low": size, "high": 3 * size}
        for state, size in (("a", 1.0), ("b", 500.0))
        for i in (1, 2)
    ]
    (axes,) = charts.norms(rows, "title").axes
    assert axes.get_yscale() == "log" and lines(axes) == [[(1, 1.0), (2, 2.0)], [(1, 500.0), (2, 1000.0)]]
    (axes,) = charts.norms(rows[:2], "title").axes
    assert axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    assert [note.get_text() for note in notes(axes)] == ["a"]


# --- t-SNE and groups ---


def test_neighbours_stay_neighbours_and_places_repeat() -> None:
    centres = 20 * np.eye(3, 5)
    vectors = np.repeat(centres, 4, axis=0) + np.random.default_rng(0).normal(size=(12, 5))
    places = tsne.plane(vectors, seed=3)
    assert places.shape == (12, 2) and np.array_equal(places, tsne.plane(vectors, seed=3))
    for client in range(12):
        distances = [np.linalg.norm(places[client] - places[other]) for other in range(12)]
        nearest = sorted((distance, other) for other, distance in enumerate(distances) if other != client)[:3]
        assert {other // 4 for _, other in nearest} == {client // 4}


@pytest.mark.parametrize(
    ("vectors", "complaint"),
    [
        (np.eye(3), "Expected at least 4 clients with a private embedding, got clients=3."),
        (np.arange(5.0)[:, None], "Expected a private embedding of at least 2 numbers, got numbers=1."),
        (np.ones((5, 3)), "Expected a different embedding of each client, got different=0."),
    ],
)
def test_what_cannot_be_laid_out_is_refused(vectors: np.ndarray, complaint: str) -> None:
    with pytest.raises(InputError) as refused:
        tsne.plane(vectors, 0)
    assert str(refused.value) == complaint


def test_groups_by_hand() -> None:
    # Even shares of 25, 25, 25 and 10: more than 37.5 and 15 is dominant.
    counts = np.array([[38, 37, 13, 12], [40, 40, 10, 10], [25, 25, 25, 25], [0, 0, 20, 20]])
    assert tsne.dominant(counts) == [(0,), (0, 1), (), (2, 3)]
    assert tsne.groups(counts) == ["0", "0, 1", "none", "2, 3"]


def test_there_are_never_more_groups_than_marks() -> None:
    maximum = len(chart_style.MARKS)
    pairs = np.zeros((maximum + 1, 2 * maximum), int)
    for client in range(maximum + 1):
        pairs[client, [client % 2, client + 2 if client + 2 < 2 * maximum else 2]] = (9, 8)
    assert tsne.groups(pairs) == [f"mostly {client % 2}" for client in range(maximum + 1)]
    clients = [*range(maximum + 3), *range(maximum - 1)]  # each of the first classes twice, of the last ones once
    assert tsne.groups(np.eye(maximum + 3, dtype=int)[clients]) == [
        f"mostly {label}" if label < maximum - 1 else drawing.OTHERS for label in clients
    ]


# --- drawing ---


def course(*runs: str, rounds: int = 3) -> list[dict[str, Any]]:
    return [
        {"run": run, "round": r, "loss": 1 / r + index, "acc_global": 0.5, "acc_local": 0.5 + 0.01 * index}
        for index, run in enumerate(runs)
        for r in range(1, rounds + 1)
    ]


def notes(axes: Any) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation)]


def lines(axes: Any) -> list[list[tuple[float, float]]]:
    return [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]


def test_lines_go_through_the_rows_and_bear_their_names() -> None:
    rows = course("a", "b")
    above, below = drawing.training(rows, "title").axes
    assert lines(above) == [[(r["round"], r["loss"]) for r in rows if r["run"] == name] for name in "ab"]
    assert lines(below)[:2] == [
        [(r["round"], r[key]) for r in rows if r["run"] == "a"] for key in ("acc_local", "acc_global")
    ]
    assert [note.get_text() for note in notes(above)] == ["a", "b"]
    named = {note.get_text(): note.xy for note in notes(below)}
    assert len(named) == 4 and (named["b, after"], named["b, before"]) == ((3, 0.51), (3, 0.5))


@pytest.mark.slow
def test_names_keep_apart_however_near_the_lines_end() -> None:
    figure = drawing.training(course(*"abcdefgh"), "title")
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = sorted((Text.get_window_extent(note) for note in notes(axes)), key=lambda box: box.y0)
        assert all(upper.y0 > lower.y1 - 1 for lower, upper in pairwise(boxes))
        assert all(box.x1 <= figure.bbox.width for box in boxes)


def test_a_gap_stays_a_gap_and_a_line_is_named_where_it_ends() -> None:
    rows = [{**row, "loss": loss} for row, loss in zip(course("a"), (2.0, 1.0, None), strict=True)]
    above, _ = drawing.training(rows, "title").axes
    assert lines(above) == [[(1, 2.0), (2, 1.0)]] and [note.xy for note in notes(above)] == [(2, 1.0)]
    assert notes(drawing.training([{**row, "loss": None} for row in rows], "title").axes[0]) == []


def test_a_measure_starts_at_zero_unless_it_goes_below() -> None:
    rows = [{"round": r, "some_share": 0.5 + 0.01 * r, "zero": 0.0, "below": 1.0 - r} for r in (1, 2)]
    share, zero, below = drawing.measures(rows, "title").axes
    assert [axes.get_title(loc="left") for axes in (share, zero, below)] == ["some share", "zero", "below"]
    assert share.get_ylim()[0] == 0 and share.get_ylim()[1] > 0.52 and zero.get_ylim() == (0, 1)
    assert below.get_ylim()[0] < -1


def test_every_group_has_a_form_and_every_client_a_number() -> None:
    groups = ["4, 5", "none", "10–35", "4, 5"]
    rows = [{"client": 7 + i, "group": group, "x": float(i), "y": i * i / 2} for i, group in enumerate(groups)]
    (axes,) = drawing.embeddings(rows, "title").axes
    legend = axes.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["4, 5", "10–35", "none"]
    drawn = [np.asarray(marks.get_offsets()).tolist() for marks in axes.collections]
    assert drawn == [[[0.0, 0.0], [3.0, 4.5]], [[2.0, 2.0]], [[1.0, 0.5]]]
    forms = {np.asarray(marks.get_paths()[0].vertices).tobytes() for marks in axes.collections}
    assert len(forms) == 3
    assert {(note.get_text(), note.xy) for note in notes(axes)} == {(str(r["client"]), (r["x"], r["y"])) for r in rows}
    assert notes(drawing.embeddings([{**rows[0], "client": i} for i in range(41)], "title").axes[0]) == []


@pytest.mark.nightly
def test_the_same_rows_give_the_same_bytes_and_nobody_elses_settings_are_touched() -> None:
    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    for form in ("svg", "png", "pdf"):
        files = [chart_style.rendered(drawing.training(course("a"), "title"), form) for _ in range(2)]
        assert files[0] == files[1] != b""
    assert dict(matplotlib.rcParams) == before and matplotlib.get_backend() == backend


def test_inks_are_apart_in_grey() -> None:
    greys = [float(np.dot(to_rgb(ink), (0.299, 0.587, 0.114))) for ink in chart_style.INKS]
    assert min(np.diff(greys)) > 0.08


@pytest.mark.slow
def test_norms_of_a_model_that_has_diverged_are_drawn_as_far_as_they_are_numbers() -> None:
    rows: list[dict[str, Any]] = [
        {"state": state, "iteration": i, "clients": 2, "mean": mean, "low": mean / 2, "high": 2 * mean}
        for state, means in (("before training", (9.0, 3.0)), ("after round 1", (9e9, nan)))
        for i, mean in enumerate(means, 1)
    ]
    axes = charts.norms(rows, "title").axes[0]
    assert axes.get_yscale() == "log"
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[9.0, 3.0], [9e9]]
    with pytest.raises(InputError, match="Expected norms that are numbers"):
        charts.norms([{**row, "mean": nan} for row in rows], "title")
