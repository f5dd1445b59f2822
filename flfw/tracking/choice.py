"""Choice of trackers by name, and refusal of those that cannot work on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from flfw.plugins import PluginKind, load_class
from flfw.tracking.tracker import Tracker

TRACKER = PluginKind("tracker", "flfw.tracking.writers")


def chosen(names: Sequence[str]) -> dict[str, type[Tracker]]:
    """Find the classes of trackers by their names.

    Raises:
        InputError: there is no such tracker.
    """
    return {name: load_class(TRACKER, name, Tracker) for name in names}


def check(names: Sequence[str]) -> None:
    """Refuse trackers that do not exist, lack a package, or say themselves that they cannot work.

    Raises:
        InputError: names what is missing, and the way out.
    """
    for name, cls in chosen(names).items():
        cls.check(name)
