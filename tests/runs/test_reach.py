"""Reach of private experiments: the largest movement and the noise by hand, and the cells that cannot learn."""

import json
from dataclasses import replace
from math import log, log2, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from flfw.command.api.summary import summary
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.runs import run
from flfw.runs.reach import Reach, keep, minority_price, notes_on_learning, reach, uninformative
from flfw.task.task import Task
from tests.support.small_runs import tiny

ALIKE = {"attack": ("none",), "net": "linear"}
STEPS = {"clients": 4, "rounds": 3, "local_epochs": 2, "batch_size": 10, "lr": 0.1, **ALIKE}


def reached(method: str, *settings: str, **more: object):
    run_plan = plan(without_auto(Experiment(method=method, dataset="digits", set=settings, **{**STEPS, **more})))
    task = run_plan.task.load(None)
    return reach(run_plan, task), task


def test_clipped_steps_move_no_farther_than_their_bounds_add_up_to() -> None:
    seen, task = reached("dp_fedavg", "clip=0.5", "noise_multiplier=2", "momentum=0.5")
    assert seen is not None
    steps = -(-max(map(len, task.split.train)) // 10) * 2
    assert seen.steps == 3 * steps
    assert seen.movement == pytest.approx(3 * steps * 0.1 * 0.5 / 0.5)
    assert seen.noise == pytest.approx(2 * 0.5 * (0.1 / 0.5) / 10 * sqrt(steps / 4))
    assert seen.weight == pytest.approx(seen.start / sqrt(650))
    taught = seen.movement / sqrt(10)  # the noise on the largest of 10 scores is sqrt(2 ln 10) deviations
    assert seen.share == pytest.approx(seen.noise * sqrt(3 * 650) / taught * sqrt(2 * log(10)))


def test_groups_and_a_draw_for_each_example_count() -> None:
    plain, _ = reached("fed_cdp", "clip=0.5", "noise_multiplier=2")
    each, _ = reached("fed_cdp", "clip=0.5", "noise_multiplier=2", "draws=example")
    layers, _ = reached("fed_cdp", "clip=0.5", "noise_multiplier=2", net="mlp")
    assert plain is not None and each is not None and layers is not None
    assert each.noise == pytest.approx(plain.noise * sqrt(10))
    assert layers.movement == pytest.approx(plain.movement * sqrt(3))  # three layers, each with its bound


def test_updates_are_noised_by_each_client_or_once() -> None:
    by_client, _ = reached("fed_sdp", "clip=0.5", "noise_multiplier=2")
    by_server, _ = reached("fed_sdp", "clip=0.5", "noise_multiplier=2", "noised_by=server")
    assert by_client is not None and by_server is not None
    assert (by_client.steps, by_client.movement) == (3, pytest.approx(1.5))
    assert by_client.noise == pytest.approx(1 / 2) and by_server.noise == pytest.approx(1 / 4)


@pytest.mark.parametrize(("net", "idle"), [("mlp", []), ("lenet", ["analytic", "cocktail", "spear"])])
def test_attacks_that_get_nothing_from_a_network_are_named_before_training(net: str, idle: list[str]) -> None:
    _, _, said = run.check(tiny(net=net, attack=("analytic", "cocktail", "spear", "ig")))
    assert [note.split()[1] for note in said if note.startswith("Attack ")] == idle


def test_what_cannot_learn_says_why_and_what_can_says_nothing() -> None:
    assert reached("fedavg")[0] is None
    short, _ = reached("dp_fedavg", "clip=0.001", "noise_multiplier=0")
    loud, _ = reached("dp_fedavg", "clip=4", "noise_multiplier=50")
    fine, _ = reached("dp_fedavg", "clip=4", "noise_multiplier=0.1")
    assert short is not None and "move the weights by at most" in short.obstacle
    assert loud is not None and "adds noise of" in loud.obstacle
    assert fine is not None and fine.obstacle == "" and "clipped steps" in fine.sentence


@pytest.mark.parametrize(
    ("counts", "price"),
    [
        ((50, 50), 0.0),
        ((75, 25), 2 * log2(3)),  # the smaller class teaches 1 / 4, each of two equal ones 1 / 2; odds of three to one
        ((80, 10, 10), sqrt(1 / 3) / (sqrt(0.02) * sqrt(3 / 2)) * log2(4)),
        ((40, 30, 30), 0.0),
        ((100, 0), 0.0),
    ],
)
def test_smaller_classes_bear_less_noise(counts: tuple[int, ...], price: float) -> None:
    task = reached("fedavg")[1]
    labels = np.repeat(np.arange(len(counts)), counts)
    unequal = replace(task, dataset=replace(task.dataset, train_y=labels, classes=len(counts)))
    assert minority_price(unequal) == pytest.approx(price)
    seen = Reach(steps=64, movement=8.0, start=1.0, noise=0.0, weight=1.0, share=0.4, minority=0.4 * price)
    assert ("largest class" in seen.obstacle) == (price > 2.5)


@pytest.mark.parametrize(("ones", "warned"), [(50, False), (76, True)])
def test_a_table_with_most_rows_in_one_class_is_warned_of(tmp_path: Path, ones: int, warned: bool) -> None:
    """The same noise is 0.4 of what equal classes teach, and more than what one with a quarter of the rows does."""
    rows = [f"{at % 10},{int(at % 100 < ones)}" for at in range(300)]
    (tmp_path / "rows.csv").write_text("\n".join(["number,income", *rows]) + "\n")
    given = {"dataset": f"csv:{tmp_path / 'rows.csv'}@income", "attack": ("none",), "split": "iid", "lr": 1.0}
    noise = ("noise_multiplier=15", "clip=1", "momentum=0")
    said = run.check(tiny(method="dp_fedavg", **given, set=noise))[2]
    assert any("outweighs what all but the largest class teach" in note for note in said) == warned


def finished(folder: Path, seen: Reach | None, task: Task, loss: float | None = 0.1, accuracy: float = 0.5) -> str:
    keep(folder, seen, task)
    result = {"rounds": [{"loss": 0.1}, {"loss": loss}], "final": {"acc_global": accuracy}}
    (folder / "result.json").write_text(json.dumps(result))
    return uninformative(folder)


@pytest.mark.parametrize(("loss", "why"), [(2.301, "as by guessing among 10 classes"), (1.9, ""), (None, "")])
def test_a_loss_of_guessing_is_uninformative(tmp_path: Path, loss: float | None, why: str) -> None:
    text = finished(tmp_path, None, reached("fedavg")[1], loss)
    assert why in text and bool(text) == bool(why)


def test_an_obstacle_counts_only_where_nothing_was_learnt(tmp_path: Path) -> None:
    """Noise far above the weights need not prevent a simple model from learning, as on Cancer in two seeds of three."""
    assert uninformative(tmp_path) == ""  # of an older run, no reach is kept
    seen, task = reached("dp_fedavg", "clip=4", "noise_multiplier=50")
    assert seen is not None and seen.obstacle
    assert finished(tmp_path, seen, task, accuracy=0.87) == ""
    assert "adds noise of" in finished(tmp_path, seen, task, accuracy=0.12)
    fine, _ = reached("dp_fedavg", "clip=4", "noise_multiplier=0.1")
    assert finished(tmp_path, fine, task, accuracy=0.12) == ""


def test_the_figures_of_the_papers_cells() -> None:
    """From the settings alone: DP-FedAvg's quick cell moves by 0.096."""
    chosen = plan(without_auto(Experiment(method="dp_fedavg", dataset="digits", **ALIKE))).client.settings
    assert 120 * 0.01 * chosen.clip / (1 - chosen.momentum) == pytest.approx(0.096)


def rows(*losses: float | None, clipped: float | None = None) -> list[dict[str, Any]]:
    extra = {} if clipped is None else {"clipped": clipped}
    return [{"round": 1 + at, "loss": loss, "acc_global": 0.1, "extra": extra} for at, loss in enumerate(losses)]


def notes(
    *losses: float | None, local: float | None = 0.9, central: float | None = None, of: int | None = None, **more: Any
) -> str:
    _, task = reached("fedavg")
    asked = [{"client": client, "acc_local": local} for client in range(len(task.split.test))[:of]]
    final = {"acc_local": local, "acc_central": central, "per_client": asked}
    return " ".join(notes_on_learning(rows(*losses, **more), final, task))


def test_a_training_that_came_to_nothing_says_so() -> None:
    assert notes(2.0, 1.0) == notes(2.0, 1.0, clipped=0.9) == notes(2.0, 1.0, local=None) == ""
    assert "not finite from round 2 on" in notes(2.0, None, None, local=0.1)
    assert "Everything was clipped" in notes(2.0, 1.0, clipped=1.0)


def test_an_accuracy_counts_above_the_guess_of_a_class() -> None:
    """The most frequent class of a client has 26.6 % of its tests on average, and of all tests together 12 %."""
    _, task = reached("fedavg")
    counts = [np.bincount(np.asarray(task.dataset.test_y)[places]) for places in task.split.test]
    for asked in (1, len(counts)):  # the others have no part in the mean
        own = fmean(int(one.max()) / int(one.sum()) for one in counts[:asked])
        chance = 1.645 * sqrt(own * (1 - own) / sum(int(one.sum()) for one in counts[:asked]))
        assert "most frequent class" in notes(2.0, local=own + 0.99 * chance, of=asked)
        assert notes(2.0, local=own + 1.01 * chance, of=asked) == ""
    assert "Accuracy of the model is not clearly above" in notes(2.0, local=None, central=0.12)
    assert notes(2.0, local=None, central=0.3) == ""


def test_a_run_that_learns_nothing_says_so_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.run(tiny(tmp_path / "run", method="fed_sdp", rounds=3, attack=("none",), set=("noise_multiplier=1e20",)))
    assert "warning: The model may not learn: each round adds noise of" in capsys.readouterr().err
    assert "nothing was learnt" in " ".join(summary(tmp_path / "run").splitlines())
    assert "nothing was learnt" in (tmp_path / "run" / "report.html").read_text().partition('id="provenance"')[0]
