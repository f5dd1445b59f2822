"""Output of a table: terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from flfw.formats.latex import escaped
from flfw.papers.cells import Outcome
from flfw.papers.layout import Entry, Sheet
from flfw.papers.preset import Scale
from flfw.papers.published import Table

_GAP = 2


def terminal(sheet: Sheet, width: int) -> str:
    """Format a table with two to four lines per cell; columns beyond ``width`` characters go to further blocks."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width)
    for line in sheet.heading:
        console.print(line, markup=False, highlight=False)
    for block in _blocks(sheet, width):
        console.print()
        console.print(_block(sheet, block))
    for line in ("", *sheet.footnotes) if sheet.footnotes else ():
        console.print(line, markup=False, highlight=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _block(sheet: Sheet, columns: range) -> object:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    grid.add_column(Text(sheet.corner), no_wrap=True, vertical="top")
    for index in columns:
        grid.add_column(Text("\n".join(sheet.columns[index])), justify="right", no_wrap=True)
    for name, entries in sheet.rows:
        grid.add_row(Text(name), *(Text("\n".join(_lines(entries[index]))) for index in columns))
    return grid


def _blocks(sheet: Sheet, width: int) -> Iterator[range]:
    """Yield ranges of columns that fit side by side, after the names of the rows."""
    names = max([len(sheet.corner), *(len(name) for name, _ in sheet.rows)], default=0)
    first, used = 0, names
    for index, words in enumerate(sheet.columns):
        lines = [*words, *(line for _, entries in sheet.rows for line in _lines(entries[index]))]
        wide = _GAP + max(map(len, lines))
        if used + wide > width and index > first:
            yield range(first, index)
            first, used = index, names
        used += wide
    if first < len(sheet.columns):
        yield range(first, len(sheet.columns))


def _lines(entry: Entry | None) -> list[str]:
    if entry is None:
        return [""]
    ours = [f"ours {entry.ours}" if entry.measured else entry.ours]
    if "±" not in entry.paper:  # then the column is too narrow for a deviation beside the number
        ours = ours[0].replace("±", "\n±").split("\n")
    return [f"paper {entry.paper}", *ours, *entry.also]


def markdown(sheet: Sheet) -> str:
    """Format a table in GitHub's Markdown: published / **measured**."""
    head = [sheet.corner, *(" ".join(words) for words in sheet.columns)]
    rows = [[name, *(_beside(entry, "**{}**") for entry in entries)] for name, entries in sheet.rows]
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (head, ["---"] * len(head), *rows)]
    grid = [f"| {line} |" for line in lines] if sheet.rows else []
    paragraphs = (*sheet.heading, "\n".join(grid), *sheet.footnotes)
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def latex(sheet: Sheet) -> str:
    """Format a booktabs tabular, with heading and footnotes in small print below."""
    head = [sheet.corner, *(" ".join(words) for words in sheet.columns)]
    rows = [[name, *(_beside(entry, "{}") for entry in entries)] for name, entries in sheet.rows]
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in (head, *rows)]
    begin, end = f"\\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}", r"\end{tabular}"
    grid = [begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", end] if sheet.rows else []
    notes = [f"\\par{{\\footnotesize {escaped(line)}\\par}}" for line in (*sheet.heading, *sheet.footnotes)]
    return "\n".join([r"% Needs \usepackage{booktabs}.", *grid, *notes]) + "\n"


def _beside(entry: Entry | None, ours: str) -> str:
    if entry is None:
        return ""
    also = f" (also {', '.join(entry.also)})" if entry.also else ""
    return f"{entry.paper} / {ours.format(entry.ours) if entry.measured else entry.ours}{also}"


def csv(table: Table, outcomes: Iterable[Outcome], scale: Scale) -> str:
    """Format a CSV table with one row per cell, measured or not."""
    import pandas as pd

    columns = ["table", "row", *table.columns_by, "metric", "published", "published_deviation"]
    columns += [
        "measured",
        "measured_deviation",
        "seeds",
        "scale",
        "status",
        "reason",
        "also",
        "uninformative",
        "folders",
        "code",
    ]
    rows = [
        {
            "table": table.name,
            "row": " ".join(outcome.cell.row),
            **dict(zip(table.columns_by, outcome.cell.columns, strict=True)),
            "metric": f"{outcome.cell.metric}{f'_{outcome.cell.unit}' if outcome.cell.unit else ''}",
            "published": outcome.cell.value,
            "published_deviation": outcome.cell.deviation,
            "measured": outcome.value,
            "measured_deviation": outcome.deviation,
            "seeds": " ".join(str(run.seed) for run in outcome.runs),
            "scale": scale,
            "status": outcome.status,
            "reason": outcome.reason,
            "also": " ".join(f"{name}={value}" for name, value in outcome.also.items()),
            "uninformative": outcome.uninformative,
            "folders": " ".join(run.out.name for run in outcome.runs if run.out),
            "code": " ".join(outcome.codes),
        }
        for outcome in outcomes
    ]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False)
