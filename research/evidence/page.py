"""docs/tables/evidence.md: published numbers beside what was measured at the papers' own scale, from the records."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.figure import Figure

from flfw.files.sealed import write_atomic
from flfw.papers import layout, published
from flfw.papers.evidence.records import FOLDER, Record, read
from flfw.papers.preset import presets
from flfw.papers.published import Cell
from flfw.report.chart_style import DASHED, INK, INKS, MARKS, STYLE, blank, rendered
from research.evidence import agreement
from research.evidence.agreement import Measured
from research.evidence.items import cells_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tables" / "evidence.md"
VARIANTS = ("authors", "ours")

_OPENING = """<!-- Written by python -m research.evidence --page -->
# Evidence, cell by cell

`python -m research.evidence --page` writes this page from the records in `papers/evidence/`. The words *authors*,
*ours*, *beside*, *agrees*, *undecided*, *above* and *below* are explained on the page [Evidence](../evidence.md).
"""


def write(folder: Path = FOLDER, page: Path = PAGE) -> None:
    """Write the page and its picture from the records of a folder."""
    records = read(folder)
    write_atomic(page, text(records).encode())
    write_atomic(page.with_suffix(".svg"), rendered(picture(records), "svg"))


@rc_context(STYLE)
def picture(records: Sequence[Record]) -> Figure:
    """Draw published and measured accuracies of the authors' variant: a point a cell, by the cause."""
    figure = blank(6.9, 3.6, "Accuracy published and measured, with the authors' settings: a point a cell")
    axes = figure.add_subplot(xlabel="published", ylabel="measured", xlim=(0.78, 1), ylim=(0, 1))
    points: dict[str, list[tuple[float, float]]] = {}
    for cell, by_variant in _cells(records):
        if (mine := by_variant.get("authors")) and cell.metric == "accuracy" and isinstance(cell.value, float):
            whole = 100 if cell.unit else 1
            brief = agreement.cause(cell, "authors", mine).partition(",")[0]
            points.setdefault(brief, []).append((cell.value / whole, mine.value / whole))
    axes.axline((0, 0), slope=1, color=INK, linestyle=DASHED, linewidth=0.8)
    for (brief, some), ink, mark in zip(points.items(), INKS, MARKS, strict=False):
        axes.plot(*zip(*some, strict=True), mark, color=ink, clip_on=False, label=f"{brief} ({len(some)})")
    axes.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
    return figure


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
    counts: dict[str, Counter[str]] = {}
    gaps, beside = list[float](), 0
    for cell, by_variant in _cells(records):
        beside += cell.value is None
        for variant, mine in by_variant.items():
            if isinstance(cell.value, float) and not mine.trained:
                gaps.append(abs(mine.value - cell.value))
            elif agreement.word(cell, mine):
                counts.setdefault(agreement.cause(cell, variant, mine), Counter())[variant] += 1
    lines = ["## In short", "", "| trained cells | authors | ours |", "|---|---|---|"]
    ordered = sorted(counts.items(), key=lambda one: -one[1].total())
    for cause, each in (*ordered, ("all", sum(counts.values(), Counter()))):
        lines.append(f"| {cause} | {' | '.join(str(each[variant]) for variant in VARIANTS)} |")
    lines.append("")
    if gaps:
        lines.append(
            f"- {len(gaps)} epsilons, counted without training: at most {max(gaps):.1g} from the published ones."
        )
    if beside:
        lines.append(f"- {beside} more that no paper has.")
    runs = {record.digest: record for record in records if record.seconds}.values()  # tables share runs
    hours = sum(record.seconds for record in runs) / 3600
    machines = sorted({record.hardware for record in records})
    lines.append(f"- {len(runs)} runs, {hours:.1f} hours in all, on {'; '.join(machines)}.")
    causes = enumerate(dict.fromkeys(agreement.REASONS.values()), 1)
    lines += ["", "Causes:", "", *(f"{number}. **{brief.capitalize()}.** {why}" for number, (brief, why) in causes)]
    return "\n".join([*lines, ""])


def _section(name: str, records: Sequence[Record]) -> str:
    table = published.table(name)
    lines = [f"## {name}: {table.title}", "", table.paper, ""]
    lines += ["| cell | published | authors | | ours | | beside | seeds |", "|---|---|---|---|---|---|---|---|"]
    legend: dict[str, dict[str, None]] = {}
    for cell, by_variant in _cells(records):
        columns, seeds = [], []
        for variant in VARIANTS:
            mine = by_variant.get(variant)
            columns += ["", ""] if mine is None else [_number(cell, mine), _verdict(cell, variant, mine)]
            seeds += [] if mine is None else [",".join(map(str, mine.seeds))]
        paper = "–" if cell.value is None else layout.number(cell.value, cell.unit, cell.deviation)
        words = " ".join((*cell.row, *cell.columns, *([cell.metric] if cell.metric != "accuracy" else [])))
        figures = _beside(cell, by_variant[VARIANTS[0]]) if VARIANTS[0] in by_variant else {}
        if figures:
            legend.setdefault("; ".join(figures), {})[" ".join(cell.row)] = None
        columns.append(" / ".join(figures.values()))
        lines.append(f"| {words} | {paper} | {' | '.join(columns)} | {' / '.join(dict.fromkeys(seeds))} |")
    below = [f"Beside ({', '.join(rows)}): {words}.\n" for words, rows in legend.items()]
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


def _verdict(cell: Cell, variant: str, mine: Measured) -> str:
    word = agreement.word(cell, mine)
    if word is None:
        return cell.note or "not in the paper"
    if word == "agrees":
        return f"{word} (1 seed)" if mine.trained and len(mine.seeds) == 1 else word
    known = agreement.reason(cell, variant)
    return f"{word} ({[*dict.fromkeys(agreement.REASONS.values())].index(known) + 1})" if known[0] else word


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
