"""Finds a method, a defence or an attack: by the name of its file, or anybody's own as ``package.module:Class``.

There is no registry. A plug-in is the one concrete class of its kind that its file defines.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import flfw
from flfw.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """One kind of plug-in: what it is called, and the package whose files are the ones that come with the project."""

    noun: str
    package: str

    @property
    def article(self) -> str:
        """``a`` or ``an``."""
        return "an" if self.noun[0] in "aeiou" else "a"


METHOD = Kind("method", "strategies")
CLIENT = Kind("client", "clients")
DEFENCE = Kind("defence", "clients.defences")
ATTACK = Kind("attack", "attacks")
ADAPTATION = Kind("adaptation", "attacks.adaptations")


def names(kind: Kind) -> tuple[str, ...]:
    """The plug-ins of a kind that come with the project, without importing any of them."""
    folder = _home(kind.package)
    return tuple(sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.ispkg))


def find(kind: Kind, name: str, base: type[T]) -> type[T]:
    """The plug-in's class.

    Args:
        kind: what is looked for.
        name: a file stem of the kind's package, or ``package.module:Class``.
        base: what the class must derive from.

    Raises:
        BadInput: there is no such file, module or class; the message says which names there are.
    """
    if ":" in name:
        return _foreign(kind, name, base)
    if name not in names(kind):
        known = ", ".join(names(kind)) or "none yet"
        raise BadInput(
            f"Expected {kind.article} {kind.noun} among {known}, or package.module:Class; got {kind.noun}={name}."
        )
    module = _import(f"{kind.package}.{name}", kind)
    found = [c for c in vars(module).values() if _is_concrete(c, base) and c.__module__ == module.__name__]
    if len(found) != 1:
        raise BadInput(
            f"Expected one concrete {base.__name__} in {module.__name__}, got {[c.__name__ for c in found]}."
        )
    return found[0]


def _foreign(kind: Kind, name: str, base: type[T]) -> type[T]:
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError, TypeError, ValueError) as error:  # the last two: an empty or a relative name
        raise BadInput(f"Expected an importable module for {kind.noun}={name}, got: {error}.") from error
    found: Any = getattr(module, class_name, None)
    if not _is_concrete(found, base):
        raise BadInput(f"Expected {kind.noun}={name} to be a concrete {base.__name__}, got {found!r}.")
    return found


def _is_concrete(candidate: object, base: type) -> bool:
    if not inspect.isclass(candidate) or candidate is base:
        return False
    return issubclass(candidate, base) and not inspect.isabstract(candidate)


def _home(package: str) -> Path:
    return Path(flfw.__file__).parent.parent.joinpath(*package.split("."))


def _import(module: str, kind: Kind) -> ModuleType:
    """Import one of the project's own files, and make sure that it is: another package may bear the same name."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    found = [Path(place) for place in (spec.submodule_search_locations if spec else None) or []]
    if _home(top) not in found:
        raise BadInput(
            f"Expected package {top} in {_home(top)}, got {', '.join(map(str, found)) or 'none'}: another package of "
            "that name comes first on the path; run from another folder or rename it."
        )
    return importlib.import_module(module)
