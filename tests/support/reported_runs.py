"""Folders of runs written by hand, for the tests of what is made of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from flfw.files.outcomes import MALICIOUS, NO_LEAK_FOUND, POSITIVE, UNDECIDED
from tests.support.csv_files import write_csv

FLOORS = {"noise": 8.0, "grey": 9.0, "mean": 13.0, "class_mean": 15.0, "random_public": 10.5, "nearest_public": 17.9}
IMAGES, ROUNDS = 3, (0, 2)


def conclusion(found: str, cause: str = "") -> dict[str, Any]:
    """Return the keys of an entry with an outcome, or a verdict, of `flfw.files.outcomes`."""
    causes = {"identified": "identified", "to a malicious server": "tampered", "static": "static", "void": "analytic"}
    evidence = {"leaks": "reconstructed", "message": "message"} | dict.fromkeys((*POSITIVE, MALICIOUS))
    leaks = found in evidence
    words = {"verdict": "leaks" if leaks else found if found in ("", NO_LEAK_FOUND) else UNDECIDED}
    words["evidence"] = (evidence[found] or found) if leaks else None
    return {**words, "cause": cause or causes.get(found)}


def entry(attack: str, round_: int, tabular: bool, **changes: Any) -> dict[str, Any]:
    """One attack at one place, as ``result.json`` has it."""
    scores = {"mean": 24.0, "low": 20.0, "high": 28.0, "max": 31.2}
    given = {
        "attack": attack,
        "adaptive": attack == "hyperfl",
        "vantage": "server",
        "source": "probe",
        "round": round_,
        "client": None,
        "defence": "none",
        "granted": ["The weights that the server sent.", "The labels of the batch."],
        "batch": 1,
        "steps": 1,
        "mode": "eval",
        "iterations": 100,
        "restarts": 2,
        "selection": "smallest matching loss",
        "seeds": [0],
        "images": IMAGES,
        "failures": 1,
        "psnr": None if tabular else scores,
        "ssim": None if tabular else {"mean": 0.8, "low": 0.7, "high": 0.9, "max": 0.95},
        "lpips": None,
        "distance": {"rmsd": 0.02, "success": 2 / 3, "iterations": 80} if tabular else None,
        "identification_rate": None,
        "share_recovered": 2 / 3,
        "floors": {} if tabular else FLOORS,
        "ladder": [{"rung": "analytic", "psnr": 60.0, "passed": True}, {"rung": "easy", "psnr": 33.0, "passed": True}],
        "reason": "Two of three stand above every floor.",
        "seconds": 12.5,
    }
    if "evidence" not in changes:
        changes |= conclusion(changes.get("verdict", "leaks"), changes.get("cause", ""))
    return {**given, **changes}


def full_entry(attack: str, round_: int, tabular: bool, **changes: Any) -> dict[str, Any]:
    """Give an entry every key that an audit writes."""
    exact = {"features": 0.72, "rows": 1 / 3, "floor": 0.61}
    given = {
        "lpips": None if tabular else {"mean": 0.21, "low": 0.1, "high": 0.3, "min": 0.08},
        "feature_error": None if tabular else {"mean": 0.043, "low": 0.02, "high": 0.06, "min": 0.011},
        "ceiling": None if tabular else 37.4,
        "distance": {"rmsd": 0.02, "success": 2 / 3, "iterations": 80},
        "identification_rate": 2 / 3,
        "identification_null": 0.01,
        "exact_match": exact if tabular else None,
        "share_interval": [0.094, 0.992],
        "gain": {"mean": 8.7, "low": 4.1, "high": 13.3, "max": 13.3},
        "worst": {"client": 2, "probe_slot": 42, "image": 2, "psnr": None if tabular else 31.2, "rmsd": 0.01},
        "assignment": {"rule": "one to one, least squares in all", "null": 12.6},
        "curve": None,
        "attempts": 1,
        "failure_reason": None,
        "scoring_seconds": 0.4,
    }
    return entry(attack, round_, tabular, **{**given, **changes})


def judged(verdict: str, cause: str, **changes: Any) -> dict[str, Any]:
    """Return an entry's keys on its verdict as an audit of a defended run writes them, where nothing was recovered."""
    controls = {"analytic": 150.0, "easy": 80.0, "consistency": None, "undefended": 60.0, "weak_defence": 45.0}
    controls = [
        {"rung": name, "psnr": psnr, "passed": True, "seconds": 1.0, "failure_reason": None, "reason": f"as {name}"}
        for name, psnr in controls.items()
    ]
    given = {
        "defence": "prune", "protected_by": "prune", "adaptive": True, "adaptation": "written", "cause": cause,
        "reason": f"The reason of {cause}.", "messages": 8, "images": 8, "identification_p": 0.4, "ladder": controls,
        "objective": {"truth": 403.0, "found": 355.0, "random": 484.0, "unconverged": 0, "total": 8},
    }  # fmt: skip
    return nothing(verdict=verdict, **given | changes)


