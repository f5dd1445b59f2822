"""Flags, progress and report of all benchmarks.

Progress goes to stderr: the plan, then a line as each part begins. Stdout gets some lines for people and, as the last
line, one JSON object; with ``--json`` that object alone.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, final

from flfw.errors import InputError
from flfw.files.parser import Parser
from flfw.files.provenance import hardware

MARK = "quick: not to be quoted"
T = TypeVar("T")


@dataclass(frozen=True)
class BenchmarkPart:
    """Part of a benchmark.

    Attributes:
        description: in words.
        seconds: a rough time of the whole part, with the usual settings on two cores of 2026.
        quick: the same with ``--quick``; 0: then the part runs only if ``--only`` names it.
    """

    description: str
    seconds: int
    quick: int


@final
class BenchmarkRun:
    """State of a benchmark's run: the chosen parts, the progress and the report.

    Args:
        asked: the parsed flags.
        parts: the benchmark's parts by name.
        gate: the part that comes first, whatever is chosen; None: there is none.

    Attributes:
        args: the parsed flags.
        gate: the part that comes first; None: there is none.
        names: the chosen parts, in the benchmark's order.
        machine: the one that the parts' rough times are of.
    """

    def __init__(
        self, args: argparse.Namespace, parts: Mapping[str, BenchmarkPart], gate: BenchmarkPart | None
    ) -> None:
        self.asked, self._parts, self.gate, self._started = args, parts, gate, 0.0
        self.machine = "two cores of 2026"
        chosen = args.only or [name for name, part in parts.items() if part.quick or not args.quick]
        self.names = [name for name in parts if name in chosen]

    def amount(self, usual: int, quick: int, requested: int | None = None) -> int:
        """Return the amount asked for; if there is none, the usual one, or the quick one with ``--quick``."""
        return requested if requested is not None else quick if self.asked.quick else usual

    def begin(self, text: str) -> None:
        """Write to stderr, with the elapsed seconds, that something begins; before the first line write the plan."""
        if not self._started:
            print(*self.plan(), sep="\n", file=sys.stderr)
            self._started = time.monotonic()
        print(f"[{time.monotonic() - self._started:.0f} s] {text}", file=sys.stderr, flush=True)

    def begin_gate(self) -> None:
        """Begin the part that comes first."""
        assert self.gate is not None, "this benchmark has one"
        self.begin(self.gate.description)

    def parts(self, *among: str) -> Iterator[str]:
        """Yield the chosen names, those among the given ones if any are given, and begin each part."""
        for name in self.names:
            if not among or name in among:
                self.begin(f"{name}: {self._parts[name].description}")
                yield name

    def plan(self) -> list[str]:
        """Return the parts that will run and their rough times, a line each; the first line has the total."""
        rows = [("first", self.gate)] if self.gate else []
        rows += [(name, self._parts[name]) for name in self.names]
        times = [part.quick if self.asked.quick else part.seconds for _, part in rows]
        mark = f" ({MARK})" if self.asked.quick else ""
        lines = [f"{name}: {part.description}, {_about(each)}" for (name, part), each in zip(rows, times, strict=True)]
        return [f"{_about(sum(times))} on {self.machine}{mark}:", *lines]

    def report(self, results: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print the lines, unless only JSON was asked for, and the results with the hardware as one JSON object."""
        chosen = {} if len(self.names) == len(self._parts) and not self.asked.only else {"only": self.names}
        if not self.asked.json:
            print(*(f"{line}  ({MARK})" if self.asked.quick else line for line in lines), sep="\n")
        print(json.dumps({**results, "quick": self.asked.quick, **chosen, "hardware": hardware()}))


def parser(description: str | None) -> Parser:
    """Return a parser of the flags that all benchmarks have."""
    flags = Parser(description=description)
    flags.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    flags.add_argument("--quick", action="store_true", help="less of everything, in under a minute: does it work?")
    flags.add_argument("--only", nargs="+", metavar="NAME", help="the parts to run (all)")
    return flags


def start(flags: Parser, parts: Mapping[str, BenchmarkPart], gate: BenchmarkPart | None = None) -> BenchmarkRun:
    """Parse the command line; refuse names in ``--only`` that are no parts."""
    flags.epilog = f"parts: {', '.join(parts)}"
    args = or_refused(flags.parse_args)
    if unknown := [name for name in args.only or () if name not in parts]:
        refuse(f"Expected --only among {', '.join(parts)}, got {', '.join(unknown)}.")
    return BenchmarkRun(args, parts, gate)


def whole(minimum: int = 1) -> Callable[[str], int]:
    """Return the type of a flag that takes whole numbers from ``minimum``."""

    def number(word: str) -> int:
        if not word.isdecimal() or int(word) < minimum:
            raise argparse.ArgumentTypeError(f"expected a whole number >= {minimum}, got {word!r}")
        return int(word)

    return number


def or_refused(get: Callable[[], T]) -> T:
    """Return what a function gives; where it refuses the input, write its line to stderr and exit with code 2."""
    try:
        return get()
    except InputError as error:
        refuse(str(error))


def refuse(message: str) -> NoReturn:
    """Write one line to stderr and exit with code 2."""
    print(message, file=sys.stderr)
    sys.exit(2)


def _about(seconds: int) -> str:
    """Return a rough time in words."""
    return f"about {seconds} s" if seconds < 120 else f"about {round(seconds / 60)} min"
