"""Stand-ins for packages that a machine lacks: their names can be imported, but not used.

Much of the project computes with PyTorch and NumPy alone, in files that also name Flower's classes or read safetensors.
With stand-ins these files can be imported. What uses such a name raises `ModuleNotFoundError`, as its import would.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, final

_APPS = ("ClientApp", "ServerApp")  # made at import, to register functions
DECLARING = ("annotated_types", "pydantic", "pydantic_core")
"""Those by whose functions files declare records at their top: calls give a blank, which nothing can be done with."""
PACKAGES = ("PIL", "flwr", "jinja2", "markupsafe", "pandas", "rich", "safetensors", *DECLARING)
"""What files of the training, the attacks and the papers import at their top, beside PyTorch and NumPy."""


def is_absent(package: str) -> bool:
    """Return whether a package is not installed; a stand-in is none."""
    return PathFinder.find_spec(package) is None


def stand_in() -> None:
    """Provide stand-ins for those of `PACKAGES` that are not installed."""
    lacking = [package for package in PACKAGES if is_absent(package)]
    if lacking and not any(isinstance(finder, _StandIns) for finder in sys.meta_path):
        sys.meta_path.append(_StandIns(lacking))


@final
class _StandIns(MetaPathFinder, Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        known = fullname.partition(".")[0] in self._packages
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda name: _blank(module.__name__, name)


def _blank(module: str, name: str) -> type:
    """Return a class that can be a base or an annotation, and refuses to be called."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refused(cls: type, *given: Any, **named: Any) -> Any:
        if cls.__module__ != module:  # a class of ours below it
            return object.__new__(cls)
        package = module.partition(".")[0]
        if package in DECLARING or name in _APPS:
            return object.__new__(cls)
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    # Decorators of methods, and an app's of functions, leave these as they are.
    body = {"__module__": module, "__new__": refused, "__init__": _ignore, "__call__": lambda _, it: it}
    registering = {"__getattr__": lambda _, kind: lambda *given, **named: lambda it: it}
    return type(name, (), body | registering if name in _APPS else body)


def _ignore(self: object, *given: Any, **named: Any) -> None:
    """Take any arguments."""
