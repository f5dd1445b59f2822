"""Moving average of the models: a loop, what is evaluated and what is sent, resumption, refusals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sim
from flfw.experiment import Experiment
from flfw.messages.wire import pack
from flfw.plans.run_plan import plan
from flfw.runs import run
from flfw.server.aggregation import MovingAverage
from tests.support.method_rounds import initial_tensors
from tests.support.refusals import assert_refused
from tests.support.resumed_runs import cut_short


def by_loop(models: list[dict[str, Tensor]], decay: float) -> dict[str, Tensor]:
    average = {name: value.double() for name, value in models[0].items()}
    for t, model in enumerate(models[1:], start=1):
        d = min(decay, (1 + t) / (10 + t))
        average = {name: d * average[name] + (1 - d) * value.double() for name, value in model.items()}
    return average


@pytest.fixture
def given(small: Experiment) -> Experiment:
    """Three clients with noise, three rounds."""
    chosen = {"method": "dp_fedavg", "net": "mlp", "set": ("clip=0.5", "noise_multiplier=1"), "lr": 3.0}
    return dataclasses.replace(small, rounds=3, **chosen)


def stored(folder: Path, prefix: str) -> dict[str, Tensor]:
    (path,) = (folder / "checkpoint").glob("round-*.safetensors")
    return {name.removeprefix(prefix): v for name, v in load_file(path).items() if name.startswith(prefix)}


def test_by_hand() -> None:
    """D is 2/11 after the first round, 3/12 after the second, then 0.3; whole numbers are the latest."""
    average = MovingAverage(0.3)
    for t, value in enumerate([0.0, 11.0, 4.0, 10.0]):
        average.follow(t, pack({"w": torch.tensor([value]), "n": torch.tensor(t)}))
    # 9/11 11 = 9;  9/4 + 3/4 4 = 5.25;  0.3 5.25 + 0.7 10 = 8.575
    assert float(average.tensors["w"]) == pytest.approx(8.575)
    assert int(average.tensors["n"]) == 3 and average.tensors["w"].dtype == torch.float32


def test_it_equals_a_loop_over_many_rounds_and_none_is_kept_without_a_decay() -> None:
    rng = np.random.default_rng(0)
    models = [{"w": torch.tensor(rng.normal(size=5))} for _ in range(200)]
    average, absent = MovingAverage(0.95), MovingAverage(0.0)
    for t, model in enumerate(models):
        average.follow(t, pack(model))
        absent.follow(t, pack(model))
    torch.testing.assert_close(average.tensors["w"], by_loop(models, 0.95)["w"])
    last = pack(models[-1])
    assert not absent.tensors and absent.evaluated(last) is last
    spread = [float(value.std()) for value in (average.tensors["w"], models[-1]["w"])]
    assert spread[0] < 0.5 * spread[1]


@pytest.mark.slow
def test_the_average_of_a_run_is_of_what_was_sent_and_only_it_is_evaluated(given: Experiment, tmp_path: Path) -> None:
    plain = run.run(dataclasses.replace(given, out=tmp_path / "plain", metrics="none"))
    requested = dataclasses.replace(given, ema=0.2, metrics="none")
    folder = run.run(dataclasses.replace(requested, out=tmp_path / "average"))
    torch.testing.assert_close(stored(folder, "model/"), stored(plain, "model/"), rtol=0, atol=0)
    models = [{name: torch.tensor(value) for name, value in initial_tensors(requested).items()}]
    for last in (1, 2):
        models.append(stored(cut_short(dataclasses.replace(requested, out=tmp_path / str(last)), last), "model/"))
    models.append(stored(folder, "model/"))
    average = stored(folder, "ema/")
    for name, value in by_loop(models, 0.2).items():
        torch.testing.assert_close(average[name], value.float(), rtol=1e-5, atol=1e-7)

    def accuracy(tensors: dict[str, Tensor]) -> float:
        model, task = plan(requested).client.build_model().eval(), plan(requested).task.load(None)
        model.load_state_dict(tensors)
        x, y = task.examples("test", np.arange(len(task.dataset.test_y)))
        with torch.no_grad():
            return float((model(task.inputs.normalise(x)).argmax(1) == y).double().mean())

    final = [json.loads((one / "result.json").read_text())["final"]["acc_central"] for one in (folder, plain)]
    assert final == [pytest.approx(accuracy(average)), pytest.approx(accuracy(models[-1]))]
    assert final[0] != final[1]
    claims = [json.loads((one / "result.json").read_text())["privacy"] for one in (folder, plain)]
    assert claims[0] == claims[1]


@pytest.mark.slow
def test_clients_evaluate_the_average(given: Experiment, tmp_path: Path) -> None:
    """Their accuracies in the rounds are those of the models; the report says which is which."""
    results, pages = [], []
    for ema in (0.0, 0.5):
        folder = run.run(dataclasses.replace(given, ema=ema, out=tmp_path / str(ema)))
        results.append(json.loads((folder / "result.json").read_text()))
        pages.append((folder / "report.html").read_text())
        model, task = plan(given).client.build_model().eval(), plan(given).task.load(None)
        model.load_state_dict(stored(folder, "ema/" if ema else "model/"))
        each = []
        for mine in task.split.test:
            x, y = task.examples("test", mine)
            with torch.no_grad():
                each.append(float((model(task.inputs.normalise(x)).argmax(1) == y).double().mean()))
        assert results[-1]["final"]["acc_global"] == pytest.approx(float(np.mean(each)))
    assert [row["acc_global"] for row in results[0]["rounds"]] == [row["acc_global"] for row in results[1]["rounds"]]
    assert results[0]["final"]["acc_global"] != results[1]["final"]["acc_global"]
    words = "one more evaluation with the moving average of the aggregates (ema)"
    assert words in pages[1] and words not in pages[0]


@pytest.mark.slow
@pytest.mark.parametrize("after_round", [0, 2])
def test_a_run_goes_on_with_its_average_to_the_bit(given: Experiment, tmp_path: Path, after_round: int) -> None:
    requested = dataclasses.replace(given, ema=0.9)
    full = run.run(dataclasses.replace(requested, out=tmp_path / "whole"))
    folder = cut_short(dataclasses.replace(requested, out=tmp_path / "cut"), after_round)
    assert sim.main(["--resume", str(folder)]) == 0
    one, other = stored(full, ""), stored(folder, "")
    assert one.keys() == other.keys() and any(name.startswith("ema/") for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)
    final = [json.loads((run_ / "result.json").read_text())["final"] for run_ in (full, folder)]
    assert final[0] == final[1]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--expert", "ema=1"], "Expected 0 <= ema < 1, got ema=1.0."),
        (
            ["--expert", "ema=0.9", "--method", "local_only"],
            "Expected --expert ema=0 for method=local_only, which sends no model",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    flags: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[Any]
) -> None:
    assert_refused(text, flags, tmp_path / "r", capsys)
