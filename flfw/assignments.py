"""Hyper-parameters as ``--set`` writes them: FIELD=VALUE, or PLUGIN.FIELD=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from flfw.errors import BadInput
from flfw.experiment import Scalar, require

S = TypeVar("S")


def settings(
    cls: type[S],
    plugin: str,
    assignments: Sequence[str],
    *,
    bare: bool = False,
    of_another: frozenset[str] = frozenset(),
) -> S:
    """A plug-in's frozen dataclass of hyper-parameters, with what ``--set`` changes.

    Args:
        cls: the dataclass.
        plugin: its name; assignments read ``plugin.field=value``.
        assignments: all that stood behind ``--set``; those of other plug-ins are passed over.
        bare: whether ``field=value`` without a plug-in's name is meant too (the method's).
        of_another: fields of another plug-in of the same name; where they are not this one's too, they are passed over.
    """
    values: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for target, text in map(split_assignment, assignments):
        prefix, _, name = target.rpartition(".")
        if not (prefix == plugin or (bare and not prefix)):
            continue
        if name not in hints and prefix and name in of_another:
            continue
        if name not in hints:
            known = ", ".join(hints) or "none"
            raise BadInput(f"Expected a field of {plugin} among {known}; got {target}.")
        values[name] = _convert(text, hints[name], target)
    return cls(**values)


def split_assignment(assignment: str) -> tuple[str, str]:
    """``"prune.ratio=0.9"`` as ``("prune.ratio", "0.9")``."""
    target, equals, text = assignment.partition("=")
    if not (target and equals):
        raise BadInput(f"Expected --set FIELD=VALUE, got {assignment!r}.")
    return target, text


def _convert(text: str, kind: Any, target: str) -> Scalar:
    if get_origin(kind) is Literal:
        require(text in get_args(kind), f"{target} among {', '.join(get_args(kind))}", **{target: text})
        return text
    if kind is bool:
        require(text in ("true", "false"), f"{target}=true or false", **{target: text})
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        raise BadInput(f"Expected {kind.__name__} for {target}, got {target}={text}.") from None
