"""The papers behind a run: of its plug-ins, by their cards, and the source of its data."""

import importlib
import json
from pathlib import Path

import pytest

import flfw
from flfw import plugins
from flfw.comparisons.figures.cite import citations, main, paper

PLUGINS = [(kind, name) for kind in (plugins.METHOD, plugins.ATTACK, plugins.DEFENCE) for name in plugins.names(kind)]


@pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=lambda part: str(getattr(part, "noun", part)))
def test_every_card_names_a_paper(kind: plugins.PluginKind, name: str) -> None:
    cited = paper(importlib.import_module(f"{kind.package}.{name}"))
    assert cited != "its card names no paper" and "Departures" not in cited and "  " not in cited


def test_each_part_of_a_run_is_cited_once() -> None:
    config = {"method": "fedavg", "dataset": "folder:scans", "defence": "prune+soteria", "attack": ["ig", "auto"]}
    project, method, prune, soteria, attack, data = citations({**config, "malicious_server": "ig"})
    assert project.startswith(f"flfw {flfw.__version__}: ")
    assert method.startswith("method fedavg: McMahan et al., ") and method.endswith("AISTATS 2017.")
    assert prune.startswith("defence prune: a baseline") and soteria.startswith("defence soteria: Sun et al.")
    assert attack.startswith("attack ig: Geiping et al., ") and attack.endswith("NeurIPS 2020, arXiv 2003.14053.")
    assert data == "data set folder:scans: your own"


def test_the_command_reads_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"method": "fedavg", "dataset": "digits", "defence": "none", "attack": ["none"]}
    (tmp_path / "result.json").write_text(json.dumps({"config": config}))
    assert main([str(tmp_path)]) == 0
    _, method, data = capsys.readouterr().out.splitlines()
    assert method.startswith("method fedavg: ") and data.startswith("data set digits: Optical recognition")
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("python -m flfw.comparisons.figures.cite: Expected ")
