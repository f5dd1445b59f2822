"""Processes of a site for messages: forks of a process that has imported the libraries of every app.

    python -m flfw.deploy.executor DEATHS <arguments of flower-superexec>

Flower starts a new process for each message, and its imports take longer than most tasks. Here one process imports the
libraries once, and each message gets a fork of it. No code of the app is imported before the fork: it comes from the
app's own bundle, whose hash the site's policy accepted. A server chose some of the lines that Flower logs, so the
site's log has no characters that move a terminal's cursor.
"""

import argparse
import importlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, final

from flwr.supercore.constant import TaskType
from flwr.supercore.exit import exit_handler
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.utils import get_flwr_home

from flfw.errors import printable
from flfw.messages.pulling import ask_again_soon

_LIBRARIES = (
    "numpy.random",
    "torch.func",
    "torch.utils.flop_counter",
    "torch._dynamo",  # the first optimiser of a process imports it, which takes a second
    "safetensors.torch",
    "flwr.client",
    "flwr.clientapp",
    "flwr.serverapp",
)
_POLL_S = "0.1"  # interval between two requests for a message, in seconds
_FLOWERS = "flwr"


@final
class Plain(logging.Filter):
    """Filter that lets every record pass, with unprintable characters replaced."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace unprintable characters in a record; a line break in its arguments is a line break no more."""
        if isinstance(record.args, tuple):
            record.args = tuple(printable(arg) if isinstance(arg, str) else arg for arg in record.args)
        record.msg, record.args = _lines(record.getMessage()), ()
        if record.exc_info and record.exc_info[1]:
            record.exc_text = _lines("".join(traceback.format_exception(record.exc_info[1])))
        return True


def keep_plain() -> None:
    """Make all lines plain that Flower logs in this process, and in its forks, from now on."""
    logger = logging.getLogger(_FLOWERS)
    if not any(isinstance(known, Plain) for known in logger.filters):
        logger.addFilter(Plain())


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


@final
class ForkingExecutor:
    """Executor of Flower for client apps: one fork of this process for each message.

    Args:
        deaths: file descriptor; for each failed fork it receives a line with the id of the task.
    """

    def __init__(self, deaths: int) -> None:
        self._deaths, self._tasks = deaths, dict[int, int]()

    def get_eligible_capacity(self, supported_task_types: set[TaskType], **_: Any) -> tuple[set[TaskType], set[str]]:
        """Return the task types of a site: client apps alone."""
        return supported_task_types & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, task_type: TaskType | None = None, **_: Any) -> None:
        """Return at once, since there is always capacity."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Fork this process; the fork answers one message."""
        try:
            forked = os.fork()
        except OSError as error:
            return LaunchResult.failed(str(error))
        if not forked:
            _answer(spec)
        self._tasks[forked] = spec.task_id
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Collect the forks that have ended, and report the failed ones."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                task = self._tasks.pop(ended[0])
                if ended[1]:
                    os.write(self._deaths, f"{task}\n".encode())

    def close(self) -> None:
        """Do nothing: forks end by themselves after this process."""


def _answer(spec: ExecutionSpec) -> NoReturn:
    """Run Flower's program for one message, and exit; no cleanup of the executor runs in this process."""
    code = 1
    try:
        become_fresh()
        from flwr.supernode.runtime.run_clientapp import run_clientapp

        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            parent_pid=spec.parent_pid,
            runtime_dependency_install=False,
        )
    except SystemExit as ended:  # Flower's program ends this way
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def become_fresh() -> None:
    """Reset the state that a fork inherits from its parent and a new process would not have.

    It includes random generators: noise from a library's global generator would be the same for every message.
    """
    from flfw.rng import draw_anew  # not above: a program that only starts this process needs no PyTorch

    draw_anew()
    for number in exit_handler.SIGNAL_TO_EXIT_CODE:
        signal.signal(number, signal.SIG_DFL)
    exit_handler.registered_exit_handlers.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "flfw"]:
        del sys.modules[name]
    sys.argv = ["flwr-clientapp"]


def import_libraries() -> None:
    """Import the libraries that a fork would else import for each message."""
    for name in _LIBRARIES:
        importlib.import_module(name)


def main(arguments: Sequence[str]) -> None:
    """Import the libraries, then wait for messages until the site ends.

    Args:
        arguments: file descriptor for deaths, then those of ``flower-superexec``.
    """
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec import run_superexec
    from flwr.supernode.runtime import run_clientapp

    ask_again_soon(run_clientapp)
    keep_plain()
    import_libraries()
    setattr(run_superexec, "get_executor", lambda *_, **__: ForkingExecutor(int(arguments[0])))  # noqa: B010 Flower's
    sys.argv = ["flower-superexec", *arguments[1:]]
    flower_superexec()


# --- the process that starts it ------------------------------------------------------------------------------------
@final
class CrashReports:
    """Reports of an executor on processes that died; Flower itself would notice up to a minute later."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._rest = b""

    def since(self) -> list[int]:
        """Return the tasks whose processes have died since the last call."""
        with suppress(BlockingIOError):
            self._rest += os.read(self._read, 65536)
        *lines, self._rest = self._rest.split(b"\n")
        return [int(line) for line in lines]


def beside(arguments: Sequence[str], deaths: CrashReports) -> list[str]:
    """Start the executor of a SuperNode; this process then becomes the SuperNode.

    Messages of an app are given only to a process with the secret. Flower's own processes would give them to any user
    of the machine.

    Args:
        arguments: arguments of ``flower-supernode``. If ``--isolation`` is among them, nothing is started.
        deaths: receives the tasks whose processes die.

    Returns:
        The arguments that leave the apps to the executor.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8000")  # Flower's default
    parser.add_argument("--isolation")
    args, _ = parser.parse_known_args(list(arguments))
    if args.isolation:
        return list(arguments)
    file = get_flwr_home() / "executor.secret"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.touch(0o600)  # before the secret is written
    file.write_bytes(secrets.token_bytes(32))
    authorised = ["--superexec-auth-secret-file", str(file)]
    address = ["--runtime-api-address", f"{args.host}:{args.port}", "--insecure"]  # it stays on this machine
    parent = ["--parent-pid", str(os.getpid())]
    started = subprocess.Popen(
        [sys.executable, "-m", "flfw.deploy.executor", str(deaths.write), *address, *authorised, *parent],
        pass_fds=[deaths.write],
        env={"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": _POLL_S, **os.environ},
    )
    threading.Thread(target=_end_with, args=(started,), daemon=True).start()
    return [*arguments, "--isolation", "process", *authorised]


def _end_with(started: subprocess.Popen[bytes]) -> None:
    """End this process when the executor has ended; a new start is better than a site without answers."""
    code = started.wait()
    print(f"flfw.deploy.executor: ended with {code}, and so does the site", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
