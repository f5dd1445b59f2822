"""Numbers beside tensors: what tells neighbouring data sets apart, and a run whose clients report none."""

import csv
import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

import sim
from flfw.client.context import ClientContext
from flfw.command.api.arguments import experiment_of
from flfw.dp.resolve_noise import resolve_noise
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan, without_auto
from flfw.privacy.claims import claim
from flfw.privacy.mechanism import Mechanism

RUN = "--net linear --engine inproc --clients 2 --rounds 2 --local-epochs 1 --attack none"


def answers(metrics: Any, method: str, fewer: int) -> tuple[Mapping[str, Any], Mapping[str, Any], set[str]]:
    """What a client's train and evaluate report if this many of its examples are left out; names of its tensors."""
    experiment = Experiment(method=method, net="mlp", clients=2, local_epochs=1, batch_size=500, attack=("none",))
    run_plan = plan(without_auto(dataclasses.replace(experiment, engine="inproc", metrics=metrics)))
    task = run_plan.task.load(None)
    cut = tuple(indices[: len(indices) - fewer] for indices in task.split.train)
    test = tuple(indices[: len(indices) - fewer] for indices in task.split.test)
    task = replace(task, split=replace(task.split, train=cut, test=test))
    ctx = ClientContext(run_plan.client, task, 0, 1, None, None)
    trained, evaluated = run_plan.client_class(ctx), run_plan.client_class(ctx)
    received = {n: v.numpy().copy() for n, v in ctx.fresh_model().state_dict().items()}
    sent, reported = trained.fit_named(received, 0)
    return reported, evaluated.evaluate_named(received, 0), set(sent)


@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg", "fed_sdp", "fed_cdp"])
def test_reported_numbers_tell_neighbours_apart_and_with_none_there_are_none(method: str) -> None:
    with_it, without = answers("all", method, 0), answers("all", method, 1)
    assert with_it[0]["num-examples"] == without[0]["num-examples"] + 1
    assert with_it[0]["loss"] != without[0]["loss"]
    assert with_it[0]["loss"] == answers("all", method, 0)[0]["loss"]  # a repeat averages nothing out
    for fewer in (0, 1):
        assert answers("none", method, fewer) == ({}, {}, with_it[2])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "dp_fedavg", "hyperfl"])
