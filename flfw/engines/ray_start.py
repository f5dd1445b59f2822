"""Ray of one run: started here and ended with the run, or a running cluster that is joined and left.

Ray must start in the main thread, because its processes die with the thread that started them. So a second thread
keeps the time limit. If Ray hangs, this thread can only end the process.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flfw.client.site import Site
from flfw.engines.machine import ALLOCATOR, is_running
from flfw.errors import InputError, RunError

_RAY_START_S = 180.0  # Ray gives up by itself, except where it hangs; on a busy machine a start takes long
_CONNECT_S = 5.0
_UNPRINTED = (
    r"There are (\d+|infinite) retries remaining|A worker died or was killed while executing a task"
    "|Raylet is terminated"  # of a node of a cluster: with its log's last twenty lines
)
_TOO_SLOW = "timed out during startup"  # of Ray's exception, where a machine is busy
_WORKER_START_S = 300.0  # Ray ends a process that has not imported its modules by then, and starts another
_SECOND_START_S = 120.0  # the limit of the second try; that of the first is Ray's own, 30 s


def configure_ray(address: str) -> None:
    """Configure Ray before its import: where it listens, and which messages it does not print.

    By default its ports, through which code can be run, are open to the network. The variable that keeps them on the
    loopback interface is named after the systems for which it is the default. Deaths and retries of actors are not
    printed, also those at an actor's normal end: a final failure comes back as an error. On a busy machine a process
    of Ray may take longer for its imports than Ray's minute.
    """
    if not address:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _UNPRINTED)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour to come; silences its notice
    os.environ.setdefault("RAY_worker_register_timeout_seconds", f"{_WORKER_START_S:.0f}")


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Join a running cluster, and leave it again; do nothing without an address, or where Ray runs in this process.

    Raises:
        InputError: no cluster answers there.
    """
    if not address or is_running():
        yield
        return
    configure_ray(address)
    import ray

    _connect(address, {})
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def started(address: str, site: Site, store_bytes: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """Provide Ray for one run: start and end it here, or join and leave a cluster, or use the one of this process.

    Args:
        address: of the cluster to join; empty: Ray is started here.
        site: the folders of the simulated clients.
        store_bytes: computes the size of a new store.

    Yields:
        Options for the actors, which have the environment of a client where Ray was running before; else empty.

    Raises:
        RunError: it did not start.
        InputError: no cluster answers at the address.
    """
    import ray

    path = os.pathsep.join(str(Path(p).absolute()) for p in sys.path)  # in a notebook, an empty one is its folder
    variables = {**site.environment(), **ALLOCATOR, "PYTHONPATH": path}
    if is_running():  # somebody else's: it has its size and its environment, and it stays
        yield {"runtime_env": {"env_vars": variables}}
        return
    variables["RAY_ADDRESS"] = "local"
    if address:
        del variables["RAY_ADDRESS"]
        _connect(address, variables)
    else:
        cores, store = len(os.sched_getaffinity(0)), store_bytes()
        ours = {"address": "local", "num_cpus": cores, "object_store_memory": store, "include_dashboard": False}
        start({**ours, **_quiet(variables)})
    try:
        yield {}
    finally:
        ray.shutdown()


def start(arguments: dict[str, Any]) -> None:
    """Start Ray with some arguments of ``ray.init``.

    With ``address="local"`` it has an address of its own; without, it would join, or wait for, any cluster that it
    knows of.

    Raises:
        RunError: it did not start.
    """
    import ray

    try:
        _twice_if_slow(lambda: ray.init(**arguments))
    except Exception as error:  # Ray also raises bare ones
        raise RunError(f"Ray did not start: {first_line(error)}; try --engine inproc.") from error


def _twice_if_slow(once: Callable[[], object]) -> None:
    """Start Ray; once more, and with a longer limit, where the machine was too busy for Ray's own."""
    import ray

    before = _children()
    try:
        with _time_limit():
            once()
    except Exception as error:
        if _TOO_SLOW not in str(error):
            raise
        print("flfw: Ray timed out during its start; it is started once more.", file=sys.stderr)
        ray.shutdown()
        for pid in _children() - before:  # Ray leaves the processes of a start that failed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with _time_limit(), patience():
            once()


def _children() -> set[int]:
    """List the processes that this one has started."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return {int(pid) for pid in children.read_text().split()} if children.exists() else set()


@contextmanager
def patience() -> Iterator[None]:
    """Let Ray wait longer for the node that it starts: its limit is fixed, but not how long it looks for the node."""
    from ray._private import services

    look_up = services.get_node

    def looked_for(*args: Any) -> Any:
        until = time.monotonic() + _SECOND_START_S
        while True:
            try:
                return look_up(*args)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    services.get_node = looked_for
    try:
        yield
    finally:
        services.get_node = look_up


def _connect(address: str, variables: dict[str, str]) -> None:
    import ray

    host, _, port = address.rpartition(":")
    if address != "auto":
        if not (host and port.isdecimal()):
            raise InputError(f"Expected ray-address as host:port or auto, got {address}.")
        try:  # Ray itself would try for a minute
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"Expected a Ray cluster at {address}, got no answer: {error}.") from error
    with _time_limit():
        try:
            ray.init(address=address, **_quiet(variables))
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"Expected a Ray cluster at {address}, got none: {first_line(error)}") from error


def _quiet(variables: dict[str, str]) -> dict[str, Any]:
    return {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": {"env_vars": variables}}


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [repr(error)])[0]


@contextmanager
def _time_limit() -> Iterator[None]:
    over = threading.Event()
    threading.Thread(target=_give_up_unless, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _give_up_unless(over: threading.Event) -> None:
    if not over.wait(_RAY_START_S):
        print(f"flfw: Ray did not start within {_RAY_START_S:.0f} s; try --engine inproc.", file=sys.stderr)
        os._exit(1)
