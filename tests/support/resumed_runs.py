"""Runs that are cut short, and whether two runs came to the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.recording.reader import Recordings
from flfw.runs import run
from flfw.server.checkpoint import Checkpoints, Snapshot
from flfw.server.strategy import FederatedStrategy
from tests.support.small_runs import result_of


def without_times(value: Any) -> Any:
    """Leave out of a result what differs between two runs of the same experiment."""
    if isinstance(value, dict):
        left_out = ("seconds", "scoring_seconds", "out", "resumed", "requested_rounds", "sessions")
        return {k: without_times(v) for k, v in value.items() if k not in left_out}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def outcome(folder: Path) -> tuple[Any, list[Any], dict[str, torch.Tensor]]:
    """Read the results, what was observed, and the last model."""
    manifest = Recordings(folder / "observations").lines if (folder / "observations").exists() else []
    observed = [{**line, "config": {k: v for k, v in line["config"].items() if k != "experiment"}} for line in manifest]
    for line in observed:
        del line["node"]  # Flower's, new in every run
        for side in ("sent_to_client", "sent_by_client"):
            line[side] = line[side]["plain_sha256"]  # files depend on how a machine computes, and not what is in them
    (model,) = (folder / "checkpoint").glob("round-*.safetensors")
    return without_times(result_of(folder)), observed, load_file(model)


def assert_same(one: Path, two: Path) -> None:
    """Compare two runs to the bit."""
    (result, observed, model), (other_result, other_observed, other_model) = outcome(one), outcome(two)
    assert result == other_result
    assert observed == other_observed
    assert model.keys() == other_model.keys()
    assert all(torch.equal(model[name], other_model[name]) for name in model)


def cut_short(experiment: Experiment, after_round: int) -> Path:
    """Run an experiment that stops behind the checkpoint of a round; its folder."""
    save = Checkpoints.save

    def stopping(self: Checkpoints, snapshot: Snapshot, rows: dict[str, Any]) -> None:
        save(self, snapshot, rows)
        if snapshot.round == after_round:
            raise RunError("stopped for the test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", stopping)
        with pytest.raises(RunError, match="stopped for the test"):
            run.run(experiment)
    assert experiment.out is not None
    return experiment.out


def killed(experiment: Experiment, server_round: int, times: int = 1, resumed: bool = False) -> Path:
    """Run an experiment, or go on with it, and let it die in a round so many times; its folder."""
    for time in range(times):
        with pytest.MonkeyPatch.context() as patch:
            kill_in_round(patch, server_round)
            with pytest.raises(RunError, match="killed for the test"):
                run.resume(experiment) if resumed or time else run.run(experiment)
    assert experiment.out is not None
    return experiment.out


def kill_in_round(monkeypatch: pytest.MonkeyPatch, server_round: int) -> None:
    """Make runs die after the round's messages were answered, before anything of it is kept."""
    whole = FederatedStrategy.aggregate_train

    def dying(self: FederatedStrategy, flower_round: int, replies: Any) -> Any:
        if flower_round + self.rounds_before == server_round:
            list(replies)
            raise RunError("killed for the test")
        return whole(self, flower_round, replies)

    monkeypatch.setattr(FederatedStrategy, "aggregate_train", dying)
