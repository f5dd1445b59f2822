"""What a server asks: a client reads it by its types, and refuses the rest before any work."""

from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from flfw.engines import apps
from flfw.engines.apps import read_message
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.runs.run_notes import final_accuracies

CONFIG: dict[str, Any] = {"round": 1, "client": 0, "state_version": 0, "experiment": "abc", "code": "x", "deadline": 60}
PROBE = {"control": "easy", "slot": 0, "own_slot": 0, "batch": 1, "steps": 1, "point": "easy"}


def message(config: dict[str, Any], kind: str = "train", **records: Any) -> Message:
    InProcessGrid(apps.client, 1, {})
    content = {"arrays": ArrayRecord(), "config": ConfigRecord(config), **records}
    return Message(RecordDict(content), dst_node_id=1, message_type=kind)


def test_an_honest_question_is_read_as_it_is() -> None:
    assert read_message(message(CONFIG), "train")[0] == CONFIG
    assert read_message(message(CONFIG | PROBE, "train.probe"), "train.probe")[0] == CONFIG | PROBE


@pytest.mark.parametrize(
    "change",
    [
        {"round": "1"}, {"round": -1}, {"state_version": 0.5}, {"state_version": -3}, {"deadline": "60"},
        {"deadline": float("nan")}, {"experiment": "../x"}, {"experiment": ""}, {"experiment": "a" * 200}, {"code": 7},
        {"batch": -1}, {"steps": [1]}, {"deadline": 0},
    ],
)  # fmt: skip
def test_a_scalar_of_another_kind_is_refused_by_its_name(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(InputError, match=rf"^Expected (an )?{name}\b.* a message of the server"):
        read_message(message({**CONFIG, **change}), "train")


@pytest.mark.parametrize("name", ["round", "state_version", "experiment", "code", "deadline"])
def test_a_missing_scalar_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InputError, match=rf"^Expected {name}, got none in a message of the server"):
        read_message(message({key: value for key, value in CONFIG.items() if key != name}), "train")


def test_a_probe_has_its_scalars_and_every_message_its_records() -> None:
    with pytest.raises(InputError, match=r"^Expected control in a message of the server for a probe, got none"):
        read_message(message(CONFIG, "train.probe"), "train.probe")
    with pytest.raises(InputError, match=r"^Expected records arrays and config .* got records=arrays, config\.$"):
        read_message(message(CONFIG, arrays=ConfigRecord()), "train")


def test_a_client_refuses_a_run_configuration_of_another_kind() -> None:
    requested = message({**CONFIG, "code": code_hash()}, "evaluate")
    run = Experiment(method="fedavg", clients=2).to_run_config()
    for change, name in (
        ({"clients": "2"}, "clients"),
        ({"init": 0}, "init"),
        ({"set": "'"}, "set"),
        ({"lr": "x"}, "lr"),
    ):
        node = {"partition-id": 0, "in-process": True}
        context = Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config={**run, **change})  # type: ignore[arg-type]
        with pytest.raises(InputError, match=rf"^Expected .*\b{name}\b"):
            apps.client(requested, context)
    with pytest.raises(InputError, match=r"^Expected 1 <= clients <= 1,000,000, got clients=2000000000\.$"):
        Experiment.from_run_config({**Experiment().to_run_config(), "clients": 2 * 10**9})
    with pytest.raises(InputError, match=r"^Expected lr in the run's configuration, got none"):
        Experiment.from_run_config({key: value for key, value in run.items() if key != "lr"})


def test_a_number_that_a_client_could_not_tell_counts_in_no_final_mean() -> None:
    rows = [{"client": 0, "acc_global": 0.5, "acc_local": 0.5, "acc_protected": None}, {"client": 1, "acc_global": 1.0}]
    history = [{"client": 0, "round": 1, "acc_validation": 0.5, "acc_local": None}]
    final = final_accuracies(rows, history, None)
    assert (final["acc_global"], final["acc_protected"], final["best_validation"]) == (0.75, None, None)
