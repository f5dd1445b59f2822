"""The app that Flower makes of the repository."""

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from flwr.cli.build import build_fab_from_disk

from flfw.engines.superlink import write_bundle
from flfw.files.provenance import code_hash, sources

# Flower names a pattern's kind by a word that its library no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

REPOSITORY = Path(__file__).parents[2]
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


PLUGINS = ("strategies", "clients", "attacks")


def _files(root: Path) -> set[str]:
    """Return the modules, and the pages' templates and tables of `flfw`, by their names in the package."""
    kinds = {"flfw": (".py", ".toml", ".md"), **dict.fromkeys(PLUGINS, (".py",))}
    paths = [path for package in kinds for path in (root / package).rglob("*") if path.suffix in kinds[package]]
    files = {path.relative_to(root) for path in paths}
    names = {str(path) if path.parts[0] == "flfw" else f"flfw/{path}" for path in files}
    return {name for name in names if not name.startswith("flfw/examples/")}


def test_an_app_has_every_file() -> None:
    assert "flfw/report/template/page.html.md" in sources()
    assert _files(REPOSITORY) == set(sources())
    assert {name: path.read_bytes() for name, path in sources().items() if name == "flfw/clients/sgd.py"} == {
        "flfw/clients/sgd.py": (REPOSITORY / "clients" / "sgd.py").read_bytes()
    }


@pytest.mark.slow
def test_flower_carries_every_file_of_the_repository(tmp_path: Path) -> None:
    # Flower leaves out what it takes for a test by its name, `*_test.py`, and all that .gitignore names.
    with ZipFile(BytesIO(build_fab_from_disk(REPOSITORY))) as fab:
        packed = {name if name.startswith("flfw/") else f"flfw/{name}" for name in fab.namelist()}
        fab.extractall(tmp_path)
    assert _files(REPOSITORY) - packed == set()
    # Symbolic links do not travel: the folders are found beside flfw/.
    code = "import flfw.attacks.ig, flfw.files.provenance as p; print(flfw.attacks.ig.__file__, p.code_hash())"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=CLEAN, text=True)
    assert printed.split() == [str(tmp_path / "attacks" / "ig.py"), code_hash()]


def test_flower_carries_every_file_of_a_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path, {"seed": 0})
    assert _files(REPOSITORY) - set(ZipFile(BytesIO(build_fab_from_disk(tmp_path))).namelist()) == set()
