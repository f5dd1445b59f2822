"""What a federation of real sites writes down for an audit: only what it announced, only of what sites gave away."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from flfw.client.site import Site
from flfw.engines import apps, federation
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack
from flfw.plans.run_plan import plan
from flfw.recording.observation import Truth
from flfw.recording.reader import Recordings
from flfw.runs import launch, run
from flfw.runs.results import finish
from tests.support.method_rounds import initial_tensors


@pytest.fixture
def recorded(small: Experiment, tmp_path: Path) -> Experiment:
    """A run on a federation, that is to be recorded."""
    return dataclasses.replace(small, record=True, federation=tmp_path / "federation", attack=("none",), images=4)


def sites(experiment: Experiment, folder: Path, given: Sequence[str]) -> InProcessGrid:
    """Nodes as the guard starts them, one a policy's ``volunteered``; an empty one starts a site that says nothing."""
    chosen = [
        {"state": str(folder / f"state-{n}")}
        | ({"truth": str(folder / f"truth-{n}"), "volunteered": words} if words else {})
        for n, words in enumerate(given)
    ]
    return InProcessGrid(apps.client, len(chosen), experiment.to_run_config(), chosen)


def only(folder: Path) -> Path:
    (result,) = folder.iterdir()
    return result


@pytest.mark.slow
def test_sites_that_give_examples_away_are_probed_for_these_and_can_be_audited(
    recorded: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = recorded.out
    assert out is not None
    federation.federate(sites(recorded, tmp_path, ["3 1", "0 2", "5 4"]), plan(recorded))
    assert f"warning: what clients send in rounds 0,last is recorded in {out}" in capsys.readouterr().err
    kinds = {(line["type"], line["config"].get("control")) for line in Recordings(out / "observations").lines}
    assert kinds == {("train.probe", control) for control in ("analytic", "easy", "target")} | {("train", None)}
    task = plan(recorded).task.load(None)
    for client, indices in enumerate([(3, 1), (0, 2), (5, 4)]):
        folder = only(tmp_path / f"truth-{client}")
        result = {int(Truth.read(folder, path.stem).indices[0]) for path in folder.iterdir()}
        chosen = task.split.train[client]
        assert result == set(chosen[list(indices[: 2 if client == 0 else 1])].tolist())  # 4 probes of 3 clients
    assert not (out / "truth").exists()  # nothing of it came here
    finish(plan(recorded), task, [], None)
    assert json.loads((out / "result.json").read_text())["audit"] == []

    requested = dataclasses.replace(recorded, attack=("analytic",), out=None)
    with pytest.raises(InputError, match=r"truth to score against, got none; the sites have it, in site-N/truth"):
        run.audit_recordings(out, recorded, requested)
    for client in range(3):  # what sites hand over, if they do
        shutil.copytree(only(tmp_path / f"truth-{client}"), out / "truth", dirs_exist_ok=True)
    audited = run.audit_recordings(out, recorded, requested)
    entries = json.loads((audited / "result.json").read_text())["audit"]
    assert entries and all(entry["images"] == 4 for entry in entries)


@pytest.mark.slow
@pytest.mark.parametrize("given", [["3 1", "", "5 4"], ["3 1", "0", "5 4"]])
def test_where_one_gives_too_little_away_nobody_is_probed(
    recorded: Experiment, tmp_path: Path, given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    federation.federate(sites(recorded, tmp_path, given), plan(recorded))
    few = len(given[1].split())
    assert f"warning: client 1 volunteers {few} of the 2 examples that probes need: nobody is probed" in (
        capsys.readouterr().err
    )
    assert recorded.out is not None
    assert {line["type"] for line in Recordings(recorded.out / "observations").lines} == {"train"}
    assert not list(tmp_path.glob("truth-*"))


@pytest.mark.slow
def test_without_record_nothing_is_written_down(recorded: Experiment, tmp_path: Path) -> None:
    silent = dataclasses.replace(recorded, record=False)
    federation.federate(sites(silent, tmp_path, ["3 1", "0 2", "5 4"]), plan(silent))
    assert silent.out is not None
    assert not (silent.out / "observations").exists() and not list(tmp_path.glob("truth-*"))


def test_a_server_that_asks_for_more_than_was_given_away_gets_nothing(recorded: Experiment, tmp_path: Path) -> None:
    from flfw.audit import probe

    task, audit = plan(recorded).task.load(None), plan(recorded).audit
    stored = partial(task.examples, "train")
    site = Site(truth=tmp_path / "truth", volunteered=(7, 1_000_000))
    config = {"control": "easy", "point": "easy", "round": 0, "slot": 0, "own_slot": 0, "batch": 1, "steps": 1}
    for own_slot in (1, 2):
        requested = {**config, "own_slot": own_slot}
        with pytest.raises(RuntimeError, match="this site volunteers 2 of its examples, and was asked for others"):
            probe.answer(
                requested, {}, task, recorded.seed, audit, 0, site, stored, lambda x, y, steps: {}, lambda x, y: {}
            )
    assert not (tmp_path / "truth").exists()


def test_a_site_is_known_by_its_node_config(tmp_path: Path) -> None:
    given = Site.from_config({"truth": "/t", "volunteered": "5 0"}, "abc1")
    assert given.truth == Path("/t/abc1") and given.volunteered == (5, 0)
    with pytest.raises(ValueError, match="letters and digits"):
        Site.from_config({"truth": "/t", "volunteered": "5 0"}, "../x")


def test_a_simulation_records_what_it_attacks(small: Experiment) -> None:
    with pytest.raises(
        InputError, match="Expected --federation with --expert record=true; a simulation records what it attacks"
    ):
        launch.check_resources(dataclasses.replace(small, record=True))
    launch.check_resources(small)


@pytest.mark.parametrize("record", [True, False])
def test_a_site_answers_probes_of_a_recorded_run_alone(recorded: Experiment, tmp_path: Path, record: bool) -> None:
    """A run that does not say that it is recorded would else get what the site's log never announced."""
    requested = dataclasses.replace(recorded, record=record)
    start = {name: torch.tensor(value) for name, value in initial_tensors(requested).items()}
    config = {"control": "target", "slot": 0, "own_slot": 0, "batch": 1, "steps": 1, "point": "target", "round": 1}
    config |= {"state_version": 0, "code": code_hash(), "experiment": "test", "deadline": 600.0}
    content = RecordDict({"arrays": pack(start), "config": ConfigRecord(config)})
    grid = sites(requested, tmp_path, ["3 1", "0 2", "5 4"])
    (reply,) = grid.send_and_receive([Message(content, 1, "train.probe")])
    if record:
        assert reply.content.array_records["arrays"]
    else:
        expected = "client 0 answers no probes of a run that is not recorded"
        assert reply.error.reason == expected and not (tmp_path / "truth-0").exists()
