"""Features of clients beside generated ones: whose they are, how they are laid out, and runs that have none."""

import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.colors import same_color

import sim
from flfw.client.store import ClientStore
from flfw.comparisons.figures import figures, tsne
from flfw.comparisons.figures.tsne import restored
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.conditional_gan import GeneratingNet
from flfw.plans.run_plan import plan, without_auto
from flfw.server.checkpoint import Checkpoints, stored_experiment
from flfw.task.task import Task


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of FedCG between two clients, whose state was kept."""
    folder = tmp_path_factory.mktemp("features") / "run"
    flags = "--method fedcg --clients 2 --rounds 2 --local-epochs 1 --lr 1e-3 --batch-size 64 --split sampled"
    flags += " --attack none --engine inproc --expert keep_state=true --set iterations=2 gan_epochs=1 gamma_rounds=1"
    assert sim.main([*flags.split(), "sampled.train=40", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.mark.nightly
def test_each_example_is_there_twice_real_and_generated(finished: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    written = figures.write([finished], tmp_path / "out", ["svg"], ["features"])
    assert [path.name for path in written] == ["features.svg", "features.csv", "features.tex"]
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before  # nothing is touched
    rows = tsne.features(finished, examples=20)
    assert list(rows[0]) == ["client", "kind", "label", "x", "y"]
    for client in (0, 1):
        real, made = ([r for r in rows if (r["client"], r["kind"]) == (client, kind)] for kind in ("real", "generated"))
        assert [r["label"] for r in real] == [r["label"] for r in made] and len(real) == 20
        chosen = _task(finished).split.train[client]
        assert {r["label"] for r in real} <= set(_task(finished).dataset.train_y[chosen].tolist())
    first = tsne.features(finished, clients=1, examples=20)
    assert first == [row for row in rows if row["client"] == 0]  # the same on every call


def _task(folder: Path) -> Task:
    return plan(stored_experiment(folder).experiment).task.load(None)


@pytest.mark.slow
def test_the_features_are_the_client_s_own_and_the_server_s_last(finished: Path) -> None:
    stored = stored_experiment(finished)
    last = Checkpoints(finished, stored.experiment).last
    assert last is not None and last.state_versions == {0: 2, 1: 2}
    for client in (0, 1):
        store = ClientStore(finished / "state", stored.id, client)
        model = restored(finished).model(client)
        assert isinstance(model, GeneratingNet) and not model.training
        tensors, kept = model.state_dict(), store.load(2)
        for name, value in tensors.items():
            if name.startswith("extractor."):
                assert torch.equal(value, kept[name])
            if name.startswith("generator."):
                assert np.array_equal(value.numpy(), last.arrays[name].numpy())


@pytest.mark.slow
def test_features_are_of_own_examples_and_generated_ones_of_their_labels(finished: Path) -> None:
    run = restored(finished)
    task, model = run.task, run.model(1)
    vectors, labels = tsne._vectors(run, 1, model, 8)
    x, y = task.examples("train", task.split.train[1])
    with torch.no_grad():
        chosen = model.extractor(task.inputs.normalise(x)).flatten(1).numpy()
        model.generator.embedding.weight.zero_()  # a generator that knows no label
    for vector, label in zip(vectors["real"], labels, strict=True):
        distances = np.abs(chosen - vector).max(1)
        assert distances.min() < 1e-6 and int(y[distances.argmin()]) == label
    blind, same = tsne._vectors(run, 1, model, 8)
    assert same == labels and np.array_equal(blind["real"], vectors["real"])
    assert not np.allclose(blind["generated"], vectors["generated"], atol=1e-6)


def test_a_class_has_its_colour_and_a_kind_its_mark() -> None:
    kinds = (("real", 0.0), ("generated", 5.0))
    rows = [
        {"client": client, "kind": kind, "label": label, "x": at + label, "y": at}
        for client in (3, 4, 7)
        for kind, at in kinds
        for label in (0, 8)
    ]
    figure = tsne.drawn(rows, "title")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["client 3", "client 4", "client 7"]
    for axes in figure.axes:
        real, made = axes.collections
        assert np.asarray(real.get_offsets()).tolist() == [[0, 0], [8, 0]]
        assert np.asarray(made.get_offsets()).tolist() == [[5, 5], [13, 5]]
        assert not len(np.asarray(made.get_facecolor())) and len(np.asarray(real.get_facecolor())) == 2
        for one, other in zip(np.asarray(real.get_edgecolor()), np.asarray(made.get_edgecolor()), strict=True):
            assert same_color(one.tolist(), other.tolist())
        assert np.asarray(real.get_paths()[0].vertices).shape != np.asarray(made.get_paths()[0].vertices).shape
        assert [text.get_text() for text in axes.texts] == ["0", "8"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["0", "8", "real", "generated"]


@pytest.mark.slow
def test_a_run_without_generator_or_state_is_refused_in_one_line(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(folder: Path) -> str:
        capsys.readouterr()
        assert figures.main([str(folder), "--figure-names", "features"]) == 2
        message = capsys.readouterr().err
        assert message.startswith("figures: Expected ") and message.count("\n") == 1
        return message

    flags = "--method fedsplit --clients 2 --rounds 1 --local-epochs 1 --attack none --engine inproc --split iid"
    assert sim.main([*flags.split(), "--expert", "keep_state=true", "--out", str(tmp_path / "split")]) == 0
    assert "keep an extractor and receive a generator of features, got fedsplit." in complaint(tmp_path / "split")
    shutil.rmtree(next((copied / "state").glob("*/*/client-0001")))
    assert "Expected the whole state of the run in" in complaint(copied)
    shutil.rmtree(copied / "state")
    assert "got none; run with --expert keep_state=true." in complaint(copied)
    for path in (copied / "checkpoint").glob("round-*"):
        path.write_bytes(b"nothing")
    (copied / "state").mkdir()
    assert "damaged" in complaint(copied) or "checkpoint" in complaint(copied)


def test_too_few_examples_are_refused() -> None:
    given = without_auto(Experiment(method="fedcg", clients=2, split="iid", attack=("none",)))
    run, unused = tsne.Restored(Path(), given, plan(given).task.load(None), cast(Any, None)), cast(Any, None)
    with pytest.raises(InputError, match="Expected at least 2 training examples of client 0"):
        tsne._vectors(run, 0, unused, 1)
