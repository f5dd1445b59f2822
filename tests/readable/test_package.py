"""A package of a reader's own, with the forms of docs/extending.md of today: it runs without a change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.readable.outside import HERE, WARNINGS, simulation

pytestmark = WARNINGS

RUN = (
    "--method ownlab.momentum:FedAvgM --defence ownlab.shield:Shield"
    " --attack ownlab.all_units:AllUnits ownlab.layerwise:Layerwise ownlab.loss_after:LossAfter"
    " --set beta=0.5 Shield.scale=0.5 Layerwise.iterations=1 --dataset digits --net linear --split iid --clients 2"
    " --rounds 1 --local-epochs 1 --images 1 --membership-pairs 5 --audit-rounds 0,1 --engine inproc --no-pictures"
)


@pytest.mark.slow
def test_a_package_of_today_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "package"))  # as PYTHONPATH does
    simulation(*RUN.split(), "--out", tmp_path / "run").require_done()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["config"]["method_settings"]["beta"] == 0.5
    entries = {(entry["attack"], entry["round"]): entry for entry in result["audit"]}
    assert {attack for attack, _ in entries} == {"ownlab.all_units:AllUnits", "ownlab.layerwise:Layerwise"}
    shielded = entries["ownlab.all_units:AllUnits", 0]  # exact for a gradient, unless the defence acts
    assert (shielded["verdict"], shielded["psnr"]["mean"] < 30) == ("static only", True)
    assert [rung["psnr"] > 100 for rung in shielded["ladder"] if rung["rung"] == "easy"] == [True]
    assert [entry["statistic"] for entry in result["membership"]] == ["loss_after"]
    outside = {one["name"] for one in result["provenance"]["sittings"][0]["outside"]}
    assert {"ownlab.momentum:FedAvgM", "ownlab.shield:Shield"} <= outside
