"""Names of networks and fields of plug-ins, read from their source files without importing them.

An import of a method or a network takes seconds, as PyTorch comes with it; a slip of the keyboard is answered before.
What cannot be read off a source file is None here, and is checked after the import, as everything is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import flfw
from flfw.plugins import PluginKind

_ROOT = Path(flfw.__file__).parent.parent
_SCALARS = {"int": int, "float": float, "bool": bool, "str": str}

Fields: TypeAlias = dict[str, str]
"""Annotations of a record's fields, by name."""


def networks() -> tuple[str, ...]:
    """Return the names of the networks, in the order of `flfw.nets.names`."""
    built = [key for node in _assigned("flfw.nets", "_CARDS") for key in _keys(node)]
    return (*built, *sorted(pretrained()))


def pretrained() -> tuple[str, ...]:
    """Return the names of the networks with a file of weights."""
    calls = [node for node in ast.walk(_tree("flfw.nets.backbones.architectures")) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Architecture"]
    return tuple(word.value.value for call in made for word in call.keywords if word.arg == "name")  # type: ignore[attr-defined]


def fields(kind: PluginKind, name: str) -> Fields | None:
    """Return the hyper-parameters of one of the project's own plug-ins; None: its file does not tell."""
    module = f"{kind.package}.{name}"
    records = {
        place for node in _tree(module).body if isinstance(node, ast.ClassDef) and (place := _settings(module, node))
    }
    return _fields(*records.pop()) if len(records) == 1 else None


def type_of(annotation: str) -> Any:
    """Return the type that an annotation names, a scalar or a ``Literal`` of words; None: it is another."""
    node = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.Name):
        return _SCALARS.get(node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return Literal[ast.literal_eval(node.slice)]
    return None


def _settings(module: str, node: ast.ClassDef) -> tuple[str, str] | None:
    """Return module and name of the class that a plug-in's class, or one that it derives from, has as ``Settings``."""
    for line in node.body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
        named = any(isinstance(target, ast.Name) and target.id == "Settings" for target in targets)
        if named and isinstance(line, ast.Assign | ast.AnnAssign) and line.value:
            return _located(module, line.value)
    for place in _bases(module, node):
        if (parent := _class(*place)) and (settings := _settings(place[0], parent)):
            return settings
    return None


def _fields(module: str, name: str) -> Fields | None:
    """Return the fields of a dataclass with those that it inherits; None: a class that it derives from is unknown."""
    node, known = _class(module, name), {}
    if node is None:
        return None
    for place in reversed(list(_bases(module, node))):
        inherited = _fields(*place)
        if inherited is None:
            return None
        known |= inherited
    lines = [line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
    mine = {line.target.id: ast.unparse(line.annotation) for line in lines if isinstance(line.target, ast.Name)}
    return known | {field: kind for field, kind in mine.items() if not kind.startswith("ClassVar")}


def _bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield module and name of each class that a class derives from, if it is the project's own."""
    for base in node.bases:
        bare = base.value if isinstance(base, ast.Subscript) else base
        place = _located(module, bare)
        if place is not None:
            yield place


def _located(module: str, node: ast.expr) -> tuple[str, str] | None:
    """Return module and name of the class that a name in a module stands for; None: it is not the project's own."""
    if not isinstance(node, ast.Name):
        return None
    for line in _tree(module).body:
        if isinstance(line, ast.ClassDef) and line.name == node.id:
            return module, node.id
        if isinstance(line, ast.ImportFrom) and line.module and not line.level:
            for alias in line.names:
                if (alias.asname or alias.name) == node.id and _file(line.module):
                    return _located(line.module, ast.Name(alias.name)) or (line.module, alias.name)
    return None


def _class(module: str, name: str) -> ast.ClassDef | None:
    return next((n for n in _tree(module).body if isinstance(n, ast.ClassDef) and n.name == name), None)


def _assigned(module: str, name: str) -> Iterator[ast.expr]:
    for line in _tree(module).body:
        if isinstance(line, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in line.targets):
            yield line.value


def _keys(node: ast.expr) -> list[str]:
    """Return the keys of the dictionaries in an expression that are written down as words."""
    dictionaries = [one for one in ast.walk(node) if isinstance(one, ast.Dict)]
    return [str(key.value) for one in dictionaries for key in one.keys if isinstance(key, ast.Constant)]


def _file(module: str) -> Path | None:
    place = _ROOT.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    return ast.parse(file.read_text(encoding="utf-8")) if file else ast.Module([], [])
