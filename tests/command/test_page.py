"""The page of the Python interface: its examples run, and it names everything that there is."""

import dataclasses
import re
from pathlib import Path

import pytest

import flfw
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
CLASSES = (flfw.Result, flfw.MatrixResult, flfw.RehearsalResult, flfw.TableResult)


@pytest.mark.slow
def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/python.md", "exec"), names)
    shown = capsys.readouterr().out
    assert shown.startswith("leaks\n0.")
    assert shown.endswith("Expected a field of Experiment, got methd; did you mean method?\n")
    assert "\nmatrix/fedavg-prune-s1" not in shown and "\nfedavg-prune-s1 0." in shown


@pytest.mark.parametrize("name", [name for name in flfw.__all__ if not name.startswith("_")])
def test_every_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"`(?:from flfw import )?{name}\b", PAGE), f"explain {name} in docs/python.md"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_property_of_a_result_is_on_the_page(cls: type) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    public = [name for name in vars(cls) if not name.startswith("_") and name != "load"]
    assert [name for name in {*public, *fields} if not re.search(rf"`{name}\b", PAGE)] == []
