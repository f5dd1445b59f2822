"""Groups needed: the smallest sum over clients from which on an attack reaches nothing, along one curve."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flfw.audit.verdicts.evidence import MESSAGES
from flfw.curves import GROUP

_REACHED = {"nothing": False, "group": False, "faint": True}
"""Causes of verdicts on membership that say whether a statistic found anything; all others but a leak leave it open."""


def min_safe_sum_size(reached: Mapping[int, bool | None]) -> int | None:
    """Return the smallest measured group from which on an attack reaches nothing; None: it did not fall to that.

    An attack that reaches nothing in the smallest group either was not stopped by sums: then no number is needed.

    Args:
        reached: whether the attack recovered or identified anything, by the size of the group; None: it gave no answer.

    >>> min_safe_sum_size({1: True, 2: True, 5: False, 10: False}), min_safe_sum_size({1: False, 2: False})
    (5, None)
    >>> min_safe_sum_size({1: True, 2: None, 5: None}), min_safe_sum_size({1: True, 2: None, 5: False})
    (None, 5)
    """
    last = max((size for size, leaked in reached.items() if leaked), default=None)
    return (
        None
        if last is None
        else min((size for size in reached if size > last and reached[size] is False), default=None)
    )


def with_groups_needed(entries: Sequence[dict[str, Any]], positive: Collection[str]) -> list[dict[str, Any]]:
    """Return an audit's entries, those of sums with the smallest group from which on their attack reaches nothing.

    An attack that could look through the clients' operations in a sum over one client, and not in a larger one, is the
    same attack on one curve: ``adaptive`` may differ between them.

    Args:
        entries: the entries.
        positive: the verdicts of an attack that reached something.
    """
    kinds = ("attack", "vantage", "adaptation", "defence", "round", "steps")
    on_curve = lambda one: one["sum_size"] and one["curve"] in (None, GROUP)  # noqa: E731
    at = lambda one: tuple(one[name] for name in kinds)  # noqa: E731
    reached: dict[tuple[Any, ...], dict[int, bool | None]] = {}
    for one in entries:
        if on_curve(one):
            reached.setdefault(at(one), {})[one["sum_size"]] = _reached(one, positive)
    needed = {kind: min_safe_sum_size(sizes) for kind, sizes in reached.items()}
    return [one | {"min_safe_sum_size": needed[at(one)] if on_curve(one) else None} for one in entries]


def _reached(one: Mapping[str, Any], positive: Collection[str]) -> bool | None:
    """Return whether an entry's attack reached something; None: it broke, saw too few sums, or luck may explain it."""
    if one["cause"] == "peer":
        return False
    if one["verdict"] in positive:
        return True
    broke = one["failure_reason"] and not one["failure_reason"].startswith("not applicable")
    unknown = broke or one["verdict"] == "attack broken" or one["cause"] == "chance" or one["messages"] < MESSAGES
    return None if unknown else False


def memberships_with_groups_needed(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of membership, those of sums with the smallest group from which on nothing is found.

    A size counts only if its controls passed and its pairs were enough to find something: then nothing was found, or it
    is only the size of the group that rules out to call it protection.

    Args:
        items: ``membership`` of result.json.
    """
    at = lambda one: (one["attack"], one["statistic"], one["defence"], one["adaptive"], tuple(one["rounds"]))  # noqa: E731
    reached: dict[tuple[Any, ...], dict[int, bool | None]] = {}
    for one in items:
        if one["sum_size"]:
            reached.setdefault(at(one), {})[one["sum_size"]] = _REACHED.get(
                one["cause"], one["verdict"] == "leaks" or None
            )
    needed = {kind: min_safe_sum_size(sizes) for kind, sizes in reached.items()}
    return [one | {"min_safe_sum_size": needed[at(one)] if one["sum_size"] else None} for one in items]
