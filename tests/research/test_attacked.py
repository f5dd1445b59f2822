"""Page of the attacked defences: it is that of the records, and these answer the printed command."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfw.command.arguments import parse as command_line
from flfw.comparisons.matrices import fill_defaults
from flfw.comparisons.question import parse
from flfw.errors import InputError
from flfw.files.earlier_names import settings_of_today
from research import attacked
from research.attacked.__main__ import main

PAGE = attacked.PAGE.read_text()
PRINTED = shlex.split(PAGE.split("```\n")[1].split("python -m research.attacked")[0].replace("\\\n", " "))


def test_the_pages_are_those_of_the_records() -> None:
    assert attacked.text(PAGE, attacked.read()) == PAGE
    assert attacked.text(PAGE.replace("| none | dcs2", "| all | dcs2"), attacked.read()) == PAGE
    assert attacked.TABLES.read_text() == attacked.tables(attacked.read())


@pytest.mark.parametrize("dataset", attacked.DATASETS)
def test_the_records_answer_the_printed_command(dataset: str) -> None:
    assert PRINTED[:3] == ["python", "sim.py", "--matrix"]
    axes = [word for word in PRINTED if word.partition("=")[0] in ("methods", "defences", "attacks", "seeds")]
    experiment = replace(command_line(PRINTED[2:]).experiment, dataset=dataset, out=None)
    matrix, experiment = fill_defaults(replace(parse(axes), datasets=()), experiment)
    question: dict[str, Any] = json.loads(json.dumps(matrix.question(experiment)))
    # The records are older than this setting, and were made as it says.
    for settings in (question, question["experiment"]):
        settings["set"] = [one for one in settings.get("set", ()) if one != "ig.searches=own"]
    stored = attacked.read()[dataset]
    older = settings_of_today(stored["question"]["experiment"])
    assert {key: older.get(key, value) for key, value in question["experiment"].items()} == question["experiment"]
    assert {k: v for k, v in stored["question"].items() if k != "experiment"} == (
        {k: v for k, v in question.items() if k != "experiment"}
    )
    assert len(stored["cells"]) == 21 and {cell["state"] for cell in stored["cells"]} == {"complete"}
    assert {leak["images"] for one in stored["combinations"] for leak in one["attacks"]} == {150}


def test_each_told_search_has_the_budget_of_the_untold_one() -> None:
    for record in attacked.read().values():
        assert not [note for note in record["notes"] if "budget" in note]


def test_a_matrix_that_is_not_finished_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"without .*mnist/matrix.json"):
        attacked.take(tmp_path, tmp_path)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "matrix.json").write_text(
        json.dumps(
            {"question": {}, "notes": [], "combinations": [], "cells": [{"state": "complete"}, {"state": "cut"}]}
        )
    )
    with pytest.raises(InputError, match="Expected complete runs, got 1 of 2"):
        attacked.take(tmp_path, tmp_path)
    assert not (tmp_path / "mnist.json").exists()
    assert main([str(tmp_path)]) == 2
