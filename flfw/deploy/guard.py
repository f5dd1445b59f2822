"""A site's launcher: Flower's SuperNode, in which the site's policy stands between every app and the network.

    python -m flfw.deploy.guard policy.toml -- <arguments of flower-supernode>

What the app is allowed is decided in this process, from code that the site installed, before the app's own process is
started and again before anything it answered leaves. An app cannot change that from within its bundle. It does run as
the same user of the machine, though: an accepted app can do what that user can, so `apps` is the rule that matters
most, and a container is the way to run what is not trusted at all.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, final

from flwr.app import Error, Message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_children_ids_from_object_content,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from flfw.deploy import executor
from flfw.deploy.policy import Policy
from flfw.errors import DIED, BadInput
from flfw.messages.pulling import ask_again_soon

_POLL_S = 0.1
_NEXT_S = 0.25  # how often a lively site looks for a message, where Flower's own does so every 3 s
_CONNECTIONS = ("flwr.client.", "flwr.supernode.")  # before Flower 1.40, and since
_LOOKS = ("get_messages", "get_messages_legacy")  # the latter on Flower 1.40 and later
_BEAT, _BEAT_S = "HEARTBEAT_DEFAULT_INTERVAL", 15  # Flower's own are 30 s; two that are missed make a site absent
_SHOWN = 200  # characters of what somebody else says


class _Refused(Exception):
    """The policy does not let an app run."""


@final
class Guard:
    """Stands in for two functions of Flower's SuperNode, which it calls with checked connections.

    Args:
        policy: the site's.
        pull: Flower's own way to take one message and the app it is for.
        push: Flower's own way to send the answers.
        lively: for how long after a message the next one is looked for often, in seconds.
        deaths: the tasks whose processes have died since it was last asked.
    """

    def __init__(
        self,
        policy: Policy,
        pull: Callable[..., int | None],
        push: Callable[..., None],
        *,
        lively: float = 60.0,
        deaths: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._policy, self._pull, self._push, self._lively, self._deaths = policy, pull, push, lively, deaths
        self._asked: Message | None = None  # Flower takes one at a time
        self._lively_until = -inf

    def pull(
        self,
        *,
        state: Any,
        object_store: Any,
        receive: Callable[[], Any],
        get_run: Callable[[int], Any],
        get_fab: Callable[[str, int], Any],
        **rest: Any,
    ) -> int | None:
        """Take a message; one for an app that is refused is answered with the reason, and the app never started."""
        taken: list[Message] = []

        def remembering() -> Any:
            if (got := receive()) is not None:
                taken.append(got[0])
                self._asked = got[0]
            return got

        def checked(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            if reason := self._policy.refuses_app(fab.content):  # before anything looks into it
                raise _Refused(reason)
            if hashlib.sha256(fab.content).hexdigest() != fab_hash:  # Flower would end this process
                raise _Refused("this site's policy accepts no app under another one's hash")
            try:
                config = get_fused_config_from_fab(fab.content, get_run(run_id))
            except Exception as error:  # whatever a server made up must not end this process
                raise _Refused(f"this site's policy accepts no app that cannot be read: {error}"[:_SHOWN]) from error
            if reason := self._policy.refuses_run(config):
                raise _Refused(reason)
            if config.get("record"):
                _say("the server records what this site sends in the run's audited rounds, as the policy allows")
            return fab

        more = {"receive": remembering, "get_run": get_run, "get_fab": checked, **rest}
        try:
            while (run_id := self._pull(state=state, object_store=object_store, **more)) is None:
                if time.monotonic() > self._lively_until:
                    return None
                time.sleep(_NEXT_S)
        except _Refused as refusal:
            _say(str(refusal))
            _insert(_refusal(str(refusal), taken[-1]), state, object_store)
            run_id = taken[-1].metadata.run_id
        self._lively_until = time.monotonic() + self._lively
        return run_id

    def push(self, *, state: Any, object_store: Any, send: Callable[..., Any], push_object: Callable[..., Any]) -> None:
        """Send answers; in place of one that is refused, or of none from a process that died, goes the reason."""
        checked = partial(self._send, object_store, send, push_object)
        watched = _Watched(state, lambda: self._bury(state, object_store))
        self._push(state=watched, object_store=object_store, send=checked, push_object=push_object)

    def _bury(self, state: Any, store: Any) -> None:
        """Answer for an app whose process died before it could."""
        for task in self._deaths():
            if self._asked and state.finish_task(task, SubStatus.FAILED, DIED):  # else it had answered
                _insert(_refusal(DIED, self._asked), state, store)

    def _send(
        self,
        store: Any,
        send: Callable[..., Any],
        push_object: Callable[..., Any],
        answer: Message,
        tree: Any,
        spent: Any,
    ) -> Any:
        asked = self._asked
        if asked is None or answer.metadata.reply_to_message_id != asked.metadata.message_id:
            raise RuntimeError("an answer to nothing that was asked stays here")
        if (reason := self._refuses(store, asked, answer, tree)) is None:
            return send(answer, tree, spent)
        _say(str(reason))
        refusal = _refusal(reason, asked)
        wanted, session = send(refusal, get_object_tree(refusal), spent)
        for object_id, part in get_all_nested_objects(refusal).items():
            if object_id in wanted:
                push_object(asked.metadata.run_id, session, object_id, part.deflate())
        return set(), session  # nothing else is to follow

    def _refuses(self, store: Any, asked: Message, answer: Message, tree: Any) -> str | None:
        """Why an answer may not leave; None: it may. ``answer`` is its envelope, ``tree`` names what is in it."""
        try:
            parts = _parts(tree, store, asked.metadata.created_at + asked.metadata.ttl)
            size = sum(map(len, parts.values()))
            whole = inflate_object_from_contents(answer.metadata.message_id, parts)
        except Exception as error:  # whatever an app made up: what cannot be read does not leave
            return f"this site's policy lets nothing leave that cannot be read: {type(error).__name__}"
        if not isinstance(whole, Message) or not (_about(whole) == _about(answer) == _about(asked)):
            return "this site's policy lets nothing leave but answers to what was asked"
        if answer.has_error() != whole.has_error() or (
            answer.has_error() and answer.error.reason != whole.error.reason
        ):
            return "this site's policy lets nothing leave whose envelope says something else"
        return self._policy.refuses_answer(whole, asked.metadata.message_type.partition(".")[0], size)


@final
class _Watched:
    """A SuperNode's state, which looks after the dead whenever it is asked for answers and has none."""

    def __init__(self, state: Any, bury: Callable[[], None]) -> None:
        self._state, self._bury = state, bury

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        return partial(self._looked_for, found) if name in _LOOKS else found

    def _looked_for(self, look: Callable[..., Sequence[Message]], **which: Any) -> Sequence[Message]:
        if not (found := look(**which)):
            self._bury()
            found = look(**which)
        return found


