"""Comparisons of finished runs: privacy against utility, and the effect of compression on both.

Runs that differ in their seeds alone are a group, which a figure shows as one.
"""

import json
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

from flfw.comparisons.figures.drawing import Rows
from flfw.comparisons.findings import Combination, combine
from flfw.comparisons.rows import MATRIX, FinishedRun, read_matrix
from flfw.comparisons.utility import Utility, family
from flfw.errors import InputError, require
from flfw.experiment import FREE_ON_RESUME
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
        for unit in list(dict.fromkeys(claim["unit"] for claim in claims)) or [""]:
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


_APART = {*FREE_ON_RESUME, "out", "seed"}  # settings in which the runs of a group may differ


def expanded(folders: Sequence[Path]) -> list[Path]:
    """Replace the folder of a matrix, or of several seeds, by those of its complete runs.

    Raises:
        InputError: its matrix.json is damaged.
    """
    runs: list[Path] = []
    for folder in folders:
        if (folder / MATRIX).is_file():
            cells = read_matrix(folder / MATRIX)["cells"]
            runs += [folder / cell["folder"] for cell in cells if cell["state"] == "complete" and "folder" in cell]
        else:
            runs.append(folder)
    return runs


def grouped(runs: Sequence[FinishedRun]) -> list[Combination]:
    """Group runs by all settings but the seed; runs of equal settings and seed stay apart."""
    groups: dict[tuple[str, int], list[FinishedRun]] = {}
    for run in runs:
        config = {key: value for key, value in run.result["config"].items() if key not in _APART}
        same = json.dumps(config, sort_keys=True, default=str)
        turn = 0
        while any(run.seed == other.seed for other in groups.get((same, turn), [])):
            turn += 1
        groups.setdefault((same, turn), []).append(run)
    firsts = [group[0].result["config"] for group in groups.values()]
    kinds = [(str(config.get("method") or "none"), str(config.get("defence") or "none")) for config in firsts]
    titles = names([group[0] for group in groups.values()])
    return [combine(*each, group, name) for each, group, name in zip(kinds, groups.values(), titles, strict=True)]


def names(runs: Sequence[FinishedRun]) -> list[str]:
    """Return different names for runs: their kinds, or else the shortest ends of their paths that differ."""
    places = [one.folder.resolve().parts for one in runs]
    ends = ([str(Path(*index[-depth:])) for index in places] for depth in range(1, max(map(len, places)) + 1))
    return next(labels for labels in (list(map(kind, runs)), *ends) if len(set(labels)) == len(labels))
