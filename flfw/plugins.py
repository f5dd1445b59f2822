"""Search for plug-ins (methods, defences, attacks): by file name, or as ``package.module:Class`` for foreign code.

There is no registry. A plug-in is the only concrete class of its kind that its file defines.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from flfw.errors import InputError, require, unknown

T = TypeVar("T")
Scalar = bool | int | float | str
_NAME = re.compile(r"[\w.]+:\w+")


def imported(name: str, noun: str) -> Any:
    """Import a module and return its object of a name.

    Args:
        name: ``package.module:name``.
        noun: word for the object in messages, such as ``method``.

    Returns:
        The object; None: the module has nothing under this name.

    Raises:
        InputError: the name has another form, there is no such module, its import fails, or it is a program.
    """
    if not _NAME.fullmatch(name):  # a policy, which allows names of this form, could read another one otherwise
        raise InputError(f"Expected package.module:name, got {noun}={name}.")
    module_name, _, inside = name.partition(":")
    if "__main__" in module_name.split("."):  # its import would run it, with this program's arguments
        raise InputError(f"Expected an importable module for {noun}={name}, got a program.")
    try:
        module = importlib.import_module(module_name)
    except SystemExit as error:  # a program, not a module
        raise InputError(f"Expected an importable module for {noun}={name}, got a program that ended.") from error
    except Exception as error:  # somebody's own code, which may raise anything
        why = str(error) or type(error).__name__
        why += "; install it, or put its folder on PYTHONPATH" * isinstance(error, ModuleNotFoundError)
        raise InputError(f"Expected an importable module for {noun}={name}, got: {why}.") from error
    return getattr(module, inside, None)


@dataclass(frozen=True)
class PluginKind:
    """Kind of plug-in: its noun for messages, and the package whose files come with the project."""

    noun: str
    package: str

    @property
    def article(self) -> str:
        """Indefinite article of the noun: ``a`` or ``an``."""
        return "an" if self.noun[0] in "aeiou" else "a"


METHOD = PluginKind("method", "flfw.strategies")
CLIENT = PluginKind("client", "flfw.clients")
DEFENCE = PluginKind("defence", "flfw.clients.defences")
ATTACK = PluginKind("attack", "flfw.attacks")
ADAPTATION = PluginKind("adaptation", "flfw.attacks.adaptations")


def short_name(plugin: str) -> str:
    """Return the name of a plug-in in ``--set``: its file's, or its class's for ``package.module:Class``."""
    return plugin.rpartition(":")[2]


@cache
def names(kind: PluginKind) -> tuple[str, ...]:
    """List the plug-ins of a kind that come with the project, without importing any of them."""
    folder = importlib.import_module(kind.package).__path__[0]
    return tuple(sorted(m.name for m in pkgutil.iter_modules([folder]) if not m.ispkg))


def load_class(kind: PluginKind, name: str, base: type[T]) -> type[T]:
    """Find and import the class of a plug-in.

    Args:
        kind: kind of the plug-in.
        name: a file stem of the kind's package, or ``package.module:Class``.
        base: class from which the plug-in must derive.

    Raises:
        InputError: there is no such file, module or class; the message says which names there are.
    """
    if ":" in name:
        return _foreign(kind, name, base)
    require_known(kind, name)
    module = importlib.import_module(f"{kind.package}.{name}")
    classes = defined_in(module, base)
    if len(classes) != 1:
        raise InputError(
            f"Expected one concrete {base.__name__} in {module.__name__}, got {[c.__name__ for c in classes]}."
        )
    return classes[0]


def defined_in(module: ModuleType, base: type[T]) -> list[type[T]]:
    """List the concrete classes of a kind that a module itself defines."""
    return [c for c in vars(module).values() if _is_concrete(c, base) and c.__module__ == module.__name__]


def require_known(kind: PluginKind, name: str) -> None:
    """Refuse a name that no file of the kind's package has, without importing any of them.

    Raises:
        InputError: names the known ones, and the one that it resembles.
    """
    known = names(kind)
    if name not in known:
        among = f"{kind.article} {kind.noun} among {', '.join(known) or 'none yet'}, or package.module:Class"
        raise unknown(among, f"{kind.noun}={name}", name, known)


def _foreign(kind: PluginKind, name: str, base: type[T]) -> type[T]:
    candidate = imported(name, kind.noun)
    if not _is_concrete(candidate, base):
        missing = ", ".join(sorted(getattr(candidate, "__abstractmethods__", ())))
        found = repr(candidate) + f", without {missing}" * bool(missing)
        found = "no such name in the module" if candidate is None else found
        raise InputError(f"Expected {kind.noun}={name} to be a concrete {base.__name__}, got {found}.")
    return candidate


def _is_concrete(candidate: object, base: type) -> bool:
    if not inspect.isclass(candidate) or candidate is base:
        return False
    return issubclass(candidate, base) and not inspect.isabstract(candidate)


@dataclass(frozen=True)
class NoSettings:
    """Hyper-parameters of a plug-in that has none."""


S = TypeVar("S")


def build_settings(
    cls: type[S],
    plugin: str,
    assignments: Sequence[str],
    *,
    bare: bool = False,
    of_another: frozenset[str] = frozenset(),
) -> S:
    """Build a plug-in's frozen dataclass of hyper-parameters, with the values from ``--set``.

    Args:
        cls: the dataclass.
        plugin: its name; assignments read ``plugin.field=value``.
        assignments: all values of ``--set``; those of other plug-ins are ignored.
        bare: whether ``field=value`` without a plug-in's name also counts (for the method).
        of_another: fields of another plug-in of the same name; they are ignored unless this one has them too.

    Raises:
        InputError: there is no such field, a value is of another type, or the class is no frozen dataclass: the clients
            of a process share its one object.
    """
    form = getattr(cls, "__dataclass_params__", None)
    if form is None or not form.frozen:
        raise InputError(f"Expected the settings of {plugin} in a frozen dataclass, got {cls.__name__}.")
    values: dict[str, Any] = {}
    hints = {name: kind for name, kind in get_type_hints(cls).items() if get_origin(kind) is not ClassVar}
    for target, text in map(split_assignment, assignments):
        prefix, _, name = target.rpartition(".")
        if not (prefix == plugin or (bare and not prefix)):
            continue
        if name not in hints and prefix and name in of_another:
            continue
        if name not in hints:
            raise unknown_field(plugin, hints, target)
        values[name] = converted(text, hints[name], target)
    return cls(**values)


def unknown_field(plugin: str, known: Collection[str], target: str) -> InputError:
    """Return the error for ``--set`` with a field that a plug-in does not have."""
    among = f"a field of {plugin} among {', '.join(known) or 'none'}"
    return unknown(among, target, target.rpartition(".")[2], known)


@lru_cache(maxsize=256)  # each message of a run needs them
def split_assignment(assignment: str) -> tuple[str, str]:
    """Split ``"prune.ratio=0.9"`` into ``("prune.ratio", "0.9")``."""
    target, equals, text = assignment.partition("=")
    if not (target and equals):
        raise InputError(f"Expected --set FIELD=VALUE, got {assignment!r}.")
    return target, text


def converted(text: str, kind: Any, target: str) -> Scalar:
    """Return the value of an assignment as the type of its field.

    Raises:
        InputError: it has another type.
    """
    if get_origin(kind) is Literal:
        require(text in get_args(kind), f"{target} among {', '.join(get_args(kind))}", **{target: text})
        return text
    if kind is bool:
        require(text in ("true", "false"), f"{target}=true or false", **{target: text})
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"Expected {kind.__name__} for {target}, got {target}={text}.") from None
