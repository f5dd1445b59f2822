"""docs/tables/evidence.md: published numbers beside what was measured at the papers' own scale, from the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from flfw.files.sealed import write_atomic
from flfw.papers import layout, published
from flfw.papers.evidence.records import FOLDER, Record, cells_of, read
from flfw.papers.preset import presets
from flfw.papers.published import Cell
from research.evidence import agreement
from research.evidence.agreement import Measured

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables" / "evidence.md"
VARIANTS = ("authors", "ours")

_OPENING = """<!-- Written by python -m research.evidence --page -->
# Evidence, cell by cell

`python -m research.evidence --page` writes this page from the records in `papers/evidence/`. The words *authors*,
*ours*, *beside*, *agrees*, *undecided*, *above* and *below* are explained on the page [Evidence](../evidence.md).
"""


def write(folder: Path = FOLDER, page: Path = PAGE) -> None:
    """Write the page from the records of a folder."""
    write_atomic(page, text(read(folder)).encode())


def text(records: Sequence[Record]) -> str:
    """Return the page."""
    by_table: dict[str, list[Record]] = {}
    for record in records:
        by_table.setdefault(record.cell.partition("/")[0], []).append(record)
    parts = [_OPENING, _summary(records)]
    for name in published.names():
        if name in by_table:
            parts.append(_section(name, by_table[name]))
    return "\n".join(parts)


def _summary(records: Sequence[Record]) -> str:
    words: dict[str, Counter[str]] = {variant: Counter() for variant in VARIANTS}
    beside = 0
    for cell, by_variant in _cells(records):
        beside += cell.value is None
        for variant, mine in by_variant.items():
            if word := agreement.word(cell, mine):
                words[variant][f"{word}{_lone(word, mine)}"] += 1
    lines = ["## In short", ""]
    for variant, counts in words.items():
        if counts:
            total = sum(counts.values())
            each = ", ".join(f"{number} {word}" for word, number in counts.most_common())
            lines.append(f"- {variant}: {total} published cell{'s' if total != 1 else ''}: {each}.")
    if beside:
        lines.append(f"- {beside} more that no paper has.")
    runs = {record.digest: record for record in records}.values()  # tables share runs
    hours = sum(record.seconds for record in runs) / 3600
    machines = sorted({record.hardware for record in records})
    lines.append(f"- {len(runs)} runs, {hours:.1f} hours in all, on {'; '.join(machines)}.")
    return "\n".join([*lines, ""])


def _lone(word: str, mine: Measured) -> str:
    return " (1 seed)" if word == "agrees" and len(mine.seeds) == 1 else ""


def _section(name: str, records: Sequence[Record]) -> str:
    table = published.table(name)
    lines = [f"## {name}: {table.title}", "", table.paper, ""]
    lines += ["| cell | published | authors | | ours | | beside | seeds |", "|---|---|---|---|---|---|---|---|"]
    notes: list[str] = []
    legend: dict[str, dict[str, None]] = {}
    for cell, by_variant in _cells(records):
        columns, seeds = [], []
        for variant in VARIANTS:
            mine = by_variant.get(variant)
            columns += ["", ""] if mine is None else [_number(cell, mine), _verdict(cell, variant, mine, notes)]
            seeds += [] if mine is None else [",".join(map(str, mine.seeds))]
        paper = "–" if cell.value is None else layout.number(cell.value, cell.unit, cell.deviation)
        words = " ".join((*cell.row, *cell.columns, *([cell.metric] if cell.metric != "accuracy" else [])))
        figures = _beside(cell, by_variant[VARIANTS[0]]) if VARIANTS[0] in by_variant else {}
        if figures:
            legend.setdefault("; ".join(figures), {})[" ".join(cell.row)] = None
        columns.append(" / ".join(figures.values()))
        lines.append(f"| {words} | {paper} | {' | '.join(columns)} | {' / '.join(dict.fromkeys(seeds))} |")
    below = [f"Beside ({', '.join(rows)}): {words}.\n" for words, rows in legend.items()]
    below += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", *below, *([""] if below else [])])


def _beside(cell: Cell, mine: Measured) -> dict[str, str]:
    """Return the figures beside a cell's, as means over the seeds by their words, without those that a run lacks."""
    make = presets(cell.table)
    figures = make(cell, "full").also if make else ()
    means: dict[str, str] = {}
    for figure in figures:
        values = [one.also.get(figure.name) for one in mine.records]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if len(numbers) == len(values):
            means[figure.words] = layout.number(fmean(numbers), cell.unit)
    return means


def _number(cell: Cell, mine: Measured) -> str:
    return layout.number(mine.value, cell.unit, mine.deviation)


def _verdict(cell: Cell, variant: str, mine: Measured, notes: list[str]) -> str:
    word = agreement.word(cell, mine)
    if word is None:
        return cell.note or "not in the paper"
    why = agreement.reason(cell, variant) if word != "agrees" else ""
    if not why:
        return f"{word}{_lone(word, mine)}"
    if why not in notes:
        notes.append(why)
    return f"{word} ({notes.index(why) + 1})"


def _cells(records: Sequence[Record]) -> Iterator[tuple[Cell, dict[str, Measured]]]:
    """Yield each cell with a number, in the papers' order, with the means measured in each variant."""
    by_cell: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        by_cell.setdefault(record.cell, {}).setdefault(record.variant, []).append(record)
    for name in published.names():
        for cell in cells_of(name):
            given = by_cell.get(cell.path, {})
            mine = {variant: one for variant, some in given.items() if (one := agreement.measured(some)) is not None}
            if mine:
                yield cell, mine
