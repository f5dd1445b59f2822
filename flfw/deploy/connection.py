"""Connection of a site to its server, which outlasts the server's errors.

Flower's SuperNode repeats a call only if the server cannot be reached. After any other error its heartbeats end unseen,
or its loop does; then its process stays, the server counts the site as absent, and nothing says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import httpx
from flwr.supercore import heartbeat
from grpc import RpcError, StatusCode

from flfw.errors import InputError

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
