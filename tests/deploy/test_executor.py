"""A site's executor: what a fork has of its parent and what not, and who may ask it for messages."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

import flfw
from flfw.deploy import executor

ROOT = Path(flfw.__file__).parent.parent
FORKS = """
import os, signal, sys
import numpy as np, torch
from flwr.supercore.exit import add_exit_handler, exit_handler
from flfw.deploy.executor import become_fresh
np.random.seed(0), torch.manual_seed(0)
signal.signal(signal.SIGTERM, lambda *_: None)
add_exit_handler(lambda: print("the parent's"))
sys.path.insert(0, sys.argv[1])
for _ in range(2):
    if not os.fork():
        {fresh}
        import flfw
        print(np.random.random(), torch.rand(1).item(), flfw.__file__, sys.argv[0],
              signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, len(exit_handler.registered_exit_handlers))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


TRAINS = """
import sys
from pathlib import Path
from flfw.deploy.executor import import_libraries
import_libraries()
from flfw.experiment import Experiment
from tests.support.method_rounds import initial_tensors, make_client
experiment = Experiment(method=sys.argv[1], clients=2, net="lenet", local_epochs=1, image_size=8, split="iid")
received, before = initial_tensors(experiment), set(sys.modules)
make_client(experiment, 0, Path(sys.argv[2])).fit_named(received, version=0)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def forks(other: Path, fresh: str) -> list[list[str]]:
    """What two forks of one process say, in a folder with another package of the project's name."""
    (other / "flfw").mkdir(exist_ok=True)
    (other / "flfw" / "__init__.py").write_text("")
    words = [sys.executable, "-c", FORKS.format(fresh=fresh), str(other)]
    message = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100).stdout
    one, two = (line.split() for line in message.splitlines())
    return [one, two]


@pytest.mark.slow
def test_forks_draw_anew_and_import_the_apps_own_code(tmp_path: Path) -> None:
    one, two = forks(tmp_path, "become_fresh()")
    for drawn, again in zip(one[:2], two[:2], strict=True):
        assert drawn != again
    for message in (one, two):
        assert message[2:] == [str(tmp_path / "flfw" / "__init__.py"), "flwr-clientapp", "True", "0"]


@pytest.mark.slow
def test_without_it_they_would_not(tmp_path: Path) -> None:
    one, two = forks(tmp_path, "pass")
    assert one == two
    assert one[2:] == [flfw.__file__, "-c", "False", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fed_cdp"])
def test_training_imports_no_library_that_the_fork_does_not_have(method: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", TRAINS, method, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=100)
    assert set(done.stdout.split()) <= {"flfw"}


def test_a_site_is_asked_for_client_apps_alone() -> None:
    assert executor.ForkingExecutor(1).get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())


def spec(task_id: int) -> ExecutionSpec:
    return ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:1", "token", True, None, False, None, False, task_id)


def test_of_forks_those_that_fail_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = executor.CrashReports()
    forking = executor.ForkingExecutor(deaths.write)
    ends = {7: lambda: os._exit(0), 8: lambda: os._exit(3), 9: lambda: os.kill(os.getpid(), signal.SIGKILL)}
    monkeypatch.setattr(executor, "_answer", lambda spec: ends[spec.task_id]())
    for task_id in ends:
        assert forking.launch(spec(task_id)).status == "accepted"
    result: list[int] = []
    deadline = time.monotonic() + 120
    while len(result) < 2 and time.monotonic() < deadline:
        forking.reconcile()
        result += deaths.since()
        time.sleep(0.05)
    assert sorted(result) == [8, 9]
    forking.reconcile()
    assert deaths.since() == []
    os.write(deaths.write, b"1\n2")  # a line that is still being written
    assert deaths.since() == [1]
    os.write(deaths.write, b"3\n")
    assert deaths.since() == [23]


BESIDE = """
import sys, time
from flfw.deploy.executor import CrashReports, beside
print(*beside(sys.argv[1:], CrashReports()), flush=True)
time.sleep(60)
"""


def site(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BESIDE, *arguments],
        cwd=ROOT,
        env={**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ends(pid: int, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_only_who_knows_the_secret_is_given_messages(tmp_path: Path) -> None:
    file = tmp_path / "executor.secret"
    file.write_bytes(b"of an earlier start")
    with site(tmp_path, "--host", "127.0.0.1", "--port", "29") as running:
        try:
            assert running.stdout is not None
            given = running.stdout.readline().split()
            (child,) = children(running.pid)
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        finally:
            running.kill()
    assert ends(child)  # with its site
    authorised = ["--superexec-auth-secret-file", str(file)]
    assert given == ["--host", "127.0.0.1", "--port", "29", "--isolation", "process", *authorised]
    address = ["--runtime-api-address", "127.0.0.1:29", "--insecure"]
    assert words[1:3] == ["-m", "flfw.deploy.executor"] and words[3].isdecimal()
    assert words[4:9] == [*address, *authorised]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(file.read_bytes()) == 32


@pytest.mark.slow
def test_a_site_whose_executor_dies_ends_too(tmp_path: Path) -> None:
    with site(tmp_path, "--port", "29") as running:
        try:
            assert running.stdout is not None and running.stderr is not None
            running.stdout.readline()
            (child,) = children(running.pid)
            os.kill(child, signal.SIGKILL)
            assert running.wait(timeout=120) == 1
            assert running.stderr.read().endswith("flfw.deploy.executor: ended with -9, and so does the site\n")
        finally:
            running.kill()


def test_whoever_isolates_apps_otherwise_sees_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    arguments = ["--port", "29", "--isolation", "subprocess"]
    assert executor.beside(arguments, executor.CrashReports()) == arguments
    assert not any(tmp_path.iterdir())
