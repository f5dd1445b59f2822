"""All tests that CI has no time for: ``python -m tests.nightly [PART ...] [--check]``; ``make nightly`` runs all parts.

Each part is the tests marked ``nightly`` in some folders, and takes at most an hour on one core. An interrupted part
goes on where it was: a test that passed at this commit is not run again. A finished part is written to
tests/nightly.json, which is committed. A tree with changes is refused, since its tests are of no commit.

``--check`` prints the age of each part, and exits with 1 if one has failures, is older than 30 days, or would collect
fewer than half of the tests of its record.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, final

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "nightly.json"
JOURNALS = ROOT / "build" / "nightly"
MAX_DAYS = 30

PARTS: Mapping[str, tuple[str, ...]] = {
    "adversarial": ("tests/deploy/test_evil_clients.py", "tests/deploy/test_evil_server.py"),
    "sites": (
        "tests/deploy",
        "tests/command/test_rehearse.py",
        "tests/runs/test_verify.py",
        "tests/runs/test_comparison.py",
    ),
    "engines": ("tests/engines", "tests/server", "tests/files", "tests/client"),
    "audits": ("tests/audit", "tests/recorded_apps", "tests/comparisons", "tests/recording"),
    "attacks": ("tests/attacks", "tests/adversary", "tests/inversion", "tests/defences"),
    "methods": ("tests/methods", "tests/golden", "tests/nets", "tests/dp", "tests/privacy"),
    "properties": ("tests/properties",),
    "benchmarks": ("tests/benchmarks", "tests/campaigns"),
    "papers": ("tests/papers", "tests/research"),
    "house": ("tests",),
}
"""Files and folders of each part. A test belongs to the first part that names it."""

NOT_NIGHTLY = ("properties",)
"""Parts of quick tests that run again, with a hundred times the examples."""


@dataclass(frozen=True)
class Part:
    """Record of a finished part.

    Attributes:
        commit: the commit that was tested.
        date: day of its end, as YYYY-MM-DD.
        seconds: run time of its tests.
        collected: number of its tests.
        passed: number of those that passed.
        failed: names of those that failed.
        skipped: number of those skipped, by reason.
    """

    commit: str
    date: str
    seconds: float
    collected: int
    passed: int
    failed: tuple[str, ...]
    skipped: Mapping[str, int]


def part_of(test: str) -> str:
    """Return the part that a test belongs to, by its name.

    >>> part_of("tests/deploy/test_guard.py::test_a_guard"), part_of("tests/command/test_calls.py::test_a_call")
    ('sites', 'house')
    """
    file = test.partition("::")[0]
    return next(part for part, places in PARTS.items() if any(f"{file}/".startswith(f"{index}/") for index in places))


@final
class Journal:
    """Plug-in of pytest: keeps a part's tests, leaves out those that passed before, and writes how each ended.

    Args:
        part: name of the part.
        file: lines of JSON, one for a test that ended.
    """

    def __init__(self, part: str, file: Path) -> None:
        self.part, self.collected = part, 0
        self._file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.outcomes: dict[str, dict[str, Any]] = {row["test"]: row for row in map(json.loads, lines)}
        self._phases: list[pytest.TestReport] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select the tests to run."""
        ours = [item for item in items if part_of(item.nodeid) == self.part and self._is_nightly(item)]
        self.collected = len(ours)
        self.outcomes = {item.nodeid: self.outcomes[item.nodeid] for item in ours if item.nodeid in self.outcomes}
        items[:] = [item for item in ours if self.outcomes.get(item.nodeid, {}).get("outcome") != "passed"]

    def _is_nightly(self, item: pytest.Item) -> bool:
        return self.part in NOT_NIGHTLY or item.get_closest_marker("nightly") is not None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a line when a test has ended."""
        self._phases.append(report)
        if report.when != "teardown":
            return
        worst = max(self._phases, key=lambda phase: ("passed", "skipped", "failed").index(phase.outcome))
        seconds = round(sum(phase.duration for phase in self._phases), 2)
        row = {"test": report.nodeid, "outcome": worst.outcome, "reason": _reason(worst), "seconds": seconds}
        self._phases.clear()
        self.outcomes[report.nodeid] = row
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")

    def record(self, commit: str, today: date) -> Part:
        """Return the record of the finished part."""
        rows = self.outcomes.values()
        return Part(
            commit=commit,
            date=today.isoformat(),
            seconds=round(sum(row["seconds"] for row in rows), 1),
            collected=self.collected,
            passed=sum(row["outcome"] == "passed" for row in rows),
            failed=tuple(row["test"] for row in rows if row["outcome"] == "failed"),
            skipped=dict(Counter(row["reason"] for row in rows if row["outcome"] == "skipped")),
        )


def _reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped; empty for others."""
    return report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""


