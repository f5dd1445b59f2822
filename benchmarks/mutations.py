"""Changed inputs of every reader: ``python -m benchmarks.mutations [--number 100000] [--seed 0] [--only GROUP]``.

Each case changes one thing in an input that comes from outside, in its own terms: a field's type, length, sign,
exponent, name, order or nesting; a header, a checksum, a path; a bit or the end of a file. Then the project's reader
reads it, as a run, a server, a site or a user would. A case ends in one of four ways:

    refused    in the error of one line that the reader documents
    harmless   as before the change, or as another valid value, which the reader cannot know to be wrong
    silent     a sealed input was broken and is read otherwise, or a value is read that is none: a defect
    uncaught   in any other exception, or one of several lines: a defect

A seal is broken where the change leaves a checksum as it was. Where whoever changes a file can also make its checksum
fit, half of the cases do so. No case trains, opens the network, starts a process, writes outside the benchmark's folder
or takes more than 1 GB: all of these are uncaught. A case of more than a second of the processor is slow, and printed.

The exit code is 1 if a case was silent or uncaught. Each such place is printed once, with the flags that make the case
again. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeAlias, final

from benchmarks import (
    mutation_audit,
    mutation_data,
    mutation_messages,
    mutation_results,
    mutation_settings,
    mutation_state,
    mutation_weights,
    output,
)
from benchmarks.mutation_cases import CaseOutcome, CaseResult, Subject, is_slow, limited, tried
from flfw.terminal.parser import Parser

Group: TypeAlias = Callable[[Path], list[Subject]]

_NUMBER, _QUICK = 100_000, 1000
_SHOWN = 160  # characters of a message
_MEMORY = Path("/dev/shm")  # thousands of small files, each forced to disk, would take hours
_GROUPS: Mapping[str, tuple[Group, str, float]] = {
    "uploads": (mutation_messages.uploads, "what clients upload, their numbers and reasons", 0.15),
    "answers": (mutation_messages.answers, "introductions, whole rounds, streams, the recorder", 0.1),
    "questions": (mutation_messages.questions, "what a server asks of a client", 0.1),
    "checkpoints": (mutation_state.checkpoints, "checkpoints, journals, private tensors", 0.11),
    "chains": (mutation_state.chains, "chains of lines, ledgers of sites", 0.12),
    "queue": (mutation_audit.queue, "jobs, tickets and solutions of attacks", 0.12),
    "recordings": (mutation_audit.recordings, "recordings, manifests, truths", 0.03),
    "results": (mutation_results.results, "result.json in rows, reports, comparisons, summaries", 0.04),
    "pages": (mutation_results.pages, "matrices, records of evidence, points of the frontier", 0.03),
    "policies": (mutation_settings.policies, "policy.toml, its decisions on runs and answers", 0.06),
    "federations": (mutation_settings.federations, "federation.toml, registrations, node configs", 0.06),
    "words": (mutation_settings.words, "run configurations, words of a command line", 0.04),
    "data": (mutation_data.data, "files of data sets, of sites, and of the cache", 0.0385),
    "weights": (mutation_weights.weights, "pretrained weights", 0.0015),
}
PARTS = {
    name: output.BenchmarkPart(description, round(1 + 900 * share), 2)
    for name, (_, description, share) in _GROUPS.items()
}


@final
@dataclass
class GroupTally:
    """Counts of a group's cases.

    Attributes:
        outcomes: number of cases by outcome.
        sealed: number of cases that broke a seal.
        slow: cases that took too long, a line each.
        faults: silent and uncaught cases, a line for each place, with what makes the first one again.
        seconds: time of the processor, with the making of the cases.
    """

    outcomes: Counter[CaseOutcome] = field(default_factory=Counter)
    sealed: int = 0
    slow: list[str] = field(default_factory=list)
    faults: dict[tuple[str, ...], str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_sound(self) -> bool:
        """True if no case was silent or uncaught."""
        return not (self.outcomes[CaseOutcome.SILENT] or self.outcomes[CaseOutcome.UNCAUGHT])

    def take(self, result: CaseResult, subject: Subject, again: str) -> None:
        """Count a case; ``again``: the flags that make it again."""
        self.outcomes[result.outcome] += 1
        self.sealed += result.sealed
        if is_slow(result):
            self.slow.append(f"slow: {subject.name}, {result.seconds:.1f} s: {again}")
        if result.outcome in (CaseOutcome.SILENT, CaseOutcome.UNCAUGHT):
            kind, place = result.error
            words = f"{kind} at {place}" if kind else "silent"
            text = ascii(result.text[:_SHOWN])
            key = (subject.name, kind, place)
            self.faults.setdefault(key, f"{result.outcome.value}: {subject.name}: {words}: {again}: {text}")

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for the report."""
        counts = {outcome.value: self.outcomes[outcome] for outcome in CaseOutcome}
        return {**counts, "sealed": self.sealed, "slow": len(self.slow), "seconds": round(self.seconds, 1)}


