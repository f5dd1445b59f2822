"""Sizes and times of the project beside limits.toml: ``python -m tests.limits``; exits with 1 where a limit is passed.

Limits only tighten: whoever gets below one lowers it. Numbers of tests and seconds are those that `make test`, `make
slow` and .ci/run left in build/; what was not run is said to be not measured.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from flfw.command.flags import expert, flags

BUSY = 1.5
"""Factor by which seconds may pass their limit before CI fails: machines differ, and others may be at work on one."""

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("flfw", "strategies", "clients", "attacks", "papers")


def code_lines(text: str) -> int:
    r"""Count the lines that are no blank, comment or docstring.

    >>> code_lines('"What it is."\n\n# A comment.\nx = 1  # another\n')
    1
    """
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                prose.update(range(first, last + 1))
    numbered = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in prose for number, line in numbered)


def sources(root: Path, folders: Sequence[str]) -> list[Path]:
    """Return the Python files of some folders; flfw/ has links to its neighbours, which rglob does not follow."""
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def words(pages: Iterable[Path]) -> list[int]:
    """Count the words of each page."""
    return [len(path.read_text().split()) for path in pages]


def sizes(root: Path) -> dict[str, dict[str, int]]:
    """Measure what the files themselves tell, in the groups of limits.toml."""
    files = {"product": [*sources(root, PRODUCT), *root.glob("sim.py")]}
    files |= {folder: sources(root, [folder]) for folder in ("benchmarks", "research", "tests")}
    pages = words(path for path in (root / "docs").rglob("*.md") if path.parent.name != "tables")  # by commands
    measured = sum(words((root / "research").glob("*.md")))
    counted = {"docs": sum(pages), "longest_page": max(pages, default=0), "research": measured}
    counted |= {name.lower(): sum(words([root / f"{name}.md"])) for name in ("README", "CHANGELOG")}
    return {
        "code_lines": {name: sum(code_lines(path.read_text()) for path in paths) for name, paths in files.items()},
        "files": {"product": len(files["product"])},
        "words": counted,
        "flags": {"run": len(flags()), "expert": len(expert())},
    }


def left_by_runs(build: Path) -> dict[str, dict[str, float]]:
    """Return what runs left in build/: numbers of tests in tests/*.xml, seconds there and in seconds/*."""
    files = {path.stem: ElementTree.parse(path).getroot() for path in sorted((build / "tests").glob("*.xml"))}
    suites = {name: next(root.iter("testsuite")) for name, root in files.items()}
    return {
        "tests": {name: int(suite.attrib["tests"]) for name, suite in suites.items()},
        "seconds": {name: float(suite.attrib["time"]) for name, suite in suites.items()}
        | {path.name: float(path.read_text()) for path in sorted((build / "seconds").glob("*"))},
    }


def lines(limits: Mapping[str, Mapping[str, float]], measured: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each limit.

    >>> limits = {"words": {"docs": 9, "readme": 3, "news": 1}, "seconds": {"test": 10, "slow": 10}}
    >>> print(*lines(limits, {"words": {"docs": 10, "readme": 2}, "seconds": {"test": 14, "slow": 16}}), sep="\\n")
    words docs: 10 of at most 9: PASSED
    words readme: 2 of at most 3: lower it
    words news: not measured, at most 1
    seconds test: 14 of at most 10: slow, or a busy machine
    seconds slow: 16 of at most 10: PASSED
    """
    for group, names in limits.items():
        for name, limit in names.items():
            value = measured.get(group, {}).get(name)
            if value is None:
                yield f"{group} {name}: not measured, at most {limit:,}"
            else:
                yield f"{group} {name}: {value:,.0f} of at most {limit:,}{_remark(group, value, limit)}"


def _remark(group: str, value: float, limit: float) -> str:
    if value > limit * (BUSY if group == "seconds" else 1):
        return ": PASSED"
    if group == "seconds":  # one run's seconds are no reason to lower a limit
        return ": slow, or a busy machine" if value > limit else ""
    return ": lower it" if value < limit else ""


def main() -> int:
    """Print all limits and return 1 if one is passed."""
    printed = list(lines(tomllib.loads((ROOT / "limits.toml").read_text()), sizes(ROOT) | left_by_runs(ROOT / "build")))
    print(*printed, sep="\n")
    return int(any(line.endswith(": PASSED") for line in printed))


if __name__ == "__main__":
    sys.exit(main())
