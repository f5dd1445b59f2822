"""The app that Flower makes of the repository."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from flwr.cli.build import build_fab_from_disk

from flfw.engines.bundle import write_bundle
from flfw.storage.provenance import PACKAGES

# Flower names a pattern's kind by a word that its library no longer likes.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

REPOSITORY = Path(__file__).parents[2]


def _modules(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for package in PACKAGES for path in (root / package).rglob("*.py")}


def test_flower_carries_every_module_of_the_repository() -> None:
    # Flower leaves out what it takes for a test by its name, `*_test.py`, and all that .gitignore names.
    packed = ZipFile(BytesIO(build_fab_from_disk(REPOSITORY))).namelist()
    assert _modules(REPOSITORY) - set(packed) == set()


def test_flower_carries_every_module_of_a_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path, {"seed": 0})
    packed = ZipFile(BytesIO(build_fab_from_disk(tmp_path))).namelist()
    assert _modules(REPOSITORY) - set(packed) == set()
