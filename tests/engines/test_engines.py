"""The same app in process and on Ray, and what an engine refuses or reports."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord

from flfw import nets, plugins
from flfw.client.site import Site
from flfw.client.store import ClientStore, StateMissing
from flfw.engines import machine
from flfw.errors import RunFailed
from flfw.experiment import Experiment
from flfw.recording.reader import Recordings
from flfw.resolve import resolve
from flfw.runs import engine
from tests.methods.test_methods import of

ON_RAY = ("hyperfl",)


def run(experiment: Experiment, folder: Path, truth: bool = True) -> dict:
    folder.mkdir()
    site = Site(state=folder / "state", truth=folder / "truth" if truth else None)
    engine.run(resolve(dataclasses.replace(experiment, out=folder)), site)
    return json.loads((folder / "training.json").read_text())


def without_times(training: dict) -> list:
    rows = [*training["rounds"], *training["clients"], *training["final"]]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def recorded(folder: Path) -> list[tuple]:
    """What was sent and received in each probe, by the SHA-256 of its bytes."""
    lines = Recordings(folder / "observations").lines
    return [
        (line["config"]["rung"], line["config"]["slot"], line["sent_to_client"], line["sent_by_client"])
        for line in lines
    ]


def same_on_ray(small: Experiment, tmp_path: Path, method: str) -> None:
    narrow = ("hidden=16",) if method == "hyperfl" else ()  # 60 MB a message otherwise
    experiment = of(small, method, clients=4, sample=3, attack=("ig",), images=2, audit_rounds="0,last", set=narrow)
    here = run(experiment, tmp_path / "inproc")
    there = run(dataclasses.replace(experiment, engine="ray"), tmp_path / "ray")
    assert without_times(here) == without_times(there)
    assert recorded(tmp_path / "inproc") == recorded(tmp_path / "ray")
    assert len(recorded(tmp_path / "ray")) == 8  # control, easy, and two rounds of the target, two probes each


@pytest.mark.parametrize("method", ON_RAY)
def test_ray_equals_in_process_bit_for_bit(small: Experiment, tmp_path: Path, method: str) -> None:
    same_on_ray(small, tmp_path, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in plugins.names(plugins.METHOD) if m not in ON_RAY and m != "local_only"])
def test_ray_equals_in_process_for_every_method(small: Experiment, tmp_path: Path, method: str) -> None:
    same_on_ray(small, tmp_path, method)


BROKEN = """
from typing import final
from flfw.defence import Defence

@final
class Broken(Defence):
    def update(self, update, rng):
        raise ValueError("the shield fell")
"""


@pytest.mark.parametrize("name", ["inproc", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_client_that_raises_ends_the_run_by_name(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / f"broken_{name}.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = dataclasses.replace(small, defence=f"broken_{name}:Broken", defended="1", engine=name)
    with pytest.raises(RunFailed, match=r"^client 1 failed in round 1: .*the shield fell"):
        run(experiment, tmp_path / "run")
    assert not (tmp_path / "run" / "training.json").exists()


def test_a_site_without_a_truth_folder_answers_no_probes(small: Experiment, tmp_path: Path) -> None:
    experiment = dataclasses.replace(small, attack=("ig",), images=1)
    with pytest.raises(RunFailed, match="client 0 failed in a probe at round 0: client 0 answers no probes"):
        run(experiment, tmp_path / "run", truth=False)


def test_lost_private_state_is_an_error_not_a_fresh_start(small: Experiment, tmp_path: Path) -> None:
    from tests.methods.test_methods import initial_tensors, make_client

    experiment = dataclasses.replace(small, method="fedper")
    client = make_client(experiment, 0, tmp_path)
    client.fit_named(initial_tensors(experiment), version=0)
    make_client(experiment, 0, tmp_path, server_round=2).fit_named(initial_tensors(experiment), version=1)
    with pytest.raises(StateMissing, match="Expected private state of round 1"):
        make_client(experiment, 0, tmp_path / "elsewhere", server_round=2).fit_named(initial_tensors(experiment), 1)
    assert set(ClientStore(tmp_path, "test", 0).load(2)) == {"classifier.weight", "classifier.bias"}


def test_the_object_store_is_sized_by_the_messages(small: Experiment) -> None:
    actors = len(os.sched_getaffinity(0))
    large = resolve(dataclasses.replace(small, method="hyperfl", engine="ray"))
    assert large.method.uploads == ("hypernet.*",) and large.settings.hidden == 128
    dense = 14_943_424 * 4
    found = machine.object_store_bytes(large.experiment, nets.numel(large.model.state_dict()))
    assert 2.2 * actors * dense <= found < 2.3 * actors * dense
    assert machine.object_store_bytes(large.experiment, 117_000) == 100_000_000


def test_in_process_clients_cannot_change_what_others_receive() -> None:
    from flfw.messages.wire import pack, views

    record: ArrayRecord = pack({"w": torch.ones(2)})
    with pytest.raises(ValueError, match="read-only"):
        views(record)["w"][0] = 5


def test_an_engine_that_fails_ends_the_run_and_its_threads(
    small: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's engine finds no room for a client; its server, in a thread that is no daemon, waits for one."""
    before = set(threading.enumerate())
    monkeypatch.setattr(machine, "client_resources", lambda *_: {"num_cpus": 1000, "num_gpus": 0})
    with pytest.raises(RunFailed, match=r"^Flower's simulation engine failed: .*ActorPool is empty"):
        run(dataclasses.replace(small, engine="ray"), tmp_path / "run")
    deadline = time.monotonic() + 20
    while left := [t for t in set(threading.enumerate()) - before if not t.daemon]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)
