"""What happened in a run, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class History:
    """What happened, a row a round, a client and round, and a probe that failed; columns of the CSVs."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)

    def rows_of(self, server_round: int) -> dict[str, list[dict[str, Any]]]:
        """What there is of one round."""
        return {name: [row for row in rows if row["round"] == server_round] for name, rows in vars(self).items()}

    def extend(self, rows: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Add what there is of a round."""
        for name, more in rows.items():
            getattr(self, name).extend(more)
