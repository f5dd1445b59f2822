"""The simulated training beside a run of the same settings."""

from pathlib import Path

import pytest

from flfw.experiment import Experiment
from flfw.runs import run
from research import target_epsilon
from tests.support.small_runs import result_of


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "off"), [(1000.0, 0.05), (2.0, 0.08)])  # a deviation of 297 tests is 0.02
def test_the_simulation_reaches_what_a_run_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epsilon: float, off: float
) -> None:
    monkeypatch.setattr(target_epsilon, "SCHEDULES", ())
    asked = {"method": "dp_fedavg", "dataset": "digits", "net": "linear", "split": "iid", "clients": 5}
    settings = ("batches=poisson", "clipping=abadi", "clip=1", "momentum=0", "weight_decay=0", "grouping=flat")
    asked |= {"rounds": 6, "local_epochs": 1, "batch_size": 100, "lr": 1.0, "ema": 0.9999, "set": settings}
    asked |= {"target_epsilon": epsilon, "attack": ("none",), "metrics": "none", "engine": "inproc"}
    chosen = Experiment(**asked, out=tmp_path / "run")
    ((setting, simulated),) = target_epsilon.grid(chosen).items()
    assert setting == "lr 1.0, 6 rounds of 3 as chosen"
    assert abs(result_of(run.run(chosen))["final"]["acc_central"] - simulated) < off
