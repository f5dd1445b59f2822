"""The audit's entries in result.json: one attack at one round, summed up over its images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flfw.audit.jobs import Solution
from flfw.audit.measures import statistics
from flfw.audit.scorer import FLOORS, ScoreRow
from flfw.audit.verdict import Rung, verdict
from flfw.rng import numpy_generator

_RULE = "one to one, so that the squared differences of the whole batch are least"


def entry(
    description: Mapping[str, Any],
    solution: Solution,
    rows: Sequence[ScoreRow],
    asked: int,
    ladder: tuple[Rung, Rung],
    seed: int,
    untold: Sequence[ScoreRow] = (),
) -> dict[str, Any]:
    """Sum up one attack at one round.

    Args:
        description: the attack and its target; these keys are copied.
        solution: the attack server's solution.
        rows: a row per attacked image.
        asked: number of images to attack; those without a row are failures.
        ladder: control and easy rung.
        seed: seed of the intervals.
        untold: for an attack that adapts to a defence, the rows of its static form on the same images.
    """
    control, easy = ladder
    failures = sum(row["failed"] for row in rows) + asked - len(rows)
    count = sum(row["recovered"] for row in rows)
    share = count / len(rows) if rows else 0.0  # of the attacked images; unrecorded ones are failures
    gained = _gained(rows, untold, seed)
    outdone = _outdone(gained, rows, untold, count)
    word, reason = verdict(control, easy, share, description["adaptive"], failures / asked, _size(description), outdone)
    if word == "no leak found" and description.get("adaptation"):
        reason += " The undefended network was attacked as by who knows of nothing: how it adapts was not tried there."
    if solution.stopped and word != "leaks":
        reason = f"{reason} {description['attack']} gave nothing: {solution.stopped.rstrip('.')}."
    images = any(row["psnr"] is not None for row in rows)
    tabular = any(row["floor_features"] is not None for row in rows)
    return {
        "label_presence": None,
        **description,
        "images": asked,
        "failures": failures,
        **{name: _spread(rows, name, seed) if images else None for name in ("psnr", "ssim")},
        "lpips": _spread(rows, "lpips", seed, end="min"),
        "distance": {
            "rmsd": _mean(rows, "rmsd"),
            "success": _share(rows, "succeeded"),
            "iterations": _iterations(rows, description["iterations"]),
        },
        "identification_rate": _identified(rows),
        "identification_null": _mean([{"null": 1 / r["candidates"]} for r in rows if r["candidates"]], "null"),
        "exact_match": _exact(rows) if tabular else None,
        "labels_found": _mean(rows, "labels_found"),
        "share_recovered": share,
        "share_interval": list(statistics.share_interval(count, len(rows))) if rows else [0.0, 1.0],
        "gain": _spread(rows, "gain", seed),
        "knowing_gains": gained,
        "worst": _worst(rows),
        "assignment": {"rule": _RULE, "null": _mean(rows, "assignment_null")} if description["batch"] > 1 else None,
        "floors": {floor: _mean(rows, f"floor_{floor}") for floor in FLOORS},
        "ladder": [asdict(control), asdict(easy)],
        "verdict": word,
        "reason": reason,
        "tries": solution.tries,
        "stopped": solution.stopped,
        "seconds": round(solution.seconds, 3),
    }


def breakdowns(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each attack that broke; an attack that does not apply to a network did not break."""
    broke = [(f"at round {e['round']}", e["attack"], e["stopped"]) for e in entries]
    broke += [("on the easy case", e["attack"], e["ladder"][1]["stopped"]) for e in entries]
    reported = [(where, attack, why) for where, attack, why in broke if why and not why.startswith("not applicable")]
    return list(
        dict.fromkeys(
            f"The attack {attack} gave nothing {where}: {why.rstrip('.')}." for where, attack, why in reported
        )
    )


