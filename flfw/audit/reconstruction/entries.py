"""The audit's entries in result.json: one attack at one round, summed up over its images.

Some attacks search for images of one form alone. An entry of theirs tells which examples they could not have recovered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from flfw.adversary.attack import Attack
from flfw.audit.jobs import AttackJob, JobResult
from flfw.audit.measures import statistics
from flfw.audit.measures.identification import Identified
from flfw.audit.measures.metrics import GRAMS
from flfw.audit.measures.recovery import GAIN_DB, IMAGE_RECOVERED_DB
from flfw.audit.measures.statistics import share_interval, significant
from flfw.audit.reconstruction.reconstruction_evidence import ReconstructionEvidence
from flfw.audit.reconstruction.scorer import FLOORS, UNGUIDED, ScoreRow
from flfw.audit.threat_model import ThreatModel
from flfw.audit.verdict import Verdict, verdict_on
from flfw.files.outcomes import LEAKS, concluded
from flfw.rng import numpy_generator

_RULE = "one to one, so that the squared differences of the whole batch are least"
_ROUGE = [name for n in GRAMS for name in (f"rouge_{n}", f"floor_rouge_{n}")]  # of a random public text, too
_NEAR_DB = 3.0
"""Distance to its ceiling within which a search did its work: at most twice the least squared error of its form."""

_SLACK_DB = 0.1  # a ceiling is itself the end of a search with the truth; other such searches came so much nearer


def out_of_reach(rows: Sequence[Mapping[str, Any]], floors: Sequence[str]) -> str:
    """Say how many images an attack could not have recovered, and where its search came near its ceiling.

    An image is out of reach if even the nearest one of the search's form is below what counts as recovered
    (`flfw.audit.measures.recovery.recovered`).

    Args:
        rows: rows of images with their ``ceiling``, ``psnr`` and floors; rows without a ceiling are not counted.
        floors: names of the floors.

    Returns:
        Sentences; empty if no image is out of reach.

    >>> out_of_reach([{"ceiling": 15.0, "psnr": 14.0, "floor_grey": 9.0}], ["grey"]).partition(":")[0]
    'This attack could not have recovered 1 of 1 images'
    """
    bound = [row for row in rows if row.get("ceiling") is not None]
    needed = [_needed(row, floors) for row in bound]
    beyond = [
        (row, minimum) for row, minimum in zip(bound, needed, strict=True) if row["ceiling"] + _SLACK_DB < minimum
    ]
    if not beyond:
        return ""
    nearest, minimum = (
        float(np.mean(values)) for values in zip(*((r["ceiling"], db) for r, db in beyond), strict=True)
    )
    close = sum(row["psnr"] is not None and row["psnr"] >= row["ceiling"] - _NEAR_DB for row, _ in beyond)
    first = (
        f"This attack could not have recovered {len(beyond)} of {len(rows)} images: the nearest image that its search "
        f"can give is {nearest:.1f} dB from these on average, and a recovered one has {minimum:.1f} dB or more."
    )
    return f"{first} In {close} of them it came within {_NEAR_DB:g} dB of that nearest image." if close else first


def _needed(row: Mapping[str, Any], floors: Sequence[str]) -> float:
    """Return the least PSNR in dB at which an image counts as recovered."""
    guessed = [value for name in floors if (value := row.get(f"floor_{name}")) is not None]
    return max([IMAGE_RECOVERED_DB, *(value + GAIN_DB for value in guessed)])


def description(
    job: AttackJob, attack: Attack, threat_model: ThreatModel, defence: str, seed: int, **more: Any
) -> dict[str, Any]:
    """Describe an attack on a target, as an entry begins.

    Args:
        job: the attack on the target.
        attack: the job's attack.
        threat_model: the attacker's grants.
        defence: the attacked clients' defence, or ``none``.
        seed: seed of the attack.
        more: keys with other values than the job's.
    """
    probe_set = job.probe_set
    return {
        "attack": job.attack,
        "adaptive": threat_model.adaptive,
        "adaptation": threat_model.adaptation,
        "vantage": job.vantage,
        "source": probe_set.source,
        "round": probe_set.round,
        "client": None,
        "defence": defence,
        "protected_by": threat_model.protected_by,
        "granted": list(threat_model.granted),
        "batch": probe_set.batch,
        "steps": probe_set.steps,
        "curve": probe_set.curve or None,
        "sum_size": probe_set.group + probe_set.colluding or None,
        "num_colluding": None,
        "mode": "train",
        **asdict(attack.cost),
        "seeds": [seed],
    } | more


def entry(
    description: Mapping[str, Any],
    result: JobResult,
    rows: Sequence[ScoreRow],
    requested: int,
    seed: int,
    target: ReconstructionEvidence,
    static_rows: Sequence[ScoreRow] = (),
) -> dict[str, Any]:
    """Sum up one attack at one round.

    Args:
        description: the attack and its target; these keys are copied.
        result: the attack process's solution.
        rows: a row per attacked image.
        requested: number of images to attack; those without a row are failures.
        seed: seed of the intervals.
        target: the evidence that the rows do not tell.
        static_rows: for an attack that adapts to a defence, the rows of its static form on the same images.
    """
    failures = sum(row["failed"] for row in rows) + requested - len(rows)
    gained, count = _gained(rows, static_rows, seed), sum(row["recovered"] for row in rows)
    evidence = replace(
        target,
        recovered=count,
        attacked=len(rows),  # images that were not recorded are failures
        messages=len({row["probe_slot"] for row in rows}),
        failed=failures / requested,
        adaptive=description["adaptive"],
        size=_size(description),
        outdone=_outdone(gained, rows, static_rows, count, _finds(static_rows, target, seed)),
        chance_match=sum(row["chance_match"] for row in rows),
    )
    floors = FLOORS if _mean(rows, f"floor_{UNGUIDED}") is None else (*FLOORS, UNGUIDED)
    return {
        "label_presence": None,
        "malicious_server": target.tampered_by or None,
        **description,
        "images": requested,
        "failures": failures,
        "messages": evidence.messages,
        **_closeness(rows, seed),
        "identification_rate": _identified(rows),
        "identification_null": target.identified.chance if target.identified else None,
        "identification_p": target.identified.p if target.identified else None,
        "candidate_test": _candidates(target.candidate_test),
        "distance": {
            "rmsd": _mean(rows, "rmsd"),
            "success": _share(rows, "succeeded"),
            "iterations": _iterations(rows, description["iterations"]),
        },
        "columns": target.columns,
        "label_accuracy": _mean(rows, "label_accuracy"),
        "share_recovered": evidence.recovered / len(rows) if rows else 0.0,
        "share_expected": target.expected,
        "share_interval": [*share_interval(evidence.recovered, len(rows), evidence.messages)] if rows else [0.0, 1.0],
        "adaptive_gain": gained,
        "worst": _worst(rows),
        "assignment": {"rule": _RULE, "null": _mean(rows, "assignment_null")} if description["batch"] > 1 else None,
        "floors": {floor: _mean(rows, f"floor_{floor}") for floor in floors},
        "ladder": list(target.controls.tried()),
        "objective": None if target.searched is None else asdict(target.searched),
        **concluded(*_conclusion(evidence, description["attack"], result.stopped)),
        "search_limit": (out_of_reach(rows, floors) or None) if target.bounded else None,
        "attempts": result.tries,
        "failure_reason": result.stopped,
        "seconds": round(result.seconds, 3),
    }


def _conclusion(evidence: ReconstructionEvidence, attack: str, stopped: str | None) -> Verdict:
    conclusion = verdict_on(evidence.findings(), unread=evidence.unread, tampered_by=evidence.tampered_by)
    if not stopped or conclusion.verdict == LEAKS:
        return conclusion
    return conclusion._replace(reason=f"{conclusion.reason} {attack} gave nothing: {stopped.rstrip('.')}.")


def _closeness(rows: Sequence[ScoreRow], seed: int) -> dict[str, Any]:
    images = any(row["psnr"] is not None for row in rows)
    return {
        **{name: _spread(rows, name, seed) if images else None for name in ("psnr", "ssim")},
        "ceiling": _mean(rows, "ceiling"),
        "native_resolution": {name: _mean(rows, f"reduced_{name}") for name in ("psnr", "ssim")},
        "lpips": _spread(rows, "lpips", seed, end="min"),
        "feature_error": _spread(rows, "feature_error", seed, end="min"),
        "gain": _spread(rows, "gain", seed),
        "exact_match": _exact(rows) if any(row["floor_features"] is not None for row in rows) else None,
        "rouge": {name: _mean(rows, name) for name in _ROUGE} if any("floor_rouge_1" in row for row in rows) else None,
    }


def _candidates(test: Identified | None) -> dict[str, float | None] | None:
    if test is None:
        return None
    return {"first": test.count, "messages": test.compared, "null": test.chance, "p": test.p}


def _gained(rows: Sequence[ScoreRow], static_rows: Sequence[ScoreRow], seed: int) -> dict[str, float | None] | None:
    """Return the mean gain in dB from knowing a defence, over images that both attacks gave; None: there are none."""
    other = {(row["probe_slot"], row["image"]): row["db"] for row in static_rows if row["db"] is not None}
    given = [((row["probe_slot"], row["image"]), row["db"]) for row in rows if row["db"] is not None]
    gains = [(at[0], db - other[at]) for at, db in given if at in other]
    if not gains:
        return None
    victims, values = (np.array(column) for column in zip(*gains, strict=True))
    return asdict(statistics.interval(values, None, numpy_generator(seed, "bootstrap"), messages=victims))


def _outdone(
    gained: Mapping[str, float | None] | None,
    rows: Sequence[ScoreRow],
    static_rows: Sequence[ScoreRow],
    count: int,
    finds: bool,
) -> str:
    """Return in words by how much the static attack is better; empty where it is not, may not be, or finds nothing."""
    others = sum(row["recovered"] for row in static_rows)
    if others > count:
        return f"{others} of {len(static_rows)} examples reconstructed"
    given, those = (sum(row["db"] is not None for row in group) for group in (rows, static_rows))
    if static_rows and given < those:
        return f"it gave something for {those} examples instead of {given}"
    if gained is None or gained["mean"] is None or not finds:
        return ""
    maximum = gained["mean"] if gained["high"] is None else gained["high"]
    return f"{-gained['mean']:.1f} dB on average" if maximum < 0 else ""


def _finds(static_rows: Sequence[ScoreRow], target: ReconstructionEvidence, seed: int) -> bool:
    """Return whether the static attack identified examples, or came closer to them than guesses without a message."""
    identified, gain = target.static_identified, _spread(static_rows, "gain", seed)
    if identified and significant(identified.p, target.num_tests):
        return True
    if gain is None:
        return False
    least = gain["mean"] if gain["low"] is None else gain["low"]
    return least is not None and least > 0


def _size(description: Mapping[str, Any]) -> str:
    batch, steps = description["batch"], description["steps"]
    return " and ".join([f"{batch} examples"] * (batch > 1) + [f"{steps} steps"] * (steps > 1))


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
    victims = np.array([row["probe_slot"] for row in rows if row.get(column) is not None])
    interval = statistics.interval(values, None, numpy_generator(seed, "bootstrap"), messages=victims)
    return {**asdict(interval), end: float(values.max() if end == "max" else values.min())}


def _iterations(rows: Sequence[ScoreRow], budget: int) -> float | None:
    """Return the mean over given images; a search that did not stop by itself took its whole budget (Table VII)."""
    taken = [budget if row["iterations"] is None else row["iterations"] for row in rows if not row["failed"]]
    return float(np.mean(taken)) if taken else None


def _identified(rows: Sequence[ScoreRow]) -> float | None:
    """Return the share of given images whose truth is nearest among its look-alikes; its null is over the same ones."""
    compared = [row for row in rows if row["rank"] is not None]
    return sum(row["rank"] == 1 for row in compared) / len(compared) if compared else None


def _exact(rows: Sequence[ScoreRow]) -> dict[str, float | None]:
    agreed = [row for row in rows if row.get("agreed_exact") is not None]
    more = {name: _mean(agreed, name) for name in ("agreed", "agreed_exact")} if agreed else {}
    more |= {key: _mean(rows, key) for key in ("cells", "floor_cells") if _mean(rows, "floor_cells") is not None}
    return {
        "features": _mean(rows, "exact_features"),
        "rows": _share(rows, "exact"),
        "floor": _mean(rows, "floor_features"),
        **more,
    }


def _worst(rows: Sequence[ScoreRow]) -> dict[str, Any] | None:
    """Return the image with the attacker's best result."""
    given = [row for row in rows if row["db"] is not None]
    if not given:
        return None
    row = given[statistics.worst(_values(given, "db"))]
    return {name: row[name] for name in ("client", "probe_slot", "image", "psnr", "rmsd")}
