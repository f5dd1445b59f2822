"""The outside that stays: two programs, called in this process, and copies of what an earlier version left."""

import contextlib
import hashlib
import importlib
import io
import json
import shutil
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sim
from tests.support.paths import ROOT

HERE = Path(__file__).parent
WARNINGS = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
Change = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Ended:
    """A program that ended.

    Attributes:
        code: its exit code.
        out: what it printed.
        err: what it said on stderr.
    """

    code: int
    out: str
    err: str

    def require_refused(self, *words: str) -> None:
        """Fail unless it refused its input in one line that holds these words."""
        assert self.code == 2, f"{self.code}: {self.out[-500:]} {self.err[-1000:]}"
        require_one_line(self.err.rstrip("\n"), *words)

    def require_done(self) -> None:
        assert self.code == 0, f"{self.code}: {self.err[-2000:]}"


def require_one_line(refusal: str, *words: str) -> None:
    assert refusal and "\n" not in refusal and "Traceback" not in refusal, refusal
    assert [word for word in words if word not in refusal] == [], refusal


def ended(program: Callable[[], int]) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = program()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Ended(code, out.getvalue(), err.getvalue())


def simulation(*words: object) -> Ended:
    """``python sim.py WORDS``."""
    return ended(lambda: sim.main([str(word) for word in words]))


def flfw(*words: object) -> Ended:
    """``flfw WORDS``, by the entry point that pyproject.toml names."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["flfw"]
    module, _, function = named.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["flfw", *map(str, words)])
        return ended(getattr(importlib.import_module(module), function))


def copied(name: str, to: Path) -> Path:
    """Copy a fixture, whose own files stay as they are."""
    return Path(shutil.copytree(HERE / name, to))


def edit(file: Path, change: Change) -> None:
    """Change a file of JSON."""
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def reseal(file: Path, change: Callable[[Path], object]) -> None:
    """Change a file whose name ends in its SHA-256, and name it anew, as another version would have written it."""
    change(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.rename(file.with_name(f"{file.stem.rpartition('-')[0]}-{digest}{file.suffix}"))
