"""Launcher of a site: Flower's SuperNode, with the site's policy between every app and the network.

    python -m flfw.deploy.guard policy.toml -- <arguments of flower-supernode>

This process applies the policy with code that the site installed: before the app's own process starts, and again before
an answer leaves. An app cannot change that from within its bundle. But it runs as the same user of the machine, and an
accepted app has all rights of that user. So `allowed_apps` is the most important rule. Run untrusted apps in a
container.

The connection to the server outlasts the server's errors. Flower's SuperNode repeats a call only if the server cannot
be reached. After any other error its heartbeats end unseen, or its loop does; then its process stays, the server counts
the site as absent, and nothing says so.
"""

import hashlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial, wraps
from math import inf
from pathlib import Path
from typing import Any, NoReturn, final

import httpx
from flwr.app import Error, Message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_children_ids_from_object_content,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from grpc import RpcError, StatusCode

from flfw.deploy import executor
from flfw.deploy.executor import keep_plain
from flfw.deploy.node_config import announcements, extended, leave_simulations, remarks
from flfw.deploy.policy import Policy
from flfw.deploy.quota import FILE, Quota
from flfw.errors import DIED, InputError, printable
from flfw.messages.pulling import ask_again_soon

_NEXT_S = 0.25  # interval at which a lively site looks for a message; Flower's own is 3 s
_SHOWN = 200  # characters of a text from an app
_POLL_S = 0.1
_LOOKS = ("get_messages", "get_messages_legacy")  # the latter on Flower 1.40 and later
_BEAT, _BEAT_S = "HEARTBEAT_DEFAULT_INTERVAL", 15  # Flower's own is 30 s; a site that misses two beats is absent
_CONNECTIONS = ("flwr.client.", "flwr.supernode.")  # before Flower 1.40, and since
_INVOKERS = (  # functions that make the invoker of a connection: before Flower 1.40, and since
    ("flwr.supernode.start_client_internal", "_make_fleet_connection_retry_invoker"),
    ("flwr.supernode.fleet_http_connection", "make_simple_http_retry_invoker"),
)
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)  # two minutes, since some errors of a server are for good
_MAY_PASS = (
    StatusCode.UNKNOWN,
    StatusCode.INTERNAL,
    StatusCode.DEADLINE_EXCEEDED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.ABORTED,
    StatusCode.CANCELLED,
)


