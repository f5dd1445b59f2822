"""Layout of a table: entries, heading and footnotes, and its output for a terminal, Markdown, LaTeX and CSV.

The layout is the same for every output format.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid

from flfw.errors import abridged
from flfw.files.provenance import code_hash
from flfw.files.tables import escaped, grid, plain, tabular
from flfw.papers.cells import OURS, Outcome
from flfw.papers.preset import Preset, Scale
from flfw.papers.published import Cell, Table

_SHOWN_PATHS = 3
_WITHOUT_A_RUN = {
    "plan": "PLANNED: the paper's settings, counted before a run; nothing was trained",
    "clock": "TIMED: local iterations of one client, alone on this machine; nothing else was trained",
}


@dataclass(frozen=True)
class Entry:
    """Text of a cell.

    Attributes:
        paper: the published number.
        ours: the measured number; without one, the status and the number of the footnote with the reason.
        also: the numbers measured beside it, each after the letter that the heading explains.
        measured: whether ``ours`` is a number.
    """

    paper: str
    ours: str
    also: tuple[str, ...] = ()
    measured: bool = True


@dataclass(frozen=True)
class Sheet:
    """Content of a table.

    Attributes:
        heading: title and descriptions of the numbers, one line each.
        corner: description of the rows.
        columns: the words above each column.
        rows: name and entries of each row; None: the paper has no such cell.
        footnotes: the notes below the table, one line each.
    """

    heading: tuple[str, ...]
    corner: str
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, tuple[Entry | None, ...]], ...]
    footnotes: tuple[str, ...]


def sheet(table: Table, outcomes: Iterable[Outcome], scale: Scale) -> Sheet:
    """Lay out some or all outcomes of a table; rows and columns without outcomes are left out."""
    outcomes = tuple(outcomes)
    reasons = list(dict.fromkeys(outcome.reason for outcome in outcomes if outcome.reason))
    metrics = {_metric(outcome.cell) for outcome in outcomes}
    one_metric = table.columns_by and len(metrics) == 1
    letters = _letters(outcomes)
    entries = {
        (cell.row, cell.columns if one_metric else (*cell.columns, _metric(cell))): _entry(outcome, reasons, letters)
        for outcome, cell in ((outcome, outcome.cell) for outcome in outcomes)
    }
    columns = tuple(dict.fromkeys(column for _, column in entries))
    rows = dict.fromkeys(row for row, _ in entries)
    meaning = [f"Columns: {', '.join(table.columns_by)}; numbers: {', '.join(metrics)}"] if one_metric else []
    return Sheet(
        heading=(f"{table.name}  {table.title}", table.paper, *meaning, *_heading(table, outcomes, scale)),
        corner=", ".join(table.rows_by),
        columns=columns,
        rows=tuple((" ".join(row), tuple(entries.get((row, column)) for column in columns)) for row in rows),
        footnotes=(*(f"[{number}] {reason}" for number, reason in enumerate(reasons, 1)), *_remarks(outcomes)),
    )


def number(value: float | str | None, unit: str, std: float | None = None) -> str:
    """Format a number as the papers print it: two decimals for per cent and decibels, else four digits."""
    if value is None or isinstance(value, str):
        return value or "none"
    text = f"{value:.2f}" if unit else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if std is None else f"{text}±{std:.2f}" if unit else f"{text}±{std:.2g}"


def by_earlier_code(outcome: Outcome) -> bool:
    """Return whether an outcome was measured by another version of the code."""
    return any(code != code_hash() for code in outcome.codes)


def _metric(cell: Cell) -> str:
    return f"{cell.metric} ({cell.unit})" if cell.unit else cell.metric


def _entry(outcome: Outcome, reasons: list[str], letters: Mapping[str, str]) -> Entry:
    cell = outcome.cell
    paper = cell.note if cell.value is None and cell.note else number(cell.value, cell.unit, cell.deviation)
    paper = "not available" if cell.lost else paper
    if outcome.value is None:
        return Entry(paper, f"{outcome.status} [{reasons.index(outcome.reason) + 1}]", measured=False)
    mark = "*" * by_earlier_code(outcome) + "?" * bool(outcome.uninformative)
    words = _words(outcome.preset)
    marks = {name: f"{letters[words[name]]} " if name in words else "" for name in outcome.also}
    also = tuple(f"{marks[name]}{number(value, cell.unit)}" for name, value in outcome.also.items())
    return Entry(paper, number(outcome.value, cell.unit, outcome.deviation) + mark, also)


def _heading(table: Table, outcomes: tuple[Outcome, ...], scale: Scale) -> list[str]:
    lines = [f"paper value not available: {table.missing}"] if table.missing else []
    lines += [f"Note: {table.note}"] if table.note else []
    presets = [outcome.preset for outcome in outcomes if outcome.preset]
    card = f"departures: papers/{table.name.partition('.')[0]}.py"
    experiments = [preset.experiments[0] for preset in presets if preset.source == "run"]
    if experiments:
        seeds = _among({len(preset.seeds) for preset in presets if preset.source == "run"}, "seed")
        rounds = _among({experiment.rounds for experiment in experiments}, "round")
        epochs = _among({experiment.local_epochs for experiment in experiments}, "epoch")
        probes = {experiment.images for experiment in experiments if experiment.attacks}
        attacked = f", {_among(probes, 'probe')}" if probes else ""
        settings = f"{'not ' if scale == 'quick' else ''}the paper's settings; {card}"
        lines.append(f"{scale.upper()}: {seeds}, {rounds} of {epochs}{attacked}; {settings}")
    lines += [f"{words}; {card}" for source, words in _WITHOUT_A_RUN.items() if source in {p.source for p in presets}]
    return [*lines, *_figures(outcomes)]


def _among(counts: set[int], noun: str) -> str:
    return f"{' or '.join(map(str, sorted(counts)))} {noun}{'' if counts == {1} else 's'}"


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    """Describe each figure, with the rows that show it."""
    letters = _letters(outcomes)
    rows: dict[tuple[str, str], dict[str, None]] = {}
    for outcome in outcomes:
        if outcome.preset:
            row = " ".join(outcome.cell.row)
            rows.setdefault(("ours", outcome.preset.figure.words), {})[row] = None
            for words in _words(outcome.preset).values():
                rows.setdefault((f"also {letters[words]}", words), {})[row] = None
    every = dict.fromkeys(" ".join(outcome.cell.row) for outcome in outcomes if outcome.preset)
    return [f"{word} ({_named(names, every)}): {words}" for (word, words), names in rows.items()]


def _words(preset: Preset | None) -> dict[str, str]:
    """Return the words of each figure that is shown beside, by its name in an outcome."""
    if preset is None:
        return {}
    words = {figure.name: figure.words for figure in preset.also}
    words |= {other.name: other.figure.words for other in preset.further}
    return words | ({OURS: "the same of the method's variant ours"} if preset.beside else {})


def _letters(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return a letter for each description of a figure that is shown beside, in order."""
    words = dict.fromkeys(words for outcome in outcomes for words in _words(outcome.preset).values())
    assert len(words) <= len(ascii_lowercase), "as many letters as figures"
    return dict(zip(words, ascii_lowercase, strict=False))