def control(name: str, passed: bool | None, **changes: Any) -> dict[str, Any]:
    """Return the controls with one of them changed."""
    controls = judged("", "")["ladder"]
    return {
        "ladder": [
            one | {"passed": passed, "psnr": None, **changes} if one["rung"] == name else one for one in controls
        ]
    }


def nothing(**changes: Any) -> dict[str, Any]:
    """Say what an entry says where no sample was recovered."""
    words = conclusion(changes.get("verdict", NO_LEAK_FOUND), changes.get("cause", ""))
    return {"share_recovered": 0.0, "share_interval": [0.0, 0.708], **changes, **words}


def member_row(statistic: str, verdict: str, **changes: Any) -> dict[str, Any]:
    """One statistic of membership, as ``result.json`` has it."""
    leaks = verdict == "leaks"
    guessed = {"guesses": 3000, "correct": 2001 if leaks else 1497, "low": 0.64, "high": 0.69, "p": 1e-9}
    if not leaks:
        guessed |= {"low": 0.472, "high": 0.526, "p": 0.55}
    given = {
        "attack": "membership", "statistic": statistic, "vantage": "server", "defence": "none", "protected_by": None,
        "adaptive": False, "rounds": [1, 2], "clients": 10, "pairs": 3000, "failed": 0, "label_separable": 0,
        "tests": 8, "auc": 0.667 if leaks else 0.499, "auc_low": 0.641 if leaks else 0.483,
        "auc_high": 0.689 if leaks else 0.514, "correct": guessed, "fpr": 0.0033, "fpr_high": 0.0071,
        "tpr": 0.082 if leaks else 0.003, "tpr_low": 0.066 if leaks else 0.001, "tpr_high": 0.101 if leaks else 0.008,
        "epsilon_low": 0.2871 if leaks else 0.0, "delta": None, "claimed_epsilon": None, "accuracy_gap": 0.043,
        "floor": {
            "label_only": {"auc": 0.5, "auc_low": 0.5, "auc_high": 0.5},
            "loss_only": {"auc": 0.541, "auc_low": 0.517, "auc_high": 0.563},
        },
        "worst_client": {
            "client": 7, "pairs": 300, "auc": 0.71, "auc_low": 0.66, "auc_high": 0.75,
            "correct": {"guesses": 300, "correct": 214 if leaks else 160, "low": 0.61 if leaks else 0.42, "high": 0.8},
        },
        "controls": {
            "easy": {"auc": 0.99, "auc_low": 0.97, "auc_high": 1.0, "passed": True},
            "null": {"guesses": 1000, "correct": 497, "low": 0.45, "high": 0.54, "passed": True},
        },
        "verdict": verdict, "evidence": "member" if leaks else None,
        "cause": {"leaks": "pairs", "no leak found": "nothing"}.get(verdict, "few"),
        "reason": f"The reason of {statistic}.",
    }  # fmt: skip
    return {**given, **changes}


def a_full_run(folder: Path, tabular: bool = False, **changes: Any) -> Path:
    """Write a run with all that a report may show: static and adaptive, curves, failures."""
    defended = {"defence": "prune", "granted": ["the true labels", "not granted: that the client uses prune"]}
    entries = [
        full_entry("ig", 0, tabular, adaptive=False, **nothing(verdict="static"), **defended),
        full_entry("ig", 0, tabular, adaptive=True, **defended),
        full_entry("ig", 2, tabular, adaptive=True, **nothing(), **defended),
    ]
    for size, share in ((4, 1 / 3), (16, 0.0)):
        entries.append(full_entry("ig", 0, tabular, adaptive=True, curve="batch", batch=size, **defended))
        entries[-1] |= {"share_recovered": share, **conclusion("leaks" if share else "no leak found")}
    entries.append(full_entry("ig", 0, tabular, adaptive=True, curve="steps", steps=5, **nothing(), **defended))
    entries.append(full_entry("dlg", 2, tabular, failure_reason="ended after 3600 s", **nothing(verdict="undecided")))
    entries[-1] |= {"psnr": None, "ssim": None, "lpips": None, "distance": None, "gain": None, "worst": None}
    recordings = {"exchanges": 40, "bytes": 1000, "refused": ["round-0001/client-003: SHA-256 differs."], "skipped": 2}
    weights = {"lpips": {"file": "alexnet.pth", "sha256": "7be5be79" * 8, "official": True}}
    provenance = {"code": "abc", "data": {"name": "digits", "source": "embedded", "md5_ok": True}, "weights": weights}
    given = {"recordings": recordings, "provenance": provenance, "entries": entries}
    a_run(folder, tabular=tabular, **{**given, **changes})
    (folder / "failures.csv").write_text(
        "round,at,client,reason\n1,update,3,out of memory\n,final evaluation,1,no answer in 60 s\n", encoding="utf-8"
    )
    return folder


