"""From a trained run to its audit, its tables and its report."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

import flfw
from flfw.audit.auditor import Auditor
from flfw.audit.entries import breakdowns, write_rows
from flfw.dp.ledger import Ledger
from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment
from flfw.recording.reader import Recordings, is_recorded
from flfw.recording.retention import keep_last
from flfw.resolve import Resolved
from flfw.storage.provenance import code_hash, environment, requirements_hash
from flfw.storage.sealed import write_whole
from flfw.task import Task

_TRANSPORT = {
    "ray": "Flower simulation engine on Ray",
    "inproc": "in process",
    "flwr": "Flower's own commands, simulation engine on Ray",
}


def _transport(experiment: Experiment, training: Mapping[str, Any]) -> str:
    """How messages travelled."""
    if experiment.federation:
        from flfw.deploy.layout import transport

        return f"real clients over {transport()} with TLS"
    return _TRANSPORT[training["engine"]]


def is_trained(folder: Path) -> bool:
    """Whether the training in a run folder is over, and the rest is not."""
    return (folder / "training.json").exists()


def is_complete(folder: Path) -> bool:
    """Whether nothing is left to do in a run folder."""
    return (folder / "result.json").exists() and not is_trained(folder)


def finish(resolved: Resolved, task: Task, notes: list[str], auditor: Auditor | None) -> None:
    """Audit what was recorded and write everything; what only the training needed is removed at the very end.

    Args:
        resolved: the experiment, with its folder.
        task: of the experiment.
        notes: to begin the result's with.
        auditor: entered; None: there is nothing to audit.

    Raises:
        RunFailed: the audit stopped; the training's results are written all the same.
    """
    experiment = resolved.experiment
    folder = experiment.out
    assert folder is not None, "the experiment was checked"
    training = json.loads((folder / "training.json").read_text())
    last = last_round(training, experiment)
    notes = [*notes, *_remarks(training), *_ended_early(experiment, last)]
    about: dict[str, Any] = {"audit": [], "recordings": None, "weights": None, "tuned_on": []}
    stopped = None
    if auditor:
        try:
            about = audit(auditor, folder, notes, last)
        except (BadInput, RunFailed) as error:  # the training's results are not lost with the audit
            stopped = error
            notes.append(f"The audit was stopped: {error}")
    elif experiment.attacks:
        notes.append(f"{experiment.method} sends nothing, so there was nothing to attack.")
    _write(folder, resolved, task, training, about, notes)
    if stopped:  # once what stopped it is mended, the audit can be repeated by resuming
        raise RunFailed(notes[-1]) from stopped
    (folder / "training.json").replace(folder / "tidying.json")  # from here on the audit is not to be repeated
    tidy(experiment)


def tidy(experiment: Experiment) -> None:
    """Remove what a run whose results are written needs no more; may be repeated."""
    folder = experiment.out
    assert folder is not None, "the experiment was checked"
    if not (folder / "tidying.json").exists():
        return
    for kind in ("observations", "examples") if experiment.keep_observations >= 0 else ():
        if is_recorded(folder / kind):
            keep_last(folder / kind, experiment.keep_observations)
    for name in ("queue",) if experiment.keep_state else ("state", "queue"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "tidying.json").unlink()


def last_round(done: Mapping[str, Any], experiment: Experiment) -> int:
    """The round in which training ended.

    Args:
        done: what ``training.json`` or ``result.json`` says; of a run without either, nothing.
        experiment: of the run.
    """
    return done["rounds"][-1]["round"] if done.get("rounds") else experiment.rounds


def audit(auditor: Auditor, out: Path, notes: list[str], last: int) -> dict[str, Any]:
    """Have an audit done and write its rows; what result.json says of it.

    Args:
        auditor: entered.
        out: the folder for ``audit.csv``.
        notes: to be added to.
        last: the round in which training ended.
    """
    entries, rows = auditor.run(last)
    write_rows(rows, out / "audit.csv")
    recordings = Recordings(auditor.source / "observations")
    notes += [*breakdowns(entries), *recordings.remarks(auditor.refused)]
    origins = {"weights": auditor.weights, "tuned_on": auditor.tuned_on}
    return {"audit": entries, "recordings": recordings.summary(auditor.refused), **origins}


def audit_again(resolved: Resolved, source: Path, out: Path, notes: list[str], auditor: Auditor) -> None:
    """Write what a further audit of an earlier run's recordings found, beside what that run says of its training.

    Args:
        resolved: the experiment, with the attacks of this audit.
        source: the earlier run's folder.
        out: the new folder.
        notes: to begin the result's with.
        auditor: entered.
    """
    earlier, experiment = of_earlier(source), resolved.experiment
    last = last_round(earlier, experiment)
    notes = [*notes, *_ended_early(experiment, last)]
    about = audit(auditor, out, notes, last)
    origins = {name: about[name] for name in ("weights", "tuned_on")}
    provenance = {**earlier["provenance"], "code": code_hash(), **origins, "from": str(source)}
    again = {
        "flfw": flfw.__version__,
        "config": _config(resolved),
        "provenance": provenance,
        "environment": environment(
            f"recordings of {source.name}: {earlier['environment'].get('transport', 'unknown')}"
        ),
        "notes": notes,
        "audit": about["audit"],
        "recordings": about["recordings"],
    }
    _publish(out, {**earlier, **again})
    shutil.rmtree(out / "queue", ignore_errors=True)


def of_earlier(source: Path) -> dict[str, Any]:
    """The result of a run, as far as it got."""
    if (source / "result.json").exists():
        return json.loads((source / "result.json").read_text())
    return {"provenance": {}, "environment": {}, "rounds": [], "final": None, "privacy": []}


def _config(resolved: Resolved) -> dict[str, Any]:
    fields = dataclasses.asdict(resolved.experiment)
    config = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    return {**config, "method_settings": dataclasses.asdict(resolved.settings)}


def _publish(folder: Path, result: dict[str, Any]) -> None:
    from flfw.report.report import write_report

    write_whole(folder / "result.json", json.dumps(result, indent=1, allow_nan=False).encode())
    write_report(folder)


def _remarks(training: dict[str, Any]) -> list[str]:
    rounds = [row for row in training["rounds"] if row["failures"]]
    dropped = sum(row["failures"] for row in rounds)
    notes = [f"Updates dropped: {dropped}, in {len(rounds)} of the rounds; failures.csv says why."] if dropped else []
    later = [*(entry["code"] for entry in training["resumed"]), code_hash()]
    codes = list(dict.fromkeys(code for code in later if code != training["code"]))
    if codes:
        notes.append(f"The code changed while this run lasted: {training['code']}, then {', '.join(codes)}.")
    if training["without_gpu"]:
        notes.append("Clients were given shares of a GPU and see none: they computed on the CPU.")
    if training["probes"]:
        notes.append(f"Probes without a usable answer: {len(training['probes'])}; failures.csv says why.")
    return notes + [f"Client {f['client']} has no final accuracy: {f['reason']}." for f in training["final_failed"]]


def _ended_early(experiment: Experiment, last: int) -> list[str]:
    if last == experiment.rounds:
        return []
    rose = "no client's validation accuracy had risen above its best"
    notes = [f"Training ended after round {last} of {experiment.rounds}: {rose} for {experiment.patience} rounds."]
    words = experiment.audit_rounds.split(",") if experiment.attacks else []
    missed = sorted({int(word) for word in words if word != "last" and int(word) > last})
    return [*notes, f"Never came, and so were not audited: rounds {', '.join(map(str, missed))}."] if missed else notes


def _failures(training: dict[str, Any]) -> list[dict[str, Any]]:
    """Every failure: in which round (that of the final evaluation has none), at what, by whom, and why."""
    updates = [{"round": r["round"], "at": "update", **failure} for r in training["rounds"] for failure in r["failed"]]
    probes = [{"round": f["round"], "at": "probe", **f} for f in training["probes"]]
    return updates + probes + [{"round": None, "at": "final evaluation", **f} for f in training["final_failed"]]


def _write(
    folder: Path,
    resolved: Resolved,
    task: Task,
    training: dict[str, Any],
    about: dict[str, Any],
    notes: list[str],
) -> None:
    privacy, told = _privacy(resolved, task, training)
    notes = [*notes, *told]
    result = {
        "flfw": flfw.__version__,
        "config": _config(resolved),
        "provenance": {
            "code": code_hash(),
            "lock": requirements_hash(),
            "data": {
                "name": task.dataset.name,
                "source": task.dataset.source,
                "md5_ok": task.dataset.md5_ok,
                "digest": task.dataset.digest or None,
            },
            "weights": about["weights"],
            "tuned_on": about["tuned_on"],
            "resumed": training["resumed"],
        },
        "environment": environment(_transport(resolved.experiment, training)),
        "notes": notes,
        "rounds": training["rounds"],
        "final": _final(training["final"], training["clients"]),
        "privacy": privacy,
        "audit": about["audit"],
        "recordings": about["recordings"],
    }
    failures = _failures(training)
    if failures:
        pd.DataFrame(failures).to_csv(folder / "failures.csv", index=False)
    rounds = [{key: value for key, value in row.items() if key != "failed"} for row in training["rounds"]]
    pd.json_normalize(rounds).to_csv(folder / "rounds.csv", index=False)
    pd.DataFrame(training["clients"]).to_csv(folder / "clients.csv", index=False)
    _publish(folder, result)


def _privacy(resolved: Resolved, task: Task, training: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The claims, beside them what canaries found, and notes on that."""
    ledger = Ledger(resolved, task.split, len(training["resumed"]))
    entries = ledger.entries()
    if task.canaries is None:
        return entries, []
    from flfw.dp import canary_audit

    experiment = resolved.experiment
    bound = canary_audit.lower(np.array(training["scores"]), task.canaries, experiment.delta)
    return canary_audit.beside_the_claims(entries, bound, experiment, ledger.mechanism)


def _final(rows: list[dict[str, Any]], history: list[dict[str, Any]]) -> dict[str, Any]:
    mean = {key: fmean(row[key] for row in rows) for key in ("acc_global", "acc_local")}
    absent = {"acc_central": None, "acc_protected": None}
    return {**mean, **absent, "best_validation": best_validation(history), "per_client": rows}


def best_validation(history: list[dict[str, Any]]) -> dict[str, float] | None:
    """Each client's test accuracy after the local training of the round that its own validation data call its best.

    Of equal rounds the first counts. A round and an accuracy are means over the clients.

    Args:
        history: a row a client and round, with ``acc_validation`` and ``acc_local``.

    Returns:
        ``round``, ``accuracy`` and ``validation``, the accuracy it was chosen by; None without validation data.
    """
    best: dict[int, dict[str, Any]] = {}
    for row in history:
        validation = row.get("acc_validation")
        if validation is not None and validation > best.get(row["client"], {}).get("acc_validation", -1.0):
            best[row["client"]] = row
    if not best:
        return None
    means = {"round": "round", "accuracy": "acc_local", "validation": "acc_validation"}
    return {name: fmean(row[key] for row in best.values()) for name, key in means.items()}
