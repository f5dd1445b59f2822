"""Verification of a run or an audit: it is repeated in a new folder, and all of its numbers are compared."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.formats.result_file import read_result
from flfw.provenance.external_plugins import outside_of
from flfw.provenance.sittings import now
from flfw.runs import run
from flfw.storage.checkpoint import is_trained
from flfw.storage.sealed import sealed, write_atomic
from flfw.verification import changes
from flfw.verification.comparison import (
    DIFFERENT,
    EQUAL,
    NOT_COMPARED,
    REPETITION,
    RESULT,
    WITHIN,
    ComparedValue,
    compare,
    farthest,
)

_SHOWN = 40  # lines of each kind on the terminal
_NOTHING = "Nothing differs in code, environment, data and hardware: every number should repeat bit for bit."


def stored(folder: Path) -> Experiment:
    """Return the experiment of a finished run or audit, without its folder and its trackers.

    Raises:
        InputError: there is no finished run of this version of flfw.
    """
    if (folder / "matrix.json").is_file():
        raise InputError(
            f"Expected a run's folder for --verify, got {folder}, a matrix; name one of the folders in it."
        )
    result = read_result(folder)
    try:
        json.dumps(result, allow_nan=False)
    except ValueError as error:  # in a field that no reader knows
        raise InputError(f"Expected finite numbers in {folder / 'result.json'}, got others; restore it.") from error
    if is_trained(folder):
        raise InputError(f"Expected a finished run for --verify, got {folder}, which is not over; --resume it first.")
    if sealed(folder / "checkpoint", "experiment"):
        return dataclasses.replace(run.stored(folder), out=None, track=())
    return dataclasses.replace(experiment_of(result.get("config") or {}, folder), out=None, track=())


def experiment_of(config: Mapping[str, Any], folder: Path) -> Experiment:
    """Read the experiment of an audit, or of a run whose checkpoint was purged, from its result's configuration.

    Args:
        config: ``config`` of result.json; a setting that it lacks has its default.
        folder: its folder, for messages.

    Raises:
        InputError: it is another app's, or damaged.
    """
    if "rounds" not in config:
        raise InputError(f"Expected a run of flfw in {folder}, got an audit of an app of its own; repeat its own call.")
    flat = Experiment().to_run_config()
    for field in dataclasses.fields(Experiment):
        value = config.get(field.name, getattr(Experiment(), field.name))
        key = field.name.replace("_", "-")
        if isinstance(value, list | tuple):
            flat[key] = shlex.join(map(str, value))
        else:
            flat[key] = "" if value is None else value
    return Experiment.from_run_config(flat)


def verify(folder: Path, ask: Callable[[Experiment], Experiment]) -> int:
    """Repeat a run or an audit, print the values that do not repeat, and write ``verify.json`` into the new folder.

    Args:
        folder: folder of the run or audit.
        ask: its experiment -> the same, perhaps with an ``out`` and other settings that decide no numbers, such as
            the engine.

    Returns:
        0: every number repeats bit for bit or within its interval; 1: one does not.

    Raises:
        InputError: it cannot be repeated as asked; nothing has been written.
        RunError: the repetition failed.
    """
    folder = folder.absolute()
    earlier, result = stored(folder), read_result(folder)
    asked = ask(earlier)
    _require_same_numbers(earlier, asked, folder)
    source = _source(folder, result)
    whole = source or folder
    out = asked.out or next(p for n in count(1) if not (p := whole / f"verify-{n}").exists())
    for line in changes.changed_plugins(result):
        print(f"changed: {line}", flush=True)
    run_plan, task, _ = run.check(dataclasses.replace(asked, out=out))
    differs = {
        "code": [
            *changes.changed_plugins(result),
            *changes.moved_plugins(result, outside_of(run_plan)),
            *changes.changed_code(result),
        ],
        "environment": changes.changed_environment(result, folder),
        "data": changes.changed_data(result, task.dataset.digest or "", run_plan.experiment.weights_sha256 or ""),
        "hardware": changes.changed_hardware(result),
        "noise": changes.unrepeatable(result),
    }
    print(*_differing(differs), sep="\n", flush=True)
    if source is None:
        repeated = run.run(dataclasses.replace(asked, out=out))
    else:
        repeated = run.audit_again(source, _of_source(source, asked), dataclasses.replace(asked, out=out))
    compared = compare(result, read_result(repeated))
    verdict = _verdict(compared)
    _write(repeated, folder, differs, compared, verdict)
    print(*_lines(compared, verdict, same=not any(differs.values())), repeated / "verify.json", sep="\n")
    return int(verdict == DIFFERENT)


def _require_same_numbers(earlier: Experiment, asked: Experiment, folder: Path) -> None:
    got = asked.decisive
    for key, value in earlier.decisive.items():
        if got[key] != value:
            raise InputError(
                f"Expected {key}={value} as in {folder}, got {key}={got[key]}; --verify repeats it as it is."
            )


def _source(folder: Path, result: Mapping[str, Any]) -> Path | None:
    """Return the run whose recordings an audit attacked; None for a run.

    Raises:
        InputError: that run is not there.
    """
    named = (result.get("provenance") or {}).get("from")
    if not named:
        return None
    for place in (Path(named), folder.parent):  # the run may have been moved together with its audits
        if sealed(place / "checkpoint", "experiment"):
            return place
    raise InputError(f"Expected the audited run in {named} or around {folder}, got none with a checkpoint; restore it.")


def _of_source(source: Path, asked: Experiment) -> Experiment:
    """Return the experiment of an audited run as `flfw.runs.run.audit_again` takes it."""
    return dataclasses.replace(run.stored(source), out=None, data_root=asked.data_root)


def _differing(differs: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{kind} differs: {line}" for kind, lines in differs.items() for line in lines] or [_NOTHING]


def _verdict(compared: Sequence[ComparedValue]) -> str:
    outcomes = {one.outcome for one in compared}
    return next(outcome for outcome in (DIFFERENT, WITHIN, EQUAL) if outcome in outcomes or outcome == EQUAL)


def _lines(compared: Sequence[ComparedValue], verdict: str, *, same: bool) -> list[str]:
    """Return the comparison for the terminal."""
    groups = {outcome: [one for one in compared if one.outcome == outcome] for outcome in (EQUAL, WITHIN, DIFFERENT)}
    lines = [f"{len(groups[EQUAL])} values repeat bit for bit"]
    for outcome in (WITHIN, DIFFERENT):
        if groups[outcome]:
            lines.append(f"{len(groups[outcome])} {outcome}:")
            lines += [f"  {_line(one)}" for one in groups[outcome][:_SHOWN]]
            more = len(groups[outcome]) - _SHOWN
            lines += [f"  and {more} more, in verify.json"] if more > 0 else []
    if (last := farthest(compared)) is not None:
        lines.append(f"largest relative difference of two numbers: {last[1]:.2g}, at {last[0].path}")
    lines.append(f"not compared: {'; '.join(NOT_COMPARED)}")
    if same and verdict != EQUAL:
        lines.append("Nothing else differs, so the result was changed, or its code is not deterministic.")
    words = {EQUAL: "repeats bit for bit", WITHIN: "repeats within its intervals", DIFFERENT: "does not repeat"}
    return [*lines, f"The result {words[verdict]}."]


def _line(one: ComparedValue) -> str:
    by = f", with {one.moved_with}" if one.moved_with else ""
    inside = f", 95 % interval {one.interval[0]:.6g} to {one.interval[1]:.6g}" if one.interval else by
    if one.lacking == RESULT:
        return f"{one.path}: no such key or entry, now {_short(one.after)}"
    if one.lacking == REPETITION:
        return f"{one.path}: {_short(one.before)}, now no such key or entry"
    none = ", no interval is stated" if one.outcome == DIFFERENT and not one.interval else ""
    return f"{one.path}: {_short(one.before)}, now {_short(one.after)}{inside}{none}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _write(
    repeated: Path, folder: Path, differs: Mapping[str, Sequence[str]], compared: Sequence[ComparedValue], verdict: str
) -> None:
    moved = [one for one in compared if one.outcome != EQUAL]
    content = {
        "result": str(folder),
        "repeated_in": str(repeated),
        "date": now(),
        "differs": differs,
        "verdict": verdict,
        "counts": {word: sum(one.outcome == word for one in compared) for word in (EQUAL, WITHIN, DIFFERENT)},
        "moved": [one.as_dict() for one in moved],
        "not_compared": list(NOT_COMPARED),
    }
    write_atomic(repeated / "verify.json", json.dumps(content, indent=1, allow_nan=False).encode())