def _named(names: Iterable[str], every: Iterable[str]) -> str:
    """Name the rows, or of many the others.

    >>> _named("abc", "abc"), _named("abcd", "abcde"), _named("abcde", "abcde")
    ('a, b, c', 'all but e', 'all')
    """
    shown, others = [*names], [name for name in every if name not in names]
    if len(shown) <= 3 or len(shown) <= len(others):
        return ", ".join(shown)
    return f"all but {', '.join(others)}" if others else "all"


def _remarks(outcomes: tuple[Outcome, ...]) -> list[str]:
    lines = []
    if any(map(by_earlier_code, outcomes)):
        lines.append("* by earlier code: measured before the code changed; remove the run's folder to measure it anew")
    empty: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.uninformative:
            empty.setdefault(outcome.uninformative, []).append(outcome.cell.path)
    lines += [f"? uninformative: {why} ({abridged(paths, _SHOWN_PATHS)})" for why, paths in empty.items()]
    if any(outcome.deviation is not None for outcome in outcomes):
        lines.append("± after ours: sample standard deviation over the seeds")
    paths_of: dict[str, list[str]] = {}
    for outcome in outcomes:
        for note in outcome.notes:
            paths_of.setdefault(note, []).append(outcome.cell.path)
    return [*lines, *(f"{note} ({abridged(paths, _SHOWN_PATHS)})" for note, paths in paths_of.items())]


_GAP = 2


def terminal(sheet: Sheet, width: int) -> str:
    """Format a table with two to four lines per cell; columns beyond ``width`` characters go to further blocks."""
    parts: list[str | Grid] = [*sheet.heading]
    for block in _blocks(sheet, width):
        parts += ["", _block(sheet, block)]
    return plain(width, *parts, *(("", *sheet.footnotes) if sheet.footnotes else ()))


def _block(sheet: Sheet, columns: range) -> Grid:
    drawn = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    drawn.add_column(sheet.corner, no_wrap=True, vertical="top")
    for index in columns:
        drawn.add_column("\n".join(sheet.columns[index]), justify="right", no_wrap=True)
    for name, entries in sheet.rows:
        drawn.add_row(name, *("\n".join(_lines(entries[index])) for index in columns))
    return drawn


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
    paragraphs = (*sheet.heading, grid(head, rows) if rows else "", *sheet.footnotes)
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def latex(sheet: Sheet) -> str:
    """Format a booktabs tabular, with heading and footnotes in small print below."""
    head = [escaped(sheet.corner), *(escaped(" ".join(words)) for words in sheet.columns)]
    rows = [[escaped(name), *(escaped(_beside(entry, "{}")) for entry in entries)] for name, entries in sheet.rows]
    body = [tabular(f"l{'r' * len(sheet.columns)}", head, [rows])] if rows else []
    notes = [f"\\par{{\\footnotesize {escaped(line)}\\par}}" for line in (*sheet.heading, *sheet.footnotes)]
    return "\n".join([r"% Needs \usepackage{booktabs}.", *body, *notes]) + "\n"


def _beside(entry: Entry | None, ours: str) -> str:
    if entry is None:
        return ""
    also = f" (also {', '.join(entry.also)})" if entry.also else ""
    return f"{entry.paper} / {ours.format(entry.ours) if entry.measured else entry.ours}{also}"


def csv(table: Table, outcomes: Iterable[Outcome], scale: Scale) -> str:
    """Format a CSV table with one row per cell, measured or not."""
    import pandas as pd

    columns = ["table", "row", *table.columns_by, "metric", "published", "published_deviation"]
    columns += ["measured", "measured_deviation", "seeds", "scale", "status", "reason"]
    columns += ["also", "uninformative", "folders", "code"]
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
            "folders": " ".join(run.folder.name for run in outcome.runs),
            "code": " ".join(outcome.codes),
        }
        for outcome in outcomes
    ]
    return pd.DataFrame(rows, columns=columns).to_csv(index=False)
