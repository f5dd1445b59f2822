"""A laboratory for privacy in federated learning on Flower.

    from flfw import Experiment, run

    result = run(Experiment(method="fedavg", attack=("ig",)))

Nothing is imported here before a name is asked for: a client process pays for every import of every package it touches.
docs/python.md explains the names.
"""

import sys
from importlib import import_module
from pathlib import Path as _Path
from types import ModuleType
from typing import Any

from flfw.files.earlier_names import EarlierNames, refusal

__version__ = "0.1.0"

# The folders of plug-ins lie beside this one in a checkout, with symbolic links to them here. `flwr run` takes an app
# without its links.
if not _Path(__file__).with_name("strategies").exists():
    __path__.append(str(_Path(__file__).parent.parent))

if not any(isinstance(finder, EarlierNames) for finder in sys.meta_path):
    sys.meta_path.insert(0, EarlierNames())

_INTERFACE = {
    **dict.fromkeys(("InputError", "RunError"), "flfw.errors"),
    "Experiment": "flfw.experiment",
    **dict.fromkeys(("TableResult", "reproduce_table"), "flfw.command.api.tables"),
    "load_model": "flfw.command.api",
    **dict.fromkeys(
        ("MatrixResult", "RehearsalResult", "Result", "estimate", "resume", "run", "run_matrix", "run_rehearsal"),
        "flfw.command.api",
    ),
}
"""Module of each name of the interface; ``audit`` is a package, which can be called."""

_EARLIER = {"BadInput": "InputError", "RunFailed": "RunError"}

__all__ = ["__version__", "audit", *_INTERFACE]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is asked for first."""
    if name in _EARLIER:
        raise ImportError(refusal(f"flfw.{_EARLIER[name]}", name), name=__name__)
    if name not in _INTERFACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_INTERFACE[name]), name)
    return value


def __dir__() -> list[str]:
    """List the names of the interface beside those that are imported."""
    return sorted({*globals(), *__all__})


class CallablePackage(ModuleType):
    """Package that can be called, because a function of the interface has the package's name."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call the function of `flfw.command.api` with the package's name."""
        return getattr(import_module("flfw.command.api"), self.__name__.rpartition(".")[2])(*given, **named)
