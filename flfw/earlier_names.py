"""Names of earlier versions: where somebody's own code has one, the refusal names the one of today.

An import of an earlier name ends in one line, and so does a class with a hook of an earlier name. The tables hold what
the pages on extending, recording and Python documented; other names may change without a word. `flfw` puts the finder
in front of Python's own.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, final

MODULES: Mapping[str, str] = MappingProxyType(
    {
        "flfw.audit.attack_server": "flfw.audit.attack_process",
        "flfw.client.descent": "flfw.client.local_trainer",
        "flfw.client.workplace": "flfw.client.context",
        "flfw.data.splits.cut": "flfw.data.splits.split_indices",
        "flfw.inversion.descent": "flfw.inversion.search_optimisers",
        "flfw.server.place": "flfw.server.context",
    }
)
"""Module of today of each documented module that has another name."""

NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "flfw.adversary.attack": {"Budget": "AttackCost", "NotApplicable": "NotApplicableError"},
        "flfw.audit.measures.public": {"Public": "PublicData"},
        "flfw.client.context": {"Workplace": "ClientContext"},
        "flfw.data.files.dataset": {"Arrays": "DatasetArrays"},
        "flfw.data.splits.split_indices": {"Cut": "SplitIndices"},
        "flfw.errors": {"BadInput": "InputError", "RunFailed": "RunError"},
        "flfw.inversion.automatic": {"Automatic": "DifferentiableDefence"},
        "flfw.inversion.search": {"Recipe": "SearchConfig", "Target": "SearchTarget"},
        "flfw.inversion.search_optimisers": {"AdamDescent": "AdamSearch"},
        "flfw.messages.replies": {"Unusable": "UnusableReplyError"},
        "flfw.nets.inputs": {"Inputs": "InputSpec"},
        "flfw.papers.preset": {"Figure": "ResultMetric"},
        "flfw.server.context": {"ServerPlace": "ServerContext"},
        "flfw.training.optimisers": {"LastingTraining": "PersistentTraining"},
    }
)
"""Name of today of each documented name, by module."""


@final
class _Refusing(SourceFileLoader):
    """Loader of a module with `NAMES`: an earlier name that is asked of it is refused with the one of today."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        of_today, inner = NAMES[module.__name__], getattr(module, "__getattr__", None)

        def get(name: str) -> Any:
            if name in of_today:
                raise ImportError(refusal(f"{module.__name__}.{of_today[name]}", name), name=module.__name__)
            if inner is not None:
                return inner(name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = get


@final
class EarlierNames(MetaPathFinder):
    """Finder of modules that answers for those in `MODULES` and `NAMES` alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module some of whose names are earlier ones.

        Raises:
            ModuleNotFoundError: the module has another name today.
        """
        if fullname in MODULES:
            raise ModuleNotFoundError(refusal(MODULES[fullname], fullname), name=fullname)
        if fullname not in NAMES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Refusing(fullname, spec.origin)
        return spec


def refusal(of_today: str, earlier: str) -> str:
    """Return the line that refuses an earlier name."""
    return f"Expected {of_today}, got its earlier name {earlier.rpartition('.')[2]}; rename it"


class EarlierHooks(ABC):
    """Base of what others write: an attribute under an earlier name is refused with the one of today.

    A class that defines one is refused when it is made, and so when its module is imported. One that is only read is
    refused when it is read.
    """

    EARLIER_HOOKS: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for earlier, of_today in cls.EARLIER_HOOKS.items():
            if earlier in vars(cls):
                raise TypeError(refusal(f"{cls.__name__}.{of_today}", earlier))

    if not TYPE_CHECKING:  # a type checker would take every attribute for known

        def __getattr__(self, name: str) -> Any:
            if name in self.EARLIER_HOOKS:
                raise AttributeError(refusal(f"{type(self).__name__}.{self.EARLIER_HOOKS[name]}", name))
            return object.__getattribute__(self, name)  # the error of Python, or of a property
