"""Verdicts of a run in a word for each question that was asked, as its report opens with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flfw.report.findings import read_settings
from flfw.report.questions import decisive
from flfw.report.ranking import answers, seriousness


def verdicts(folder: Path, result: Mapping[str, Any]) -> dict[str, str]:
    """Return the verdicts on reconstruction, membership and inference, of those that were asked.

    That on reconstruction is the headline's or, where a point of a curve leaks more, that point's.

    Args:
        folder: the run's folder, with ``audit.csv``.
        result: content of result.json.
    """
    verdict_of: dict[str, str] = {}
    settings = read_settings(folder, result.get("audit") or [], pictures=False)
    reached = [setting.entry.get("verdict") for setting in answers(settings) if setting is not None]
    statistic = decisive(result.get("membership") or [])
    inferred = [row["verdict"] for row in result.get("inference") or []]
    requested = {
        "reconstruction": reached,
        "membership": [statistic["verdict"]] if statistic else [],
        "inference": inferred,
    }
    for question, words in requested.items():
        if (verdict := gravest(map(str, words))) is not None:
            verdict_of[question] = verdict
    return verdict_of


def gravest(words: Iterable[str]) -> str | None:
    """Return the verdict that comes first in the report's order; None: there is none.

    >>> gravest(["no leak found", "leaks", "inconclusive"])
    'leaks'
    """
    return min(words, key=seriousness, default=None)
