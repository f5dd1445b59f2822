"""Provenance of a run: its sessions, with command, time, machine, Git commit, packages and plug-ins from outside.

Each start and each resumption of a run is a session with an entry of its own. A run that is cut short leaves the entry
of its session without an end. The entries lie beside the checkpoint, and result.json has them all. The list of
installed distributions is a file beside the results.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TypedDict

import flfw
from flfw import data
from flfw.files.provenance import code_hash, hardware, requirements_hash
from flfw.files.result_file import SessionFields, read_model
from flfw.files.sealed import sealed, write_atomic
from flfw.plans.run_plan import RunPlan

_FILE = "sittings.json"
_ROUND = "round-"
_SECRET, _HIDDEN = re.compile("token|password|secret|key", re.IGNORECASE), "HIDDEN"
_PATIENCE_S = 20
NAME = "environment"
_NAME = re.compile(r"[\w.]+:\w+")


class OutsideCode(TypedDict):
    """Code of a plug-in from outside.

    ``file`` has its module, ``sha256`` is that file's. ``files`` are this module and those of its top package that it
    imports, directly or through each other, by their paths below the package's folder, each with its SHA-256. A file
    that was removed since its import has none.
    """

    kind: str
    name: str
    file: str
    sha256: str | None
    files: dict[str, str]
    git: Revision | None


def outside_of(run_plan: RunPlan) -> list[OutsideCode]:
    """Return the code of an experiment's plug-ins from outside, the method's client among them."""
    fields = {name: getattr(run_plan.experiment, name) for name in run_plan.experiment.__dataclass_fields__}
    return outside_code({**fields, "client": run_plan.client.method.client})


def outside_code(settings: Mapping[str, Any]) -> list[OutsideCode]:
    """Return the code of the plug-ins from outside that settings name.

    Args:
        settings: setting -> its value; words of the form ``package.module:name`` are plug-ins if the module was
            imported, as it is once the settings have been checked.
    """
    named = [(kind, name) for kind, value in settings.items() for name in dict.fromkeys(_names(value))]
    return [code for kind, name in named if (code := _code(kind, name)) is not None]


def _names(value: Any) -> Iterator[str]:
    """Yield the words of a setting that may name a plug-in from outside; a pipeline joins several with ``+``."""
    for text in value if isinstance(value, tuple | list) else (value,):
        for word in text.split("+") if isinstance(text, str) else ():
            if _NAME.fullmatch(word) and word.partition(":")[0] not in data.PREFIXES:
                yield word


def _code(kind: str, name: str) -> OutsideCode | None:
    module = name.partition(":")[0]
    place = getattr(sys.modules.get(module), "__file__", None)
    if place is None:
        return None
    file = Path(place)
    depth = module.count(".") + (file.name == "__init__.py")
    root = file.parents[depth]
    sums = {str(path.relative_to(root)): _sum(path) for path in sorted({file, *_with_imports(module, file, root)})}
    return {
        "kind": kind,
        "name": name,
        "file": str(file),
        "sha256": _sum(file),
        "files": {name: value for name, value in sums.items() if value is not None},
        "git": revision(file),
    }


def _sum(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _with_imports(module: str, file: Path, root: Path) -> set[Path]:
    """Find a module's file and those that its imports lead to, within its top package.

    A module that lies alone in a folder has no package: then the modules beside it count.
    """
    top, seen, waiting = module.partition(".")[0], set[Path](), [(module, file)]
    alone = file.parent == root
    while waiting:
        name, path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        imports = _imports(name, path) if path.suffix == ".py" else set[str]()
        parents = {name.rsplit(".", n)[0] for n in range(name.count(".") + 1)}
        for target in sorted(imports | parents):
            if (alone and "." not in target) or (not alone and target.partition(".")[0] == top):
                waiting += [(target, place) for place in _file(target, root, packages=not alone)]
    return seen


def _file(module: str, root: Path, *, packages: bool) -> list[Path]:
    location = root.joinpath(*module.split("."))
    candidates = [location.with_name(f"{location.name}.py"), *([location / "__init__.py"] if packages else [])]
    return [path for path in candidates if path.is_file()]


def _imports(module: str, path: Path) -> set[str]:
    """List the modules that a file may import, in functions as well; a name of ``from`` may be one or not."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # it was removed or changed since its import, or is never imported
        return set()
    names: set[str] = set()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names |= {origin, *(f"{origin}.{alias.name}".lstrip(".") for alias in node.names)}
    return names - {""}


class PackageList(TypedDict):
    """List of installed distributions: the file's name in the run's folder, its SHA-256, and their number."""

    file: str
    sha256: str
    count: int


def installed_packages() -> list[str]:
    """List all installed distributions as ``name==version``; of two of one name the one that is imported."""
    versions: dict[str, str] = {}
    for metadata in (one.metadata for one in distributions()):  # each time that it is asked for it is read anew
        if name := str(metadata["Name"] or ""):
            versions.setdefault(name.lower().replace("_", "-"), metadata["Version"])
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def write_packages(folder: Path) -> PackageList:
    """Write the list into a folder, unless it is there; another list gets another name, ``environment-2.txt``."""
    lines = installed_packages()
    text = "".join(f"{line}\n" for line in lines).encode()
    number, path = 1, folder / f"{NAME}.txt"
    while path.exists() and path.read_bytes() != text:
        number += 1
        path = folder / f"{NAME}-{number}.txt"
    if not path.exists():
        write_atomic(path, text)
    return {"file": path.name, "sha256": hashlib.sha256(text).hexdigest(), "count": len(lines)}


