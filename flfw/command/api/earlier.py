"""Work on an earlier run whose settings are changed in part: another audit of it, or its resumption."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.result_file import RESULT, read_result
from flfw.runs import run
from flfw.server.checkpoint import is_complete

Change = Callable[[Experiment], Experiment]
"""Function from the settings of the earlier run to those that are asked for."""


def audit_changed(source: Path, change: Change) -> Path:
    """Attack the recordings of an earlier run; return the folder of the new audit.

    Args:
        source: folder of the earlier run.
        change: gives the settings of the audit; it is handed those of the run, without its folder.

    Raises:
        InputError: there is no such run, or other settings than those of an audit were changed.
        RunError: the attack process could not go on.
    """
    _refuse_audit(source)
    stored = replace(run.stored(source), out=None)
    return run.audit_recordings(source, stored, change(stored))


def _refuse_audit(source: Path) -> None:
    """Refuse the folder of a further audit, and name its run, which has the recordings; or of another app's audit."""
    if (source / "checkpoint").exists() or not (source / RESULT).is_file():
        return
    result = read_result(source)
    if earlier := (result.get("provenance") or {}).get("from"):
        raise InputError(f"Expected a run, got {source}, an audit of the run in {earlier}; name that one.")
    if "clients" not in (result.get("config") or {}):
        raise InputError(f"Expected a run, got {source}, an audit of another app; flfw.recorded_apps makes another.")


def resume_changed(folder: Path, change: Change) -> Path:
    """Resume a run from its last checkpoint; return its folder.

    Args:
        folder: folder of the run.
        change: gives the settings to go on with; only those that decide no numbers may differ, and a finished run may
            get more rounds.

    Raises:
        InputError: the folder holds no run, a damaged one or another one.
        RunError: see `flfw.runs.run.run`.
    """
    stored = run.stored(folder)
    requested = change(stored)
    if requested.out != stored.out:
        raise InputError(f"Expected a run to be resumed where it lies, {stored.out}, got --out {requested.out}.")
    complete, resumed = is_complete(folder), run.resume(requested, longer=True)
    if complete and requested != stored and requested.rounds == stored.rounds:
        print("warning: the run is complete: flags that were given anew change nothing of it", file=sys.stderr)
    return resumed