def audit_rows(folder: Path, entries: list[dict[str, Any]], tabular: bool) -> list[dict[str, Any]]:
    """Write the truth and the reconstructions; their rows of ``audit.csv``."""
    rng = np.random.default_rng(0)
    shape = (IMAGES, 12) if tabular else (IMAGES, 1, 8, 8)
    truth = rng.random(shape, dtype=np.float32)
    (folder / "truth").mkdir()
    save_file({"samples": truth}, folder / "truth" / "batch.safetensors")
    rows = []
    for item in entries:
        name = f"{item['attack']}-{item['round']}{item.get('adaptation') or ''}-000.safetensors"
        save_file({"samples": np.clip(truth + 0.1, 0, 1)}, folder / name)
        # The second sample fails; the third is the nearer of the other two.
        for index, psnr in enumerate((22.0, None, 31.2)):
            failed = psnr is None or bool(item.get("failure_reason"))
            scored = not failed and not tabular
            row = {key: item[key] for key in ("attack", "adaptive", "vantage", "source", "round")}
            row |= {key: item.get(key) or "" for key in ("defence", "adaptation", "sum_size")}
            row |= {"rung": "target", "curve": item.get("curve") or "", "batch": item["batch"], "steps": item["steps"]}
            row |= {"client": index, "probe_slot": 40 + index, "image": index, "label": 7}
            row |= {"psnr": psnr if scored else "", "ssim": 0.9 if scored else "", "matching_loss": 0.01}
            row |= {"gain": psnr - max(FLOORS.values()) if psnr is not None and scored else ""}
            row |= {"rmsd": (0.05 - 0.02 * index) if tabular and not failed else ""}
            row |= {"failed": failed, "recovered": not failed and item["share_recovered"] > 0}
            row |= {"seed": 0, "index": 100 + index, "rank": 1 + index, "candidates": 100, "iterations": 80}
            row |= {f"floor_{key}": "" if tabular else value for key, value in FLOORS.items()}
            row |= {"truth": "truth/batch.safetensors", "reconstruction": "" if failed else name}
            rows.append(row)
    return rows


def a_run(folder: Path, tabular: bool = False, attacks: tuple[str, ...] = ("ig", "hyperfl"), **changes: Any) -> Path:
    """Write a run with audits and nothing out of the ordinary."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = changes.pop("entries", [entry(attack, round_, tabular) for attack in attacks for round_ in ROUNDS])
    row = {"loss": 1.5, "clients": 4, "failures": 0, "upload_bytes": 8_000_000, "download_bytes": 8_400_000}
    row |= {"seconds": 2.0, "extra": {}}
    rounds = [row | {"round": n, "acc_global": 0.5 + 0.1 * n, "acc_local": 0.6 + 0.1 * n} for n in (1, 2)]
    result = {
        "flfw": "0.1.0",
        "config": {"method": "HyperFL", "dataset": "digits", "rounds": 2, "seed": 0, "attack": list(attacks)},
        "provenance": {
            "code": "abc",
            "data": {"name": "digits", "source": "embedded", "md5_ok": True},
            "weights": None,
        },
        "environment": {"python": "3.11", "torch": "2.9", "hardware": "2 cores"},
        "notes": ["The images were re-encoded as JPEG."],
        "rounds": rounds,
        "final": {
            "acc_global": 0.71,
            "acc_local": 0.82,
            "acc_central": None,
            "per_client": [{"client": 0, "acc_local": 0.5}, {"client": 1, "acc_local": None}],
        },
        "privacy": [],
        "audit": entries,
    }
    result |= changes
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    if entries:
        write_csv(folder / "audit.csv", audit_rows(folder, entries, tabular))
    return folder
