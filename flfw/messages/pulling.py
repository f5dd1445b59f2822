"""Waiting time of Flower for the parts of a message, which arrive shortly after its envelope.

Flower asks again after 1 s, then 2 s, then 4 s: a round of a few seconds spends most of its time on these waits.
"""

from functools import partial
from types import ModuleType

_PACE = {"initial_backoff": 0.1, "backoff_cap": 2.0}  # seconds, doubled after each try
_PULLS = ("pull_objects", "pull_and_inflate_object_from_tree")


def ask_again_soon(module: ModuleType) -> None:
    """Set shorter waits in one of Flower's modules, if it pulls messages; the number of tries does not change."""
    for name in _PULLS:
        if hasattr(module, name):
            setattr(module, name, partial(getattr(module, name), **_PACE))
