"""Figures of a run as trackers are handed them: one number for each name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from flfw.curves import Point
from flfw.report.findings import setting_name
from flfw.tracking.tracker import AuditMetrics

_AUDITED = (
    "psnr", "ssim", "lpips", "feature_error", "exact_match", "rouge", "identification_rate", "label_accuracy",
    "share_recovered", "share_expected", "images", "failures", "seconds",
)  # fmt: skip
_MEMBERSHIP = (
    "auc", "auc_low", "auc_high", "tpr", "fpr", "epsilon_low", "claimed_epsilon", "accuracy_gap", "pairs",
)  # fmt: skip
_FINAL = ("acc_global", "acc_local", "acc_central", "acc_protected")


def of_round(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a round's row; further ones of the method bear ``extra/`` before their name.

    >>> of_round({"round": 3, "loss": 0.5, "acc_local": None, "extra": {"norm": 2.0}, "failed": []})
    {'loss': 0.5, 'extra/norm': 2.0}
    """
    return dict(_numbers({name: value for name, value in row.items() if name != "round"}))


def of_audit(result: Mapping[str, Any]) -> list[AuditMetrics]:
    """Return the figures of all attacks of a result; none is left out because two bear one name."""
    entries = result.get("audit") or []
    audited = [
        AuditMetrics(_name(entry, entries), entry["round"], _chosen(entry, _AUDITED), str(entry.get("verdict") or ""))
        for entry in entries
    ]
    for entry in result.get("membership") or []:
        name = _slug(f"{setting_name(entry, result['membership'])} {entry['statistic']}")
        last = max(entry["rounds"], default=0)
        audited.append(AuditMetrics(name, last, _chosen(entry, _MEMBERSHIP), entry["verdict"]))
    return _told_apart(audited)


def of_end(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the final accuracies of a result, and its privacy claims as ``epsilon/UNIT/ADVERSARY``."""
    figures = {f"final/{name}": value for name, value in _chosen(result.get("final") or {}, _FINAL).items()}
    for claim in result.get("privacy") or []:
        published = "" if claim["accounting"] != "as published" else "published-"
        name = f"{published}epsilon/{_slug(claim['unit'])}/{_slug(claim['adversary'])}"
        figures |= _numbers({name: claim["epsilon"]})
    return figures


def _chosen(entry: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    return dict(_numbers({name: entry.get(name) for name in names}))


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a table and of the tables in it, joined by ``/``; all else, and NaN, is left out."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in _numbers(value))
            continue
        counts = isinstance(value, int | float) and not isinstance(value, bool)
        if (counts or value in ("inf", "-inf")) and not isnan(number := float(value)):
            yield name, number


def _name(entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    words = setting_name(entry, entries)
    if curve := entry.get("curve"):
        words += f" {Point(curve, entry['batch'], entry['steps']).name}"
    return _slug(words)


def _slug(words: str) -> str:
    """Join words by hyphens; characters that some tool takes in no name are left out.

    >>> _slug("ig told of prune (server, client 3)")
    'ig-told-of-prune-server-client-3'
    """
    return re.sub(r"[^\w.]+", "-", words).strip("-")


def _told_apart(audited: Sequence[AuditMetrics]) -> list[AuditMetrics]:
    """Number those that share name and round, from the second on."""
    seen: dict[tuple[str, int], int] = {}
    apart = []
    for one in audited:
        count = seen[one.name, one.round] = seen.get((one.name, one.round), 0) + 1
        name = one.name if count == 1 else f"{one.name}-{count}"
        apart.append(AuditMetrics(name, one.round, one.figures, one.verdict))
    return apart
