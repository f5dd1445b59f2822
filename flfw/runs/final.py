"""Accuracies after the last round, from what clients report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from flfw.experiment import Experiment


def finals(experiment: Experiment, training: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``final`` of result.json from the content of training.json."""
    exact = experiment.clients if experiment.metrics == "all" else 0
    return final_accuracies(training["final"], training["clients"], training.get("central"), exact)


def drawn_of(experiment: Experiment, answers: int) -> list[str]:
    """Return a note on a final evaluation of some of the clients, or of none; empty for one of all.

    Args:
        experiment: of the run.
        answers: number of clients that answered.
    """
    requested, everyone = experiment.finally_asked, experiment.clients
    if requested == everyone or experiment.metrics == "none":
        return []
    if not requested:
        return ["No client was asked for a final evaluation (final=none)."]
    whose = (
        f"{answers:,} of {everyone:,} clients; {requested:,} {'was' if requested == 1 else 'were'} drawn by the seed"
    )
    return [f"The final accuracies are those of {whose} (final={experiment.final_eval_clients})."]


def final_accuracies(
    rows: list[dict[str, Any]], history: list[dict[str, Any]], central: float | None, clients: int = 0
) -> dict[str, Any]:
    """Return ``final`` of result.json: means over the clients that report a number; None where nobody does.

    Beside the means before and after local training stand 95 % intervals of the means over all clients. A regression
    has no accuracies, but ``mae_global`` and its like.

    Args:
        rows: one row per client, of the evaluation after the last round.
        history: one row per client and round.
        central: accuracy of the last model on the server's test data; None: not measured.
        clients: number of all clients of the run; 0: no intervals, as numbers with noise have none.
    """
    accuracies = {key: [row[key] for row in rows if row.get(key) is not None] for key in ("acc_global", "acc_local")}
    mean = {key: fmean(values) if values else None for key, values in accuracies.items()}
    further: dict[str, Any] = {f"{key}_interval": interval(values, clients) for key, values in accuracies.items()}
    further["acc_central"] = central
    for key in ("acc_protected", "acc_global_validation", "acc_validation"):
        values = [row[key] for row in rows if row.get(key) is not None]
        further[key] = fmean(values) if values else None
    return {**mean, **further, **_errors(rows), "best_validation": best_validation(history), "per_client": rows}


def _errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means over the clients of a regression's errors and R2; nothing of a classification."""
    names = [f"{kind}_{when}" for kind in ("mae", "rmse", "r2") for when in ("global", "local")]
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {name: fmean(column) for name, column in values.items() if column}


def interval(values: Sequence[float], clients: int) -> list[float] | None:
    """Compute a 95 % interval of the mean accuracy of all clients, from those of some that were drawn at random.

    It is Student's, with the correction for draws from a finite number, cut to [0, 1]; its ends are equal where all
    clients have a value. Where all draws are equal, their deviation says nothing of the clients that were not drawn:
    then as many of these as may be missed are taken to have 0, or 1. Clients that failed count as not drawn.

    Args:
        values: in [0, 1].
        clients: number of all clients.

    Returns:
        Both ends; None for fewer than two of more clients.

    >>> interval([0.25, 0.75], 2), interval([0.5], 3)
    ([0.5, 0.5], None)
    """
    count = len(values)
    if count < min(2, clients) or not 0 < count <= clients:
        return None
    mean = fmean(values)
    if count == clients:
        return [mean, mean]
    if min(values) == max(values):
        missed = _max_missed(count, clients) / clients
        return [mean - missed * mean, mean + missed * (1 - mean)]
    from scipy.special import stdtrit  # imported here: few runs draw their clients

    half = float(stdtrit(count - 1, 0.975)) * stdev(values) * sqrt((1 - count / clients) / count)
    return [max(0.0, mean - half), min(1.0, mean + half)]


def _max_missed(count: int, clients: int) -> int:
    """Return the most clients of which some draws have none with a probability of 5 % at least.

    Args:
        count: number of draws, without replacement.
        clients: number of all clients.
    """
    missed, chance = 0, 1.0
    while (chance := chance * (clients - missed - count) / (clients - missed)) >= 0.05:
        missed += 1
    return missed


def best_validation(history: list[dict[str, Any]]) -> dict[str, float] | None:
    """Average each client's test accuracy after local training in the round of its best validation accuracy.

    Of rounds with equal validation accuracy the first counts. Round and accuracies are means over the clients.

    Args:
        history: one row per client and round, with ``acc_validation`` and ``acc_local``.

    Returns:
        ``round``, ``accuracy`` and ``validation``, the accuracy that chose the round; None without validation data.
    """
    best: dict[int, dict[str, Any]] = {}
    for row in history:
        validation = row.get("acc_validation")
        if (
            validation is not None
            and row.get("acc_local") is not None
            and validation > best.get(row["client"], {}).get("acc_validation", -1.0)
        ):
            best[row["client"]] = row
    if not best:
        return None
    means = {"round": "round", "accuracy": "acc_local", "validation": "acc_validation"}
    return {name: fmean(row[key] for row in best.values()) for name, key in means.items()}