def read_packages(path: Path) -> dict[str, str] | None:
    """Read such a list as name -> version; None: it is not there."""
    if not path.is_file():
        return None
    lines = path.read_text(errors="replace").splitlines()
    return {name: version for name, equals, version in (line.partition("==") for line in lines) if equals}


def machine() -> dict[str, Any]:
    """Describe this process's machine as far as numbers and their time may depend on it.

    ``hardware`` is the short description that result.json has under ``environment``, too. ``blas`` lists the
    libraries of linear algebra and of threads that this process has loaded; torch's own is linked into it, and stands
    in ``torch``.
    """
    import torch
    from threadpoolctl import threadpool_info

    pools = [
        {key: pool.get(key) for key in ("internal_api", "version", "architecture", "num_threads")}
        for pool in threadpool_info()
    ]
    return {
        "hardware": hardware(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [_gpu(number) for number in range(torch.cuda.device_count())],
        "blas": sorted(pools, key=str),
        "threads": {"torch": torch.get_num_threads(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "torch": {
            "version": str(torch.__version__),
            "git": torch.version.git_version,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "libraries": _libraries(torch.__config__.show()),
        },
    }


def _gpu(number: int) -> dict[str, Any]:
    import torch

    card = torch.cuda.get_device_properties(number)
    return {"name": card.name, "memory_bytes": card.total_memory, "capability": f"{card.major}.{card.minor}"}


def _libraries(shown: str) -> list[str]:
    """List the compiler and the numerical libraries that torch names of its build."""
    lines = [line.strip(" -") for line in shown.splitlines()]
    return [line for line in lines if line.startswith(("GCC", "Intel", "OpenMP", "CUDA Runtime", "CuDNN", "Magma"))]


class Revision(TypedDict):
    """Commit of a repository; dirty: tracked files differ from it, or there are Python files that it does not know."""

    commit: str
    dirty: bool


@cache
def revision(file: Path) -> Revision | None:
    """Return the revision of the repository that a file belongs to; a process looks once.

    Args:
        file: a file.

    Returns:
        The revision; None: the file is in no repository or is ignored there, as an installed package is; the
        repository has no commit; or git is not installed or refuses.
    """
    file = file.resolve()
    if not file.exists() or _git(file.parent, "check-ignore", "--quiet", file.name) is not None:
        return None
    commit = _git(file.parent, "rev-parse", "HEAD")
    root = _git(file.parent, "rev-parse", "--show-toplevel")
    if not commit or not root:
        return None
    status = _git(Path(root), "status", "--porcelain", "--untracked-files=all")
    if status is None:
        return None
    changed = [line for line in status.splitlines() if not line.startswith("??") or line.rstrip('"').endswith(".py")]
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *text: str) -> str | None:
    """Run git in a folder, without the programs that a repository's settings name; None: it failed."""
    # A hook's environment names another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *text]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip("\n") if done.returncode == 0 else None


def describe_session(folder: Path, outside: Sequence[OutsideCode]) -> dict[str, Any]:
    """Describe the session that begins now, and write the list of packages into the folder.

    Args:
        folder: the folder of the results.
        outside: the code of plug-ins from outside.
    """
    return {
        "command": shown(sys.orig_argv),
        "folder": str(Path.cwd()),
        "started_at": now(),
        "ended_at": None,
        "code": code_hash(),
        "lock": requirements_hash(),
        "git": revision(Path(flfw.__file__)),
        "external_plugins": list(outside),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": write_packages(folder),
        "machine": machine(),
    }


def shown(words: Sequence[str]) -> str:
    """Format a command as for a shell, without the values of flags of secrets, as Flower's own processes have.

    >>> shown(["python", "sim.py", "--out", "my runs"])
    "python sim.py --out 'my runs'"
    >>> shown(["flwr-serverapp", "--token", "d41d", "--plugin-key=x"])
    'flwr-serverapp --token HIDDEN --plugin-key=HIDDEN'
    """
    kept: list[str] = []
    secret = False
    for word in words:
        flag, equals, _ = word.partition("=")
        named = bool(_SECRET.search(flag)) and flag.startswith("-")
        kept.append(
            _HIDDEN if secret and not word.startswith("-") else f"{flag}={_HIDDEN}" if named and equals else word
        )
        secret = named and not equals
    return shlex.join(kept)


def now() -> str:
    """Return date, time and zone as ISO 8601 has them, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def begin(folder: Path, outside: Sequence[OutsideCode]) -> None:
    """Add the entry of a session to a run's; its lock is held.

    Args:
        folder: folder of the run.
        outside: the code of plug-ins from outside.

    Raises:
        InputError: the file of earlier entries is damaged.
    """
    rounds = [int(stem.removeprefix(_ROUND)) for stem, _ in sealed(folder / "checkpoint", f"{_ROUND}*")]
    _write(folder, [*_read(folder), {"after_round": max(rounds, default=None), **describe_session(folder, outside)}])


def end(folder: Path) -> list[dict[str, Any]]:
    """Note that the present session ends; return the entries of all. None began: there are none."""
    entries = _read(folder)
    if entries:
        entries[-1]["ended_at"] = now()
        _write(folder, entries)
    return entries


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / "checkpoint" / _FILE
    return read_model(path, list[SessionFields], "restore it") if path.exists() else []


def _write(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    write_atomic(folder / "checkpoint" / _FILE, json.dumps(entries, indent=1).encode(), 0o600)
