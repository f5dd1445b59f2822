"""Data sets, splits, networks and tables of a user's own, by package.module:name."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sim
from flfw import data
from flfw.clients.sgd import SGDClient
from flfw.data.splits import partition
from flfw.deploy.allowed_settings import DATA_PREFIXES, plugins_of
from flfw.deploy.policy import Policy
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets import Net, Tensors
from flfw.nets.backbones.architectures import VARIABLE
from flfw.plans.run_plan import plan
from flfw.runs import run
from flfw.runs.listing import about
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy
from flfw.strategies.fedavg import FedAvg
from flfw.strategies.fedprox import FedProx
from flfw.task.defence import Defence
from tests.support import outside_parts, tiny_backbone
from tests.support.small_runs import tiny


def asked(**changes: object) -> Experiment:
    given = {"dataset": outside_parts.CARD_NAME, "split": outside_parts.SPLIT_NAME, "attack": ("none",)}
    return tiny(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_takes_a_data_set_and_a_split_of_a_users_own(tmp_path: Path) -> None:
    folder = run.run(asked(rounds=3, local_epochs=5, batch_size=10, lr=0.1, out=tmp_path / "run"))
    result = json.loads((folder / "result.json").read_text())
    assert result["provenance"]["data"]["source"] == "drawn in the tests"
    assert result["config"]["split"] == outside_parts.SPLIT_NAME
    assert result["final"]["acc_global"] > 0.5


@pytest.mark.slow
def test_a_result_names_the_weights_of_a_pretrained_network(tmp_path: Path) -> None:
    for net in (tiny_backbone.NAME, "linear"):
        experiment = asked(net=net, trainable="auto", out=tmp_path / net.rpartition(":")[2])
        result = json.loads((run.run(experiment) / "result.json").read_text())
        sha256 = result["config"]["weights_sha256"]
        expected = {net: {"file": None, "sha256": sha256}} if ":" in net else None
        assert result["provenance"]["weights"] == expected and bool(sha256) == (":" in net)


def unfinished(shape: tuple[int, ...], classes: int) -> Net:
    """Network whose constants cannot be made without numbers."""
    linear = nn.Linear(shape[0], classes)
    linear.register_buffer("links", torch.eye(classes).to_sparse(), persistent=False)
    return Net(nn.Flatten(), linear)


def test_a_network_of_ones_own_that_cannot_be_built_is_one_line() -> None:
    name = "tests.house.test_outside_parts:unfinished"
    with pytest.raises(
        InputError, match=f"Expected net={name} to build a network for inputs of .*, got NotImpl"
    ) as error:
        run.check(asked(net=name))
    assert "on the device meta" in str(error.value)


def test_a_split_of_ones_own_has_settings() -> None:
    for skip in (0, 10):
        experiment = plan(asked(set=(f"Turns.skip={skip}",))).experiment
        split = plan(experiment).task.load(None).split
        np.testing.assert_array_equal(split.train[1], np.arange(skip + 1, 80, 2))


def test_a_changed_scheme_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = data.load(outside_parts.CARD_NAME)
    partition.split(dataset, outside_parts.Turns(), 2, 0)
    monkeypatch.setattr(partition, "source_of", lambda scheme: "changed")
    monkeypatch.setattr(outside_parts.Turns, "divide", lambda *arguments: pytest.fail("asked anew"))
    with pytest.raises(pytest.fail.Exception, match="asked anew"):
        partition.split(dataset, outside_parts.Turns(), 2, 0)


@pytest.mark.slow
def test_a_table_of_ones_own_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--table", outside_parts.TABLE_NAME, "--engine", "inproc", "--out", str(tmp_path)]
    assert sim.main(words) == 0
    assert "Accuracy on stripes" in capsys.readouterr().out
    assert (tmp_path / "stripes.1-quick.csv").read_text().count(",quick,measured,") == 2


Lettered = type("Lettered", (FedAvg,), {"uploads": "classifier.*"})  # without the comma that makes a tuple of it
Unasked = type("Unasked", (FedAvg,), {"downloads": ("extractor.*",)})
Misspelt = type("Misspelt", (Defence,), {"updates": None})
HERE, OUTSIDE = "tests.house.test_outside_parts", "tests.support.outside_parts"
REFUSED: list[tuple[dict[str, object], str]] = [
    ({"dataset": f"{OUTSIDE}:NONE"}, f"dataset={OUTSIDE}:NONE to be a DatasetCard"),
    ({"dataset": "no.such_module:CARD"}, "an importable module for dataset=no.such_module:CARD, got: No module"),
    ({"dataset": "no_such_module:CARD"}, "a data set among adult, "),
    ({"split": "flfw.data.splits.schemes:SplitScheme"}, "split=flfw.data.splits.schemes:SplitScheme to be a concr"),
    ({"split": f"{OUTSIDE}:STRIPES"}, f"split={OUTSIDE}:STRIPES to be a concrete "),
    ({"set": ("Turns.other=1",)}, "a field of Turns among skip; got Turns.other."),
    ({"method": f"{HERE}:Lettered"}, 'uploads as a tuple of patterns, such as ("classifier.*",), got "classifier.*".'),
    ({"method": f"{HERE}:Unasked"}, f"uploads that {HERE}:Unasked also downloads, got classifier.weight; add it to"),
    ({"defence": f"{HERE}:Misspelt"}, "a defence that overrides one of network, batch, gradients, step, update, got"),
]


def test_what_is_wrong_with_ones_own_is_one_line() -> None:
    for changes, text in REFUSED:
        with pytest.raises(InputError) as refusal:
            run.check(asked(**changes))
        assert str(refusal.value).startswith(f"Expected {text}") and "\n" not in str(refusal.value)


def test_a_bad_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(["--table", "tests.support.outside_parts:STRIPES"]) == 2
    assert "Expected table=tests.support.outside_parts:STRIPES to be an OutsideTable" in capsys.readouterr().err


def test_a_name_that_hides_another_module_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    for between in (" ", "+", ",", "\n"):
        for key in ("net", "split", "dataset", "method"):
            with pytest.raises(InputError):
                plan(asked(**{key: f"hidden.x{between}{tiny_backbone.NAME}"}))
                run.check(asked(**{key: f"hidden.x{between}{tiny_backbone.NAME}"}))
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_other_weights_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "random")
    words = ["--net", tiny_backbone.NAME, "--method", "fedavg", "--trainable", "linear_probe", "--attack", "none"]
    words += ["--clients", "2", "--rounds", "1", "--engine", "inproc"]
    assert sim.main([*words, "--expert", f"weights_sha256={64 * '0'}", "--out", str(tmp_path / "pinned")]) == 2
    assert "got weights_sha256" in capsys.readouterr().err
    assert (
        sim.main([*words, "--expert", "weights=/nowhere", "--seeds", "0", "1", "--out", str(tmp_path / "seeds")]) == 2
    )
    assert "in /nowhere, got no such file" in capsys.readouterr().err
    attacked = [word if word != "none" else "analytic" for word in words] + [
        "--images",
        "1",
        "--expert",
        "weights=random",
    ]
    assert sim.main([*attacked, "--out", str(tmp_path / "run")]) == 0
    for way in ("--resume", "--from"):
        assert sim.main([way, str(tmp_path / "run"), "--expert", "weights=/nowhere"]) == 2
    assert not (tmp_path / "pinned").exists() and not list((tmp_path / "run").glob("audit-*"))


@pytest.mark.slow
def test_seeds_side_by_side_take_the_weights_that_were_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    words = f"--net {tiny_backbone.NAME} --method fedavg --trainable linear_probe --attack none --rounds 1 --clients 2"
    words += " --engine inproc --expert weights=random --seeds 0 1"
    assert sim.main([*words.split(), "--out", str(tmp_path / "run")]) == 0


def test_a_sites_policy_must_name_them() -> None:
    assert set(DATA_PREFIXES) == data.PREFIXES
    policy = Policy(("any",), ("*",), 100.0)
    for key in ("dataset", "split", "net"):
        config = {**Experiment().to_run_config(), key: "package.module:name"}
        assert plugins_of(config) == ["package.module:name"]
        assert "lets no code run but the accepted app's" in str(policy.run_rejection(config))
        assert dataclasses.replace(policy, allowed_plugins=("package.module:name",)).run_rejection(config) is None
    assert plugins_of({**Experiment().to_run_config(), "dataset": "site:1x8x8:2"}) == []


class HeldNearMean(FedProx):
    """A method of one's own that derives from one of the project's."""


def test_a_method_of_ones_own_gets_the_client_half_that_it_derives_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands beside it, and that nothing names, would never be used, so it is refused."""
    name, half = f"{__name__}:HeldNearMean", type("Half", (SGDClient,), {"__module__": __name__})
    assert plan(tiny(method=name)).client.client_class is plan(tiny(method="fedprox")).client.client_class
    monkeypatch.setattr(f"{__name__}.Half", half, raising=False)
    with pytest.raises(InputError, match=f'one stands beside it: client = "{__name__}:Half" or client = "sgd"'):
        plan(tiny(method=name, seed=1))


class WithoutSettings(FederatedStrategy):
    """Names no settings, of which the client half would make its optimiser."""

    downloads = uploads = ("*",)
    client = "sgd"

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        return weighted_mean(updates)


def test_a_method_whose_settings_have_no_optimiser_for_its_clients_is_refused() -> None:
    words = "Expected Settings of WithoutSettings from LocalTraining, .* half sgd .*, got Settings=NoSettings."
    with pytest.raises(InputError, match=words):
        plan(tiny(method=f"{__name__}:WithoutSettings"))


def test_a_class_of_ones_own_has_a_card() -> None:
    assert about(f"{__name__}:HeldNearMean").startswith("[method] A method of one's own that derives from one")
    assert "--set mu=" in about(f"{__name__}:HeldNearMean")  # as --set takes it
    for name in ("Experiment", "Nobody"):
        with pytest.raises(InputError, match=f"^Expected a class of a method, defence or attack, got list=.*:{name}"):
            about(f"{__name__}:{name}")
