"""Answers of an app, as they lie in a SuperNode before they are sent."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import (
    get_object_children_ids_from_object_content,
    iterate_object_tree,
)

_POLL_S = 0.1
_LOOKS = ("get_messages", "get_messages_legacy")  # the latter on Flower 1.40 and later


@final
class WatchedState:
    """State of a SuperNode; when it has no answers to return, it first answers for processes that died.

    Args:
        state: the state.
        deaths: returns the tasks whose processes have died since the last call.
        bury: answers for such tasks; it is called only if none of them has left an answer.
    """

    def __init__(self, state: Any, deaths: Callable[[], Sequence[int]], bury: Callable[[Sequence[int]], None]) -> None:
        self._state, self._deaths, self._bury = state, deaths, bury

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._state, name)
        return partial(self._looked_for, attribute) if name in _LOOKS else attribute

    def _looked_for(self, look: Callable[..., Sequence[Message]], **which: Any) -> Sequence[Message]:
        if not (messages := look(**which)):
            dead = self._deaths()
            if not (messages := look(**which)) and dead:  # what a process left before it died is there by now
                self._bury(dead)
                messages = look(**which)
        return messages


def parts(tree: Any, store: Any, until: float) -> dict[str, bytes]:
    """Return the parts of an answer by the hash of their bytes; checks hashes and the tree.

    Args:
        tree: tree of their names.
        store: store of the parts; the app's process may still be writing to it.
        until: end of the waiting time for the parts, in seconds since the epoch.

    Raises:
        ValueError: the parts do not match the tree.
    """
    contents: dict[str, bytes] = {}
    for part in iterate_object_tree(tree):
        while (content := store.get(part.object_id)) == b"" and time.time() < until:
            time.sleep(_POLL_S)
        if not content or hashlib.sha256(content).hexdigest() != part.object_id:
            raise ValueError("a part that is not what it is called")
        if get_object_children_ids_from_object_content(content) != [child.object_id for child in part.children]:
            raise ValueError("a part that is not where it belongs")
        contents[part.object_id] = content
    return contents
