"""Connection of a site: what it does when the server answers with an error, in calls and in heartbeats."""

import subprocess
import sys
import threading
from collections.abc import Callable

import httpx
import pytest
from flwr.supercore import heartbeat
from flwr.supernode import start_client_internal
from grpc import RpcError, StatusCode

from flfw.deploy.guard import PatientInvoker, outlast_errors
from flfw.errors import InputError


class Failed(RpcError):
    """An error of a call, as gRPC raises it."""

    def __init__(self, status: StatusCode) -> None:
        self.status = status

    def code(self) -> StatusCode:
        return self.status


class Once:
    """An invoker that calls once, as Flower's does for all errors but that of a server out of reach."""

    def invoke(self, target: Callable[..., str], *arguments: object, **named: object) -> str:
        return target(*arguments, **named)


def failing(*codes: StatusCode) -> Callable[[str], str]:
    left = list(codes)

    def call(word: str) -> str:
        if left:
            raise Failed(left.pop(0))
        return word

    return call


@pytest.mark.parametrize("status", [StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.DEADLINE_EXCEEDED])
def test_a_call_is_repeated_after_an_error_that_may_pass(status: StatusCode) -> None:
    waits: list[float] = []
    assert PatientInvoker(Once(), waits.append).invoke(failing(status, status), "answer") == "answer"
    assert waits == [1, 2]


@pytest.mark.parametrize(("status", "calls"), [(500, 2), (503, 2), (404, 1)])
def test_over_https_too(status: int, calls: int) -> None:
    made: list[str] = []

    def call() -> str:
        made.append("")
        if len(made) == 1:
            httpx.Response(status, request=httpx.Request("POST", "https://server")).raise_for_status()
        return "answer"

    invoker = PatientInvoker(Once(), lambda _: None)
    if calls == 1:
        with pytest.raises(httpx.HTTPStatusError):
            invoker.invoke(call)
    else:
        assert invoker.invoke(call) == "answer"
    assert len(made) == calls


def test_a_flower_whose_calls_cannot_be_repeated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(start_client_internal, "_make_fleet_connection_retry_invoker")
    with pytest.raises(InputError, match="Expected a SuperNode of Flower 1"):
        outlast_errors()


def test_after_two_minutes_the_error_is_raised() -> None:
    waits: list[float] = []
    with pytest.raises(Failed):
        PatientInvoker(Once(), waits.append).invoke(failing(*[StatusCode.INTERNAL] * 8), "answer")
    assert (len(waits), sum(waits)) == (7, 120)


@pytest.mark.parametrize("status", [StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED, StatusCode.NOT_FOUND])
def test_what_is_denied_is_not_asked_for_again(status: StatusCode) -> None:
    waits: list[float] = []
    with pytest.raises(Failed):
        PatientInvoker(Once(), waits.append).invoke(failing(status), "answer")
    assert waits == []


@pytest.mark.slow
def test_heartbeats_go_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat.HeartbeatSender, "_heartbeat", heartbeat.HeartbeatSender._heartbeat)
    monkeypatch.setattr(start_client_internal, "_make_fleet_connection_retry_invoker", Once)
    outlast_errors()
    assert isinstance(start_client_internal._make_fleet_connection_retry_invoker(), PatientInvoker)
    errors = [Failed(StatusCode.INTERNAL), RuntimeError("the server does not know this site")]
    beaten = threading.Event()

    def beat() -> bool:
        if errors:
            raise errors.pop()
        beaten.set()
        return True

    sender = heartbeat.HeartbeatSender(beat)
    sender.start()
    assert beaten.wait(20) and sender.is_running
    sender.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "code"),
    [("raise RuntimeError('lost' + chr(27))", 1), ("sys.exit(305)", 305 % 256), ("sys.exit('why')", 1), ("pass", 0)],
)
def test_a_site_ends_with_its_loop_although_a_thread_goes_on(last: str, code: int) -> None:
    program = f"""
import sys, threading, time
from flfw.deploy.guard import _run

def program():
    threading.Thread(target=time.sleep, args=(600,)).start()
    {last}

_run(program)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == code and ("RuntimeError: lost" in done.stderr) == ("lost" in last)
    assert "\x1b" not in done.stderr  # a server chose some of the words
