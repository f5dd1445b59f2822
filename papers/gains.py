"""What each client gains over training alone: the accuracy of a method's run less that of a run of local_only."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from flfw.data.splits import partition
from flfw.errors import BadInput, require
from flfw.matrix.rows import Finished
from flfw.plugins import settings
from papers.drawing import INKS, STYLE, Rows, blank

ALONE = "local_only"
"""The method whose run is what others are compared with."""

_SAME = ("dataset", "side", "split", "clients", "canaries", "seed")
_MOST_NAMED = 40  # clients with their number below the bar
_POINTS = FuncFormatter(lambda value, _: f"{100 * value:+.3g}" if value else "0")


def gains(runs: Mapping[str, Finished]) -> Rows:
    """A row a run and client, the least gain first: ``run``, ``client``, ``alone``, ``accuracy``, ``gain``.

    Accuracy is that on the client's own test data after local training: in the round of its best validation accuracy
    if the split sets validation data aside, else at the end. Clients without it in either run have no row.

    Args:
        runs: by name; one of `ALONE`, the others with the same data, split, clients and seed.

    Raises:
        BadInput: they are not that, or a run is damaged.
    """
    alone = [name for name, one in runs.items() if one.result["config"].get("method") == ALONE]
    require(len(alone) == 1 < len(runs), f"one run of {ALONE} and others beside it", runs=" and ".join(runs))
    reference = runs[alone[0]]
    found, rows = _accuracies(reference), []
    for name, one in runs.items():
        if one is reference:
            continue
        _require_same(reference, one)
        own = {client: value for client, value in _accuracies(one).items() if client in found}
        require(bool(own), f"clients with an accuracy in both runs of {name}", clients=0)
        order = sorted(own, key=lambda client: (own[client] - found[client], client))
        rows += [
            {"run": name, "client": c, "alone": found[c], "accuracy": own[c], "gain": own[c] - found[c]} for c in order
        ]
    return rows


def _require_same(one: Finished, other: Finished) -> None:
    """Refuse runs in which a client is not the same client."""
    (expected, got) = (_identity(run) for run in (one, other))
    for name, value in expected.items():
        if got[name] != value:
            raise BadInput(
                f"Expected runs on the same clients, {name}={value} as in {one.folder}; got {name}={got[name]} in "
                f"{other.folder}."
            )


def _identity(run: Finished) -> dict[str, Any]:
    """What decides who holds what."""
    try:
        config = run.result["config"]
        scheme = settings(partition.scheme(config["split"]), config["split"], config["set"])
        digest = run.result["provenance"]["data"]["digest"]
        return {**{name: config[name] for name in _SAME}, "scheme": scheme, "data": digest}
    except (KeyError, TypeError) as error:
        raise BadInput(f"Expected a run of this version in {run.folder}, got a damaged one: {error!r}.") from error


def _accuracies(run: Finished) -> dict[int, float]:
    """By client."""
    rounds = _by_round(run.folder / "clients.csv")
    if rounds and all(row["acc_validation"] is not None for row in rounds):
        best: dict[int, dict[str, float]] = {}
        for row in rounds:  # in the order of the rounds; of equals the first
            client = int(row["client"])
            if client not in best or row["acc_validation"] > best[client]["acc_validation"]:
                best[client] = row
        return {client: best[client]["acc_local"] for client in sorted(best)}
    try:
        return {int(row["client"]): float(row["acc_local"]) for row in run.result["final"]["per_client"]}
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"Expected accuracies of the clients in {run.folder}, got none: {error!r}.") from error


def _by_round(path: Path) -> list[dict[str, Any]]:
    """A row a round and client, None where there is no number; none at all without a file."""
    if not path.is_file():
        return []
    keys = ("client", "acc_local", "acc_validation")
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return [{k: float(row[k]) if row.get(k) else None for k in keys} for row in csv.DictReader(lines)]
    except ValueError as error:
        raise BadInput(f"Expected numbers in {path}, got {error}; restore it.") from error


@rc_context(STYLE)
def drawn(rows: Rows, title: str) -> Figure:
    """Sorted bars, a plot a run, all on one scale; bars below zero, of clients that lose, are light.

    Args:
        rows: as `gains` has them.
        title: stands above.
    """
    names = list(dict.fromkeys(row["run"] for row in rows))
    figure = blank(max(5.0, min(9.0, 1.2 + 0.28 * len(rows) / len(names))), 1.9 * len(names) + 0.9, title)
    plots: list[Axes] = list(figure.subplots(len(names), 1, sharey=True, squeeze=False)[:, 0])
    for axes, name in zip(plots, names, strict=True):
        own = [row for row in rows if row["run"] == name]
        values, places = [row["gain"] for row in own], range(len(own))
        axes.bar(places, values, 0.7, color=[INKS[0] if value >= 0 else INKS[3] for value in values], zorder=3)
        axes.axhline(0, color=INKS[0], linewidth=0.8, zorder=4)
        mean = math.fsum(values) / len(values)
        axes.axhline(mean, color=INKS[1], linewidth=1, linestyle=(0, (4, 2)), zorder=4)
        axes.set_title(f"{name}: mean {100 * mean:+.1f} points (dashed)")
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.margins(x=0.02)
        axes.yaxis.set_major_formatter(_POINTS)
        named = len(own) <= _MOST_NAMED
        axes.set_xticks(places if named else [], [str(row["client"]) for row in own] if named else None)
    plots[-1].set_xlabel("client, the least gain first")
    figure.supylabel("points over local training", fontsize=9)
    return figure
