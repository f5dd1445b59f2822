"""Pins of a run: what a policy's table allows, and that everything which it does not name is at its default."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfw.deploy.allowed_settings import FREE, pins_of
from flfw.deploy.policy import Policy
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from tests.support.paths import ROOT

DEFAULT = Experiment().to_run_config()
TABLE = """
method = ["hyperfl", "fedcg"]
rounds = {min = 1, max = 20}
lr = {max = 0.1}
clients = {min = 2}
set = "momentum=0 ig.lr=0.1"
"""


def policy(tmp_path: Path, table: str) -> Policy:
    plain = Policy(("0" * 64,), ("*",), 1.0).text()
    (tmp_path / "policy.toml").write_text(f"{plain}\n[run]\n{table}")
    return Policy.read(tmp_path / "policy.toml")


def refusal(pins: Policy, **changes: Any) -> str | None:
    config = {**DEFAULT, "set": "momentum=0 ig.lr=0.1", **{k.replace("_", "-"): v for k, v in changes.items()}}
    refused = pins.run_rejection(config)
    return refused and refused.removeprefix("this site's policy pins the run, which has ")


def test_what_it_names_has_one_of_these_values(tmp_path: Path) -> None:
    pins = policy(tmp_path, TABLE)
    for allowed in ({}, {"method": "fedcg"}, {"rounds": 1}, {"rounds": 20}, {"lr": 0.1}, {"clients": 10_000}):
        assert refusal(pins, **allowed) is None
    assert refusal(pins, method="fedavg") == "method=fedavg, and method is to be hyperfl or fedcg"
    assert refusal(pins, rounds=21) == "rounds=21, and rounds is to be at least 1 and at most 20"
    assert refusal(pins, rounds=0) == "rounds=0, and rounds is to be at least 1 and at most 20"
    assert refusal(pins, lr=0.11) == "lr=0.11, and lr is to be at most 0.1"
    assert refusal(pins, clients=1) == "clients=1, and clients is to be at least 2"
    assert refusal(pins, set="momentum=0") == "set=momentum=0, and set is to be momentum=0 ig.lr=0.1"
    assert refusal(pins, set="'momentum=0'   ig.lr=0.1") is None


def test_what_it_does_not_name_has_its_default(tmp_path: Path) -> None:
    pins = policy(tmp_path, TABLE)
    named = ("method", "rounds", "lr", "clients", "set")
    for key, default in DEFAULT.items():
        other = "other" if isinstance(default, str) else not default if isinstance(default, bool) else default + 3
        refused = refusal(pins, **{key: other})
        if key == "malicious-server":  # which the policy has a rule of its own for, and pins besides
            assert refused is not None and refused.endswith("the run's is changed by other")
        elif key in FREE:
            assert refused is None or key in ("metrics", "record"), refused  # which the policy has rules of its own for
        elif key not in named:
            assert refused == f"{key}={other}, and {key} is to be {default if default != '' else 'nothing'}"
    assert refusal(pins, epochs=3) == "epochs, which is no setting here"


@pytest.mark.parametrize("net", ["cnn1", "lenet", "auto"])
def test_the_policy_in_the_documentation_lets_the_run_through_that_it_describes(tmp_path: Path, net: str) -> None:
    """As sim.py submits it: with what auto becomes in place of auto."""
    text = (ROOT / "docs" / "deployment.md").read_text()
    (written,) = [part for part in text.split("```") if part.startswith("\nallowed_apps = ")]
    (tmp_path / "policy.toml").write_text(written.replace("0d0a8b3f...", "0" * 64))
    described = Experiment(
        method="hyperfl", net=net, clients=3, rounds=200, dataset="site:1x28x28:10", attack=("none",)
    )
    chosen = plan(replace(described, federation=tmp_path)).experiment
    read = Policy.read(tmp_path / "policy.toml")
    assert read.run_rejection(chosen.to_run_config()) is None
    assert read.run_rejection(replace(chosen, rounds=201).to_run_config())


def test_no_module_is_imported_for_an_attack_that_a_server_names(tmp_path: Path) -> None:
    pins = policy(tmp_path, TABLE)
    """Clients look for an attack of their method's name among the run's."""
    assert refusal(pins, attack="ig idlg") is None
    refused = policy(tmp_path, TABLE).run_rejection({**DEFAULT, "attack": "ig a.module:hyperfl"})
    assert "lets no code run but the accepted app's, such as a.module:hyperfl" in str(refused)


@pytest.mark.parametrize("quoted", ["{}  ", " {}", "'{}'", '"{}"', "''{}", "\\{}"])
def test_a_word_is_compared_to_the_character(quoted: str, tmp_path: Path) -> None:
    """A run reads these words with their quotes: another order, other constants of the inputs, another folder."""
    pins = policy(tmp_path, TABLE + 'dataset = "folder:/data/scans"\n')
    assert refusal(pins, dataset="folder:/data/scans") is None
    assert refusal(pins, dataset=quoted.format("folder:/data/scans")) is not None
    for key in ("example-order", "normalise", "init", "norm", "augment", "defence", "accountant"):
        changed = {"dataset": "folder:/data/scans", key: quoted.format(DEFAULT[key])}
        assert refusal(pins, **changed) is not None, key


def test_patience_is_pinned_as_a_site_reports_one_number_more_for_it(tmp_path: Path) -> None:
    assert refusal(policy(tmp_path, TABLE), patience=5) == "patience=5, and patience is to be 0"
    assert refusal(policy(tmp_path, TABLE + "patience = {max = 9}\n"), patience=5) is None


@pytest.mark.parametrize("value", ["20", True, 20.5, None, [1], float("nan"), float("inf")])
def test_a_range_holds_numbers_alone(tmp_path: Path, value: object) -> None:
    assert refusal(policy(tmp_path, TABLE), rounds=value) is not None


def test_a_truth_value_is_no_number_and_a_number_no_word(tmp_path: Path) -> None:
    pins = policy(tmp_path, 'set = "momentum=0 ig.lr=0.1"\nseed = 1\n'.replace("seed = 1\n", "") + "side = 1\n")
    assert refusal(pins, image_size=1) is None and refusal(pins, image_size=1.0) is None
    assert refusal(pins, image_size=True) is not None and refusal(pins, image_size="1") is not None


def test_a_value_that_a_server_chose_is_cut_short(tmp_path: Path) -> None:
    refused = refusal(policy(tmp_path, TABLE), dataset="x" * 10_000)
    assert refused is not None and refused.startswith("dataset=" + "x" * 80 + ", and") and len(refused) < 200


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("epochs = 3", "Expected a key among method, variant, clients, "),
        ("out = 'here'", ", got out."),
        ("rounds = {}", "Expected a value, a list of values or {min = ..., max = ...} for rounds in [run]"),
        ("rounds = {max = '20'}", "got {'max': '20'}"),
        ("rounds = {maximum = 20}", "got {'maximum': 20}"),
        ("rounds = []", "got []"),
        ("rounds = [[1]]", "got [[1]]"),
    ],
)
def test_a_table_of_another_form_stops_the_site(tmp_path: Path, table: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        policy(tmp_path, table)
    assert line in str(caught.value)


def test_a_value_in_place_of_the_table_stops_the_site(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("run = 3\n" + Policy(("0" * 64,), ("*",), 1.0).text())
    with pytest.raises(InputError, match=r"Expected a table \[run\] in .*, got run=3\."):
        Policy.read(tmp_path / "policy.toml")


def test_a_policy_without_the_table_pins_nothing_but_the_place_of_its_data(tmp_path: Path) -> None:
    plain = Policy(("0" * 64,), ("*",), 1.0)
    assert plain.run_rejection({**DEFAULT, "method": "fedcg", "rounds": 10**6, "dataset": "site:1x8x8:4"}) is None
    for dataset in ("folder:/home", "hf:/srv/patients", "hf:somebody/set", "csv:/srv/t.csv@y"):
        refused = plain.run_rejection({**DEFAULT, "dataset": dataset})
        assert refused is not None
        assert refused.startswith(f"this site's policy lets no server choose what is read, such as {dataset}; ")
    named = policy(tmp_path, 'dataset = "folder:/srv/scans"')
    assert named.run_rejection({**DEFAULT, "dataset": "folder:/srv/scans"}) is None
    assert named.run_rejection({**DEFAULT, "dataset": "folder:/srv"}) is not None


def test_what_is_written_is_read_again_and_allows_the_experiment(tmp_path: Path) -> None:
    experiment = Experiment(
        method="fed_cdp", dataset="site:1x8x8:4", rounds=7, defence="dcs2 prune", ema=0.5, defence_randomness="secure",
        set=('ats.policy="3-1-7"', "clip=2"),
    )  # fmt: skip
    written = replace(Policy(("0" * 64,), ("*",), 1.0), run=pins_of(experiment, "site:1x8x8:4"))
    (tmp_path / "policy.toml").write_text(written.text())
    read = Policy.read(tmp_path / "policy.toml")
    assert read == written and read.run_rejection(experiment.to_run_config()) is None
    assert read.run_rejection(replace(experiment, clients=3, rounds=6, seed=4).to_run_config()) is None
    for other in (
        replace(experiment, rounds=8),
        replace(experiment, defence="prune"),
        replace(experiment, dataset="digits"),
    ):
        assert read.run_rejection(other.to_run_config()) is not None


def test_a_value_of_many_megabytes_is_refused_at_once(tmp_path: Path) -> None:
    began = time.process_time()
    refused = policy(tmp_path, 'method = "fed_cdp"').run_rejection({**DEFAULT, "method": "x" * 20_000_000})
    assert refused is not None and len(refused) < 300
    assert time.process_time() - began < 5  # to split so many words takes minutes
