"""Runs, audits, resumptions, estimates and models from Python: the results of the commands, and errors of one line."""

import ast
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

import flfw
import sim
from flfw import Experiment, InputError, Result, audit, estimate, load_model, resume, run
from flfw.command.api.library_calls import library_call
from flfw.runs.run import reopened
from flfw.runs.trained_model import TrainedModel
from tests.support.paths import ROOT

SMALL = {"method": "fedavg", "net": "linear", "clients": 2, "rounds": 1, "local_epochs": 1, "images": 2}
SCRIPT = """
import signal
import sys
import flfw
loaded = [name for name in ("torch", "pandas", "flwr", "ray", "numpy") if name in sys.modules]
from flfw import run
small = dict(method="fedavg", net="linear", clients=2, rounds=1, local_epochs=1, images=2)
result = run(**small, attack="analytic", out="a", engine="{}")
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print(loaded, result.verdict, result.final["acc_local"])
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The result of a small audited run."""
    return run(**SMALL, attack="analytic", engine="inproc", out=tmp_path_factory.mktemp("api") / "run")


def figures(folder: Path) -> dict[str, object]:
    """The numbers of a run that do not depend on the clock."""
    result = json.loads((folder / "result.json").read_text())
    rounds = [{name: row[name] for name in ("round", "loss", "acc_global", "acc_local")} for row in result["rounds"]]
    return {"rounds": rounds, "final": result["final"], "verdicts": [entry["verdict"] for entry in result["audit"]]}


@pytest.mark.slow
def test_a_call_gives_the_numbers_of_the_command(finished: Result, tmp_path: Path) -> None:
    words = "--method fedavg --net linear --clients 2 --rounds 1 --local-epochs 1 --images 2 --attack analytic"
    assert sim.main([*words.split(), "--engine", "inproc", "--out", str(tmp_path / "run")]) == 0
    assert figures(finished.path) == figures(tmp_path / "run")


@pytest.mark.slow
def test_an_experiment_and_fields_ask_for_the_same(finished: Result, tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, attack=("none",), engine="inproc", seed=5)
    result = run(experiment, seed=0, attack="analytic", out=str(tmp_path / "run"))
    assert result.experiment == finished.experiment
    assert result.final == finished.final


@pytest.mark.slow
def test_a_further_audit_has_its_own_attacks_and_the_run_s_training(finished: Result) -> None:
    again = audit(finished, attack="dlg", set={"dlg.iterations": 3})
    assert again.path == finished.path / "audit-1"
    assert set(again.audit["attack"]) == {"dlg"} and set(finished.audit["attack"]) == {"analytic"}
    pd.testing.assert_frame_equal(again.rounds, finished.rounds)
    pd.testing.assert_frame_equal(again.clients, finished.clients)
    assert again.experiment.set == ("dlg.iterations=3",)


def test_a_run_is_loaded_and_resumed_from_its_folder(finished: Result) -> None:
    assert Result.load(str(finished.path)) == finished
    assert resume(str(finished.path)) == finished == resume(finished)
    with pytest.raises(InputError, match=r"go on after round 1, .* was audited as the last one"):
        resume(finished, rounds=2)
    with pytest.raises(InputError, match="where it lies"):
        resume(finished, out="elsewhere")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"methd": "fedavg"}, "Expected a field of Experiment, got methd; did you mean method?"),
        ({"xyzzy": 1}, "Expected a field of Experiment, got xyzzy; see help(flfw.Experiment)."),
        ({"method": "nobody"}, "Expected a method among"),
        ({"attack": ["analytic", 3]}, "Expected attack[1] as text, got 3."),
        ({"rounds": 2.5}, "Expected rounds as a whole number, got 2.5."),
        ({"record": 1}, "Expected record as true or false, got 1."),
        ({"engine": "rya"}, "Expected engine among ray, inproc, flwr-sim, flwr, got engine=rya."),
        ({"set": {"nobody.x": 1}}, "Expected --set"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fields: dict, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        run(**{"engine": "inproc", **fields}, out=tmp_path / "run")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "") and list(tmp_path.iterdir()) == []


def test_something_else_than_an_experiment_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Expected an Experiment or its fields, got given=dict\.$"):
        run({"method": "fedavg"})  # type: ignore[arg-type]


@pytest.mark.parametrize("load", [Result.load, flfw.MatrixResult.load, flfw.RehearsalResult.load])
def test_a_folder_without_a_result_is_refused(tmp_path: Path, load) -> None:
    with pytest.raises(InputError, match=re.escape(f"in {tmp_path}, got no")):
        load(tmp_path)


@pytest.mark.slow
def test_an_audit_of_an_audit_names_the_run(finished: Result, tmp_path: Path) -> None:
    again = audit(finished, attack="analytic", out=tmp_path / "again")
    with pytest.raises(InputError) as caught:
        audit(again, attack="analytic")
    named = f"an audit of the run in {finished.path}; name that one."
    assert str(caught.value) == f"Expected a run, got {again.path}, {named}"


