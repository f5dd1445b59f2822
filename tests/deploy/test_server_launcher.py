"""Launcher of the server: a database that is locked for a while, as by a slow disk, and one that stays locked."""

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from flwr.supercore import sql_mixin

from flfw.deploy import server_launcher
from flfw.engines import processes
from flfw.engines.layout import FederationLayout
from tests.support.sites_at_work import COMMON, SITES, at_work, deploy, made, result, run

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, when it builds

FLOWERS_OWN_S = 5
SMALL = ("--set", "sampled.train=50")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A database in which nobody else can write."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def test_the_database_is_waited_for_longer_than_flower_does(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(sql_mixin.SQLITE_PRAGMAS)  # pyright: ignore[reportPrivateImportUsage] it is Flower's own name there
    assert known["busy_timeout"] == str(1000 * FLOWERS_OWN_S)
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", tuple(known.items()))
    server_launcher.wait_for_database()
    changed = dict(sql_mixin.SQLITE_PRAGMAS)  # pyright: ignore[reportPrivateImportUsage]
    assert changed == known | {"busy_timeout": "25000"}


@pytest.mark.slow
def test_a_server_ends_with_the_process_that_starts_its_apps() -> None:
    program = """
import subprocess, sys, time
from flfw.deploy import server_launcher

class Lifespan:
    def _start_superexec_if_needed(self):
        self.superexec_process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

server_launcher.end_with_executor(Lifespan)
Lifespan()._start_superexec_if_needed()
time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    message = "flfw.deploy.server_launcher: the executor ended with 3, and so does the server\n"
    assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.nightly
def test_a_federation_outlasts_a_database_that_is_locked_for_a_while(tmp_path: Path) -> None:
    layout = made(tmp_path / "federation", "--methods", "fedavg")
    database, flags = layout.superlink / "superlink.db", ("--method", "fedavg", "--net", "lenet", *COMMON, *SMALL)
    with at_work(layout):
        before = ids(layout)
        with locked(database):
            time.sleep(4 * FLOWERS_OWN_S)
        slow = threading.Timer(12, hold, args=(database, 2 * FLOWERS_OWN_S))
        slow.start()
        run(layout, tmp_path / "run", "--rounds", "12", *flags)
        slow.join()
        rounds = result(tmp_path / "run")["rounds"]
        assert len(rounds) == 12 and all(row["failed"] == [] for row in rounds)
        assert ids(layout) == before and None not in before

        with locked(database):  # for good, as after a damage: the server ends rather than start no run any more
            deadline = time.monotonic() + 120
            while processes.alive(layout.superlink, "superlink") is not None:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert "the executor ended with" in processes.last_line(layout.superlink, "superlink")
        deploy("up", str(layout.folder))
        run(layout, tmp_path / "again", "--rounds", "1", *flags)
        assert ids(layout)[1:] == before[1:]


def hold(database: Path, seconds: float) -> None:
    with locked(database):
        time.sleep(seconds)


def ids(layout: FederationLayout) -> list[int | None]:
    """The processes of a federation: the server, then the sites."""
    sites = [processes.alive(layout.site(number), "supernode") for number in range(SITES)]
    return [processes.alive(layout.superlink, "superlink"), *sites]
