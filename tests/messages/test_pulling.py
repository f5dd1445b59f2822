"""Parts of a message that have not arrived yet: Flower's own functions, at our pace, where Flower looks for them."""

import threading
from types import ModuleType, SimpleNamespace

import pytest
from flwr.client.grpc_rere_client import connection
from flwr.supercore import heartbeat
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal
from flwr.supernode.runtime import run_clientapp

from flfw.deploy.guard import beat_more_often
from flfw.messages.pulling import ask_again_soon


class Late:
    """A part that is there at the third try."""

    def __init__(self) -> None:
        self.tries = 0

    def __call__(self, object_id: str) -> bytes:
        self.tries += 1
        if self.tries < 3:
            raise ObjectUnavailableError(object_id)
        return b"here"


def test_what_is_late_is_asked_for_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Noted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    monkeypatch.setattr(inflatable_utils, "threading", SimpleNamespace(Event=Noted, Lock=threading.Lock))
    module = ModuleType("grid")
    module.pull_objects = inflatable_utils.pull_objects  # type: ignore[attr-defined]

    def waits_of_a_late_part() -> list[float]:
        late = Late()
        waits.clear()
        assert module.pull_objects(["part"], late) == {"part": b"here"} and late.tries == 3
        return waits

    give_or_take = {"rel": 0.21}  # Flower's own, so that not all ask at once
    assert waits_of_a_late_part() == pytest.approx([1.0, 2.0], **give_or_take)
    for _ in range(2):  # each run of a process does so
        ask_again_soon(module)
        assert waits_of_a_late_part() == pytest.approx([0.1, 0.2], **give_or_take)


def test_whoever_does_not_pull_is_left_alone() -> None:
    module = ModuleType("other")
    before = dict(vars(module))
    ask_again_soon(module)
    assert vars(module) == before


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (http_grid, "pull_objects"),
        (start_client_internal, "pull_objects"),
        (run_clientapp, "pull_and_inflate_object_from_tree"),
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL"),
        (connection, "HEARTBEAT_DEFAULT_INTERVAL"),
    ],
)
def test_flower_has_what_is_replaced_where_it_is_replaced(module: ModuleType, name: str) -> None:
    """Were it elsewhere in another version of Flower, sites would silently be as slow as Flower's own."""
    assert hasattr(module, name)
    assert name in module.__dict__ and any(name in function.__code__.co_names for function in functions(module))


def functions(module: ModuleType) -> list:
    """The functions of a module, of its classes, and those within them."""
    result = [f for f in vars(module).values() if hasattr(f, "__code__")]
    result += [
        f for c in vars(module).values() if isinstance(c, type) for f in vars(c).values() if hasattr(f, "__code__")
    ]
    result += [f.__wrapped__ for f in vars(module).values() if hasattr(f, "__wrapped__")]
    return result


def test_a_site_says_more_often_that_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (heartbeat, connection):
        monkeypatch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 30)
    beat_more_often()
    assert heartbeat.HEARTBEAT_DEFAULT_INTERVAL == connection.HEARTBEAT_DEFAULT_INTERVAL == 15