def run(part: str) -> int:
    """Run a part in this process and return pytest's exit code; write its record if it came to its end."""
    commit = clean_commit()
    journal = Journal(part, JOURNALS / f"{part}-{commit[:12]}.jsonl")
    words = ["--timeout", "900", "--durations", "20", "--durations-min", "1", "-q"]
    words += ["--hypothesis-profile", "nightly"] if part == "properties" else []
    code = pytest.main([*words, *(place for place in PARTS[part] if (ROOT / place).exists())], plugins=[journal])
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        write(part, journal.record(commit, datetime.now(UTC).date()))
        code = pytest.ExitCode.TESTS_FAILED if recorded()[part].failed else pytest.ExitCode.OK
    return int(code)


def clean_commit() -> str:
    """Return the commit of a tree without changes, other than to the record itself.

    Raises:
        SystemExit: there are changes.
    """
    changed = _git("status", "--porcelain").splitlines()
    if changed := [line[3:] for line in changed if line[3:] != str(RECORD.relative_to(ROOT))]:
        sys.exit(f"Expected a checkout without changes, got {', '.join(changed[:5])}; commit them first.")
    return _git("rev-parse", "HEAD")


def _git(*text: str) -> str:
    return subprocess.run(["git", *text], cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip()


def recorded(file: Path = RECORD) -> dict[str, Part]:
    """Return the records of the parts that were run, by name."""
    stored = json.loads(file.read_text()) if file.exists() else {}
    return {name: Part(**{**part, "failed": tuple(part["failed"])}) for name, part in stored.items()}


def write(part: str, record: Part, file: Path = RECORD) -> None:
    """Write the record of a part, in the order of `PARTS`."""
    parts = recorded(file) | {part: record}
    stored = {name: asdict(parts[name]) for name in PARTS if name in parts}
    file.write_text(json.dumps(stored, indent=1) + "\n")


def collected() -> Counter[str]:
    """Return the number of tests that each part would collect now."""
    counts: Counter[str] = Counter()
    for words in (["-m", "nightly"], ["-m", "not slow and not nightly", *PARTS["properties"]]):
        listing = _Listing()
        pytest.main(["--collect-only", "-p", "no:terminal", *words], plugins=[listing])
        counts.update(part for part in map(part_of, listing.tests) if words[1] == "nightly" or part in NOT_NIGHTLY)
    return counts


@final
class _Listing:
    """Plug-in of pytest that keeps the names of the tests."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.tests = [item.nodeid for item in session.items]


def lines(parts: Mapping[str, Part], today: date) -> Iterator[str]:
    """Yield a line on each part: its age, its time and how its tests ended."""
    for name in PARTS:
        if name not in parts:
            yield f"{name:12s} never run"
            continue
        part = parts[name]
        skipped = "".join(f"; {count} skipped: {reason}" for reason, count in part.skipped.items())
        ended = f"{part.passed} of {part.collected} passed, {len(part.failed)} failed{skipped}"
        yield f"{name:12s} {age(part, today):2d} days old ({part.commit[:12]}), {part.seconds / 60:4.1f} min: {ended}"


def age(part: Part, today: date) -> int:
    """Return the days since a part was run."""
    return (today - date.fromisoformat(part.date)).days


def complaints(parts: Mapping[str, Part], counts: Mapping[str, int], today: date) -> Iterator[str]:
    """Yield what is wrong with the records.

    Args:
        parts: the records.
        counts: number of tests that each part collects now.
        today: the day.
    """
    for name, part in parts.items():
        if part.failed:
            yield f"{name}: {len(part.failed)} failed: {', '.join(part.failed[:5])}"
        if (days := age(part, today)) > MAX_DAYS:
            yield f"{name}: expected a run within {MAX_DAYS} days, got one {days} days ago; make nightly PARTS={name}"
        if 2 * counts.get(name, 0) < part.collected:
            yield f"{name}: expected at least half of the {part.collected} tests recorded, got {counts.get(name, 0)}"


def check(today: date) -> int:
    """Print the age of each part and what is wrong; return the exit code."""
    parts = recorded()
    print(*lines(parts, today), sep="\n")
    found = list(complaints(parts, collected(), today))
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


def run_all(names: Iterable[str]) -> int:
    """Run parts one after the other, each in a process of its own; return 1 if one failed."""
    codes = [subprocess.run([sys.executable, "-m", __spec__.name, "--in-process", name]).returncode for name in names]
    return int(any(codes))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    ask = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    ask.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)} (all of them)")
    ask.add_argument("--check", action="store_true", help="print the age of each part, and run none")
    ask.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    args = ask.parse_args(arguments)
    if unknown := [name for name in args.parts if name not in PARTS]:
        ask.error(f"Expected parts among {', '.join(PARTS)}, got {', '.join(unknown)}.")
    if args.check:
        return check(datetime.now(UTC).date())
    if args.in_process:
        return run(args.parts[0])
    clean_commit()
    return run_all(args.parts or PARTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
