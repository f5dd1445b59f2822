"""Engine over Flower's own commands: ``flwr run``, and ``flwr ls`` for the final status.

The SuperLink is a private one, or that of a federation of real sites.
The app that is handed to Flower is written here: its code and its pyproject.toml.
"""

import ctypes
import hashlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flfw.engines import processes
from flfw.engines.layout import FederationLayout, environment
from flfw.errors import InputError, RunError, require
from flfw.experiment import Experiment, Scalar
from flfw.files.provenance import sources

_START_S = _SUBMIT_S = 60.0
_POLL_S = 2.0
_STARTED = re.compile(r"Successfully started run (\d+)")
_PROGRESS = re.compile(r"[a-z ]+ \d+/\d+\b|warning: ")
_COLOUR_OR_FRAME = re.compile(r"\x1b\[[0-9;]*m|[╭╮╰╯─│]")
_APP_RAISED = "Simulation failed with exception: "
_APP_SAYS_NOTHING = "An error was encountered. Ending simulation."
_PR_SET_CHILD_SUBREAPER = 36


def write_app(folder: Path, run_config: dict[str, Scalar]) -> None:
    """Write a pyproject.toml with the run's configuration; simulated clients get it only from there."""
    lines = [
        "[project]",
        'name = "flfw-run"',
        'version = "0.1.0"',
        "[tool.flwr.app]",
        'publisher = "flfw"',
        "[tool.flwr.app.components]",
        'serverapp = "flfw.engines.apps:server"',
        'clientapp = "flfw.engines.apps:client"',
        "[tool.flwr.app.config]",
    ]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n" + toml_lines(run_config), encoding="utf-8")


def toml_lines(run_config: dict[str, Scalar]) -> str:
    """Format a run's configuration as TOML, one line per key; scalars are written as in JSON."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in run_config.items())


def write_bundle(folder: Path, run_config: dict[str, Scalar]) -> None:
    """Write the running code and its configuration as an app."""
    for name, source in sources().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    write_app(folder, run_config)


def run_on_superlink(
    run_config: dict[str, Scalar],
    environment: dict[str, str],
    *,
    clients: int,
    cpus_per_client: float,
    gpus_per_client: float,
    out: Path,
) -> None:
    """Run the app to its end; the server app writes the results to the folder in its configuration.

    Args:
        run_config: all keys of the app's configuration.
        environment: variables for the processes of the server and of the clients, such as a site's folders.
        clients: simulated clients.
        cpus_per_client: cores reserved for each client at work; a whole number, as Flower accepts no others.
        gpus_per_client: fraction of a GPU reserved for each client at work.
        out: existing folder, in which a server app that fails leaves its reason as ``failure.txt``.

    Raises:
        RunError: Flower refused the app, or the run ended otherwise than completed; the message is one line.
    """
    shares = _shares(clients, cpus_per_client, gpus_per_client)
    with tempfile.TemporaryDirectory(prefix="flfw-flwr-") as name:
        folder = Path(name).resolve()
        with private_superlink(folder, environment) as variables:
            complete(run_config, folder, ["--federation-config", shares], variables, out)


def complete(
    run_config: dict[str, Scalar], folder: Path, options: list[str], variables: dict[str, str], out: Path
) -> None:
    """Submit the app to the SuperLink that ``flwr`` finds as its default connection, and wait for its end.

    Args:
        run_config: all keys of the app's configuration.
        folder: existing, absolute; the app is written into it, and programs are started in its ``neutral``.
        options: further options of ``flwr run``.
        variables: the environment of ``flwr``.
        out: existing folder, in which a server app that fails leaves its reason as ``failure.txt``.

    Raises:
        RunError: Flower refused the app, or the run ended otherwise than completed; the message is one line.
    """
    (out / "failure.txt").unlink(missing_ok=True)  # from an earlier attempt
    (folder / "neutral").mkdir(exist_ok=True)
    write_bundle(folder / "app", run_config)
    run_id, output = _run_and_follow(folder, options, variables)
    status = _status(run_id, folder, variables)
    if status["status"] != "finished:completed":
        raise RunError(_reason(out, status, output))


@contextmanager
def private_superlink(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Start a private SuperLink for simulations; at its end, also end all processes that it started.

    Args:
        folder: existing, absolute and without other use: FLWR_HOME and the processes' working directory lie in it.
        environment: variables for the processes of the server and of the clients.

    Yields:
        The environment in which ``flwr`` finds the SuperLink as its default connection.

    Raises:
        RunError: it did not start; the message says why.
    """
    home, neutral, log, port = folder / "home", folder / "neutral", folder / "superlink.log", _free_port()
    home.mkdir()
    neutral.mkdir()  # Ray's workers import what lies in their working directory before they look into the app
    connection = f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "own"\n[superlink.own]\n{connection}')
    variables = {**_variables(home), **environment}
    command = [_program("flower-superlink"), "--simulation", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "flfw.engines.superlink", *command],
            cwd=neutral,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt at the terminal is for this process, which then ends the others
        )
    assert keeper.stdin is not None, "it is a pipe"
    try:
        _wait_until_up(keeper, port, log)
        yield variables
    finally:
        keeper.stdin.close()
        keeper.wait()


