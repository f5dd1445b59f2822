"""The notebooks: stored without outputs, and run as they are in a kernel, whose event loop is running."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SAID = {
    "train_and_audit": ("round 3/3  loss", "('leaks', {'reconstruction': 'leaks'})", "time    about", "dlg"),
    "your_own_defence": ("static", "coarse:Coarse"),
    "audit_your_flower_app": ("consistency", "round 2 computed anew from the truth: explained"),
}
"""Words in the outputs of each notebook."""
SHOWN = {"train_and_audit": True, "your_own_defence": False, "audit_your_flower_app": True}
"""Whether a notebook shows the whole report."""


def outputs(notebook: Any) -> list[str]:
    """Everything that the cells gave, as text and as HTML."""
    given = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [text for output in given for text in (output.get("text", ""), *output.get("data", {}).values())]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_its_cells_are_code(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        assert (cell.outputs, cell.execution_count) == ([], None)
        ast.parse(cell.source.partition("\n")[2] if cell.source.startswith("%%") else cell.source)


def test_every_notebook_has_words_to_look_for() -> None:
    assert {path.stem for path in NOTEBOOKS} == SAID.keys() == SHOWN.keys()


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(path, as_version=4)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    NotebookClient(notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    everything = outputs(notebook)
    assert [words for words in SAID[path.stem] if not any(words in text for text in everything)] == []
    assert any("iframe srcdoc=" in text for text in everything) == SHOWN[path.stem]
    assert any("<strong>reconstruction: leaks" in text for text in everything)  # a result at the end of a cell
    shown = [text for text in everything if text and not text.startswith(("Writing ", "Result("))]
    assert "<img alt='original'" in shown[0]  # pictures before words
    assert not any("Warning" in text for text in everything)
    assert not any(name in text for text in everything for name in ("\x1b[", "Traceback"))
