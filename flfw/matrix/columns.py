"""Columns of a run's results beside its leakage and its utility: the claim on its privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flfw.privacy.rounding import at_most


def bound(claim: Mapping[str, Any]) -> str:
    """Format the epsilon of a claim of result.json; with seeded noise it holds only for another source of noise."""
    secret = "with noise_source=secure: " if claim.get("noise_source") == "seed" and claim["epsilon"] != "inf" else ""
    return f"{secret}{at_most(float(claim['epsilon']))}"


def claimed(claim: Mapping[str, Any]) -> str:
    """Format a claim of result.json: ``2.75 for one example against server``."""
    return f"{bound(claim)} for one {claim['unit']} against {claim['adversary']}"
