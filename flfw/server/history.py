"""The course of a run, as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flfw.server.faults import Failure

_STANDARD = ("loss", "acc_global", "acc_local")
_APART = {*_STANDARD, "round", "client", "upload_bytes", "num-examples", "seconds"}


@dataclass
class History:
    """The course of a run: a row a round, a client and round, and a failed probe; columns of the CSVs."""

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
        """Add a round's end.

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
        """Take the rows of one round."""
        return {name: [row for row in rows if row["round"] == server_round] for name, rows in vars(self).items()}

    def extend(self, rows: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Add the rows of a round."""
        for name, more in rows.items():
            getattr(self, name).extend(more)


def last_rise(clients: Sequence[Mapping[str, Any]]) -> int:
    """Find the last round in which some client's validation accuracy was above its best so far; 0 if there is none.

    A client's first accuracy is a rise; one that equals its best is none.

    Args:
        clients: a row a client and round, ascending by round, with ``acc_validation`` where there is one.
    """
    best: dict[int, float] = {}
    risen = 0
    for row in clients:
        accuracy = row.get("acc_validation")
        if accuracy is not None and accuracy > best.get(row["client"], -1.0):
            best[row["client"]], risen = accuracy, row["round"]
    return risen


def is_out_of_patience(clients: Sequence[Mapping[str, Any]], done: int, patience: int) -> bool:
    """Tell whether training ends after a round: no client's validation accuracy has risen for ``patience`` rounds.

    It is decided by what has been written down alone, so that a run that was cut short decides alike.

    Args:
        clients: see `last_rise`; of the rounds up to ``done``.
        done: the round that is over.
        patience: 0: never.

    >>> flat = [{"round": r, "client": 0, "acc_validation": 0.5} for r in (1, 2, 3)]
    >>> [is_out_of_patience(flat[:done], done, 2) for done in (1, 2, 3)]
    [False, False, True]
    """
    return patience > 0 and done - last_rise(clients) >= patience


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None
