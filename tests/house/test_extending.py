"""The examples of docs/extending.md: written into a copy of the checkout, they keep the rules, pass tests and run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house import test_floors, test_house
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"^```\w+\n(?:#|//|<!--) ([\w./]+\.\w+)(?:, (after|in place of): (.*?))?(?: -->)?\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^python sim\.py (.*)$", re.M)
COPIED = ("flfw", "strategies", "clients", "attacks", "papers", "docs", "tests", "benchmarks", "examples")
FILES = ("sim.py", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
NAMES = "fedavgm or qfedavg or fedper_k or drop_entries or layerwise or all_units or wine or quantity or perceptron"
SMALL = "--clients 2 --rounds 1 --local-epochs 1 --images 2 --victim-batch 1 --engine inproc --audit-rounds 0 --no-pictures"


@dataclass(frozen=True)
class Block:
    """A block of the page that names its file.

    Attributes:
        file: below the checkout; that of `mylab` below the reader's own repository.
        place: ``after`` or ``in place of`` a line; empty: it is the whole file.
        anchor: the beginning of that line.
        text: without the line that names the file.
    """

    file: str
    place: str
    anchor: str
    text: str

    def write(self, root: Path) -> None:
        """Write it into a copy of the checkout."""
        path = root / self.file
        if not self.place:
            assert not path.exists(), f"{self.file} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        at = next((i for i, line in enumerate(lines) if line.strip().startswith(self.anchor)), None)
        assert at is not None, f"{self.file} has no line that begins with {self.anchor}"
        lines[at : at + 1] = [self.text] if self.place == "in place of" else [lines[at], self.text]
        path.write_text("".join(lines))


BLOCKS = [Block(*match) for match in BLOCK.findall(PAGE)]
WHOLE = [block.file for block in BLOCKS if not block.place]
TESTS = [file for file in WHOLE if Path(file).name.startswith("test_")]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with all of the page's files in it, `mylab` too."""
    root = tmp_path_factory.mktemp("extended")
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    for block in BLOCKS:
        block.write(root)
    pages = [file for file in WHOLE if file.endswith(".md")]
    links = "".join(f"[{Path(page).stem}]({page})\n" for page in pages)
    (root / "README.md").write_text((root / "README.md").read_text() + links)
    return root


def python(root: Path, *arguments: str) -> str:
    """Run Python in the copy; returns what it printed, and fails with that."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_an_example_of_every_kind() -> None:
    folders = {str(Path(file).parent) for file in WHOLE}
    kinds = {"mylab", "strategies", "clients", "clients/defences", "attacks", "attacks/adaptations", "papers"}
    assert {*kinds, "flfw/data/readers", "flfw/data/splits", "flfw/nets"} <= folders
    fenced = re.findall(r"^```(?:python|markdown|json)$", PAGE, re.M)
    assert len(fenced) == len(BLOCKS), "a block does not name its file"


def test_the_extended_house_keeps_its_rules(copy: Path) -> None:
    assert [breach for rule in test_house.RULES for breach in rule(copy)] == []
    assert [breach for rule in test_floors.RULES for breach in rule(copy)] == []


def test_the_files_are_clean(copy: Path) -> None:
    files = [file for file in WHOLE if file.endswith(".py") and not file.startswith("mylab/")]
    for check in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        python(copy, "-m", "ruff", *check, *files)


def test_the_tests_of_the_examples_pass(copy: Path) -> None:
    printed = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert re.search(r"\d+ passed", printed) and "skipped" not in printed


@pytest.mark.slow
def test_the_contract_tests_pass(copy: Path) -> None:
    files = ["tests/methods", "tests/client", "tests/attacks", "tests/data", "tests/nets", "tests/house/test_plugins.py"]
    files += ["tests/house/test_docs.py", "tests/house/test_experiment.py"]
    printed = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", NAMES, *files)
    assert re.search(r"\d+ passed", printed)


def test_the_commands_run(copy: Path, tmp_path: Path) -> None:
    commands = [shlex.split(line) for line in COMMAND.findall(PAGE)]
    for place, line in enumerate(commands):
        if "--method" in line:
            line += SMALL.split()
            values = [f"{attack}.iterations=2" for attack in ("ig", "layerwise", "dlg") if attack in line]
            if "--set" in line:
                at = line.index("--set") + 1
                line[at:at] = [*values, *["dlg.restarts=1"] * ("dlg" in line)]
            elif values:
                line += ["--set", *values]
        line += ["--out", str(tmp_path / str(place))]
    assert len(commands) >= 11
    python(copy, "-c", f"import sim\nfor line in {commands!r}:\n    assert sim.main(line) == 0, line")
    for place, line in enumerate(commands):
        if "--method" in line:
            result = json.loads((tmp_path / str(place) / "result.json").read_text())
            assert bool(result.get("audit")) == (line[line.index("--attack") + 1] != "none"), line
