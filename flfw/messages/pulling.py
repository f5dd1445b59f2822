"""Flower's wait for parts of a message that have not arrived yet and come within a moment of its envelope.

Flower asks again after 1 s, then 2 s, then 4 s: in a round of few seconds most of the time goes into that.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

_PACE = {"initial_backoff": 0.1, "backoff_cap": 2.0}  # seconds, doubled from try to try
_PULLS = ("pull_objects", "pull_and_inflate_object_from_tree")


def ask_again_soon(module: ModuleType) -> None:
    """Have one of Flower's modules ask again sooner, if it is one that asks; its tries, and their end, stay its own."""
    for name in _PULLS:
        if hasattr(module, name):
            setattr(module, name, partial(getattr(module, name), **_PACE))