@final
class PatientInvoker:
    """Invoker of calls that repeats one also after an error of the server, for two minutes.

    Args:
        invoker: Flower's own, which repeats a call while the server cannot be reached.
        wait: waits for a number of seconds.
    """

    def __init__(self, invoker: Any, wait: Callable[[float], None] = time.sleep) -> None:
        self._invoker, self._wait = invoker, wait

    def invoke(self, target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Return the result of a call.

        Raises:
            RpcError, HTTPStatusError: the last try failed, too, or the error is none that may pass.
        """
        for pause in _PAUSES_S:
            try:
                return self._invoker.invoke(target, *arguments, **named)
            except (RpcError, httpx.HTTPStatusError) as error:
                if not _may_pass(error):
                    raise
            self._wait(pause)
        return self._invoker.invoke(target, *arguments, **named)


def _may_pass(error: RpcError | httpx.HTTPStatusError) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    return error.code() in _MAY_PASS  # pyright: ignore[reportAttributeAccessIssue] all that gRPC raises have it


def outlast_errors() -> None:
    """Let the calls of Flower's SuperNode, and its heartbeats, outlast the server's errors.

    Raises:
        InputError: this version of Flower makes its connection in another way.
    """
    places = [(sys.modules.get(module), name) for module, name in _INVOKERS]
    places = [(module, name) for module, name in places if hasattr(module, name)]
    if not places:
        raise InputError("Expected a SuperNode of Flower 1.39 to 1.42, got one whose calls this code cannot repeat.")
    for module, name in places:
        setattr(module, name, _patient(getattr(module, name)))
    setattr(heartbeat.HeartbeatSender, "_heartbeat", _undying(heartbeat.HeartbeatSender._heartbeat))  # noqa: B010 Flower's


def _patient(made: Callable[..., Any]) -> Callable[..., PatientInvoker]:
    @wraps(made)
    def make(*arguments: Any, **named: Any) -> PatientInvoker:
        return PatientInvoker(made(*arguments, **named))

    return make


def _undying(beat: Callable[[heartbeat.HeartbeatSender], None]) -> Callable[[heartbeat.HeartbeatSender], None]:
    @wraps(beat)
    def beat_again(sender: heartbeat.HeartbeatSender) -> None:
        try:
            beat(sender)
        except Exception as error:
            raise heartbeat.HeartbeatFailure from error  # Flower sends the next one within 20 s

    return beat_again


def beat_more_often() -> None:
    """Shorten the heartbeat interval, so that a killed site is admitted again soon after its missed beats."""
    for module in [heartbeat, *(m for name, m in sys.modules.items() if name.startswith(_CONNECTIONS))]:
        if hasattr(module, _BEAT):
            setattr(module, _BEAT, _BEAT_S)


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


def parts_of(tree: Any, store: Any, until: float) -> dict[str, bytes]:
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


class _Refused(Exception):
    """Error: the policy does not let an app run."""


def _uncounted(_: Message) -> None:
    """Let every message be answered, without a count."""


@final
class PolicyGuard:
    """Substitute for two functions of Flower's SuperNode, which it calls with checked connections.

    Args:
        policy: the policy of the site.
        pull: Flower's own function that takes one message and its app.
        push: Flower's own function that sends the answers.
        lively: time after a message in which the next one is looked for often, in seconds.
        deaths: returns the tasks whose processes have died since the last call.
        counted: notes a message that is about to be answered; returns why it is not to be, or None.
    """

    def __init__(
        self,
        policy: Policy,
        pull: Callable[..., int | None],
        push: Callable[..., None],
        *,
        lively: float = 60.0,
        deaths: Callable[[], Sequence[int]] = tuple,
        counted: Callable[[Message], str | None] = _uncounted,
    ) -> None:
        self._policy, self._pull, self._push, self._lively, self._deaths = policy, pull, push, lively, deaths
        self._counted = counted
        self._requested: Message | None = None  # Flower takes one at a time
        self._earlier: set[int] = set()  # tasks of messages before that one
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
        """Take a message; if its app is refused, the answer is the reason and the app is not started."""
        taken: list[Message] = []
        runs: dict[int, Any] = {}

        def once(run_id: int) -> Any:
            """Return a run, asked for once: a second answer could be another run than the one that starts."""
            if run_id not in runs:
                runs[run_id] = get_run(run_id)
            return runs[run_id]

        def remembering() -> Any:
            if (got := receive()) is not None:
                if not got[0].metadata.message_id:
                    raise ValueError("no name, by which an answer could name it")
                taken.append(got[0])
                self._requested, self._earlier = got[0], {task.task_id for task in state.get_tasks()}
                if state.get_run(got[0].metadata.run_id):  # a new run is checked first
                    count()
            return got

        def count() -> None:
            if reason := self._counted(taken[-1]):
                raise _Refused(reason)

        def checked(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            self._check(fab, fab_hash, partial(once, run_id))
            count()
            return fab

        more = {"receive": remembering, "get_run": once, "get_fab": checked, **rest}
        try:
            while (run_id := self._pull(state=state, object_store=object_store, **more)) is None:
                if taken:  # its run ended while it came
                    self._leave(taken.pop(), state, object_store)
                if time.monotonic() > self._lively_until:
                    return None
                time.sleep(_NEXT_S)
        except Exception as error:
            if isinstance(error, RpcError) and not taken:  # the connection is lost for good
                raise
            unread = f"this site's policy takes nothing that cannot be read: {type(error).__name__}"
            reason = str(error) if isinstance(error, _Refused) else unread
            _say(reason)
            if not taken:
                return None
            for task in state.get_tasks():  # one that was made before Flower came to what cannot be read
                state.finish_task(task.task_id, SubStatus.FAILED, reason)
            _insert(_refusal(reason, taken[-1]), state, object_store)
            run_id = taken[-1].metadata.run_id
        self._lively_until = time.monotonic() + self._lively
        return run_id

    def _leave(self, message: Message, state: Any, store: Any) -> None:
        """Forget a message that Flower stored and then ignores; its app would work for a run that is over."""
        if self._requested is message:
            for task in {task.task_id for task in state.get_tasks()} - self._earlier:
                state.finish_task(task, SubStatus.FAILED, "the run ended")
            state.delete_messages(message_ids=[message.metadata.message_id])
            store.delete(message.metadata.message_id)
            self._requested = None

    def _check(self, fab: Any, fab_hash: str, get_run: Callable[[], Any]) -> None:
        """Check a received app and the run that it is for.

        Raises:
            _Refused: the policy does not let it run.
        """
        if reason := self._policy.app_rejection(fab.content):  # before the bundle is opened
            raise _Refused(reason)
        if {hashlib.sha256(fab.content).hexdigest(), fab.hash_str or fab_hash} != {fab_hash}:
            raise _Refused("this site's policy accepts no app under another one's hash")
        try:
            config = get_fused_config_from_fab(fab.content, get_run())
            reason = self._policy.run_rejection(config)
        except Exception as error:  # a forged bundle must not end this process
            raise _Refused(f"this site's policy accepts no app that cannot be read: {error}"[:_SHOWN]) from error
        if reason:
            raise _Refused(reason)
        for line in remarks(config):
            _say(line)

    def push(self, *, state: Any, object_store: Any, send: Callable[..., Any], push_object: Callable[..., Any]) -> None:
        """Send answers; a refused answer, or the missing answer of a dead process, is replaced by the reason.

        Flower stops at any answer. After one to another message, or to none, the answer to the last one would wait for
        the next message, which the server may not send before it has this answer.
        """
        checked = partial(self._send, object_store, send, push_object)
        watched = WatchedState(state, partial(self._silent, state), partial(self._bury, state, object_store))
        while self._requested:
            self._push(state=watched, object_store=object_store, send=checked, push_object=push_object)

    def _silent(self, state: Any) -> list[int]:
        """List tasks that leave no further answer: their processes have died, or they are finished."""
        finished = [task.task_id for task in state.get_tasks() if task.status.status == Status.FINISHED]
        return [*self._deaths(), *(task for task in finished if task not in self._earlier)]

    def _bury(self, state: Any, store: Any, silent: Sequence[int]) -> None:
        """Answer, once, for an app that left no answer; some finish their task before they die."""
        for task in silent:
            state.finish_task(task, SubStatus.FAILED, DIED)
            if self._requested and task not in self._earlier:
                self._earlier.add(task)
                _insert(_refusal(DIED, self._requested), state, store)

    def _send(
        self,
        store: Any,
        send: Callable[..., Any],
        push_object: Callable[..., Any],
        reply: Message,
        tree: Any,
        spent: Any,
    ) -> Any:
        requested, to = self._requested, reply.metadata.reply_to_message_id
        if requested is None or to != requested.metadata.message_id:
            raise RuntimeError("an answer to an earlier message, or to none, stays here")
        self._requested = None  # a message is counted once, so that it has one answer
        spent = spent if self._policy.metrics == "all" else 0.0  # Flower tells the server how long the app worked
        if (reason := self._refuses(store, requested, reply, tree)) is None:
            return send(reply, tree, spent)
        _say(f"{reason}: {reply.error.reason}" if reply.has_error() else reason)
        refusal = _refusal(reason, requested)
        wanted, session = send(refusal, get_object_tree(refusal), spent)
        for object_id, part in get_all_nested_objects(refusal).items():
            if object_id in wanted:
                push_object(requested.metadata.run_id, session, object_id, part.deflate())
        return set(), session  # nothing else is to follow

    def _refuses(self, store: Any, message: Message, reply: Message, tree: Any) -> str | None:
        """Return why a reply may not leave; None: it may. ``reply`` is the envelope, ``tree`` names the parts."""
        try:
            parts = parts_of(tree, store, message.metadata.created_at + message.metadata.ttl)
            size = sum(map(len, parts.values()))
            whole = inflate_object_from_contents(reply.metadata.message_id, parts)
        except Exception as error:  # an unreadable answer does not leave
            return f"this site's policy lets nothing leave that cannot be read: {type(error).__name__}"
        if not isinstance(whole, Message) or not (_about(whole) == _about(reply) == _about(message)):
            return "this site's policy lets nothing leave but answers to what was asked"
        if reply.has_error() != whole.has_error() or (reply.has_error() and reply.error.reason != whole.error.reason):
            return "this site's policy lets nothing leave whose envelope says something else"
        return self._policy.reply_rejection(whole, message.metadata.message_type.partition(".")[0], size)


def _about(message: Message) -> tuple[int, str, str]:
    return message.metadata.run_id, message.metadata.message_type, message.metadata.group_id


def _refusal(reason: str, request: Message) -> Message:
    message = Message(Error(ErrorCode.INVALID_FAB, printable(reason)), reply_to=request)
    message.metadata.__dict__["_message_id"] = message.object_id  # as Flower sets it for the answer of an app
    return message


def _insert(reply: Message, state: Any, store: Any) -> None:
    from flwr.supernode import start_client_internal as supernode

    supernode._insert_message(reply, state, store)


def main(arguments: Sequence[str]) -> int:
    """Run a SuperNode under a policy; return 2 without a valid policy, else end as Flower does."""
    from flwr.supernode import start_client_internal as supernode
    from flwr.supernode.cli.flower_supernode import flower_supernode

    try:
        if len(arguments) < 2 or arguments[1] != "--":
            raise InputError(
                "Expected POLICY -- and the arguments of flower-supernode, got " + (" ".join(arguments) or "none")
            )
        policy, folder = Policy.read(Path(arguments[0])), Path(arguments[0]).absolute().parent
        given, lines = extended(arguments[2:], policy, folder), announcements(policy, folder)
        outlast_errors()
    except InputError as error:
        print(f"flfw.deploy.guard: {error}", file=sys.stderr)
        return 2
    deaths = executor.CrashReports()
    counted = Quota(folder / FILE, policy.max_messages).refuses if policy.max_messages < inf else _uncounted
    flowers = supernode._pull_and_store_message, supernode._push_messages
    guard = PolicyGuard(policy, *flowers, deaths=deaths.since, counted=counted)
    supernode._pull_and_store_message, supernode._push_messages = guard.pull, guard.push
    left = [f"{name} of the environment is for simulations, and ignored" for name in leave_simulations(os.environ)]
    for line in (str(policy), *lines, *left):
        _say(line)
    keep_plain()
    ask_again_soon(supernode)
    beat_more_often()
    sys.argv = ["flower-supernode", *executor.beside(given, deaths)]
    return _run(flower_supernode)


def _run(program: Callable[[], None]) -> NoReturn:
    """Run a program, and end this process with it: a thread that stays must not keep a site that does nothing."""
    code: object = 1
    try:
        program()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except Exception:
        for line in traceback.format_exc().splitlines():
            _say(line)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _say(line: str) -> None:
    print(f"flfw.deploy.guard: {printable(line)}", file=sys.stderr, flush=True)  # a server chose some of it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
