"""Differences between the circumstances of a result and the present ones: code, environment, data and hardware."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flfw
from flfw.plugins import short_name
from flfw.provenance.external_plugins import OutsideCode
from flfw.provenance.machine import machine
from flfw.provenance.packages import installed_packages, read_packages
from flfw.provenance.revision import revision
from flfw.storage.provenance import code_hash, environment, requirements_hash

_SHOWN = 8  # packages in a line
_SHORT = 12  # digits of a commit or sum


def last_sitting(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last sitting of a result; empty for one of an earlier version, which noted none."""
    sittings = (result.get("provenance") or {}).get("sessions") or []
    return dict(sittings[-1]) if sittings else {}


def changed_plugins(result: Mapping[str, Any]) -> list[str]:
    """Compare the files of the result's plug-ins from outside with those now in their places; nothing is imported."""
    lines = []
    for code in last_sitting(result).get("external_plugins") or []:
        file = Path(code["file"])
        root = _root(file, code["files"])
        for name, before in code["files"].items():
            place = root / name
            if not place.is_file():
                lines.append(f"{code['kind']} {code['name']}: {place} is gone")
            elif hashlib.sha256(place.read_bytes()).hexdigest() != before:
                lines.append(f"{code['kind']} {code['name']}: {place} has changed since")
    return list(dict.fromkeys(lines))


def _root(file: Path, files: Mapping[str, str]) -> Path:
    """Return the folder that the paths of a plug-in's files start from."""
    for name in sorted(files, key=len, reverse=True):
        if file.parts[-len(Path(name).parts) :] == Path(name).parts:
            return file.parents[len(Path(name).parts) - 1]
    return file.parent


def moved_plugins(result: Mapping[str, Any], now: Sequence[OutsideCode]) -> list[str]:
    """Compare the result's plug-ins from outside with those that were imported now, which may lie elsewhere."""
    lines, here = [], {(code["kind"], code["name"]): code for code in now}
    for code in last_sitting(result).get("external_plugins") or []:
        mine = here.get((code["kind"], code["name"]))
        if mine is None:
            lines.append(f"{code['kind']} {code['name']}: it is not among the plug-ins of now")
        elif mine["file"] != code["file"]:
            same = "the same" if mine["files"] == code["files"] else "another"
            lines.append(f"{code['kind']} {code['name']}: {same} code, now from {mine['file']}, then {code['file']}")
        elif added := sorted(set(mine["files"]) - set(code["files"])):
            lines.append(f"{code['kind']} {code['name']}: it imports {', '.join(added)}, too")
    return lines


def changed_code(result: Mapping[str, Any]) -> list[str]:
    """Compare the project's code: the sum of its sources, then its commit."""
    provenance, sitting = result.get("provenance") or {}, last_sitting(result)
    lines = []
    if provenance.get("code") != code_hash():
        lines.append(f"sources {provenance.get('code')}, now {code_hash()}")
        then, now = _commit(sitting.get("git")), _commit(revision(Path(flfw.__file__)))
        lines += [f"commit {then}, now {now}"] if then != now else []
    codes = {one["code"] for one in (*provenance.get("sessions", []), *provenance.get("resumed", [])) if "code" in one}
    if len(codes) > 1:
        lines.append(f"the run was resumed with other code than it began with ({', '.join(sorted(codes))})")
    return lines


def _commit(revision: Mapping[str, Any] | None) -> str:
    if not revision:
        return "unknown"
    return f"{revision['commit'][:_SHORT]}{' (changed since)' if revision['dirty'] else ''}"


def changed_environment(result: Mapping[str, Any], folder: Path) -> list[str]:
    """Compare Python, the pinned requirements and all installed packages.

    Args:
        result: content of result.json.
        folder: its folder, with the list of packages.
    """
    sitting, then = last_sitting(result), result.get("environment") or {}
    now = environment("")
    lines = [f"python {then.get('python')}, now {now['python']}"] if then.get("python") != now["python"] else []
    if (result.get("provenance") or {}).get("lock") != requirements_hash():
        lines.append("requirements.txt is another one")
    noted = sitting.get("packages") or {}
    path = folder / str(noted.get("file"))
    packages = read_packages(path) if noted else None
    if packages is None or hashlib.sha256(path.read_bytes()).hexdigest() != noted["sha256"]:
        names = ("flwr", "ray", "torch", "numpy")
        lines += [f"{name} {then.get(name)}, now {now[name]}" for name in names if then.get(name) != now[name]]
        why = "was changed" if packages is not None else "is not there" if noted else "was not written by this version"
        return [*lines, f"the list of all packages {why}: only Python, flwr, ray, torch and numpy were compared"]
    here = dict(line.split("==", 1) for line in installed_packages())
    other = [name for name in sorted({*packages, *here}) if packages.get(name) != here.get(name)]
    words = [f"{name} {packages.get(name, 'none')} (now {here.get(name, 'none')})" for name in other[:_SHOWN]]
    more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
    return [*lines, f"packages: {', '.join(words)}{more}"] if other else lines


def changed_data(result: Mapping[str, Any], digest: str, weights_sha256: str) -> list[str]:
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
    noted, now = last_sitting(result).get("machine"), machine()
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