def _about(message: Message) -> tuple[int, str, str]:
    return message.metadata.run_id, message.metadata.message_type, message.metadata.group_id


def _parts(tree: Any, store: Any, until: float) -> dict[str, bytes]:
    """The parts of an answer, by the hash of their bytes; nothing is among them that the others do not name.

    Args:
        tree: of their names.
        store: where they are; the app's process may still be handing them over.
        until: when nobody waits for them any more, in seconds since the epoch.

    Raises:
        ValueError: they are not what the tree says.
    """
    found: dict[str, bytes] = {}
    for part in iterate_object_tree(tree):
        while (content := store.get(part.object_id)) == b"" and time.time() < until:
            time.sleep(_POLL_S)
        if not content or hashlib.sha256(content).hexdigest() != part.object_id:
            raise ValueError("a part that is not what it is called")
        if get_object_children_ids_from_object_content(content) != [child.object_id for child in part.children]:
            raise ValueError("a part that is not where it belongs")
        found[part.object_id] = content
    return found


def _refusal(reason: str, asked: Message) -> Message:
    found = Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=asked)
    found.metadata.__dict__["_message_id"] = found.object_id  # as Flower gives it to what an app answered
    return found


def _insert(answer: Message, state: Any, store: Any) -> None:
    from flwr.supernode import start_client_internal as supernode

    supernode._insert_message(answer, state, store)


def main(arguments: Sequence[str]) -> int:
    """Run a SuperNode under a policy; returns 2 where there is none, else ends as Flower does."""
    from flwr.supernode import start_client_internal as supernode
    from flwr.supernode.cli.flower_supernode import flower_supernode

    try:
        if len(arguments) < 2 or arguments[1] != "--":
            raise BadInput(
                "Expected POLICY -- and the arguments of flower-supernode, got " + (" ".join(arguments) or "none")
            )
        policy = Policy.read(Path(arguments[0]))
    except BadInput as error:
        print(f"flfw.deploy.guard: {error}", file=sys.stderr)
        return 2
    given = _with_volunteered(arguments[2:], policy, Path(arguments[0]).absolute().parent)
    deaths = executor.Deaths()
    guard = Guard(policy, supernode._pull_and_store_message, supernode._push_messages, deaths=deaths.since)
    supernode._pull_and_store_message, supernode._push_messages = guard.pull, guard.push
    _say(str(policy))
    ask_again_soon(supernode)
    _beat_more_often()
    sys.argv = ["flower-supernode", *executor.beside(given, deaths)]
    flower_supernode()
    return 0


def _beat_more_often() -> None:
    """Tell the server more often that this site is there: one that was killed is let in again when beats are missed."""
    from flwr.supercore import heartbeat

    for module in [heartbeat, *(m for name, m in sys.modules.items() if name.startswith(_CONNECTIONS))]:
        if hasattr(module, _BEAT):
            setattr(module, _BEAT, _BEAT_S)


def _with_volunteered(arguments: Sequence[str], policy: Policy, folder: Path) -> list[str]:
    """The arguments of a SuperNode whose app answers probes for what the site gives away, and keeps their truth."""
    found = list(arguments)
    if policy.volunteered:
        at = found.index("--node-config") + 1
        places = " ".join(map(str, policy.volunteered))
        found[at] += f" truth={json.dumps(str(folder / 'truth'))} volunteered={json.dumps(places)}"
        _say(f"gives away its training examples {places}, if a run records; their truth stays in {folder / 'truth'}")
    return found


def _say(line: str) -> None:
    print(f"flfw.deploy.guard: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