def test_an_audit_of_another_app_has_no_run(finished: Result, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({**finished.content, "config": {"method": "theirs"}}))
    with pytest.raises(InputError, match=r"an audit of another app; flfw\.recorded_apps makes another\.$"):
        audit(tmp_path, attack="analytic")


@pytest.mark.slow
def test_calls_of_several_threads_take_turns(finished: Result, tmp_path: Path) -> None:
    requested = replace(finished.experiment, seed=3)
    with ThreadPoolExecutor(2) as threads:
        done = [
            threads.submit(run, each, out=tmp_path / str(at))
            for at, each in enumerate((requested, finished.experiment))
        ]
    assert done[0].result().verdict == done[1].result().verdict == "leaks"
    assert done[1].result().final == finished.final != done[0].result().final


def test_a_call_waits_for_that_of_another_thread() -> None:
    came = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with library_call(), library_call():  # the second of the same thread has no turn to wait for
            threads.submit(_in_turn, came)
            assert not came.wait(0.2)
        assert came.wait(10)


def _in_turn(came: threading.Event) -> None:
    """Set the event in a call of the library."""
    with library_call():
        came.set()


def test_an_impossible_path_is_bad_input() -> None:
    with pytest.raises(InputError, match="File name too long: "):
        run(**SMALL, engine="inproc", attack="none", out="x" * 300)


