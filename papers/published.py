"""Published result tables of the papers, number by number: ``published.json`` as typed records.

Papers are named by their method: hyperfl.1 to .5, dcs2.1 and .2, fedcg.1 and .2, fed_cdp.1 to .7.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from types import MappingProxyType
from typing import Any

from flfw.errors import InputError, unknown
from flfw.plugins import imported

Key = str | int | float

_NO_KEYS = ("metric", "value", "std", "note", "source")
_UNITS = {"_%": "%", "_dB": "dB"}


@dataclass(frozen=True)
class Cell:
    """Number of a published table.

    Attributes:
        table: name of the table.
        keys: the setting of the number in the paper, such as method, dataset and clients.
        row: the keys that name its row.
        columns: the keys that name its column.
        metric: the measure, in lower case and without a unit: accuracy, psnr, lpips ...
        unit: ``%``, ``dB`` or nothing.
        value: value as printed; None: the paper has no number here.
        deviation: the printed deviation over seeds, if there is one.
        note: remark of the paper or its transcription on this number.
        lost: whether the paper may have a number here that is not at hand, or the row is of our own.
    """

    table: str
    keys: Mapping[str, Key]
    row: tuple[str, ...]
    columns: tuple[str, ...]
    metric: str
    unit: str
    value: float | str | None
    deviation: float | None = None
    note: str = ""
    lost: bool = False

    @property
    def path(self) -> str:
        """Name on the command line: ``hyperfl.1/HyperFL/CIFAR-10/20/accuracy``."""
        return "/".join([self.table, *(part.replace("/", "-") for part in (*self.row, *self.columns, self.metric))])


@dataclass(frozen=True)
class Table:
    """Table of a paper.

    Attributes:
        name: name, such as hyperfl.1.
        title: caption, in our words.
        paper: the full citation.
        rows_by: the keys that name a row.
        columns_by: the keys that name a column, above the metric.
        cells: cells in the order of the paper.
        note: a remark on the table as a whole.
        missing: reason why the published numbers are not at hand; empty if they are.
    """

    name: str
    title: str
    paper: str
    rows_by: tuple[str, ...]
    columns_by: tuple[str, ...]
    cells: tuple[Cell, ...]
    note: str = ""
    missing: str = ""

    def select(self, prefix: str) -> tuple[Cell, ...]:
        """Return the cells whose path begins with these parts; an empty prefix selects all.

        Raises:
            InputError: there are none; the message lists the possible next parts after the longest valid prefix.
        """
        requested = prefix.strip("/")
        matches = self._under(requested)
        if not matches and requested not in ("", self.name):
            stem = requested
            while stem and not self._under(stem):
                stem = stem.rpartition("/")[0]
            depth = stem.count("/") + 2 if stem else 1
            known = dict.fromkeys("/".join(cell.path.split("/")[:depth]) for cell in self._under(stem))
            raise InputError(f"Expected a cell among {', '.join(known or [self.name])}; got --cell {prefix}.")
        return matches

    def _under(self, stem: str) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not stem or f"{cell.path}/".startswith(f"{stem}/"))


@dataclass(frozen=True)
class OutsideTable:
    """Table of a user's own, ``--table package.module:NAME``.

    Attributes:
        table: its cells; its name is that of its files.
        presets: function of a cell and a scale for the cell's `flfw.papers.preset.Preset`.
    """

    table: Table
    presets: Callable[[Cell, Any], Any]


def outside(name: str) -> OutsideTable:
    """Return the table that ``package.module:NAME`` names.

    Raises:
        InputError: there is none.
    """
    made = imported(name, "table")
    if not isinstance(made, OutsideTable):
        raise InputError(f"Expected table={name} to be an OutsideTable, got {made!r}.")
    return made


FRONTIER = "dp.frontier"
"""Name of the table that no paper has published: of accuracy and true epsilon."""


def require_table(name: str) -> None:
    """Refuse an unknown name of a table, unless it is of a user's own.

    Raises:
        InputError: names all tables, and the one that it resembles.
    """
    known = (*names(), FRONTIER)
    if ":" not in name and name not in known:
        raise unknown(f"a table among {', '.join(known)}", f"--table {name}", name, known)


def names() -> tuple[str, ...]:
    """Return the names of all tables."""
    return tuple(_tables())


def table(name: str) -> Table:
    """Return a table by its name, or a user's own; the error for an unknown name lists all tables."""
    if ":" in name:
        return outside(name).table
    if name not in _tables():
        raise unknown(f"a table among {', '.join(names())}", f"--table {name}", name, names())
    return _tables()[name]


@cache
def _tables() -> Mapping[str, Table]:
    stored = json.loads((files("flfw.papers") / "published.json").read_text(encoding="utf-8"))
    return MappingProxyType({name: _table(name, entry) for name, entry in stored.items()})


def _table(name: str, entry: Mapping[str, Any]) -> Table:
    rows_by, columns_by = tuple(entry["rows_by"]), tuple(entry["columns_by"])
    cells = []
    for stored in entry["cells"]:
        values = {name: stored[name] for name in entry.get("metrics", ())} or {stored["metric"]: stored["value"]}
        keys = {key: value for key, value in stored.items() if key not in {*values, *_NO_KEYS}}
        row, columns = (tuple(str(stored[key]) for key in by) for by in (rows_by, columns_by))
        note = stored.get("note") or stored.get("source") or ""
        cells += [
            Cell(name, MappingProxyType(keys), row, columns, *_metric(metric), value, stored.get("std"), note)
            for metric, value in values.items()
        ]
    for group in entry.get("lost", ()):
        for method, dataset, metric in product(group["method"], group["dataset"], group["metrics"]):
            keys = MappingProxyType({"method": method, "dataset": dataset})
            cells.append(Cell(name, keys, (method,), (dataset,), *_metric(metric), None, lost=True))
    remarks = {key: entry.get(key, "") for key in ("note", "missing")}
    return Table(name, entry["title"], entry["paper"], rows_by, columns_by, tuple(cells), **remarks)


def _metric(name: str) -> tuple[str, str]:
    """Split a published metric into name and unit: ``top1_accuracy_%`` is accuracy in per cent."""
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    return name.removesuffix(ending).removeprefix("top1_").lower(), _UNITS.get(ending, "")
