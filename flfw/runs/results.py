"""Results of a trained run: its audit, its tables and its report."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import flfw
from flfw import data
from flfw.audit.auditor import Auditor
from flfw.audit.sums import sums
from flfw.data.readers.table import reading_of
from flfw.dp.run_accountant import RunAccountant
from flfw.errors import InputError, RunError
from flfw.experiment import Experiment
from flfw.files.provenance import code_hash, environment, requirements_hash
from flfw.files.result_entries import breakdowns
from flfw.files.result_file import read_result, read_training, to_json, write_rows
from flfw.files.sealed import write_atomic
from flfw.plans.run_plan import RunPlan
from flfw.recording.reader import Recordings, is_recorded
from flfw.recording.retention import keep_last
from flfw.runs import provenance as provenance
from flfw.runs.provenance import outside_of
from flfw.runs.reach import notes_on_learning
from flfw.runs.run_notes import finals, left_out, notes_on_end, notes_on_training, what_came_of_it
from flfw.task.task import Task

UNKNOWN = "unknown"
"""Licence or citation of data of which none is stated here."""
_OF_THE_AUDIT = ("audit", "membership", "inference", "recordings", "secure_aggregation")
_NOTHING = {"provenance": {}, "environment": {}, "rounds": [], "final": None, "privacy": []}
_TRANSPORT = {
    "ray": "actors on Ray",
    "flwr-sim": "Flower simulation engine on Ray",
    "inproc": "in process",
    "flwr": "Flower's own commands, simulation engine on Ray",
}


def _weights(experiment: Experiment, of_scores: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the files of weights on which the numbers depend: of a pretrained network, and of scores."""
    sha256, place = experiment.weights_sha256, experiment.weights
    body = {experiment.net: {"file": place or None, "sha256": sha256}} if sha256 else {}
    return {**body, **(of_scores or {})} or None


def _transport(experiment: Experiment, training: Mapping[str, Any]) -> str:
    """Describe how messages travelled."""
    if experiment.federation:
        from flfw.engines.layout import transport

        return f"real clients over {transport()} with TLS"
    return _TRANSPORT[training["engine"]]


def finish(run_plan: RunPlan, task: Task, notes: list[str], auditor: Auditor | None) -> None:
    """Audit the recordings and write all results; at the very end, remove files that only training needed.

    Args:
        run_plan: of the run, with its folder.
        task: of the experiment.
        notes: the first notes of the result.
        auditor: entered; None: there is nothing to audit.

    Raises:
        RunError: the audit stopped; the training's results are written all the same.
    """
    experiment = run_plan.experiment
    folder = experiment.folder
    training = read_training(folder)
    last = last_round(training, experiment)
    exact = experiment.metrics == "all" and any("loss" in row for row in training["clients"])
    notes = [*notes, *notes_on_training(experiment, training)]
    notes += notes_on_end(experiment, last, training["budget_spent"])
    notes += notes_on_learning(training["rounds"] if exact else [], finals(experiment, training), task)
    audited: dict[str, Any] = {"audit": [], "membership": [], "inference": []}
    audited |= {"recordings": None, "secure_aggregation": None, "weights": None, "tuned_on": []}
    privacy, privacy_notes = _privacy(run_plan, task, training)
    stopped = None
    if auditor:
        try:
            audited = audit(run_plan, auditor, folder, notes, last, privacy)
        except (InputError, RunError) as error:  # the training's results are not lost with the audit
            stopped = error
            notes.append(f"The audit was stopped: {error}")
    elif experiment.attacks:
        notes.append(f"{experiment.method} sends nothing, so there was nothing to attack.")
    every_note = [*notes, *left_out(experiment.split, task), *privacy_notes]
    _write(folder, run_plan, task, training, audited | {"privacy": privacy}, every_note)
    if stopped:  # once the cause is removed, a resumed run repeats the audit
        raise RunError(notes[-1]) from stopped
    (folder / "training.json").replace(folder / "tidying.json")  # from here on the audit is not to be repeated


