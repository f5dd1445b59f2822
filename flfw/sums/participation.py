"""Participation of clients over the rounds of a run, and what it tells whoever sees the sum of each round.

Sums over groups that change can be told apart: by least squares over all rounds, and by the difference of two rounds
whose groups differ in one client. Both are exact only if the other clients' updates stay the same from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flfw.aggregates.disaggregation import separation
from flfw.errors import InputError
from flfw.formats.result_file import TRAINING, read_training

_MOST = 1_000_000  # entries of a matrix whose singular values are computed, a few seconds
_NAMED = 20  # clients and pairs of rounds that are listed


def took_part(folder: Path) -> dict[int, set[int]]:
    """Return the clients whose updates were used in each round of a run; empty: its folder does not say.

    Args:
        folder: of the run.
    """
    if (folder / TRAINING).exists():
        rows: Iterable[Mapping[str, Any]] = read_training(folder)["clients"]
    elif (folder / "clients.csv").exists():
        try:
            rows = pd.read_csv(folder / "clients.csv", usecols=["round", "client"], dtype=int).to_dict("records")
        except ValueError as error:  # an empty file, another table, or numbers that are none
            raise InputError(f"Expected rounds and clients in {folder / 'clients.csv'}, got {error}.") from error
    else:
        return {}
    cohorts: dict[int, set[int]] = {}
    for row in rows:
        cohorts.setdefault(int(row["round"]), set()).add(int(row["client"]))
    return cohorts


def participation(cohorts: Mapping[int, Set[int]]) -> dict[str, Any]:
    """Compute from the participation alone how well single clients can be told from the sums.

    Every client counts with the same weight.

    Args:
        cohorts: the clients that took part in each round; at least one round with a client.
    """
    rounds = sorted(number for number, clients in cohorts.items() if clients)
    clients = sorted({client for number in rounds for client in cohorts[number]})
    sizes = [len(cohorts[number]) for number in rounds]
    figures: dict[str, Any] = {"rounds": len(rounds), "clients": len(clients), "smallest_group": min(sizes)}
    figures |= {"rank": None, "smallest_singular": None, "separable": None, "noise": None}
    if len(rounds) * len(clients) <= _MOST:
        matrix = np.array([[float(client in cohorts[number]) for client in clients] for number in rounds])
        separated = separation(matrix)
        apart = sorted((float(noise), client) for noise, client in zip(separated.noise, clients, strict=True))
        apart = [(noise, client) for noise, client in apart if not isinf(noise)]
        figures |= {"rank": separated.rank, "smallest_singular": separated.smallest, "separable": len(apart)}
        figures["noise"] = [{"client": client, "factor": factor} for factor, client in apart[:_NAMED]]
    alone = isolated(cohorts)
    return figures | {"isolated": len({row["client"] for row in alone}), "isolating": alone[:_NAMED]}


def isolated(cohorts: Mapping[int, Set[int]]) -> list[dict[str, int]]:
    """List the clients that a difference of two rounds leaves alone: one round had the same group and this client.

    A client that is alone in a round is in the list with that round and no other (``absent`` is 0).

    Args:
        cohorts: the clients that took part in each round.

    >>> isolated({1: {0, 1, 2}, 2: {0, 1}, 3: {5}})
    [{'client': 2, 'present': 1, 'absent': 2}, {'client': 5, 'present': 3, 'absent': 0}]
    """
    groups: dict[frozenset[int], int] = {}
    for number in sorted(cohorts):
        groups.setdefault(frozenset(cohorts[number]), number)
    left_alone: dict[int, dict[str, int]] = {}
    for group, number in sorted(groups.items(), key=lambda item: item[1]):
        for client in sorted(group):
            rest = group - {client}
            other = groups.get(rest) if rest else 0
            if other is not None and client not in left_alone:
                left_alone[client] = {"client": client, "present": number, "absent": other}
    return [left_alone[client] for client in sorted(left_alone)]
