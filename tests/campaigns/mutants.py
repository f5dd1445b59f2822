"""Do the tests notice a wrong line? ``python -m tests.campaigns.mutants cover|kill --tests CHECKOUT ...``.

A mutant is one change of one expression in a core module: a comparison, an operator, a constant, a condition, a value
that is returned. ``cover`` runs a suite of a checkout once and keeps which test reaches which line. ``kill`` draws
mutants by a seed. For each it runs only the tests that reach its line, the cheapest first, until one fails or its time
is over. The checkout is a worktree made for this: its sources are changed and put back.

    git worktree add ../mutants COMMIT
    python -m tests.campaigns.mutants cover --tests ../mutants --suite "not slow" --out quick.json
    python -m tests.campaigns.mutants kill --tests ../mutants --reached quick.json --number 300 --out kills.json

Two checkouts are compared by one list of mutants: ``--of`` reads it from another call's file.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_NAMES = (
    "messages/sharing messages/npy server/aggregation server/robust server/hypernetwork audit/verdict "
    "audit/reconstruction/evidence adversary/membership/statistics "
    "privacy/accountants privacy/claims privacy/lower_bound privacy/mechanism "
    "dp/run_accountant dp/site_ledger dp/noisy_mean rng deploy/guard deploy/policy server/checkpoint files/chain "
    "data/splits/schemes data/tables/column_types inversion/search inversion/search_optimisers"
)
MODULES = tuple(f"flfw/{name}.py" for name in _NAMES.split())
"""Core modules: what leaves a client, what is added up, what is concluded, counted and kept."""

SECONDS = 60.0
"""Most time that the tests of one mutant take."""

_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_COMPARED |= {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
_COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
_COMPUTED |= {ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}
_JOINED = {ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """One change of a source file.

    Attributes:
        file: path from the root of a checkout.
        line: first line of the changed expression.
        column: its first column.
        before: its source.
        after: what stands in its place.
    """

    file: str
    line: int
    column: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """Return the file's text with the change.

        Raises:
            ValueError: the expression is not there.
        """
        lines = text.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        if text[start : start + len(self.before)] != self.before:
            raise ValueError(f"Expected {self.before!r} in {self.file}:{self.line}, got another text.")
        return text[:start] + self.after + text[start + len(self.before) :]


def mutants(file: str, text: str) -> Iterator[Mutant]:
    r"""Yield the mutants of a file.

    Annotations, which nothing evaluates, are left out, and lines with letters outside ASCII, whose columns differ.

    >>> print(*((one.before, one.after) for one in mutants("a.py", "x: 1 | 2 = y + 1\nassert not y > 0")), sep="\n")
    ('y + 1', 'y - 1')
    ('not y > 0', '(y > 0)')
    ('1', '2')
    ('y > 0', 'y >= 0')
    ('0', '1')
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if hasattr(node, field):
                setattr(node, field, None)
    for node in ast.walk(tree):
        for part, change in _changes(node):
            before = ast.get_source_segment(text, part)
            if before is not None and before.isascii() and text.splitlines()[part.lineno - 1].isascii():
                yield Mutant(file, part.lineno, part.col_offset, before, change)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            yield node, ast.unparse(ast.Compare(left, [_COMPARED[type(op)]()], [right]))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            yield node, ast.unparse(ast.BinOp(left, _COMPUTED[type(op)](), right))
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(_JOINED[type(op)](), values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"not ({ast.unparse(test)})"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.keyword(value=ast.expr() as value) if isinstance(value, ast.Name):
            yield value, "None"


def drawn(root: Path, seed: int, number: int) -> list[Mutant]:
    """Draw mutants of `MODULES`, each with the same probability."""
    every = [one for file in MODULES for one in mutants(file, (root / file).read_text())]
    return random.Random(seed).sample(every, min(number, len(every)))


def cover(root: Path, suite: str, out: Path, places: Sequence[str]) -> int:
    """Run a suite in the checkout and write which tests reach which lines, with the seconds of each test."""
    settings = out.with_suffix(".coveragerc").absolute()
    data = out.with_suffix(".coverage").absolute()
    files = ",".join(f"*/{file}" for file in MODULES)
    settings.write_text(f"[run]\ndata_file = {data}\ninclude = {files}\n")
    words = ["-q", "-p", "no:cacheprovider", "--timeout", "900", "-m", suite, *places]
    code = (
        "import coverage, json, pytest, sys\n"
        "class Contexts:\n"
        "    seconds = {}\n"
        "    def pytest_runtest_logstart(self, nodeid): measured.switch_context(nodeid)\n"
        "    def pytest_runtest_logreport(self, report):\n"
        "        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration\n"
        f"measured = coverage.Coverage(config_file={str(settings)!r}); measured.start(); contexts = Contexts()\n"
        f"code = pytest.main({words!r}, [contexts])\n"
        "measured.stop(); measured.save(); data = measured.get_data()\n"
        "lines = {file: {str(line): names for line, names in data.contexts_by_lineno(file).items()}\n"
        "         for file in data.measured_files()}\n"
        f"json.dump([contexts.seconds, lines], open({str(out.absolute())!r}, 'w')); sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=_environment(root))
    return done.returncode


def _environment(root: Path) -> dict[str, str]:
    """Return the environment in which processes, too, import the checkout's code rather than the installed one."""
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Reached:
    """Which tests reach which lines.

    Attributes:
        seconds: run time of each test.
        tests: names of the tests by file and line.
    """

    seconds: Mapping[str, float]
    tests: Mapping[tuple[str, int], frozenset[str]]

    @classmethod
    def read(cls, files: Sequence[Path]) -> Reached:
        """Read what ``cover`` wrote, of several suites together."""
        seconds, tests = dict[str, float](), defaultdict[tuple[str, int], set[str]](set)
        for file in files:
            times, lines = json.loads(file.read_text())
            seconds |= times
            for name, by_line in lines.items():
                short = next(module for module in MODULES if name.endswith(module))
                for line, names in by_line.items():
                    tests[short, int(line)].update(name for name in names if name)
        return cls(seconds, {place: frozenset(names) for place, names in tests.items()})

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach a mutant's lines, the cheapest first, as many as its time allows.

        A line that is run when its module is imported counts as reached by all tests that reach the module.
        """
        last = mutant.line + mutant.before.count("\n")
        names = {name for line in range(mutant.line, last + 1) for name in self.tests.get((mutant.file, line), ())}
        names = names or {
            name for (file, _), reaching in self.tests.items() if file == mutant.file for name in reaching
        }
        chosen, total = list[str](), 0.0
        for name in sorted(names, key=lambda name: (self.seconds.get(name, 0.0), name)):
            total += self.seconds.get(name, 0.0)
            if chosen and total > SECONDS:
                break
            chosen.append(name)
        return chosen


def killed(root: Path, mutant: Mutant, tests: Sequence[str]) -> tuple[str, str]:
    """Return how a mutant ended with some tests: ``killed`` with the test, ``survived``, or ``timeout``."""
    path = root / mutant.file
    text = path.read_text()
    try:
        path.write_text(mutant.applied(text))
        words = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--timeout", str(int(SECONDS)), "-m", "", *tests]
        command = [sys.executable, "-m", "pytest", *words]
        process = subprocess.Popen(
            command, cwd=root, env=_environment(root), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            # A tenth of the lines may not be reached in time on a busy machine: the imports have time of their own.
            printed, _ = process.communicate(timeout=2 * SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "timeout", ""
    finally:
        path.write_text(text)
    failed = next((line.split(" - ")[0] for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    return ("survived", "") if process.returncode == 0 else ("killed", failed)


def kill(root: Path, chosen: Sequence[Mutant], reached: Reached, out: Path) -> None:
    """Run the tests of each mutant and write how it ended; what the file has already is kept."""
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    for mutant in chosen[len(rows) :]:
        started, tests = time.monotonic(), reached.of(mutant)
        outcome, test = killed(root, mutant, tests) if tests else ("not reached", "")
        took = round(time.monotonic() - started, 1)
        rows.append({**asdict(mutant), "outcome": outcome, "by": test, "tests": len(tests), "seconds": took})
        out.write_text(json.dumps(rows, indent=1) + "\n")
        change = f"{mutant.before!r} -> {mutant.after!r}"
        print(
            f"{len(rows)}/{len(chosen)} {mutant.file}:{mutant.line} {change}: {outcome} {test} ({took} s)", flush=True
        )


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    ask = argparse.ArgumentParser(prog="python -m tests.campaigns.mutants", description=__doc__)
    ask.add_argument("action", choices=("cover", "kill"))
    ask.add_argument("--tests", type=Path, required=True, metavar="CHECKOUT", help="a worktree made for this")
    ask.add_argument("--suite", default="not slow and not nightly", help="marker expression of cover")
    ask.add_argument("--places", nargs="*", default=[], help="files and folders of cover (all)")
    ask.add_argument("--reached", type=Path, nargs="+", default=[], help="files of cover, for kill")
    ask.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    ask.add_argument("--number", type=int, default=300, help="of mutants (300)")
    ask.add_argument("--of", type=Path, help="take the mutants of this file of kill, rather than draw")
    ask.add_argument("--left", action="store_true", help="of those only what was not killed")
    ask.add_argument("--out", type=Path, required=True)
    args = ask.parse_args(arguments)
    root = args.tests.absolute()
    if args.action == "cover":
        return cover(root, args.suite, args.out, args.places)
    names = Mutant.__dataclass_fields__
    stored = json.loads(args.of.read_text()) if args.of else []
    left = [row for row in stored if not (args.left and row["outcome"] == "killed")]
    chosen = [Mutant(**{name: row[name] for name in names}) for row in left]
    kill(root, chosen or drawn(root, args.seed, args.number), Reached.read(args.reached), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