def tidy(experiment: Experiment) -> None:
    """Remove files that a run needs no more once its results are written, and its attacks ended; may be repeated."""
    folder = experiment.folder
    if not (folder / "tidying.json").exists():
        return
    for kind in ("observations", "examples") if experiment.keep_recorded_rounds >= 0 else ():
        if is_recorded(folder / kind):
            keep_last(folder / kind, experiment.keep_recorded_rounds)
    for name in ("queue",) if experiment.keep_state else ("state", "queue"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "tidying.json").unlink()


def last_round(done: Mapping[str, Any], experiment: Experiment) -> int:
    """Return the round in which training ended.

    Args:
        done: contents of ``training.json`` or ``result.json``; empty for a run without either.
        experiment: of the run.
    """
    return done["rounds"][-1]["round"] if done.get("rounds") else experiment.rounds


def audit(
    run_plan: RunPlan, auditor: Auditor, out: Path, notes: list[str], last: int, privacy: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Run an audit and write its rows; return its part of result.json.

    Args:
        run_plan: of the run.
        auditor: entered.
        out: the folder for ``audit.csv``.
        notes: list to which notes are added.
        last: the round in which training ended.
        privacy: the run's claims.
    """
    entries, rows = auditor.run(last, privacy)
    write_rows(rows, out / "audit.csv")
    recordings = Recordings(auditor.source / "observations")
    notes += [*breakdowns(entries), *auditor.remarks, *recordings.remarks(auditor.refused)]
    notes += what_came_of_it(run_plan.client, recordings)
    origins = {"weights": auditor.weights, "tuned_on": auditor.tuned_on}
    beside = {"membership": auditor.membership, "inference": auditor.inference}
    beside |= {"secure_aggregation": sums(run_plan.client, recordings, auditor.source)}
    return {"audit": entries, **beside, "recordings": recordings.summary(auditor.refused), **origins}


def finish_audit(run_plan: RunPlan, source: Path, out: Path, notes: list[str], auditor: Auditor) -> None:
    """Audit an earlier run's recordings again; write the results, with that run's results of training.

    Args:
        run_plan: of the run, with the attacks of this audit.
        source: the earlier run's folder.
        out: the new folder.
        notes: the first notes of the result.
        auditor: entered.
    """
    earlier, experiment = read_earlier(source), run_plan.experiment
    session = provenance.describe_session(out, outside_of(run_plan))
    last = last_round(earlier, experiment)
    notes = [*notes, *notes_on_end(experiment, last, not experiment.patience)]
    audited = audit(run_plan, auditor, out, notes, last, earlier.get("privacy") or [])
    origins = {name: audited[name] for name in ("weights", "tuned_on")}
    described = {**earlier["provenance"], "code": code_hash(), **origins, "from": str(source)}
    described |= {
        "recording_sessions": described.get("sessions", []),
        "sessions": [{**session, "ended_at": provenance.now()}],
    }
    described["seeds"] = _seeds(experiment, audited)
    again = {
        "flfw": flfw.__version__,
        "config": _config(run_plan),
        "provenance": described,
        "environment": environment(
            f"recordings of {source.name}: {earlier['environment'].get('transport', 'unknown')}"
        ),
        "notes": notes,
        **{name: audited[name] for name in _OF_THE_AUDIT},
    }
    _publish(out, {**earlier, **again})


def read_earlier(source: Path) -> dict[str, Any]:
    """Read the result of a run, as far as it got.

    Raises:
        InputError: it is damaged.
    """
    if (source / "result.json").exists():
        return {**_NOTHING, **read_result(source)}
    return dict(_NOTHING)


def _config(run_plan: RunPlan) -> dict[str, Any]:
    fields = dataclasses.asdict(run_plan.experiment)
    config = {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
    return {**config, "method_settings": dataclasses.asdict(run_plan.client.settings)}


def _seeds(experiment: Experiment, audited: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's seed and those of the attacks' repetitions; a setting of an attack may state them."""
    repeated: dict[str, list[int]] = {}
    for entry in audited["audit"]:
        repeated.setdefault(entry["attack"], list(entry["seeds"] or []))
    return {"run": experiment.seed, "attacks": repeated}


def _publish(folder: Path, result: dict[str, Any]) -> None:
    from flfw.report.report import write_report

    write_atomic(folder / "result.json", to_json(result))
    write_report(folder)


def _failures(training: dict[str, Any]) -> list[dict[str, Any]]:
    """List every failure: its round (None for the final evaluation), its step, the client and the reason."""
    updates = [{"round": r["round"], "at": "update", **failure} for r in training["rounds"] for failure in r["failed"]]
    probes = [{"round": f["round"], "at": "probe", **f} for f in training["probes"]]
    return updates + probes + [{"round": None, "at": "final evaluation", **f} for f in training["final_failed"]]


def _write(
    folder: Path, run_plan: RunPlan, task: Task, training: dict[str, Any], audited: dict[str, Any], notes: list[str]
) -> None:
    card = data.describe(run_plan.experiment.dataset)
    result = {
        "flfw": flfw.__version__,
        "config": _config(run_plan),
        "provenance": {
            "code": code_hash(),
            "lock": requirements_hash(),
            "data": {
                "name": task.dataset.name,
                "source": task.dataset.source,
                "md5_ok": task.dataset.md5_ok,
                "digest": task.dataset.digest or None,
                "licence": card.licence or UNKNOWN,
                "citation": card.citation or UNKNOWN,
                **{name: getattr(task.dataset, name) for name in ("classes", "mean", "std", "shape")},
                "reading": reading_of(task.dataset.name) if task.dataset.columns else None,
            },
            "weights": _weights(run_plan.experiment, audited["weights"]),
            "tuned_on": audited["tuned_on"],
            "malicious_server": run_plan.experiment.malicious_server or None,
            "resumed": training["resumed"],
            "requested_rounds": training["requested_rounds"],
            "seeds": _seeds(run_plan.experiment, audited),
            "sessions": provenance.end(folder),
        },
        "environment": environment(_transport(run_plan.experiment, training)),
        "notes": notes,
        "rounds": training["rounds"],
        "final": finals(run_plan.experiment, training),
        "privacy": audited["privacy"],
        **{name: audited[name] for name in _OF_THE_AUDIT},
    }
    failures = _failures(training)
    if failures:
        pd.DataFrame(failures).to_csv(folder / "failures.csv", index=False)
    rounds = [{key: value for key, value in row.items() if key != "failed"} for row in training["rounds"]]
    pd.json_normalize(rounds).to_csv(folder / "rounds.csv", index=False)
    pd.DataFrame(training["clients"]).to_csv(folder / "clients.csv", index=False)
    _publish(folder, result)


def _privacy(run_plan: RunPlan, task: Task, training: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the claims, with the lower bounds from canaries beside them, and notes on these bounds."""
    last, evaluations = last_round(training, run_plan.experiment), training.get("evaluations", 0)
    requested = training["requested_rounds"][: len(training["requested_rounds"]) - evaluations]
    again = len(requested) - len(set(requested)) + max(0, evaluations - 1)  # one evaluation is in the claim
    if training["budget_spent"]:  # by rounds that were asked for again; that these were few or many tells of no data
        # The last one may have been asked for and never have come to its end.
        run_plan = run_plan.replaced(rounds=max(last, *requested), audit_rounds="0")
    accountant = RunAccountant(run_plan.client, task.split, again, training.get("summed", 1))
    entries = accountant.entries()
    if task.canaries is None:
        return entries, []
    from flfw.dp import canary_audit

    experiment = run_plan.experiment
    # A score that is not finite tells nothing, as 0.
    bound = canary_audit.lower(np.nan_to_num(np.array(training["scores"], float)), task.canaries, experiment.delta)
    bound |= {"residual": training["residual"]}
    shift = canary_audit.claimed_shift(accountant.mechanism, accountant.others("example")[0])
    return canary_audit.beside_the_claims(entries, bound, experiment.delta, experiment.rounds, shift)