def cases(name: str, subjects: Sequence[Subject], number: int, seed: int) -> Iterator[tuple[Subject, Random, int]]:
    """Yield the subject, the generator and the number of each case of a group, the subjects by their weights."""
    order = [subject for subject in subjects for _ in range(max(1, round(4 * subject.weight)))]
    for case in range(number):
        yield order[case % len(order)], Random(f"{seed}/{name}/{case}"), case


def tally(name: str, number: int, seed: int, scratch: Path, only_case: int | None = None) -> GroupTally:
    """Make the cases of a group, and count their outcomes.

    Args:
        name: the group.
        number: how many cases.
        seed: of everything random.
        scratch: folder to write to.
        only_case: number of the one case to make; None: all.
    """
    counted, place = GroupTally(), scratch / name
    place.mkdir()
    used = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # decoders warn of damaged images
        subjects = _GROUPS[name][0](place)
        with limited():
            for subject, rng, case in cases(name, subjects, number, seed):
                if only_case in (None, case):
                    again = f"--only {name} --seed {seed} --case {case}"
                    counted.take(tried(subject, rng, scratch), subject, again)
    counted.seconds = time.process_time() - used
    return counted


def lines(tallies: Mapping[str, GroupTally]) -> Iterator[str]:
    """Yield a table of the groups, and the cases that are to be looked at."""
    heads = [*(outcome.value for outcome in CaseOutcome), "sealed", "slow", "seconds"]
    yield "".join([f"{'group':<12}", *(f"{head:>10}" for head in heads)])
    rows = {name: counted.as_dict() for name, counted in tallies.items()}
    rows["all"] = {head: round(sum(row[head] for row in rows.values()), 1) for head in heads}
    for name, row in rows.items():
        yield "".join([f"{name:<12}", *(f"{row[head]:>10,}" for head in heads)])
    for counted in tallies.values():
        yield from (*counted.faults.values(), *counted.slow)


def _flags() -> Parser:
    flags = output.parser(__doc__)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("--number", type=int, help=f"of all cases ({_NUMBER}; of all groups, whichever are chosen)")
    flags.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    flags.add_argument("--case", type=int, help="make one case of one group again")
    return flags


def main() -> None:
    """Make all cases, and print; exit with 1 if one was silent or uncaught."""
    run = output.start(_flags(), PARTS)
    number, case = run.amount(_NUMBER, _QUICK, run.asked.number), run.asked.case
    if number < 1:
        output.refuse(f"Expected --number >= 1, got {number}.")
    if case is not None and len(run.names) != 1:
        output.refuse(f"Expected --only with one group beside --case, got {', '.join(run.names)}.")
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="flfw-mutations-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        for name in run.parts():
            share = max(1, round(number * _GROUPS[name][2]))
            tallies[name] = tally(name, share if case is None else case + 1, run.asked.seed, Path(folder), case)
            say = [f"{name}: {tallies[name].as_dict()}", *tallies[name].faults.values(), *tallies[name].slow]
            print(*say, sep="\n", file=sys.stderr, flush=True)
    results = {name: counted.as_dict() for name, counted in tallies.items()}
    faults = [line for counted in tallies.values() for line in counted.faults.values()]
    run.report({"mutations": results, "faults": faults, "seed": run.asked.seed}, lines(tallies))
    sys.exit(0 if all(counted.is_sound for counted in tallies.values()) else 1)


if __name__ == "__main__":
    main()