def write_rows(rows: Sequence[ScoreRow], path: Path) -> None:
    """Write the rows of an audit as its CSV; whole numbers stay whole although some are missing."""
    import pandas as pd

    table = pd.DataFrame(rows).drop(columns="db", errors="ignore")
    whole = {name: "Int64" for name in ("rank", "candidates", "iterations") if name in table}
    table.astype(whole).to_csv(path, index=False)


def _gained(rows: Sequence[ScoreRow], untold: Sequence[ScoreRow], seed: int) -> dict[str, float | None] | None:
    """Return the mean gain in dB from knowing a defence, over images that both attacks gave; None: there are none."""
    other = {(row["victim"], row["image"]): row["db"] for row in untold if row["db"] is not None}
    given = [((row["victim"], row["image"]), row["db"]) for row in rows if row["db"] is not None]
    gains = [db - other[at] for at, db in given if at in other]
    if not gains:
        return None
    return statistics.interval(np.array(gains), None, numpy_generator(seed, "bootstrap")).as_dict()


def _outdone(
    gained: Mapping[str, float | None] | None, rows: Sequence[ScoreRow], untold: Sequence[ScoreRow], count: int
) -> str:
    """Return in words by how much the static attack is better; empty where it is not, or may not be."""
    others = sum(row["recovered"] for row in untold)
    if others > count:
        return f"{others} of {len(untold)} examples reconstructed"
    given, those = (sum(row["db"] is not None for row in group) for group in (rows, untold))
    if untold and given < those:
        return f"it gave something for {those} examples instead of {given}"
    if gained is None or gained["mean"] is None:
        return ""
    most = gained["mean"] if gained["high"] is None else gained["high"]
    return f"{-gained['mean']:.1f} dB on average" if most < 0 else ""


def _size(description: Mapping[str, Any]) -> str:
    batch, steps = description["batch"], description["steps"]
    words = [f"{batch} examples"] * (batch > 1) + [f"{steps} steps"] * (steps > 1)
    return " and ".join(words)


def _values(rows: Sequence[ScoreRow], column: str) -> np.ndarray:
    return np.array([row[column] for row in rows if row.get(column) is not None], dtype=np.float64)


def _mean(rows: Sequence[ScoreRow], column: str) -> float | None:
    values = _values(rows, column)
    return float(values.mean()) if len(values) else None


def _share(rows: Sequence[ScoreRow], column: str) -> float:
    """Return the share of all rows, failed ones included."""
    return sum(bool(row[column]) for row in rows) / len(rows) if rows else 0.0


def _spread(rows: Sequence[ScoreRow], column: str, seed: int, end: str = "max") -> dict[str, float | None] | None:
    """Return mean and interval over the images that the attack gave, and the value that leaks most."""
    values = _values(rows, column)
    if not len(values):
        return None
    interval = statistics.interval(values, None, numpy_generator(seed, "bootstrap"))
    return {**interval.as_dict(), end: float(values.max() if end == "max" else values.min())}


def _iterations(rows: Sequence[ScoreRow], budget: int) -> float | None:
    """Return the mean over given images; a search that did not stop by itself took its whole budget (Table VII)."""
    taken = [budget if row["iterations"] is None else row["iterations"] for row in rows if not row["failed"]]
    return float(np.mean(taken)) if taken else None


def _identified(rows: Sequence[ScoreRow]) -> float | None:
    """Return the share of given images whose truth is nearest among its look-alikes; its null is over the same ones."""
    compared = [row for row in rows if row["rank"] is not None]
    return sum(row["rank"] == 1 for row in compared) / len(compared) if compared else None


def _exact(rows: Sequence[ScoreRow]) -> dict[str, float | None]:
    features = _mean(rows, "exact_features")
    return {"features": features, "rows": _share(rows, "exact"), "floor": _mean(rows, "floor_features")}


def _worst(rows: Sequence[ScoreRow]) -> dict[str, Any] | None:
    """Return the image with the attacker's best result."""
    given = [row for row in rows if row["db"] is not None]
    if not given:
        return None
    row = given[statistics.worst(_values(given, "db"))]
    return {name: row[name] for name in ("client", "victim", "image", "psnr", "rmsd")}
