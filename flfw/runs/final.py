"""Accuracies after the last round, from what clients report."""

from __future__ import annotations

from statistics import fmean
from typing import Any


def final_accuracies(
    rows: list[dict[str, Any]], history: list[dict[str, Any]], central: float | None
) -> dict[str, Any]:
    """Return ``final`` of result.json: means over the clients that report a number; None where nobody does.

    Args:
        rows: one row per client, of the evaluation after the last round.
        history: one row per client and round.
        central: accuracy of the last model on the server's test data; None: not measured.
    """
    accuracies = {key: [row[key] for row in rows if row.get(key) is not None] for key in ("acc_global", "acc_local")}
    mean = {key: fmean(values) if values else None for key, values in accuracies.items()}
    further: dict[str, Any] = {"acc_central": central}
    for key in ("acc_protected", "acc_global_validation", "acc_validation"):
        values = [row[key] for row in rows if row.get(key) is not None]
        further[key] = fmean(values) if values else None
    return {**mean, **further, "best_validation": best_validation(history), "per_client": rows}


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
