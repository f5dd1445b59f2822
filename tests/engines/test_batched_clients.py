"""Clients of a round that one process trains together, in whole runs and message by message."""

import dataclasses
import json
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from safetensors.torch import load_file

from flfw.dp.budget import EpsilonBudget
from flfw.dp.client import JointNoisySteps
from flfw.dp.message_cost import cost
from flfw.dp.site_ledger import MessageEntry, charge, epsilon_of
from flfw.engines import apps
from flfw.engines.client_actor import ClientActor, SimulatedApp
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid, MessageBatches
from flfw.messages.message_packing import pack_message, unpack_message
from flfw.messages.streaming import GridWrapper
from flfw.messages.wire import broadcast, pack
from flfw.plans.run_plan import plan
from flfw.runs import run
from tests.support.actor_app import app, sizes, together
from tests.support.engine_runs import BROKEN, rows_without_times, train_by_engine
from tests.support.resumed_runs import cut_short

SIZES = MessageBatches("train", 2, together)


def small(**changes: Any) -> Experiment:
    """Ask for two rounds of five clients, who train in batches of two, two and one."""
    few: dict[str, Any] = {
        "method": "fedavg",
        "net": "mlp",
        "attack": ("none",),
        "engine": "inproc",
        "batched_clients": "2",
    }
    few |= {"clients": 5, "rounds": 2, "local_epochs": 1, "lr": 0.1}
    return plan(Experiment(**{**few, **changes})).experiment


def model(folder: Path) -> dict[str, torch.Tensor]:
    """Read the last model of a run."""
    (path,) = (folder / "checkpoint").glob("round-*.safetensors")
    return load_file(path)


def asked(partitions: Iterable[int], deed: str = "adds", among: Iterable[int] = (), **more: Any) -> list[Message]:
    """Messages to clients of `tests.support.actor_app`."""
    config: dict[str, Any] = {"deed": deed, "among": list(among), "folder": ""}
    content = [RecordDict({"arrays": pack({"w": torch.zeros(3)}), "config": ConfigRecord(config)}) for _ in range(9)]
    return [Message(content[p], p + 1, "train", **more) for p in partitions]


# --- messages ---


def test_messages_fall_into_batches_in_their_order() -> None:
    grid = InProcessGrid(app, 5, {}, batches=SIZES)
    replies = grid.send_and_receive(asked([4, 0, 1, 3, 2]))
    assert [reply.metadata.src_node_id - 1 for reply in replies] == [4, 0, 1, 3, 2]
    assert sizes(replies) == [2, 2, 2, 2, 1]
    ids = grid.push_messages(asked([0, 1, 2, 3]))
    pulled = [reply for one in [ids[3], ids[0], ids[2], ids[1]] for reply in grid.pull_messages([one])]
    assert [reply.metadata.src_node_id - 1 for reply in pulled] == [3, 0, 2, 1] and sizes(pulled) == [2] * 4
    assert not grid._together and not grid._answered and not grid._pending


def test_messages_of_another_kind_are_answered_by_themselves() -> None:
    grid = InProcessGrid(app, 2, {}, batches=SIZES)
    replies = grid.send_and_receive([Message(RecordDict(), node, "query") for node in (1, 2)])
    assert sizes(replies) == [1, 1] and not any(reply.has_error() for reply in replies)


def test_who_is_too_late_is_left_out_of_its_batch() -> None:
    grid = InProcessGrid(app, 3, {}, batches=SIZES)
    ids = grid.push_messages([*asked([0], ttl=1.0), *asked([1, 2])])
    assert [sizes(grid.pull_messages([one])) for one in ids] == [[], [1], [1]]


def test_an_actor_answers_batches_of_the_sizes_that_it_is_told() -> None:
    actor = ClientActor(SimulatedApp(app, 5, {}, batches=SIZES))
    packed = [pack_message(message, {}) for message in asked(range(5), "raises", [1])]
    _, replies, states = actor.answer(packed, {}, {}, [2, 1, 2])
    unpacked = [unpack_message(one, {}) for one in replies]
    assert [one.has_error() for one in unpacked] == [False, True, False, False, False]
    assert unpacked[1].error.reason.startswith("client 1 cannot (ValueError in actor_app.py, line ")
    assert sizes([one for one in unpacked if not one.has_error()]) == [2, 1, 2, 2]
    assert set(states) == {1, 3, 4, 5}, "the app keeps a state of each client that answered"


# --- runs ---


def test_a_batch_changes_a_run_by_rounding_alone(tmp_path: Path) -> None:
    alone, joint = (train_by_engine(small(batched_clients=batch), tmp_path / f"batch-{batch}") for batch in ("1", "2"))
    one, two = model(tmp_path / "batch-1"), model(tmp_path / "batch-2")
    assert all(torch.allclose(value, two[name], rtol=1e-4, atol=1e-6) for name, value in one.items())
    for row, other in zip(rows_without_times(alone), rows_without_times(joint), strict=True):
        assert row.keys() == other.keys()
        assert abs(row.get("loss", 0.0) - other.get("loss", 0.0)) < 1e-4


