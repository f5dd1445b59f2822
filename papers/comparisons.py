"""Comparisons of finished runs: privacy against utility, and the effect of compression on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

from flfw.errors import InputError, require
from flfw.matrix.rows import FinishedRun
from flfw.matrix.utility import Utility, family
from flfw.papers.drawing import Rows
from flfw.plugins import short_name

ON_CLIENT = "client_example"


def privacy(runs: Mapping[str, FinishedRun]) -> Rows:
    """Return a row per run and unit: run, kind, unit, epsilon, as_published, delta and accuracy.

    Regressions have ``mean_absolute_error`` in place of the accuracy.

    ``epsilon`` is the true epsilon against the server, inf where nothing is claimed. ``as_published`` is the epsilon
    by the paper's count, where the run has it. ``accuracy`` is the accuracy of the last model as clients receive it,
    mean over the clients. A run of a method without claims has a row without a unit.

    Args:
        runs: the runs by name.

    Raises:
        InputError: a run has no accuracy, is damaged, or none claims anything.
    """
    rows: list[dict[str, Any]] = []
    _, received, *_ = family(one.utilities for one in runs.values())
    for name, one in runs.items():
        claims = _claims(one)
        labels = {"run": name, "kind": kind(one)}
        units = list(dict.fromkeys(claim["unit"] for claim in claims)) or [""]
        for unit in units:
            unit_claims = [claim for claim in claims if claim["unit"] == unit]
            true = [
                claim
                for claim in unit_claims
                if claim["accounting"] != "as published" and claim["adversary"] == "server"
            ]
            paper = [claim for claim in unit_claims if claim["accounting"] == "as published"]
            numbers = {"epsilon": _epsilon(true), "as_published": _epsilon(paper)}
            delta = true[0]["delta"] if true else None
            rows.append({**labels, "unit": unit, **numbers, "delta": delta, **_utility(one, received)})
    known = [row for row in rows if row["epsilon"] is not None and isfinite(row["epsilon"])]
    require(bool(known), "a run that claims an epsilon against the server", runs=" and ".join(runs))
    return rows


def compression(runs: Mapping[str, FinishedRun]) -> Rows:
    """Return a row per run: run, compress, ratio, accuracy, attack, distance, found and failures.

    Regressions have ``mean_absolute_error`` in place of the accuracy.

    ``ratio`` is the share of each tensor's entries that are zeroed; a run without compression has ratio 0. ``compress``
    is before or after the noise. The leakage is the leakage of single examples in local training (type 2), by the
    attack with the highest success: the mean distance (root mean square deviation) of its reconstructions, the share of
    the examples that count as found, and the number of examples without a reconstruction. It is None without an audit.

    Args:
        runs: the runs by name.

    Raises:
        InputError: a method that does not compress, a run without accuracy, or fewer than two ratios.
    """
    rows: list[dict[str, Any]] = []
    _, received, *_ = family(one.utilities for one in runs.values())
    for name, one in runs.items():
        settings = one.result["config"].get("method_settings") or {}
        if "compress_ratio" not in settings:
            raise InputError(f"Expected runs of a method with the setting compress_ratio, got {kind(one)} in {name}.")
        where = settings["compress"] if settings["compress_ratio"] else "none"
        ratio = 0.0 if where == "none" else float(settings["compress_ratio"])
        rows.append({"run": name, "compress": where, "ratio": ratio, **_utility(one, received), **_leakage(one)})
    ratios = sorted({row["ratio"] for row in rows})
    require(len(ratios) > 1, "runs with different compress_ratio", ratios=" and ".join(f"{r:g}" for r in ratios))
    return sorted(rows, key=lambda row: (row["compress"], row["ratio"]))


def kind(one: FinishedRun) -> str:
    """Return the name of the method, with the defence if there is one."""
    config = one.result["config"]
    method = short_name(str(config.get("method") or "none"))
    defence = "+".join(map(short_name, str(config.get("defence") or "none").split("+")))
    return method if defence == "none" else f"{method} with {defence}"


def _claims(one: FinishedRun) -> Sequence[Mapping[str, Any]]:
    claims = one.result.get("privacy") or []
    needed = {"unit", "adversary", "epsilon", "delta", "accounting"}
    if not all(isinstance(claim, Mapping) and needed <= set(claim) for claim in claims):
        raise InputError(f"Expected claims of this version in {one.folder}, got others; run it again.")
    return claims


def _epsilon(claims: Sequence[Mapping[str, Any]]) -> float | None:
    return float(claims[0]["epsilon"]) if claims else None  # result.json stores infinity as the string "inf"


def _utility(one: FinishedRun, received: Utility) -> dict[str, float]:
    """Return the utility of the model as received, by the name of its column."""
    value = one.utilities.get(received.key)
    if value is None:
        raise InputError(
            f"Expected a run whose clients report {received.names}, got {one.folder} without; name another."
        )
    return {received.column: value}


def _leakage(one: FinishedRun) -> dict[str, Any]:
    """Return the leakage by the strongest attack on the client's single examples."""
    entries = [entry for setting, entry in one.entries if setting.vantage == ON_CLIENT and entry.get("distance")]
    if not entries:
        return {"attack": None, "distance": None, "found": None, "failures": None}

    def alarming(entry: Mapping[str, Any]) -> tuple[float, float]:
        distance = entry["distance"]["rmsd"]
        return entry["distance"]["success"], -(inf if distance is None else distance)

    worst = max(entries, key=alarming)
    distance = worst["distance"]
    return {
        "attack": worst["attack"],
        "distance": distance["rmsd"],
        "found": distance["success"],
        "failures": worst["failures"],
    }
