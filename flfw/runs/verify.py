"""Verification of a run or an audit: it is repeated in a new folder, and all of its numbers are compared.

The circumstances of the result are compared with the present ones: code, environment, data and hardware.
"""

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import flfw
from flfw.errors import InputError, abridged
from flfw.experiment import Experiment
from flfw.files.earlier_names import renames
from flfw.files.provenance import code_hash, environment, requirements_hash
from flfw.files.result_file import read_result
from flfw.files.sealed import sealed, write_atomic
from flfw.plugins import short_name
from flfw.runs import run
from flfw.runs.provenance import OutsideCode, installed_packages, machine, now, outside_of, read_packages, revision
from flfw.runs.run_comparison import (
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
from flfw.server.checkpoint import awaits_audit

_SHOWN = 40  # lines of each kind on the terminal
_NOTHING = "Nothing differs in code, environment, data and hardware: every number should repeat bit for bit."
_SHOWN_CHANGES = 8  # packages in a line
_SHORT = 12  # digits of a commit or sum


def _last_session(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last session of a result; empty for one of an earlier version, which noted none."""
    sessions = (result.get("provenance") or {}).get("sessions") or []
    return dict(sessions[-1]) if sessions else {}


def _changed_plugins(result: Mapping[str, Any]) -> list[str]:
    """Compare the files of the result's plug-ins from outside with those now in their places; nothing is imported."""
    lines = []
    for code in _last_session(result).get("external_plugins") or []:
        root = _root(Path(code["file"]), code["files"])
        for name, before in code["files"].items():
            path = root / name
            if not path.is_file():
                lines.append(f"{code['kind']} {code['name']}: {path} is gone")
            elif hashlib.sha256(path.read_bytes()).hexdigest() != before:
                lines.append(f"{code['kind']} {code['name']}: {path} has changed since")
    return list(dict.fromkeys(lines))


def _root(file: Path, files: Mapping[str, str]) -> Path:
    """Return the folder that the paths of a plug-in's files start from."""
    for name in sorted(files, key=len, reverse=True):
        if file.parts[-len(Path(name).parts) :] == Path(name).parts:
            return file.parents[len(Path(name).parts) - 1]
    return file.parent


def _moved_plugins(result: Mapping[str, Any], now: Sequence[OutsideCode]) -> list[str]:
    """Compare the result's plug-ins from outside with those that were imported now, which may lie elsewhere."""
    lines, here = [], {(code["kind"], code["name"]): code for code in now}
    for code in _last_session(result).get("external_plugins") or []:
        mine = here.get((code["kind"], code["name"]))
        if mine is None:
            lines.append(f"{code['kind']} {code['name']}: it is not among the plug-ins of now")
        elif mine["file"] != code["file"]:
            same = "the same" if mine["files"] == code["files"] else "another"
            lines.append(f"{code['kind']} {code['name']}: {same} code, now from {mine['file']}, then {code['file']}")
        elif added := sorted(set(mine["files"]) - set(code["files"])):
            lines.append(f"{code['kind']} {code['name']}: it imports {', '.join(added)}, too")
    return lines


def _changed_code(result: Mapping[str, Any]) -> list[str]:
    """Compare the project's code: the sum of its sources, then its commit."""
    provenance, session = result.get("provenance") or {}, _last_session(result)
    lines = []
    if provenance.get("code") != code_hash():
        lines.append(f"sources {provenance.get('code')}, now {code_hash()}")
        then, now = _commit(session.get("git")), _commit(revision(Path(flfw.__file__)))
        lines += [f"commit {then}, now {now}"] if then != now else []
    codes = {one["code"] for one in (*provenance.get("sessions", []), *provenance.get("resumed", [])) if "code" in one}
    if len(codes) > 1:
        lines.append(f"the run was resumed with other code than it began with ({', '.join(sorted(codes))})")
    return lines


def _commit(revision: Mapping[str, Any] | None) -> str:
    if not revision:
        return "unknown"
    return f"{revision['commit'][:_SHORT]}{' (changed since)' if revision['dirty'] else ''}"


def _changed_environment(result: Mapping[str, Any], folder: Path) -> list[str]:
    """Compare Python, the pinned requirements and all installed packages.

    Args:
        result: content of result.json.
        folder: its folder, with the list of packages.
    """
    session, then = _last_session(result), result.get("environment") or {}
    now = environment("")
    lines = [f"python {then.get('python')}, now {now['python']}"] if then.get("python") != now["python"] else []
    if (result.get("provenance") or {}).get("lock") != requirements_hash():
        lines.append("requirements.txt is another one")
    noted = session.get("packages") or {}
    path = folder / str(noted.get("file"))
    packages = read_packages(path) if noted else None
    if packages is None or hashlib.sha256(path.read_bytes()).hexdigest() != noted["sha256"]:
        names = ("flwr", "ray", "torch", "numpy")
        lines += [f"{name} {then.get(name)}, now {now[name]}" for name in names if then.get(name) != now[name]]
        why = "was changed" if packages is not None else "is not there" if noted else "was not written by this version"
        return [*lines, f"the list of all packages {why}: only Python, flwr, ray, torch and numpy were compared"]
    here = dict(line.split("==", 1) for line in installed_packages())
    other = [name for name in sorted({*packages, *here}) if packages.get(name) != here.get(name)]
    words = [f"{name} {packages.get(name, 'none')} (now {here.get(name, 'none')})" for name in other]
    return [*lines, f"packages: {abridged(words, _SHOWN_CHANGES)}"] if other else lines


def _changed_data(result: Mapping[str, Any], digest: str, weights_sha256: str) -> list[str]:
    """Compare the digest of the data, and the sum of a pretrained network's weights.

    Args:
        result: content of result.json.
        digest: digest of the present data; empty where they have none.
        weights_sha256: sum of the present weights; empty: there are none.
    """
    data = (result.get("provenance") or {}).get("data") or {}
    before = data.get("digest") or ""
    lines = [f"{data.get('name')}: digest {before or 'unknown'}, now {digest}"] if before != digest else []
    weights = str((result.get("config") or {}).get("weights_sha256") or "")
    return lines + ([f"weights {weights}, now {weights_sha256}"] if weights != weights_sha256 else [])


def unrepeatable(result: Mapping[str, Any]) -> list[str]:
    """Name the settings by which a run draws numbers that no second run can draw again."""
    config = result.get("config") or {}
    defences = str(config.get("defence") or "none").split("+")
    lines = []
    if (config.get("method_settings") or {}).get("noise_source") == "secure":
        lines.append("noise_source=secure draws noise that nobody can repeat")
    assigned = [str(one).partition("=") for one in config.get("set") or []]
    given = {name: value for name, _, value in assigned}  # of two values the last one holds
    sources = (f"{short_name(one)}.noise_source" for one in defences)
    lines += [f"{one}=secure draws noise that nobody can repeat" for one in sources if given.get(one) == "secure"]
    if defences != ["none"] and config.get("defence_randomness") == "secure":
        lines.append(f"defence_randomness=secure: nobody can repeat what {' and '.join(defences)} drew, if anything")
    return lines


def changed_hardware(result: Mapping[str, Any]) -> list[str]:
    """Compare the machine, as far as it was noted."""
    noted, now = _last_session(result).get("machine"), machine()
    if not noted:
        before = (result.get("environment") or {}).get("hardware")
        return [f"{before}, now {now['hardware']}"] if before != now["hardware"] else []
    # A process has loaded more or fewer of these libraries; their versions are among the packages.
    pools = [_pools(one.get("blas") or []) for one in (noted, now)]
    apart = [api for api in pools[0] if api in pools[1] and not pools[0][api] & pools[1][api]]
    words = [f"{api}: {_listed(pools[0][api])}, now {_listed(pools[1][api])}" for api in sorted(apart)]
    before, after = ({key: value for key, value in one.items() if key != "blas"} for one in (noted, now))
    return [*_unlike(before, after, ""), *words]


def _pools(libraries: Sequence[Mapping[str, Any]]) -> dict[str, set[tuple[Any, Any]]]:
    """Collect the processors and numbers of threads of the loaded libraries of each kind."""
    pools: dict[str, set[tuple[Any, Any]]] = {}
    for one in libraries:
        pools.setdefault(str(one.get("internal_api")), set()).add((one.get("architecture"), one.get("num_threads")))
    return pools


def _listed(pool: set[tuple[Any, Any]]) -> str:
    return " or ".join(sorted(f"{chip}, threads {threads}" for chip, threads in pool))


def _unlike(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _unlike(before.get(key), after.get(key), f"{path} {key.replace('_', ' ')}".strip())
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            yield from _unlike(old, new, path)
    elif before != after:
        yield f"{path}: {before}, now {after}"


def stored(folder: Path) -> Experiment:
    """Return the experiment of a finished run or audit, without its folder and its trackers.

    Raises:
        InputError: there is no finished run of this version of flfw.
    """
    if (folder / "matrix.json").is_file():
        raise InputError(f"Expected a run's folder for --verify, got {folder}, a matrix; name a folder in it.")
    result = read_result(folder)
    try:
        json.dumps(result, allow_nan=False)
    except ValueError as error:  # in a field that no reader knows
        raise InputError(f"Expected finite numbers in {folder / 'result.json'}, got others; restore it.") from error
    if awaits_audit(folder):
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
    if gone := [name for name in config if name.replace("_", "-") in renames().gone]:
        raise InputError(
            f"Expected a run with settings of today in {folder}, got {gone[0]}={config[gone[0]]}; run anew."
        )
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
    requested = ask(earlier)
    _require_same_numbers(earlier, requested, folder)
    source = _source(folder, result)
    whole = source or folder
    out = requested.out or next(p for n in count(1) if not (p := whole / f"verify-{n}").exists())
    for line in _changed_plugins(result):
        print(f"changed: {line}", flush=True)
    run_plan, task, _ = run.check(dataclasses.replace(requested, out=out))
    differs = {
        "code": [*_changed_plugins(result), *_moved_plugins(result, outside_of(run_plan)), *_changed_code(result)],
        "environment": _changed_environment(result, folder),
        "data": _changed_data(result, task.dataset.digest or "", run_plan.experiment.weights_sha256 or ""),
        "hardware": changed_hardware(result),
        "noise": unrepeatable(result),
    }
    said = [f"{kind} differs: {line}" for kind, lines in differs.items() for line in lines]
    print(*(said or [_NOTHING]), sep="\n", flush=True)
    if source is None:
        repeated = run.run(dataclasses.replace(requested, out=out))
    else:
        audited = dataclasses.replace(run.stored(source), out=None, data_root=requested.data_root)
        repeated = run.audit_recordings(source, audited, dataclasses.replace(requested, out=out))
    compared = compare(result, read_result(repeated))
    verdict = _verdict(compared)
    _write(repeated, folder, differs, compared, verdict)
    print(*_lines(compared, verdict, same=not any(differs.values())), repeated / "verify.json", sep="\n")
    return int(verdict == DIFFERENT)


def _require_same_numbers(earlier: Experiment, experiment: Experiment, folder: Path) -> None:
    got = experiment.decisive
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
    content = {
        "result": str(folder),
        "repeated_in": str(repeated),
        "date": now(),
        "differs": differs,
        "verdict": verdict,
        "counts": {word: sum(one.outcome == word for one in compared) for word in (EQUAL, WITHIN, DIFFERENT)},
        "moved": [one.as_dict() for one in compared if one.outcome != EQUAL],
        "not_compared": list(NOT_COMPARED),
    }
    write_atomic(repeated / "verify.json", json.dumps(content, indent=1, allow_nan=False).encode())
