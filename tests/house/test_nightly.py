"""`make nightly`: a part goes on where it was, its record is told apart from luck, and CI's complaints are right."""

import json
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from tests import limits, nightly
from tests.nightly import Part, complaints, part_of

TODAY = date(2026, 5, 31)
FINE = Part("c0ffee", "2026-05-01", 60.0, 10, 10, (), {})


def test_each_test_belongs_to_one_part() -> None:
    assert part_of("tests/deploy/test_evil_server.py::test_a") == "adversarial"
    assert part_of("tests/deploy/test_guard.py::test_a") == "sites"
    assert part_of("tests/runs/test_run.py::test_a") == "house"


@pytest.mark.parametrize(
    ("part", "count", "complaint"),
    [
        (FINE, 5, None),
        (FINE, 4, "engines: expected at least half of the 10 tests recorded, got 4"),
        (Part("c0ffee", "2026-04-30", 60.0, 10, 10, (), {}), 10, "engines: expected a run within 30 days, got one 31"),
        (Part("c0ffee", "2026-05-31", 60.0, 10, 9, ("a.py::b",), {}), 10, "engines: 1 failed: a.py::b"),
    ],
)
def test_what_is_wrong_with_a_record_is_named(part: Part, count: int, complaint: str | None) -> None:
    assert [line[: len(complaint or "")] for line in complaints({"engines": part}, {"engines": count}, TODAY)] == (
        [complaint] if complaint else []
    )


TESTS = """
import pathlib
import pytest
pytestmark = pytest.mark.nightly

def test_first():
    path = pathlib.Path("counted.log")
    path.write_text(path.read_text() + "x" if path.exists() else "x")

def test_second():
    if pathlib.Path("stop").exists():
        raise KeyboardInterrupt
    assert not pathlib.Path("fail").exists()

@pytest.mark.skip(reason="no such machine")
def test_third():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A tiny checkout with the command and one file of nightly tests."""
    (tmp_path / "tests" / "engines").mkdir(parents=True)
    shutil.copy(nightly.__file__, tmp_path / "tests")
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "engines" / "test_x.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    nightly\n")
    (tmp_path / ".gitignore").write_text("build\n__pycache__\n.pytest_cache\n*.log\nstop\nfail\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    return tmp_path


def run(project: Path, *text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.nightly", *text]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def stored(project: Path) -> dict[str, object]:
    return json.loads((project / "tests" / "nightly.json").read_text())["engines"]


@pytest.mark.slow
def test_an_interrupted_part_goes_on_and_is_recorded_at_its_end(project: Path) -> None:
    (project / "stop").touch()
    assert run(project, "engines").returncode != 0 and not (project / "tests" / "nightly.json").exists()
    (project / "stop").unlink()
    done = run(project, "engines")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "counted.log").read_text() == "x", "what passed is not run again"
    record = stored(project)
    assert (record["collected"], record["passed"], record["failed"]) == (3, 2, [])
    assert record["skipped"] == {"no such machine": 1} and len(str(record["commit"])) == 40


@pytest.mark.slow
def test_a_failure_is_recorded_and_a_changed_tree_is_refused(project: Path) -> None:
    (project / "fail").touch()
    assert run(project, "engines").returncode == 1
    assert stored(project)["failed"] == ["tests/engines/test_x.py::test_second"]
    assert run(project, "--check").returncode == 1, "CI fails where a part has failures"
    (project / "new.py").touch()
    refused = run(project, "engines")
    assert refused.returncode == 1 and "Expected a checkout without changes, got new.py" in refused.stderr
    assert run(project, "engine").returncode == 2


@pytest.mark.slow
def test_limits_name_only_what_is_measured() -> None:
    """Every limit but those of tests and seconds is measured from the files themselves."""
    import tomllib

    stored = tomllib.loads((limits.ROOT / "limits.toml").read_text())
    measured = limits.sizes(limits.ROOT)
    assert {group: set(names) for group, names in stored.items() if group in measured} == {
        group: set(names) for group, names in measured.items()
    }
    assert set(stored) == {*measured, "tests", "seconds"}


def test_sizes_of_a_small_project(tmp_path: Path) -> None:
    """Links within it are not followed; that it lies below a link itself makes no difference."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "link").symlink_to("checkout")
    tmp_path = tmp_path / "link"
    for folder in ("flfw", "strategies", "docs", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "flfw" / "a.py").write_text('"""A docstring."""\n\n# why\nx = 1\n')
    (tmp_path / "strategies" / "b.py").write_text("x = (\n    1\n)\n")
    (tmp_path / "flfw" / "strategies").symlink_to("../strategies")
    (tmp_path / "docs" / "page.md").write_text("one two\nthree")
    (tmp_path / "docs" / "tables").mkdir()
    (tmp_path / "docs" / "tables" / "written.md").write_text("words of a command are not counted")
    for name in ("README.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("word")
    found = limits.sizes(tmp_path)
    assert found["code_lines"] == {"product": 4, "benchmarks": 0, "research": 0, "tests": 0}
    assert found["files"] == {"product": 2}
    assert found["words"] == {"docs": 3, "longest_page": 3, "research": 0, "readme": 1, "changelog": 1}


def test_what_runs_left_is_read(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "seconds").mkdir()
    (tmp_path / "tests" / "quick.xml").write_text('<testsuites><testsuite tests="7" time="1.5"/></testsuites>')
    (tmp_path / "seconds" / "ci").write_text("90\n")
    assert limits.left_by_runs(tmp_path) == {"tests": {"quick": 7}, "seconds": {"quick": 1.5, "ci": 90.0}}
