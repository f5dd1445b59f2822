"""Code of plug-ins from outside, ``package.module:Class``: their files, with sums, and their repositories."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

from flfw import data
from flfw.plan import RunPlan
from flfw.provenance.revision import Revision, revision

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
    paths = {file, *_with_imports(module, file, root)}
    sums = {str(path.relative_to(root)): _sum(path) for path in sorted(paths)}
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
    place = root.joinpath(*module.split("."))
    candidates = [place.with_name(f"{place.name}.py"), *([place / "__init__.py"] if packages else [])]
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