def test_a_call_leaves_the_caller_s_generators_loggers_and_environment_alone(tmp_path: Path) -> None:
    logging.getLogger("flwr").setLevel(logging.INFO)
    state, environment = torch.get_rng_state(), dict(os.environ)
    run(**SMALL, engine="inproc", attack="none", out=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert logging.getLogger("flwr").level == logging.INFO and dict(os.environ) == environment


@pytest.mark.slow
def test_an_estimate_says_time_claims_and_notes() -> None:
    expected = estimate(**SMALL, attack="none", engine="inproc")
    assert 0 < expected.costs.seconds.round <= expected.costs.seconds.total
    assert expected.costs.experiment.rounds == 1 and "\nmemory  about" in str(expected)


def test_numbers_of_numpy_paths_and_mappings_are_taken() -> None:
    experiment = Experiment(
        clients=np.int64(4), lr=np.float32(0.5), out="runs/a", set={"ig.iterations": 5, "x.y": True}
    )  # type: ignore[arg-type]
    assert (experiment.clients, type(experiment.clients), experiment.lr, type(experiment.lr)) == (4, int, 0.5, float)
    assert experiment.out == Path("runs/a") and experiment.set == ("ig.iterations=5", "x.y=true")
    assert Experiment(attack="ig") == Experiment(attack=["ig"]) == Experiment(attack=("ig",))  # type: ignore[arg-type]


def test_the_package_audit_is_called_whether_it_was_imported_or_not() -> None:
    import flfw.audit.job_planner

    assert flfw.audit is audit and flfw.audit.job_planner.__name__ == "flfw.audit.job_planner"
    with pytest.raises(InputError, match="Expected "):
        flfw.audit("/nowhere/at/all", attack="ig")


def test_every_name_of_the_interface_is_there_and_no_other() -> None:
    assert all(hasattr(flfw, name) for name in flfw.__all__)
    assert {name for name in dir(flfw) if name in flfw.__all__} == set(flfw.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = flfw.nothing  # type: ignore[attr-defined]


def test_the_types_of_the_interface_are_those_of_its_names() -> None:
    stub = ast.parse((ROOT / "flfw" / "__init__.pyi").read_text())
    named = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named - {None} == {name for name in flfw.__all__ if not name.startswith("_")}
    assert (ROOT / "flfw" / "py.typed").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inproc", pytest.param("ray", marks=pytest.mark.nightly)])
def test_a_script_needs_no_main_guard_and_the_import_is_light(tmp_path: Path, engine: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(engine))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] leaks 0.")
    assert "round 1/1  loss" in done.stderr


SECOND = """
import signal
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
from flfw import InputError, run
small = dict(method="fedavg", net="linear", clients=2, rounds=1, local_epochs=1, images=2, attack="analytic")
before = signal.getsignal(signal.SIGTERM)
ours = run(**small, engine="ray", out="ray")
assert ray.is_initialized()
other = run(**small, engine="inproc", out="inproc")
assert signal.getsignal(signal.SIGTERM) is before
assert ours.final == other.final and ours.verdict == other.verdict == "leaks"

@ray.remote(num_cpus=1)
def three():
    return 3

assert ray.get(three.remote(), timeout=60) == 3
try:
    run(**small, engine="flwr-sim", out="flower")
except InputError as error:
    print(error)
"""


@pytest.mark.nightly
def test_a_ray_that_runs_already_is_used_and_stays(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SECOND)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = "Expected --engine ray where Ray is running in this process, or ray.shutdown() before"
    assert done.stdout.splitlines()[-1] == f"{expected}, got engine=flwr-sim."
    assert not (tmp_path / "flower").exists()


def accuracies(result: Result, model: TrainedModel) -> list[float]:
    """Score each client's test images, as scikit-learn has them, by plain PyTorch."""
    digits, (_, task) = load_digits(), reopened(result.path)
    images = np.rint(digits.images[1500:, None] * (255 / 16)).astype(np.uint8)
    right = model(model.preprocess(images)).argmax(1).numpy() == digits.target[1500:]
    return [float(right[rows].mean()) for rows in task.split.test]


@pytest.mark.slow
def test_a_loaded_model_has_each_client_s_accuracy_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for method in ("fedper", "pfedhn", "fedavg", "scaffold"):
        fields: dict[str, Any] = {**SMALL, "method": method, "net": "cnn1", "rounds": 2, "lr": 0.1, "attack": "none"}
        result = run(**fields, engine="inproc", keep_state=method == "fedper", out=tmp_path / method)
        reported = [row["acc_global"] for row in result.final["per_client"]]
        if method in ("fedper", "pfedhn"):
            assert [accuracies(result, load_model(result, client=one))[one] for one in (0, 1)] == reported
            with pytest.raises(InputError, match=f"client=NUMBER, as {method} has a model for each client, got none"):
                load_model(result)
        else:
            assert accuracies(result, load_model(result)) == reported
        with pytest.raises(InputError, match="Expected a client from 0 to 1, got client=2"):
            load_model(result, 2)
    model = load_model(result)
    assert not model.training and model.classes == tuple("0123456789") and model.columns is None
    for x in (torch.zeros(3, 8, 8), torch.full((2, 1, 28, 28), 16.0), torch.full((2, 1, 28, 28), torch.nan)):
        with pytest.raises(
            InputError, match=r"inputs of shape \(B, 1, 28, 28\), got|inputs as bytes, or floats in \[0, 1"
        ):
            model.preprocess(x)
    for name, old, new, message in (
        ("result.json", b'"shape"', b'"form"', r"Expected provenance\.data\.shape in .*, got none; run it anew"),
        ("result.json", b"28,", b"32,", "Expected"),
        ("checkpoint/round-*", b"order", b"other", "it is damaged; restore it"),
        ("checkpoint/exper*", b"", None, "which was purged"),
        ("result.json", b"", None, r"Expected a finished run with result\.json"),
    ):
        copy = Path(shutil.copytree(result.path, tmp_path / message[:20]))
        (file,) = copy.glob(name)
        file.write_bytes(file.read_bytes().replace(old, new)) if new else file.unlink()
        with pytest.raises(InputError, match=message):
            load_model(copy)
    shutil.rmtree(tmp_path / "fedper" / "state")
    with pytest.raises(InputError, match=r"private tensors in .*state, got none; run with --expert keep_state=true"):
        load_model(tmp_path / "fedper", client=0)


@pytest.mark.slow
def test_a_table_is_read_as_for_training_without_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("train.csv", "test.csv"):
        frame = pd.DataFrame({"age": [str(age) if age % 9 else "?" for age in range(20, 80)], "ward": list("ABC" * 20)})
        frame["dose"], frame["seen"] = [f"{n},{n % 9}5" for n in range(60)], "2020-03-01"
        frame["died"] = np.where(np.random.default_rng(0).integers(0, 2, 60) > 0, "yes", "no")
        frame.to_csv(tmp_path / name, sep=";", index=False)
    settings = f"csv.test={tmp_path / 'test.csv'} csv.missing=? csv.drop=seen".split()
    fields: dict[str, Any] = {**SMALL, "net": "mlp", "rounds": 3, "lr": 0.5, "test": "shared", "set": settings}
    dataset = f"csv:{tmp_path / 'train.csv'}@died"
    result = run(**fields, dataset=dataset, attack="none", engine="inproc", out=tmp_path / "run")
    words = pd.read_csv(tmp_path / "test.csv", sep=";", dtype=str, keep_default_na=False)
    numbers = pd.read_csv(tmp_path / "test.csv", sep=";", decimal=",", na_values="?")
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).unlink()
    model = load_model(result)
    for frame in (words, numbers, numbers.drop(columns=["seen", "died"]), dict(numbers)):
        guesses = np.array(model.classes)[model(model.preprocess(frame)).argmax(1).numpy()]
        assert (guesses == words["died"].to_numpy()).mean() == result.final["acc_global"]
    with pytest.raises(InputError, match="Expected all columns that are features, got none called ward"):
        model.preprocess(numbers.drop(columns="ward"))
    with pytest.raises(InputError, match="Expected one reading of column dose, got 2,500, which is"):
        model.preprocess(words.assign(dose="2,500"))
