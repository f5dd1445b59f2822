"""What happened in a run, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flfw.faults import Failure

_STANDARD = ("loss", "acc_global", "acc_local")
_APART = {*_STANDARD, "round", "client", "upload_bytes", "num-examples", "seconds"}


@dataclass
class History:
    """What happened, a row a round, a client and round, and a probe that failed; columns of the CSVs."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        server_round: int,
        clients: list[dict[str, Any]],
        failed: Sequence[Failure],
        down: int,
        seconds: float,
        noted: Mapping[str, float],
    ) -> dict[str, Any]:
        """A round's end.

        Args:
            server_round: which.
            clients: a row each, of those whose update was used.
            failed: the others.
            down: bytes that were sent to clients.
            seconds: from asking to the aggregate.
            noted: what the server itself has to say of it.

        Returns:
            The round's row: means over the clients; what only some methods have is in ``extra``.
        """
        self.clients += clients
        row: dict[str, Any] = {"round": server_round, **{key: _mean(clients, key) for key in _STANDARD}}
        row |= {"clients": len(clients), "failures": len(failed)}
        row |= {"upload_bytes": sum(r["upload_bytes"] for r in clients), "download_bytes": down}
        row["seconds"] = round(seconds, 3)
        row["extra"] = {key: _mean(clients, key) for key in (clients[0] if clients else ()) if key not in _APART}
        row["extra"] |= noted
        row["failed"] = [asdict(failure) for failure in failed]
        self.rounds.append(row)
        return row

    def rows_of(self, server_round: int) -> dict[str, list[dict[str, Any]]]:
        """What there is of one round."""
        return {name: [row for row in rows if row["round"] == server_round] for name, rows in vars(self).items()}

    def extend(self, rows: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Add what there is of a round."""
        for name, more in rows.items():
            getattr(self, name).extend(more)


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None
