"""Columns of a run's results beside its leakage: the accuracy that was measured, and the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flfw.privacy.rounding import at_most

ACCURACIES = {
    "acc_local": "after local training",
    "acc_global": "as received",
    "acc_central": "on the server's test data",
}
"""Final accuracies of result.json and what they mean; the first that was measured is the one to show."""


def shown_accuracy(combinations: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the accuracy to show: the first that all combinations have, else the first that any has.

    Clients of a run with ``metrics=none`` report no accuracy, with ``metrics=private`` none after local training.

    Args:
        combinations: as in matrix.json.
    """
    for needed in (all, any):
        for kind in ACCURACIES:
            if combinations and needed(each.get(kind) for each in combinations):
                return kind
    return next(iter(ACCURACIES))


def bound(claim: Mapping[str, Any]) -> str:
    """Format the epsilon of a claim of result.json; with seeded noise it holds only for another source of noise."""
    secret = "with noise_source=secure: " if claim.get("noise") == "seed" and claim["epsilon"] != "inf" else ""
    return f"{secret}{at_most(float(claim['epsilon']))}"


def claimed(claim: Mapping[str, Any]) -> str:
    """Format a claim of result.json: ``2.75 for one example against server``."""
    return f"{bound(claim)} for one {claim['unit']} against {claim['adversary']}"
