"""One run from start to report: check, train, audit, write."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

import flfw
from flfw import engine, parts
from flfw.errors import BadInput, RunFailed
from flfw.experiment import Experiment
from flfw.provenance import code_hash, environment, requirements_hash
from flfw.site import Site
from flfw.task import Task, resolve

_TRANSPORT = {"ray": "Flower simulation engine on Ray", "inproc": "in process"}
_AUDIT_COLUMNS_LEFT_OUT = ["db"]


def run(experiment: Experiment) -> Path:
    """Run an experiment and its audit; returns the folder with result.json and report.html.

    Raises:
        BadInput: something asked for does not exist or does not fit; nothing has been written.
        RunFailed: it started and could not be completed; what was written so far stays in the folder.
    """
    experiment, task, notes = check(experiment)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    folder = experiment.out
    assert folder is not None, "check names the folder"
    folder.mkdir(parents=True)
    site = Site(experiment.data_root, state=folder / "state", truth=folder / "truth" if experiment.audited else None)
    engine.run(experiment, site)
    training = json.loads((folder / "training.json").read_text())
    entries: list[dict[str, Any]] = []
    if experiment.audited and parts.method(experiment)[0].uploads:
        from flfw.audit.server import Auditor

        try:
            entries, rows = Auditor(experiment, folder, task).run()
        except BadInput as error:  # recordings that cannot be used: the training's results are not lost with them
            stopped = f"The audit was stopped: {error}"
            _write(folder, experiment, task, training, [], [*notes, stopped])
            raise RunFailed(stopped) from error
        rows.drop(columns=_AUDIT_COLUMNS_LEFT_OUT).to_csv(folder / "audit.csv", index=False)
    elif experiment.audited:
        notes.append(f"{experiment.method} sends nothing, so there was nothing to attack.")
    _write(folder, experiment, task, training, entries, notes)
    return folder


def check(experiment: Experiment) -> tuple[Experiment, Task, list[str]]:
    """Resolve everything an experiment names, opening the data but writing nothing.

    Returns:
        The experiment with no ``auto`` left and with an absolute ``out``; its task; notes on the data.
    """
    experiment = resolve(experiment)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{parts.short_name(experiment.method)}-{experiment.dataset}-{stamp}"
    out = (experiment.out or Path("runs") / name).absolute()
    if out.exists():
        raise BadInput(f"Expected a new folder for --out, got {out}, which exists; choose another or remove it.")
    root = experiment.data_root.absolute() if experiment.data_root else None
    experiment = dataclasses.replace(experiment, out=out, data_root=root)
    parts.check(experiment)
    engine.check_resources(experiment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # said below, on every run and not only when the cache is made
        task = Task.of(experiment, root)
    task.check_victims(experiment)
    return experiment, task, _remarks(task)


def _remarks(task: Task) -> list[str]:
    if task.dataset.md5_ok is not False:
        return []
    return [
        f"The files of {task.dataset.name} do not have the published md5 sums: these are not the original data, and "
        "accuracies on them may differ from published ones."
    ]


def _write(
    folder: Path,
    experiment: Experiment,
    task: Task,
    training: dict[str, Any],
    entries: list[dict[str, Any]],
    notes: list[str],
) -> None:
    from flfw.audit.report import write_report

    config = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(experiment).items()}
    method_settings = dataclasses.asdict(parts.method(experiment)[1])
    result = {
        "flfw": flfw.__version__,
        "config": {**config, "method_settings": method_settings},
        "provenance": {
            "code": code_hash(),
            "lock": requirements_hash(),
            "data": {"name": task.dataset.name, "source": task.dataset.source, "md5_ok": task.dataset.md5_ok},
            "weights": None,
            "tuned_on": [],
        },
        "environment": environment(_TRANSPORT[experiment.engine]),
        "notes": notes,
        "rounds": training["rounds"],
        "final": _final(training["final"]),
        "privacy": [],
        "audit": entries,
    }
    pd.json_normalize(training["rounds"]).to_csv(folder / "rounds.csv", index=False)
    pd.DataFrame(training["clients"]).to_csv(folder / "clients.csv", index=False)
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    (folder / "training.json").unlink()
    shutil.rmtree(folder / "state", ignore_errors=True)
    write_report(folder)


def _final(rows: list[dict[str, Any]]) -> dict[str, Any]:
    mean = {key: sum(row[key] for row in rows) / len(rows) for key in ("acc_global", "acc_local")}
    absent = {"acc_central": None, "acc_protected": None, "best_validation": None}
    return {**mean, **absent, "per_client": rows}