def _shares(clients: int, cpus: float, gpus: float) -> str:
    """Return Flower's ``--federation-config``, in which a client's cores are a whole number."""
    return (
        f"num-supernodes={clients} client-resources-num-cpus={int(cpus)} client-resources-num-gpus={float(gpus)} "
        f"init-args-num-cpus={len(os.sched_getaffinity(0))} init-args-log-to-driver=false"
    )


def _variables(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ADDRESS": "local",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's servers on the loopback interface only
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the behaviour to come; silences its notice
        # Flower starts its programs by name.
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        # Where the user's own plug-ins are found. Flower puts the app's folder before it.
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
        "PYTHONUNBUFFERED": "1",
        "no_proxy": ",".join(filter(None, ["127.0.0.1", os.environ.get("no_proxy")])),
    }


def _program(name: str) -> str:
    """Find one of Flower's programs, beside this interpreter or on the path."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if path is None:
        raise RunError(f"Expected Flower's program {name} on the path, got none; try --engine ray.")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(keeper: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if keeper.poll() is not None:
            raise RunError(f"Flower's SuperLink did not start: {_last_line(log.read_text())}; try --engine ray.")
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            if keeper.poll() is None:  # else another program listens there
                return
        time.sleep(0.1)
    raise RunError(f"Flower's SuperLink did not start within {_START_S:.0f} s; try --engine ray.")


def _run_and_follow(folder: Path, options: list[str], variables: dict[str, str]) -> tuple[str, str]:
    """Submit the app and wait for its end, passing on its progress; return the run's id and the whole output."""
    output, run_id = [], None
    with _flwr(["run", str(folder / "app"), *options, "--stream"], folder, variables) as flwr:
        assert flwr.stdout is not None, "it is a pipe"
        late = threading.Timer(_SUBMIT_S, flwr.kill)
        late.start()
        try:
            for line in flwr.stdout:
                output.append(line)
                if run_id is None and (started := _STARTED.search(line)):
                    run_id = started[1]
                    late.cancel()
                elif _PROGRESS.match(line):
                    print(line, end="", file=sys.stderr)
        except KeyboardInterrupt:
            if run_id is not None:  # on a server that outlives this process, the run would go on
                with _flwr(["stop", run_id], folder, variables) as stopping:
                    stopping.wait()
            raise
        finally:
            late.cancel()
    if run_id is None:
        why = " ".join(_COLOUR_OR_FRAME.sub("", "".join(output)).split()).removeprefix("Error ")
        raise RunError(f"Flower did not take the app: {why or f'no answer within {_SUBMIT_S:.0f} s'}")
    return run_id, "".join(output)


