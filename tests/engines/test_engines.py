"""The same app in process and on Ray, and what an engine refuses or reports."""

import dataclasses
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord

from flfw import plugins
from flfw.audit.controls import control_probe_sets
from flfw.audit.jobs import target_probe_set
from flfw.client.store import ClientStore, StateMissingError
from flfw.engines import machine
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.plans.run_plan import plan
from flfw.recording.reader import Recordings
from flfw.runs import launch
from tests.support.engine_runs import BROKEN, rows_without_times, train_by_engine
from tests.support.method_rounds import by_method

pytestmark = pytest.mark.early

ON_RAY = ("fedper",)  # with private tensors; all other methods are slow


def recorded(folder: Path) -> list[tuple]:
    """What was sent and received in each probe, by the SHA-256 of its bytes."""
    lines = Recordings(folder / "observations").lines
    sides = ("sent_to_client", "sent_by_client")
    return [
        (line["config"]["control"], line["config"]["slot"], *(line[side]["plain_sha256"] for side in sides))
        for line in lines
    ]


def same_on_ray(small: Experiment, tmp_path: Path, method: str, engine: str = "ray") -> None:
    experiment = by_method(small, method, clients=4, sample=3, attack=("ig",), images=2, audit_rounds="0,last")
    here = train_by_engine(experiment, tmp_path / "inproc")
    there = train_by_engine(dataclasses.replace(experiment, engine=engine), tmp_path / "ray")
    assert rows_without_times(here) == rows_without_times(there)
    assert recorded(tmp_path / "inproc") == recorded(tmp_path / "ray")
    controls = Counter(control for control, *_ in recorded(tmp_path / "ray"))
    target = target_probe_set(experiment.points[0], 0)
    run_plan = plan(experiment)
    probe_sets = control_probe_sets(
        run_plan.client, run_plan.audit.reconstructions.values(), experiment.adaptation, target
    )
    beside = {probe_set.control: 4 for probe_set in probe_sets}  # where something hides the data
    assert controls == {"analytic": 2, "easy": 2, "target": 4, **beside}  # two probes each, the target's in two rounds


@pytest.mark.slow
@pytest.mark.parametrize("method", ON_RAY)
def test_ray_equals_in_process_bit_for_bit(small: Experiment, tmp_path: Path, method: str) -> None:
    same_on_ray(small, tmp_path, method)


@pytest.mark.nightly
@pytest.mark.parametrize("method", [m for m in plugins.names(plugins.METHOD) if m not in ON_RAY and m != "local_only"])
def test_ray_equals_in_process_for_every_method(small: Experiment, tmp_path: Path, method: str) -> None:
    same_on_ray(small, tmp_path, method)


@pytest.mark.slow
def test_flowers_engine_equals_in_process_bit_for_bit(small: Experiment, tmp_path: Path) -> None:
    same_on_ray(small, tmp_path, "fedper", "flwr-sim")


@pytest.mark.parametrize("name", ["inproc", *(pytest.param(e, marks=pytest.mark.nightly) for e in ("ray", "flwr-sim"))])
def test_a_client_that_raises_ends_the_run_by_name(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = f"broken_{name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = dataclasses.replace(small, defence=f"{module}:Broken", defended="1", engine=name)
    with pytest.raises(RunError, match=r"^client 1 failed in round 1: .*the shield fell"):
        train_by_engine(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / "training.json").exists()


def test_a_site_without_a_truth_folder_answers_no_probes(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, attack=("ig",), images=1)
    with pytest.raises(RunError, match="client 0 failed in a probe at round 0: client 0 answers no probes"):
        train_by_engine(experiment, tmp_path / "run", truth=False)


def test_lost_private_state_is_an_error_not_a_fresh_start(small: Experiment, tmp_path: Path) -> None:
    from tests.support.method_rounds import initial_tensors, make_client

    experiment = dataclasses.replace(small, method="fedper")
    client = make_client(experiment, 0, tmp_path)
    client.fit_named(initial_tensors(experiment), version=0)
    make_client(experiment, 0, tmp_path, server_round=2).fit_named(initial_tensors(experiment), version=1)
    with pytest.raises(StateMissingError, match="Expected private state of round 1"):
        make_client(experiment, 0, tmp_path / "elsewhere", server_round=2).fit_named(initial_tensors(experiment), 1)
    assert set(ClientStore(tmp_path, "test", 0).load(2)) == {"classifier.weight", "classifier.bias"}


def test_the_object_store_is_sized_by_the_messages(small: Experiment) -> None:
    actors = len(os.sched_getaffinity(0))
    large = plan(dataclasses.replace(small, method="hyperfl", engine="ray"))
    assert large.client.method.uploads == ("hypernet.*",) and large.client.settings.hidden == 128
    dense = 14_943_424 * 4
    assert 1.1 * (2 + 3 * actors) * dense <= launch.store_bytes(large) < 1.15 * (2 + 3 * actors) * dense
    assert machine.object_store_bytes(actors, 1, 117_000) == 100_000_000


def test_in_process_clients_cannot_change_what_others_receive() -> None:
    from flfw.messages.wire import pack, views

    record: ArrayRecord = pack({"w": torch.ones(2)})
    with pytest.raises(ValueError, match="read-only"):
        views(record)["w"][0] = 5


@pytest.mark.nightly
def test_an_engine_that_fails_ends_the_run_and_its_threads(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's engine finds no room for a client; its server, in a thread that is no daemon, waits for one."""
    before = set(threading.enumerate())
    monkeypatch.setattr(machine, "flower_client_resources", lambda *_: {"num_cpus": 1000, "num_gpus": 0})
    with pytest.raises(RunError, match=r"^Flower's simulation engine failed: .*ActorPool is empty"):
        train_by_engine(dataclasses.replace(small, engine="flwr-sim"), tmp_path / "run")
    deadline = time.monotonic() + 120
    while left := [t for t in set(threading.enumerate()) - before if not t.daemon]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)