@pytest.mark.early
@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fedper", "hyperfl"])
def test_ray_equals_in_process_bit_for_bit_in_batches(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flfw.engines.actor_pool._OVERDUE_S", inf)  # on a busy machine no batch is to be divided
    experiment = small(method=method, set=("hidden=16", "embedding=8") if method == "hyperfl" else ())
    here = train_by_engine(experiment, tmp_path / "inproc")
    there = train_by_engine(dataclasses.replace(experiment, engine="ray"), tmp_path / "ray")
    assert rows_without_times(here) == rows_without_times(there)
    one, two = model(tmp_path / "inproc"), model(tmp_path / "ray")
    assert all(torch.equal(value, two[name]) for name, value in one.items())


@pytest.mark.slow
def test_a_run_in_batches_resumes_to_the_same_bits(tmp_path: Path) -> None:
    experiment = small(method="fedper")
    run.run(dataclasses.replace(experiment, out=tmp_path / "whole"))
    cut_short(dataclasses.replace(experiment, out=tmp_path / "cut"), after_round=1)
    run.resume(dataclasses.replace(run.stored(tmp_path / "cut")))
    assert torch.equal(*(torch.cat([v.flatten() for v in model(tmp_path / f).values()]) for f in ("whole", "cut")))
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["config"]["batched_clients"] == "2"


def test_a_run_goes_on_with_its_own_batch_alone(tmp_path: Path) -> None:
    cut_short(dataclasses.replace(small(), out=tmp_path / "cut"), after_round=1)
    with pytest.raises(InputError, match="batched-clients"):
        run.resume(dataclasses.replace(run.stored(tmp_path / "cut"), batched_clients="3"))


@pytest.mark.slow
def test_auto_becomes_a_number_and_a_1_is_noted_with_its_reason(tmp_path: Path) -> None:
    run.run(dataclasses.replace(small(batched_clients="auto", rounds=1), out=tmp_path / "dense"))
    result = json.loads((tmp_path / "dense" / "result.json").read_text())
    assert result["config"]["batched_clients"] == "5" and not [
        note for note in result["notes"] if "batched-clients" in note
    ]
    run.run(dataclasses.replace(small(batched_clients="auto", rounds=1, method="scaffold"), out=tmp_path / "scaffold"))
    result = json.loads((tmp_path / "scaffold" / "result.json").read_text())
    (note,) = [note for note in result["notes"] if "batched-clients" in note]
    assert result["config"]["batched_clients"] == "1"
    assert (
        note == "batched-clients=auto became 1: method=scaffold, whose clients take local steps in a way of their own."
    )


def test_a_client_that_fails_is_dropped_and_its_batch_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fragile.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = small(defence="fragile:Broken", defended="1", on_client_failure="drop", batched_clients="3")
    training = train_by_engine(broken, tmp_path / "run")
    assert [row["clients"] for row in training["rounds"]] == [4, 4]
    assert [sorted(r["client"] for r in training["clients"] if r["round"] == n) for n in (1, 2)] == [[0, 2, 3, 4]] * 2


def stumbles(steps: JointNoisySteps, batches: Any) -> torch.Tensor:
    raise OSError("no joint step")


def test_clients_that_train_alone_after_joint_steps_failed_are_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is that of one message: client 2 has spent it before, and is not asked again either."""
    chosen = {"rounds": 1, "clients": 3, "batched_clients": "3", "metrics": "none", "net": "linear", "batch_size": 500}
    experiment = small(method="fed_cdp", set=("noise_source=secure",), **chosen)
    run_plan = plan(experiment)
    before = MessageEntry("before", 1, "train", "fed_cdp", cost(run_plan.client, "train", {}, 500)[0], 500)
    budget = EpsilonBudget(1.2 * epsilon_of([before], EpsilonBudget(10.0, 1e-5)), 1e-5)
    ledgers = [tmp_path / f"lines-{client}.jsonl" for client in range(3)]
    charge(ledgers[2], budget, before)
    monkeypatch.setattr(JointNoisySteps, "step", stumbles)
    config = experiment.to_run_config()
    sites = [budget.to_node_config(ledger) for ledger in ledgers]
    grid = InProcessGrid(apps.client, 3, config, sites, batches=MessageBatches("train", 3, apps.train_together))
    scalars = {"round": 1, "state_version": 0, "code": apps.code_hash(), "experiment": "a", "deadline": 2e9}
    sent = broadcast(run_plan.client.build_model(), run_plan.client.sharing.downloads)
    content = [
        RecordDict({"arrays": sent, "config": ConfigRecord({**scalars, "client": node - 1})}) for node in (1, 2, 3)
    ]
    replies = grid.send_and_receive([Message(one, node, "train") for node, one in enumerate(content, 1)])
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert [len(ledger.read_text().splitlines()) for ledger in ledgers] == [1, 1, 1]


def test_an_app_on_another_engine_refuses_a_batch() -> None:
    """As where ``flwr run`` is given the run's configuration by hand."""

    config = small().to_run_config()
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=dict(config))
    with pytest.raises(InputError, match="Expected --batched-clients 1 on Flower's own engines, got batched_clients=2"):
        apps.server(grid=GridWrapper(InProcessGrid(app, 1, {})), context=context)
