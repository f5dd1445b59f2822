"""A package of a reader's own, with the forms of docs/extending.md.

`ownlab` is of version 0.1.0. Its files with names that are others today are refused with them; `fieldlab` is a copy in
which they have the names of today.
"""

import json
from pathlib import Path

import pytest
import torch

from flfw.dp.client import DPClient
from flfw.dp.settings import DPSettings
from flfw.nets import Tensors
from flfw.plugins import NoSettings
from flfw.task.defence import Defence
from tests.readable.outside import HERE, WARNINGS, simulation

pytestmark = WARNINGS

RUN = (
    "--method fieldlab.momentum:FedAvgM --defence fieldlab.shield:Shield"
    " --attack fieldlab.all_units:AllUnits fieldlab.layerwise:Layerwise ownlab.loss_after:LossAfter"
    " --set beta=0.5 Shield.scale=0.5 Layerwise.iterations=1 --dataset digits --net linear --split iid --clients 2"
    " --rounds 1 --local-epochs 1 --images 1 --expert membership_pairs=5 --audit-rounds 0,1 --engine inproc"
    " --show-samples no"
)


NAMES = {
    "flfw.adversary.attack import Budget": "flfw.adversary.attack import AttackCost",
    "flfw.adversary.attack import NotApplicable": "flfw.adversary.attack import ClosedFormAttack, NotApplicable",
    "from flfw.adversary.closed_form import ClosedFormAttack\n": "",
    "flfw.adversary.observation": "flfw.recording.observation",
    "flfw.defence": "flfw.task.defence",
    "flfw.inversion.descent": "flfw.inversion.search_optimisers",
    "flfw.training.optimisers": "flfw.nets.training.optimisers",
    "flfw.victims.local_steps": "flfw.nets.training.local_steps",
    "flfw.victims.operator": "flfw.inversion.client_models.operator",
    "def budget": "def cost",
    "-> Budget": "-> AttackCost",
    "return Budget": "return AttackCost",
    "AdamDescent": "AdamSearch",
    "Automatic": "DifferentiableDefence",
    "BadInput": "InputError",
    "broadcasted": "last_broadcast",
    "LastingTraining": "PersistentTraining",
    "NotApplicable": "NotApplicableError",
    "Recipe": "SearchConfig",
}


@pytest.mark.slow
def test_a_package_of_today_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE / "package"))  # as PYTHONPATH does
    (tmp_path / "fieldlab").mkdir()
    for file in (HERE / "package" / "ownlab").glob("*.py"):
        text = file.read_text()
        for earlier, name in NAMES.items():
            text = text.replace(earlier, name)
        (tmp_path / "fieldlab" / file.name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    simulation(*RUN.split(), "--out", tmp_path / "run").require_done()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["config"]["method_settings"]["beta"] == 0.5
    entries = {(entry["attack"], entry["round"]): entry for entry in result["audit"]}
    assert {attack for attack, _ in entries} == {"fieldlab.all_units:AllUnits", "fieldlab.layerwise:Layerwise"}
    shielded = entries["fieldlab.all_units:AllUnits", 0]  # exact for a gradient, unless the defence acts
    assert (shielded["verdict"], shielded["cause"], shielded["psnr"]["mean"] < 30) == ("undecided", "static", True)
    assert [control["psnr"] > 100 for control in shielded["ladder"] if control["rung"] == "easy"] == [True]
    assert [entry["statistic"] for entry in result["membership"]] == ["loss_after"]
    outside = {one["name"] for one in result["provenance"]["sessions"][0]["external_plugins"]}
    assert {"fieldlab.momentum:FedAvgM", "fieldlab.shield:Shield"} <= outside


@pytest.mark.parametrize(
    ("plugin", "name"),
    [
        ("--method ownlab.momentum:FedAvgM", "flfw.errors.InputError"),
        ("--attack ownlab.all_units:AllUnits", "flfw.adversary.attack.NotApplicableError"),
        ("--attack ownlab.layerwise:Layerwise", "flfw.inversion.search_optimisers"),
        ("--defence ownlab.shield:Shield", "flfw.task.defence"),
    ],
)
def test_a_package_of_version_0_1_is_refused_with_the_names_of_today(
    plugin: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE / "package"))
    simulation(*plugin.split(), "--out", tmp_path / "run").require_refused(f"Expected {name}, got its earlier name")


def test_a_hook_of_an_earlier_name_is_refused_where_it_is_written_and_where_it_is_read() -> None:
    class Shielded(Defence):
        def update(self, update: Tensors, rng: torch.Generator) -> Tensors:
            return update

    with pytest.raises(TypeError, match=r"^Expected Weak\.weakest_settings, got its earlier name mildest; rename it$"):

        class Weak(Shielded):
            @classmethod
            def mildest(cls, settings: object) -> object:
                return settings

    with pytest.raises(TypeError, match=r"^Expected Own\.clips_examples, got its earlier name on_steps; rename it$"):
        type("Own", (DPSettings,), {"on_steps": True})
    with pytest.raises(TypeError, match=r"^Expected Own\.add_noise, got its earlier name noised; rename it$"):
        type("Own", (DPClient,), {"noised": DPClient.add_noise})
    with pytest.raises(AttributeError, match=r"^Expected Shielded\.active_hooks, got its earlier name acts_at;"):
        _ = Shielded(NoSettings()).acts_at  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = Shielded(NoSettings()).nothing  # type: ignore[attr-defined]
