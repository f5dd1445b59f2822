"""The examples of docs/extending.md and of examples/plugins: in a copy of the checkout they keep the rules and run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.house import rules
from tests.house.test_house import lint_imports
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
PLUGINS = ROOT / "examples" / "plugins"
INSERTIONS, COMMANDS = ((PLUGINS / f"{name}.md").read_text() for name in ("insertions", "README"))
BLOCK = re.compile(
    r"^```\w+\n(?:#|//|<!--) ([\w./]+\.\w+)(?:, (after|in place of): (.*?))?(?: -->)?\n(.*?)^```$", re.M | re.S
)
COMMAND = re.compile(r"^python sim\.py (.*)$", re.M)
COPIED = ("flfw", "strategies", "clients", "attacks", "papers", "docs", "tests", "benchmarks", "research", "examples")
FILES = ("sim.py", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
NAMES = "fedavgm or qfedavg or fedper_k or drop_entries or layerwise or all_units or wine or quantity or perceptron"
SMALL = "--clients 2 --rounds 1 --local-epochs 1 --images 2 --engine inproc --audit-rounds 0 --show-samples no"


@dataclass(frozen=True)
class Block:
    """A block of the page or of insertions.md that names its file, or a file of examples/plugins.

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


BLOCKS = [Block(*match) for match in BLOCK.findall(PAGE + INSERTIONS)]
BLOCKS += [
    Block(str(path.relative_to(PLUGINS)), "", "", path.read_text())
    for path in sorted(PLUGINS.glob("*/**/*"))
    if path.suffix in (".py", ".md")
]
WHOLE = [block.file for block in BLOCKS if not block.place]
TESTS = [file for file in WHOLE if Path(file).name.startswith("test_")]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with all of these files in it, `mylab` too."""
    root = tmp_path_factory.mktemp("extended")
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
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
    for text in (PAGE, INSERTIONS):
        fenced = re.findall(r"^```(?:python|markdown|json)$", text, re.M)
        assert len(fenced) == len(BLOCK.findall(text)), "a block does not name its file"


@pytest.mark.nightly
def test_the_extended_house_keeps_its_rules(copy: Path) -> None:
    assert rules.breaches(copy) == []
    assert "BROKEN" not in lint_imports(copy)


def test_the_files_are_clean(copy: Path) -> None:
    files = [file for file in WHOLE if file.endswith(".py") and not file.startswith("mylab/")]
    for check in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        python(copy, "-m", "ruff", *check, *files)


@pytest.mark.nightly
def test_the_tests_of_the_examples_pass(copy: Path) -> None:
    printed = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert re.search(r"\d+ passed", printed) and "skipped" not in printed


@pytest.mark.nightly
def test_the_contract_tests_pass(copy: Path) -> None:
    files = [f"tests/{name}" for name in ("methods", "client", "attacks", "data", "nets")]
    files += [f"tests/house/test_{name}.py" for name in ("plugins", "docs", "experiment")]
    printed = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not nightly", "-k", NAMES, *files)
    assert re.search(r"\d+ passed", printed)


def run(copy: Path, lines: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    """Run command lines of sim.py in one process; returns their audits' entries."""
    lines = [[*line, "--out", str(folder / str(index))] for index, line in enumerate(lines)]
    python(copy, "-c", f"import sim\nfor line in {lines!r}:\n    assert sim.main(line) == 0, line")
    results = [folder / str(index) / "result.json" for index in range(len(lines))]
    read = [json.loads(result.read_text()) if result.exists() else {"audit": []} for result in results]
    return [result["audit"] or result.get("membership") or [] for result in read]


@pytest.mark.nightly
def test_the_plug_ins_run_together(copy: Path, tmp_path: Path) -> None:
    few = "--set layerwise.iterations=2"
    lines = [
        "--method qfedavg --defence mylab.shield:Shield --net linear --attack all_units",
        f"--method fedavgm --defence drop_entries --net perceptron --attack layerwise {few}",
        f"--method fedper_k --net perceptron --split quantity --attack layerwise {few} layers=1 quantity.alpha=5",
    ]
    method, defence, private = run(copy, [[*line.split(), *SMALL.split()] for line in lines], tmp_path)
    assert [entry["attack"] for entry in method] == ["all_units"]
    assert [entry["adaptation"] for entry in defence] == [None, "written"]
    assert [entry["adaptive"] for entry in private] == [False]  # the last layer is searched for


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_commands_of_the_page_run(copy: Path, tmp_path: Path) -> None:
    lines = []
    for command in COMMAND.findall(PAGE + COMMANDS):
        requested, _, values = command.partition(" --set ")
        few = [f"{attack}.iterations=2" for attack in ("ig", "layerwise", "dlg") if f"--attack {attack}" in requested]
        small = SMALL.replace("--audit-rounds 0", "").split() if "--audit-rounds" in requested else SMALL.split()
        small = small if "--method" in requested else []
        chosen = [*shlex.split(values), *few]
        lines.append([*shlex.split(requested), *small, *(["--set", *chosen] if chosen else [])])
    assert len(lines) == 17
    for line, audit in zip(lines, run(copy, lines, tmp_path), strict=True):
        assert bool(audit) == ("--attack" in line and line[line.index("--attack") + 1] != "none"), line
