"""Attribute inference on the page: the features of a table that an attack recovers more often than a guess does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, final

from flfw.report.findings import AuditEntry

_ALPHA = 0.01  # greatest probability that chance alone marks any feature of the run


@final
@dataclass(frozen=True)
class AttributeTable:
    """Features of one setting, those above chance first.

    Attributes:
        setting: the setting.
        rows: for each feature the keys of `flfw.audit.measures.columns.ColumnRate`, its ``number`` from 1 on, and
            whether it is recovered ``above`` chance.
        needed: messages without which no feature could be above chance, as the test flips a coin for each; 0: there
            are enough.
    """

    setting: AuditEntry
    rows: tuple[Mapping[str, Any], ...]
    needed: int = 0

    @property
    def above(self) -> int:
        """Number of features that are recovered more often than a guess explains."""
        return sum(row["above"] for row in self.rows)


def attribute_tables(settings: Iterable[AuditEntry]) -> list[AttributeTable]:
    """Return a table for each setting of rows; the p-values are corrected for all features of all
    settings (Bonferroni).
    """
    tabular = [setting for setting in settings if setting.entry.get("columns")]
    tests = sum(len(setting.entry["columns"]) for setting in tabular)
    tables = []
    for setting in tabular:
        rows = [
            {**column, "number": number, "above": column["p"] * tests <= _ALPHA}
            for number, column in enumerate(setting.entry["columns"], 1)
        ]
        rows.sort(key=lambda row: (not row["above"], row["floor"] - row["share"], row["number"]))
        needed = ceil(log2(tests / _ALPHA))
        enough = (setting.entry.get("messages") or needed) >= needed
        tables.append(AttributeTable(setting, tuple(rows), 0 if enough else needed))
    return tables
