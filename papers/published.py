"""The papers' result tables as printed, number by number: ``published.json`` as typed records.

Papers are named by their method: hyperfl.1 to .5, dcs2.1 and .2, fedcg.1 and .2, fed_cdp.1 to .7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from flfw.errors import BadInput

Key = str | int | float

_NO_KEYS = ("metric", "value", "std", "note", "source")
_UNITS = {"_%": "%", "_dB": "dB"}


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        table: the table's name.
        keys: what the paper says it is a number of, such as method, dataset and clients.
        row: the keys that name its row.
        columns: the keys that name its column.
        metric: what was measured, in lower case and without a unit: accuracy, psnr, lpips ...
        unit: ``%``, ``dB`` or nothing.
        value: as printed; None: the paper has no number here.
        deviation: the printed deviation over seeds, if there is one.
        note: what the paper or its transcription says about this number.
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

    @property
    def path(self) -> str:
        """Its name on the command line: ``hyperfl.1/HyperFL/CIFAR-10/20/accuracy``."""
        return "/".join([self.table, *(part.replace("/", "-") for part in (*self.row, *self.columns, self.metric))])


@dataclass(frozen=True)
class Table:
    """One table of a paper.

    Attributes:
        name: such as hyperfl.1.
        title: its caption, in our words.
        paper: the full citation.
        rows_by: the keys that name a row.
        columns_by: the keys that name a column, above the metric.
        cells: in the order of the paper.
        note: a remark on the table as a whole.
        missing: why there are no cells, where there are none.
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
        """The cells whose path begins with these parts; an empty prefix selects all.

        Raises:
            BadInput: there are none; the message says how the path could go on where it went wrong.
        """
        asked = prefix.strip("/")
        found = self._under(asked)
        if not found and asked not in ("", self.name):
            stem = asked
            while stem and not self._under(stem):
                stem = stem.rpartition("/")[0]
            depth = stem.count("/") + 2 if stem else 1
            known = dict.fromkeys("/".join(cell.path.split("/")[:depth]) for cell in self._under(stem))
            raise BadInput(f"Expected a cell among {', '.join(known or [self.name])}; got --cell {prefix}.")
        return found

    def _under(self, stem: str) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not stem or f"{cell.path}/".startswith(f"{stem}/"))


def names() -> tuple[str, ...]:
    """The tables there are."""
    return tuple(_tables())


def table(name: str) -> Table:
    """A table by its name; an unknown name says which ones there are."""
    if name not in _tables():
        raise BadInput(f"Expected a table among {', '.join(names())}; got --table {name}.")
    return _tables()[name]


@cache
def _tables() -> Mapping[str, Table]:
    stored = json.loads((files("papers") / "published.json").read_text(encoding="utf-8"))
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
    about = {key: entry.get(key, "") for key in ("note", "missing")}
    return Table(name, entry["title"], entry["paper"], rows_by, columns_by, tuple(cells), **about)


def _metric(name: str) -> tuple[str, str]:
    """A published metric's name and unit: ``top1_accuracy_%`` is accuracy in per cent."""
    ending = next((ending for ending in _UNITS if name.endswith(ending)), "")
    return name.removesuffix(ending).removeprefix("top1_").lower(), _UNITS.get(ending, "")
