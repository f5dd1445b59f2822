"""Figures of leakage, drawn from their rows alone: a mark with its interval for each row, no line where nothing was."""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.utility import UTILITIES
from flfw.report.chart_style import DASHED, INK, INKS, MARKS, STYLE, blank, write_numbers

_BAR: Any = {"linestyle": "none", "capsize": 2, "linewidth": 1.2, "zorder": 3}
_PANELS = (("share", "Examples recovered"), ("psnr", "PSNR, dB"))


@rc_context(STYLE)
def leakage(rows: Rows, title: str) -> Figure:
    """Draw each attack on each run: the share recovered and the closeness, with their 95 % intervals.

    Args:
        rows: rows of `flfw.comparisons.figures.leakage_numbers.leakage`.
        title: title above the plots.
    """
    labels = [f"{row['run']}: {_attack(row)}" + f", round {row['round']}" * bool(row["round"]) for row in rows]
    return _dots(rows, labels, _PANELS, title)


@rc_context(STYLE)
def membership(rows: Rows, title: str) -> Figure:
    """Draw the area under the curve of each statistic, with its interval; half is guessing.

    Args:
        rows: rows of `flfw.comparisons.figures.leakage_numbers.membership`.
        title: title above the plot.
    """
    pooled = len({row["seed"] for row in rows}) > 1
    labels = [
        ", ".join(
            [
                f"{row['run']}: {row['statistic']}",
                *["told"] * row["informed"],
                row["read"],
                *[f"seed {row['seed']}"] * pooled,
            ]
        )
        for row in rows
    ]
    figure = _dots(rows, labels, (("auc", "Area under the curve (0.5: guessing)"),), title)
    axes = figure.axes[0]
    axes.set_xlim(0, 1)
    axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=DASHED)
    return figure


@rc_context(STYLE)
def rounds(rows: Rows, title: str) -> Figure:
    """Draw the leakage of each attack by the audited round; a line joins rounds only if none lies between them.

    Args:
        rows: rows of `flfw.comparisons.figures.leakage_numbers.rounds`.
        title: title above the plots.
    """
    return _by_number(rows, "round", title, "after round", lambda row: f"{row['run']}: {_attack(row)}")


@rc_context(STYLE)
def curves(rows: Rows, title: str) -> Figure:
    """Draw the leakage of each attack along each curve; marks are not joined.

    Args:
        rows: rows of `flfw.comparisons.figures.leakage_numbers.curves`.
        title: title above the plots.
    """
    return _by_number(
        rows, "at", title, "size of the point", lambda row: f"{row['run']}: {row['attack']}, {row['curve']}"
    )


@rc_context(STYLE)
def frontier(rows: Rows, title: str) -> Figure:
    """Draw utility against leakage: full marks are on the frontier, hollow ones are beaten by another run.

    Args:
        rows: rows of `flfw.comparisons.figures.leakage_numbers.frontier`.
        title: title above the plots.
    """
    utility = UTILITIES[rows[0]["measure"]]
    figure = blank(6.4, 3.6 + 0.16 * len(rows), title)
    shown = [panel for panel in (_PANELS[0], ("closeness", "Closest result, dB")) if _known(rows, panel[0])]
    plots: Sequence[Axes] = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (column, words) in zip(plots, shown, strict=True):
        for row, ink, mark in zip(rows, cycle(INKS), cycle(MARKS)):
            if row[column] is None:
                continue
            ends = [_ends(row, utility.column), _ends(row, column)]
            axes.errorbar(
                row[utility.column],
                row[column],
                ends[1],
                ends[0],
                fmt=mark,
                color=ink,
                markerfacecolor=ink if row["on_frontier"] else "white",
                label=f"{row['run']} ({row['letters']})",
                **_BAR,
            )
        axes.set(title=words, xlabel=f"{utility.name}{utility.direction}".replace(" (", "\n("))
        write_numbers(axes.xaxis, utility.tick)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        _levels(axes, column)
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=2)
    return figure


def _by_number(rows: Rows, column: str, title: str, text: str, name_of: Any) -> Figure:
    names = list(dict.fromkeys(map(name_of, rows)))
    figure = blank(6.4, 3.4 + 0.18 * len(names), title)
    shown = [panel for panel in _PANELS if _known(rows, panel[0])]
    plots: Sequence[Axes] = figure.subplots(1, len(shown), squeeze=False)[0]
    shift = 0.06 * max(1, max(row[column] for row in rows) - min(row[column] for row in rows)) / max(1, len(names))
    for axes, (measure, heading) in zip(plots, shown, strict=True):
        for index, (name, ink, mark) in enumerate(zip(names, cycle(INKS), cycle(MARKS))):
            mine = [row for row in rows if name_of(row) == name and row[measure] is not None]
            aside = shift * (index - (len(names) - 1) / 2)  # so that intervals at one place do not hide one another
            for row in mine:
                at = row[column] + aside
                axes.errorbar(at, row[measure], _ends(row, measure), fmt=mark, color=ink, label=name, **_BAR)
            for one, two in pairwise(mine) if column == "round" else ():
                if two[column] - one[column] == 1:
                    across = [one[column] + aside, two[column] + aside]
                    axes.plot(across, [one[measure], two[measure]], color=ink, linewidth=1, zorder=2)
        axes.set(title=heading, xlabel=text)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        _levels(axes, measure)
    handles = dict(zip(*reversed(plots[0].get_legend_handles_labels()), strict=True))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", frameon=False, ncols=2)
    return figure


def _dots(rows: Rows, labels: Sequence[str], panels: Sequence[tuple[str, str]], title: str) -> Figure:
    """Draw a row of marks for each label, a panel for each measure that any row has."""
    figure = blank(6.4, 1.1 + 0.26 * len(rows), title)
    shown = [panel for panel in panels if _known(rows, panel[0])] or list(panels[:1])
    plots: Sequence[Axes] = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    runs = list(dict.fromkeys(row["run"] for row in rows))
    looks = dict(zip(runs, zip(cycle(INKS), cycle(MARKS)), strict=False))
    for axes, (column, words) in zip(plots, shown, strict=True):
        for index, row in enumerate(rows):
            ink, mark = looks[row["run"]]
            if row[column] is not None:
                axes.errorbar(row[column], index, xerr=_ends(row, column), fmt=mark, color=ink, **_BAR)
        axes.set(title=words)
        axes.grid(axis="x")
        axes.tick_params(length=0)
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        if column == "share":
            axes.set_xlim(-0.03, 1.03)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    return figure


def _levels(axes: Axes, measure: str) -> None:
    axes.grid(axis="y")
    axes.tick_params(length=0)
    if measure == "share":
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _ends(row: Mapping[str, Any], column: str) -> list[list[float]] | None:
    """Return the lengths of an interval below and above its mark; None: there is none."""
    value, low, high = row[column], row.get(f"{column}_low"), row.get(f"{column}_high")
    return None if low is None or high is None else [[max(0.0, value - low)], [max(0.0, high - value)]]


def _known(rows: Rows, column: str) -> bool:
    return any(row[column] is not None for row in rows)


def _attack(row: Mapping[str, Any]) -> str:
    return f"{row['attack']}, {row['kind']}"
