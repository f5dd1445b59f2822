"""History of a run, as rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, final

from flfw.errors import InputError
from flfw.server.client_directory import Failure

_STANDARD = ("loss", "acc_global", "acc_local")
_APART = {*_STANDARD, "round", "client", "upload_bytes", "num-examples", "seconds"}
_NUMBERED = {"rounds": ("round",), "clients": ("round", "client"), "probes": ("round",)}
"""Numbers that the rows of each list have."""


@dataclass
class History:
    """History of a run: a row for each round, each client and round, and each failed probe; columns of the CSVs."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._firsts: dict[str, tuple[dict[int, Any], int]] = {}  # by metric, with the number of rows that were read

    def add(
        self,
        server_round: int,
        clients: list[dict[str, Any]],
        failed: Sequence[Failure],
        down: int,
        seconds: float,
        noted: Mapping[str, float],
    ) -> dict[str, Any]:
        """Add the rows of a finished round.

        Args:
            server_round: number of the round.
            clients: a row for each client whose update was used.
            failed: failures of the other clients.
            down: bytes sent to clients.
            seconds: time from sending the messages to the aggregate.
            noted: further figures from the server itself.

        Returns:
            The round's row: means over the clients; figures that only some methods have are in ``extra``.
        """
        self.clients += clients
        row: dict[str, Any] = {"round": server_round, **{key: _mean(clients, key) for key in _STANDARD}}
        row |= {"clients": len(clients), "failures": len(failed)}
        row |= {"upload_bytes": sum(r["upload_bytes"] for r in clients), "download_bytes": down}
        row["seconds"] = round(seconds, 3)
        measured = dict.fromkeys(key for client in clients for key in client if key not in _APART)
        row["extra"] = {key: _mean(clients, key) for key in measured}
        row["extra"] |= noted
        row["failed"] = [asdict(failure) for failure in failed]
        self.rounds.append(row)
        return row

    def rows_of(self, server_round: int) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of the newest round, by the name of their list; empty lists for a round without rows."""
        return {name: _newest(rows, server_round) for name, rows in self.lists().items()}

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows by the name of their list; the lists themselves, as a copy of all would take long."""
        return {"rounds": self.rounds, "clients": self.clients, "probes": self.probes}

    def first(self, metric: str) -> Mapping[int, Any]:
        """Return each client's first value of a metric; only rows that were added since the last call are read."""
        known, read = self._firsts.get(metric, ({}, 0))
        for row in self.clients[read:]:
            if metric in row:
                known.setdefault(row["client"], row[metric])
        self._firsts[metric] = known, len(self.clients)
        return known

    def extend(self, rows: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Add the rows of a round, by the name of their list.

        Raises:
            InputError: there is no such list, or a row lacks the number of its round or of its client.
        """
        for name, more in rows.items():
            needed = _NUMBERED.get(name)
            if needed is None or not isinstance(more, list):
                raise InputError(f"Expected lists of {', '.join(_NUMBERED)} in the history of a run, got {name}.")
            for row in more:
                lacking = [key for key in needed if not isinstance(row, dict) or type(row.get(key)) is not int]
                if lacking:
                    raise InputError(
                        f"Expected a whole number for {lacking[0]} in each row of {name} of a history, got {row}; "
                        "restore checkpoint/history.jsonl or run anew."
                    )
            getattr(self, name).extend(more)


@final
class EarlyStopping:
    """Count of the rounds since a client's validation accuracy last rose above that client's best so far.

    A client's first accuracy counts as a rise; one that equals its best does not. Only recorded rows decide, so that a
    resumed run decides alike; each is read once.

    Args:
        rounds: number of rounds without a rise after which training ends; 0: it never ends early.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds, self._read = rounds, 0
        self._best: dict[int, float] = {}
        self.risen = 0

    def is_over(self, clients: Sequence[Mapping[str, Any]], done: int) -> bool:
        """Return whether training ends after a round.

        Args:
            clients: a row for each client and round, ascending by round, up to the finished one, with
                ``acc_validation``, of a regression ``r2_validation``, where it was measured; those of the last call,
                and perhaps more.
            done: number of the finished round.

        >>> flat = [{"round": r, "client": 0, "acc_validation": 0.5} for r in (1, 2, 3)]
        >>> patience = EarlyStopping(2)
        >>> [patience.is_over(flat[:done], done) for done in (1, 2, 3)]
        [False, False, True]
        """
        if not self._rounds:
            return False
        for row in clients[self._read :]:
            accuracy = row.get("acc_validation", row.get("r2_validation"))
            if accuracy is not None and accuracy > self._best.get(row["client"], -inf):
                self._best[row["client"]], self.risen = accuracy, row["round"]
        self._read = len(clients)
        return done - self.risen >= self._rounds


def _newest(rows: list[dict[str, Any]], server_round: int) -> list[dict[str, Any]]:
    """Return the rows of a round at the end of a list; those before are not looked at, as there may be many."""
    start = len(rows)
    while start and rows[start - 1]["round"] == server_round:
        start -= 1
    return rows[start:]


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None
