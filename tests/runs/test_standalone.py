"""The app with nobody around it: from start to report, and going on with what was cut short."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flfw.client import site
from flfw.engines import apps
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.runs import standalone
from flfw.server.checkpoint import Checkpoints, Snapshot


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "flfw"


def serve(**given: Any) -> None:
    """What Flower does with the app: the server's half, with the clients in this process."""
    sizes = {"method": "fedavg", "net": "lenet", "clients": 2, "rounds": 2, "local-epochs": 1, "attack": "none"}
    config = {**Experiment().to_run_config(), **sizes, **given}
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
    standalone.serve(InProcessGrid(apps.client, 2, config), context)


def result(folder: Path) -> dict[str, Any]:
    results = json.loads((folder / "result.json").read_text())
    results["rounds"] = [{k: v for k, v in row.items() if k != "seconds"} for row in results["rounds"]]
    return results


def test_results_land_below_the_users_state_folder(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve()
    (folder,) = (home / "runs").iterdir()
    assert folder.name.startswith("fedavg-digits-")
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").exists() and len(result(folder)["rounds"]) == 2


@pytest.mark.slow
def test_the_same_out_goes_on_with_what_was_cut_short(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def stopping(self: Checkpoints, snapshot: Snapshot, rows: dict[str, Any]) -> None:
        save(self, snapshot, rows)
        if snapshot.round == 1:
            raise RunError("stopped for the test")

    monkeypatch.setattr(Checkpoints, "save", stopping)
    with pytest.raises(RunError, match="stopped for the test"):
        serve(out="one")
    assert (home / "runs" / "one" / "failure.txt").read_text() == "stopped for the test\n"
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(home.parent))
    serve(out="one")
    serve(out="two")
    one, two = result(home / "runs" / "one"), result(home / "runs" / "two")
    assert one["rounds"] == two["rounds"] and one["final"] == two["final"]
    assert one["provenance"]["resumed"][0]["after_round"] == 1
    assert not (home / "runs" / "one" / "failure.txt").exists()


def test_another_experiment_does_not_go_on_there(home: Path) -> None:
    serve(out="one")
    with pytest.raises(InputError, match=r"^Expected lr=0.01 as in .*, got lr=0.5; start a new run for that"):
        serve(out="one", lr=0.5)
    (home / "runs" / "other").mkdir()
    with pytest.raises(InputError, match="Expected a new folder for --out"):
        serve(out="other")


def test_virtual_clients_have_a_folder_only_where_ray_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FLFW_STATE", "FLFW_TRUTH", "FLFW_DATA", "FLFW_EXAMPLES"):
        monkeypatch.delenv(variable, raising=False)
    assert site.Site.from_config({}, "abc") == site.Site()
    monkeypatch.setattr(site, "_simulated", lambda: True)
    folder = home / "simulations" / "abc"
    chosen = {kind: folder / kind for kind in ("state", "truth", "examples")}
    assert site.Site.from_config({}, "abc") == site.Site(**chosen)
    elsewhere = site.Site(**chosen | {"examples": Path("/mine")})
    assert site.Site.from_config({"examples": "/mine"}, "abc") == elsewhere
    assert site.Site.from_config({"state": "/mine"}, "abc") == site.Site(state=Path("/mine"))
    with pytest.raises(ValueError, match="Expected an experiment of letters and digits"):
        site.Site.from_config({}, "../../etc")


@pytest.mark.slow
def test_what_virtual_clients_let_an_observer_read_is_audited(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in this process, as they would in one of Ray's."""
    for variable in ("FLFW_STATE", "FLFW_TRUTH", "FLFW_EXAMPLES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(site, "_simulated", lambda: True)
    audit = {"attack": "analytic", "net": "linear", "images": 2, "audit-rounds": "0", "attack-process": "inline"}
    serve(out="one", rounds=1, vantage="client_example", **audit)
    (entry,) = result(home / "runs" / "one")["audit"]
    assert (entry["vantage"], entry["verdict"], entry["failures"]) == ("client_example", "leaks", 0)
    assert not list((home / "simulations").iterdir())
