"""Sessions, foreign code, git and packages in result.json."""

import hashlib
import json
import subprocess
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import sim
from flfw.data import describe
from flfw.report.report import write_report
from flfw.runs import run
from flfw.runs.provenance import (
    installed_packages,
    machine,
    outside_code,
    read_packages,
    revision,
    shown,
    write_packages,
)
from tests.support import outside_parts
from tests.support.small_runs import tiny

SHIELD = '''
"""A module of a plug-in."""
from . import inner
from .folded.deep import more
import json, otherlib
class Shield: ...
'''


def commit(folder: Path) -> str:
    """Make a repository with one commit of all files; return its hash."""
    who = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True)
    return done.stdout.decode().strip()


def sittings(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["provenance"]["sessions"]


# --- git ----------------------------------------------------------------------------------------------------------


def test_a_repository_has_a_commit_and_is_dirty_once_it_differs(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    (tmp_path / ".gitignore").write_text("built\n")
    head = commit(tmp_path)
    (tmp_path / "notes.txt").write_text("untracked, but no code")
    look = revision.__wrapped__
    assert look(file) == {"commit": head, "dirty": False}
    (tmp_path / "b.py").write_text("2")
    assert look(file) == {"commit": head, "dirty": True}
    (tmp_path / "b.py").unlink()
    file.write_text("3")
    assert look(file) == {"commit": head, "dirty": True}


def test_an_ignored_file_as_in_an_environment_belongs_to_no_repository(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("built\n")
    commit(tmp_path)
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "a.py").write_text("1")
    assert revision.__wrapped__(tmp_path / "built" / "a.py") is None


def test_no_repository_and_no_git_are_no_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    assert revision.__wrapped__(file) is None
    commit(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert revision.__wrapped__(file) is None


def test_a_hooks_environment_names_no_other_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    heads = []
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "a.py").write_text(folder.name)
        heads.append(commit(folder))
    monkeypatch.setenv("GIT_DIR", str(theirs / ".git"))
    noted = revision.__wrapped__(ours / "a.py")
    assert noted is not None and noted["commit"] == heads[0] != heads[1]


# --- code from outside --------------------------------------------------------------------------------------------


def test_a_plugins_module_and_what_it_imports_of_its_package_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mylab_o"
    (package / "folded").mkdir(parents=True)
    files = {
        "__init__.py": "", "shield.py": SHIELD.replace(", otherlib", ""), "inner.py": "", "unused.py": "",
        "folded/__init__.py": "", "folded/deep.py": "from mylab_o import late\nmore = 1\n", "late.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("mylab_o.shield")
    (code,) = outside_code({"defence": "prune+mylab_o.shield:Shield", "dataset": "folder:mylab_o", "seed": 3})
    assert (code["kind"], code["name"], code["file"]) == (
        "defence", "mylab_o.shield:Shield", str(package / "shield.py"),
    )  # fmt: skip
    assert set(code["files"]) == {f"mylab_o/{name}" for name in files if name != "unused.py"}
    assert code["sha256"] == code["files"]["mylab_o/shield.py"]
    assert code["sha256"] == hashlib.sha256((package / "shield.py").read_bytes()).hexdigest()
    assert code["git"] is None


def test_a_module_alone_has_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lone_o.py").write_text("import beside_o, json\nclass Shield: ...\n")
    for name in ("beside_o.py", "json_o.py"):
        (tmp_path / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("lone_o")
    (code,) = outside_code({"attack": ("ig", "lone_o:Shield")})
    assert set(code["files"]) == {"lone_o.py", "beside_o.py"}


def test_code_that_was_removed_or_broken_since_its_import_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone_o.py").write_text("import broken_o\nclass Shield: ...\n")
    (tmp_path / "broken_o.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("gone_o")
    (tmp_path / "broken_o.py").write_text("def (")
    (code,) = outside_code({"defence": "gone_o:Shield"})
    assert set(code["files"]) == {"gone_o.py", "broken_o.py"}
    (tmp_path / "gone_o.py").unlink()
    (code,) = outside_code({"defence": "gone_o:Shield"})
    assert code["sha256"] is None and code["files"] == {}


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_says_when_where_and_with_what_it_ran(tmp_path: Path) -> None:
    folder = run.run(tiny(dataset=outside_parts.CARD_NAME, split=outside_parts.SPLIT_NAME, out=tmp_path / "run"))
    result = json.loads((folder / "result.json").read_text())
    (entry,) = result["provenance"]["sessions"]
    began, ended = (datetime.fromisoformat(entry[key]) for key in ("started_at", "ended_at"))
    assert began <= ended and began.tzinfo is not None
    assert entry["after_round"] is None and entry["code"] == result["provenance"]["code"]
    assert entry["command"] == shown(sys.orig_argv) and entry["folder"] == str(Path.cwd())
    assert [(one["kind"], one["name"]) for one in entry["external_plugins"]] == [
        ("dataset", outside_parts.CARD_NAME), ("split", outside_parts.SPLIT_NAME),
    ]  # fmt: skip
    assert "tests/support/outside_parts.py" in entry["external_plugins"][0]["files"]
    listed = folder / entry["packages"]["file"]
    assert hashlib.sha256(listed.read_bytes()).hexdigest() == entry["packages"]["sha256"]
    packages = read_packages(listed)
    assert packages is not None and packages["numpy"] == version("numpy")
    assert entry["packages"]["count"] == len(packages)
    assert result["provenance"]["seeds"] == {"run": result["config"]["seed"], "attacks": {"analytic": [0]}}
    page = (folder / "report.html").read_text()
    assert entry["external_plugins"][0]["sha256"] in page and "Session 1: " in page


def test_each_sitting_of_a_resumed_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(attack=("none",), rounds=2, out=tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("flfw.runs.results.finish", interrupted)
        run.run(experiment)
    run.resume(experiment)
    first, second = sittings(tmp_path / "run")
    assert first["ended_at"] is None and first["after_round"] is None
    assert second["ended_at"] and second["after_round"] == 2
    run.resume(experiment)  # nothing was left to do
    assert len(sittings(tmp_path / "run")) == 2


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_an_audit_of_a_run_has_a_sitting_of_its_own(tmp_path: Path) -> None:
    flags = "--method fedavg --net linear --engine inproc --clients 2 --rounds 1 --attack analytic --images 2"
    folder, again = tmp_path / "run", tmp_path / "again"
    assert sim.main([*flags.split(), "--out", str(folder)]) == 0
    assert sim.main(["--from", str(folder), "--attack", "analytic", "--out", str(again)]) == 0
    provenance = json.loads((again / "result.json").read_text())["provenance"]
    assert provenance["recording_sessions"] == sittings(folder)
    (mine,) = provenance["sessions"]
    assert (
        mine["started_at"] >= provenance["recording_sessions"][0]["ended_at"]
        and (again / mine["packages"]["file"]).exists()
    )
    assert provenance["seeds"]["attacks"] == {"analytic": [0]}
    page = (again / "report.html").read_text()
    assert "This audit: " in page and "Recorded in session 1: " in page


def test_a_result_of_an_earlier_version_has_a_report_without_sittings(tmp_path: Path) -> None:
    folder = run.run(tiny(attack=("none",), out=tmp_path / "run"))
    result = json.loads((folder / "result.json").read_text())
    for session in ([], [{"started_at": "2026-11-27T10:00:00+01:00"}]):
        result["provenance"]["sessions"] = session
        (folder / "result.json").write_text(json.dumps(result))
        assert ("it was cut short" in write_report(folder).read_text()) == bool(session)


@pytest.mark.slow
def test_licence_and_citation_are_as_the_card_says_or_unknown(tmp_path: Path) -> None:
    outside = {"dataset": outside_parts.CARD_NAME, "split": outside_parts.SPLIT_NAME}
    for name, changes in {"digits": {}, "own": outside}.items():
        folder = run.run(tiny(attack=("none",), out=tmp_path / name, **changes))
        stated = json.loads((folder / "result.json").read_text())["provenance"]["data"]
        card = describe(stated["name"])
        assert stated["licence"] == (card.licence or "unknown") and stated["citation"] == (card.citation or "unknown")
        assert ("CC BY 4.0" in stated["licence"]) == (name == "digits") == (stated["citation"] != "unknown")


# --- packages, machine and words ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_list_of_packages_gets_another_name(tmp_path: Path) -> None:
    first = write_packages(tmp_path)
    assert first == write_packages(tmp_path) and first["file"] == "environment.txt"
    (tmp_path / "environment.txt").write_text("numpy==0.1\n")
    assert write_packages(tmp_path) == {**first, "file": "environment-2.txt"}
    assert read_packages(tmp_path / "environment.txt") == {"numpy": "0.1"}
    assert read_packages(tmp_path / "no.txt") is None
    assert len({line.partition("==")[0] for line in installed_packages()}) == first["count"]


def test_a_machine_is_described_in_full() -> None:
    here = machine()
    assert 1 <= here["cores"] <= here["cores_of_machine"] and here["memory_bytes"] > 10**8
    assert here["threads"]["torch"] == 1 and here["torch"]["version"].startswith(version("torch").partition("+")[0])
    assert "openblas" in str(here["blas"]) or "mkl" in str(here["blas"]) or "blis" in str(here["blas"])


def test_secrets_behind_flags_of_flowers_processes_are_hidden() -> None:
    assert shown(["p", "--token", "abc", "x"]) == "p --token HIDDEN x"
    assert (
        shown(["p", "--auth-password=abc", "--token", "--out", "abc"]) == "p --auth-password=HIDDEN --token --out abc"
    )