def test_a_run_without_reported_numbers_trains_and_says_why_nothing_is_there(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    net = RUN if method != "hyperfl" else RUN.replace("--net linear", "")
    words = [*net.split(), "--method", method, "--metrics", "none", "--out", str(folder)]
    assert sim.main(words) == 0
    result = json.loads((folder / "result.json").read_text())
    assert [(row["loss"], row["acc_global"], row["acc_local"], row["extra"]) for row in result["rounds"]] == (
        [(None, None, None, {})] * 2
    )
    final = result["final"]
    assert (final["acc_global"], final["acc_local"], final["per_client"]) == (None, None, [])
    assert any("metrics=none" in note for note in result["notes"])
    printed = capsys.readouterr().out
    if method == "hyperfl":  # its classifiers never leave: there is no whole model to evaluate
        assert final["acc_central"] is None
    else:
        assert 0 <= final["acc_central"] <= 1
        page = (folder / "report.html").read_text()
        assert "final accuracy on the server’s own test data" in page and "final accuracy as received" not in page
        assert "on the server's own test data" in printed
    with (folder / "clients.csv").open() as file:
        assert set(next(csv.reader(file))) == {"round", "client", "upload_bytes"}
    page = (folder / "report.html").read_text()
    assert "None" not in page and "NaN" not in page and ">nan" not in page
    shutil.copytree(folder, tmp_path / "again")
    capsys.readouterr()
    assert sim.main(["--compare", str(folder), str(tmp_path / "again")]) == 0
    compared = capsys.readouterr().out
    assert "None" not in compared and "nan" not in compared.split()


def test_the_central_accuracy_is_that_of_the_mean_model(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*RUN.split(), "--method", "fedavg", "--metrics", "none", "--out", str(folder), "--lr", "0.1"]
    assert sim.main(words) == 0
    experiment = without_auto(Experiment(method="fedavg", net="linear", clients=2, rounds=2, local_epochs=1, lr=0.1))
    run_plan = plan(dataclasses.replace(experiment, attack=("none",), engine="inproc"))
    task, model = run_plan.task.load(None), None
    for server_round in (1, 2):
        sums = []
        for partition in (0, 1):
            ctx = ClientContext(run_plan.client, task, partition, server_round, None, None)
            model = model or ctx.fresh_model()
            received = {n: v.numpy().copy() for n, v in model.state_dict().items()}
            sums.append(run_plan.client_class(ctx).fit_named(received, 0)[0])
        model.load_state_dict({n: (sums[0][n].double() + sums[1][n].double()) / 2 for n in sums[0]})  # alike
    x, y = task.examples("test", torch.arange(len(task.dataset.test_y)).numpy())
    with torch.no_grad():
        right = (model.eval()(task.inputs.normalise(x)).argmax(1) == y).double().mean()
    assert json.loads((folder / "result.json").read_text())["final"]["acc_central"] == pytest.approx(float(right))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--method fednova", "steps"),
        ("--method fedavg --split sampled --set sampled.train=40 --expert patience=2", "validation"),
    ],
)
def test_who_needs_numbers_refuses_to_go_without(
    flags: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sim.main([*RUN.split(), *flags.split(), "--metrics", "none", "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert named in errors and len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_claim_says_who_must_ignore_the_numbers() -> None:
    mechanism = Mechanism(8.0, 10)
    trusting = claim(mechanism, "example", "server", 1e-5, 1)
    assert trusting.assumptions[0].startswith("The server ignores the losses")
    assert "is not shown" in " ".join(claim(mechanism, "example", "outsider", 1e-5, 1).assumptions)
    silent = claim(mechanism, "example", "server", 1e-5, 1, metrics="none")
    assert silent.epsilon == trusting.epsilon
    assert "ignores" not in " ".join(silent.assumptions)
    assert "report no number" in " ".join(silent.assumptions)


def test_secure_noise_reports_nothing_unless_told_to() -> None:
    secure = {"method": "dp_fedavg", "set": {"noise_source": "secure"}}
    assert sim.parse(["--method", "dp_fedavg", "--set", "noise_source=secure"]).experiment.metrics == "auto"
    assert sim.parse(["--metrics", "all", "--set", "noise_source=secure"]).experiment.metrics == "all"
    assert experiment_of(None, secure).metrics == "auto"
    assert experiment_of(None, {"method": "dp_fedavg"}).metrics == "all"
    assert experiment_of(None, {**secure, "metrics": "private"}).metrics == "private"
    assert without_auto(experiment_of(None, secure)).metrics == "none"
    assert (
        without_auto(experiment_of(None, {"metrics": "auto", "set": ("dp_gaussian.noise_source=secure",)})).metrics
        == "all"
    )


def test_a_federation_reports_nothing_unless_told_to_and_then_claims_nothing_against_its_server() -> None:
    experiment = Experiment(method="dp_fedavg", net="mlp", clients=2, attack=("none",), federation=Path("lab"))
    words = ["--method", "dp_fedavg", "--federation", "lab"]
    assert sim.parse(words).experiment.metrics == "auto"
    for more in (["--metrics", "all"], ["--metrics=all"]):
        assert sim.parse([*words, *more]).experiment.metrics == "all"
    assert sim.parse(words[:2]).experiment.metrics == sim.parse(words, experiment).experiment.metrics == "all"
    assert sim.parse(["--table", "fed_cdp.2", "--federation", "lab"]).experiment.metrics == "all"  # tables have theirs
    auto = replace(experiment, metrics="auto")
    assert without_auto(auto).metrics == "none"
    assert without_auto(auto, ["fedavg", "dp_fedavg"]).metrics == "auto"  # each cell of a matrix has its own
    assert without_auto(replace(auto, method="fedavg")).metrics == "all"
    assert without_auto(replace(auto, federation=None)).metrics == "all"
    for goal in ({"target_epsilon": 4.0}, {"epsilon_budget": 4.0}):
        run_plan = plan(without_auto(replace(experiment, metrics="all", **goal)))
        with pytest.raises(InputError, match=r"Expected --metrics private or none with --\w+-\w+ on real clients"):
            resolve_noise(run_plan, run_plan.task.load(None).split)
    claimed = {}
    for metrics in ("all", "none"):
        run_plan = plan(without_auto(replace(experiment, metrics=metrics, set=("noise_source=secure",))))
        accountant = RunAccountant(run_plan.client, run_plan.task.load(None).split)
        claimed[metrics] = {one.adversary: one.epsilon for one in accountant.claims() if one.unit == "example"}
    assert claimed["all"]["server"] == inf
    assert claimed["none"]["server"] == claimed["none"]["outsider"] == claimed["all"]["outsider"] < inf