def _status(run_id: str, folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """Return the run's entry in ``flwr ls`` once it has ended; stream and exit code do not show its status."""
    while True:
        with _flwr(["ls", "--run-id", run_id, "--format", "json"], folder, variables) as flwr:
            output, _ = flwr.communicate()
        try:
            entry = json.loads(output)["runs"][0]
        except (ValueError, LookupError):
            raise RunError(f"Flower's SuperLink was lost during run {run_id}; --resume the run") from None
        if entry["status"].startswith("finished"):
            return entry
        time.sleep(_POLL_S)


@contextmanager
def _flwr(arguments: list[str], folder: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [_program("flwr"), *arguments],
        cwd=folder / "neutral",
        env={**variables, "COLUMNS": "1000"},  # so that its error messages stay on one line
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as flwr:
        try:
            yield flwr
        finally:
            flwr.kill()


def _reason(out: Path, status: dict[str, str], output: str) -> str:
    """Return why a run failed, in one line: the reason from the server app, else the one from Flower."""
    written = out / "failure.txt"
    if written.exists() and (lines := written.read_text(encoding="utf-8").splitlines()):
        return lines[0]
    (out / "flower.log").write_text(output, encoding="utf-8")
    reason = status["status-details"].removeprefix(_APP_RAISED).partition("\n")[0]
    if reason in ("", "N/A", _APP_SAYS_NOTHING):
        reason = _last_line(output)
    return f"{reason} (Flower: {status['status']}; all it said is in {out / 'flower.log'})"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in _COLOUR_OR_FRAME.sub("", text).splitlines()]
    return next((line for line in reversed(lines) if line), "it said nothing")


# --- the keeper: a process of its own, so that nothing outlives this one, however it ends ---------------------------
def _keep(command: list[str]) -> None:
    """Run a command until standard input closes, because its owner is done or dead; then kill all processes it started.

    They are not asked to end: Flower's engine, in its main thread, would first wait for the run to be over.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # an orphan becomes a child of this process
    kept = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while kept.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    while family := _descendants():
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _descendants() -> set[int]:
    """List all descendants of this process, also those that have ended and were not waited for."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {os.getpid()}


if __name__ == "__main__":
    _keep(sys.argv[1:])


# --- a federation of real sites ---


def check_federation(experiment: Experiment) -> FederationLayout:
    """Check that an experiment fits its federation, and return the federation's layout.

    Raises:
        InputError: the numbers of clients and sites differ, or there is an audit, whose truth no site gives away.
        RunError: the server is not running.
    """
    assert experiment.federation is not None, "asked of no other"
    layout = FederationLayout.read(experiment.federation)
    expected = f"clients={layout.clients}, the sites of {experiment.federation}"
    require(experiment.clients == layout.clients, expected, clients=experiment.clients)
    if experiment.attacks:
        raise InputError(
            "Expected --attack none with --federation, since no truth leaves a site to be compared with, got "
            f"{' '.join(experiment.attacks)}; audit a simulation, or let each site rehearse."
        )
    if not processes.listens(layout.control[1], layout.control_port):
        raise RunError(f"Expected the federation's server at work, got none; python -m flfw.deploy up {layout.folder}")
    return layout


def run_in_federation(experiment: Experiment) -> None:
    """Run the app until it ends.

    Raises:
        RunError: Flower refused the app, or the run did not complete; the message is one line.
    """
    layout = check_federation(experiment)
    with tempfile.TemporaryDirectory(prefix="flfw-flwr-") as name:
        folder = Path(name).resolve()
        variables = environment(layout.superlink / "home") | {"TMPDIR": str(folder)}  # for flwr, which may be killed
        # The bundle is the code alone, so that a site can know it by its hash; the configuration is a separate file.
        (folder / "run.toml").write_text(toml_lines(experiment.to_run_config()))
        options = ["--run-config", str(folder / "run.toml")]
        complete(Experiment().to_run_config(), folder, options, variables, experiment.folder)


def bundle() -> bytes:
    """Build Flower's app bundle of the installed code; the same code gives the same bytes on every machine."""
    from flwr.cli.build import build_fab_from_disk

    with tempfile.TemporaryDirectory(prefix="flfw-app-") as name:
        write_bundle(Path(name), Experiment().to_run_config())
        return build_fab_from_disk(Path(name))


def bundle_hash() -> str:
    """Return the SHA-256 of `bundle`, by which a site's policy accepts it."""
    return hashlib.sha256(bundle()).hexdigest()
