"""The frontier as a table: a cell for each point."""

from __future__ import annotations

from flfw.papers.frontier.lines import LINES, FrontierLine
from flfw.papers.frontier.trials import DATA, EPSILONS
from flfw.papers.preset import Scale
from flfw.papers.published import FRONTIER as NAME
from flfw.papers.published import Cell, Table


def table() -> Table:
    """Return the table with the cells of both scales."""
    epsilons = sorted({epsilon for some in EPSILONS.values() for epsilon in some})
    cells = tuple(_cell(data, line, epsilon) for data in DATA for line in LINES for epsilon in epsilons)
    return Table(
        NAME,
        "Accuracy against true epsilon",
        "A table of our own, no paper's.",
        ("dataset", "method", "unit"),
        ("epsilon",),
        cells,
        missing="no paper has these numbers",
    )


def line_of(cell: Cell) -> FrontierLine:
    """Return the line of a cell."""
    return next(line for line in LINES if (line.method, line.unit) == (cell.keys["method"], cell.keys["unit"]))


def in_scale(cell: Cell, scale: Scale) -> bool:
    """Return whether a scale has the cell's epsilon."""
    return float(cell.keys["epsilon"]) in EPSILONS[scale]


def _cell(data: str, line: FrontierLine, epsilon: float) -> Cell:
    keys = {"dataset": data, "method": line.method, "unit": line.unit, "against": line.against, "epsilon": epsilon}
    row = (data, line.method, line.unit)
    return Cell(NAME, keys, row, (f"{epsilon:g}",), "accuracy", "", None, lost=True)
